"""Every metric of `/metrics`: name, kind, labels, meaning. The collector, the docs and their test follow it."""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

Kind = Literal["gauge", "counter", "histogram"]


class Metric(NamedTuple):
    """One metric.

    Attributes:
        name: Its name, as it is scraped; of a histogram without `_bucket`, `_sum` and `_count`.
        kind: Prometheus type.
        labels: Names of its labels. None of them holds what callers choose freely: no session, no turn.
        says: What it is.
    """

    name: str
    kind: Kind
    labels: tuple[str, ...]
    says: str


REPLICA: Final = ("replica",)
WORKLOAD: Final = ("workload",)

REPLICA_COLUMNS: Final = {
    "kv_tokens": Metric("turnout_kv_tokens", "gauge", REPLICA, "KV capacity, tokens; +Inf = unknown."),
    "charge_tokens": Metric(
        "turnout_charge_tokens", "gauge", REPLICA, "Tokens held by admitted sessions, a shared prefix once."
    ),
    "commit_tokens": Metric("turnout_commit_tokens", "gauge", REPLICA, "The charge with every session's growth added."),
    "idle_tokens": Metric("turnout_idle_tokens", "gauge", REPLICA, "What reclaiming all idle sessions would free."),
    "expired_tokens": Metric("turnout_expired_tokens", "gauge", REPLICA, "The idle tokens whose lease is over."),
    "resident_tokens": Metric(
        "turnout_resident_tokens", "gauge", REPLICA, "Tokens judged to be in the engine's cache."
    ),
    "backlog_tokens": Metric(
        "turnout_backlog_tokens", "gauge", REPLICA, "Uncached prompt tokens of turns without a first token."
    ),
    "running_turns": Metric("turnout_running_turns", "gauge", REPLICA, "Turns placed and not ended."),
    "accepting": Metric("turnout_accepting", "gauge", REPLICA, "1 = takes new sessions."),
    "exact": Metric("turnout_feed_exact", "gauge", REPLICA, "1 = cache events alone say what the engine holds."),
    "stalled": Metric("turnout_stalled", "gauge", REPLICA, "1 = nothing is charged there and somebody waits."),
    "weight_version": Metric("turnout_weight_version", "gauge", REPLICA, "Version of the weights; -1 = unknown."),
    "hit_fraction": Metric(
        "turnout_hit_fraction",
        "gauge",
        REPLICA,
        "Share of the forecast cached tokens that was found, faded; no row before a report.",
    ),
    "forecast_tokens": Metric(
        "turnout_hit_forecast_tokens_total",
        "counter",
        REPLICA,
        "Tokens that continuations were forecast to find cached.",
    ),
    "missing_tokens": Metric(
        "turnout_hit_missing_tokens_total", "counter", REPLICA, "Those of them that were not there: the hit shortfall."
    ),
    "decode_tokens_per_s": Metric(
        "turnout_decode_tokens_per_second", "gauge", REPLICA, "Output tokens of completed turns per second, faded."
    ),
    "engine_kv_fraction": Metric(
        "turnout_engine_kv_ratio", "gauge", REPLICA, "KV in use by the engine's own count, 0..1."
    ),
    "engine_running": Metric("turnout_engine_running_requests", "gauge", REPLICA, "Requests that run in the engine."),
    "engine_waiting": Metric("turnout_engine_waiting_requests", "gauge", REPLICA, "Requests that wait in the engine."),
}
"""Columns of the view, one row per replica."""

WORKLOAD_COLUMNS: Final = {
    "held_tokens": Metric("turnout_held_tokens", "gauge", WORKLOAD, "Need of the turns that wait, tokens."),
    "oldest_hold_s": Metric(
        "turnout_oldest_hold_seconds", "gauge", WORKLOAD, "Age of the turn that has waited longest."
    ),
    "committed_tokens": Metric(
        "turnout_committed_tokens", "gauge", WORKLOAD, "Commit of the workload on all replicas."
    ),
    "guaranteed_tokens": Metric("turnout_guaranteed_tokens", "gauge", WORKLOAD, "Its guarantee in force, tokens."),
    "target": Metric(
        "turnout_mixture_target_ratio", "gauge", WORKLOAD, "Wanted share of finished sessions; no row = unset."
    ),
    "finished": Metric("turnout_finished_sessions_total", "counter", WORKLOAD, "Completed sessions."),
    "pauses": Metric("turnout_pauses_total", "counter", WORKLOAD, "Sessions reclaimed while idle."),
    "moves": Metric("turnout_moves_total", "counter", WORKLOAD, "Sessions that changed their replica."),
    "forced": Metric("turnout_forced_turns_total", "counter", WORKLOAD, "Turns placed against a limit."),
}
"""Columns of the view, one row per workload."""

COUNTS: Final = {
    "submitted": Metric("turnout_submitted_turns_total", "counter", (), "Turns submitted."),
    "completed": Metric("turnout_completed_turns_total", "counter", (), "Turns completed."),
    "aborted": Metric("turnout_aborted_turns_total", "counter", (), "Turns aborted."),
    "lost_tokens": Metric(
        "turnout_lost_tokens_total", "counter", (), "Tokens that idle sessions lost to the engine's eviction."
    ),
    "sessions_dropped": Metric("turnout_dropped_sessions_total", "counter", (), "Sessions ended without completion."),
    "owners_lost": Metric(
        "turnout_lost_owners_total", "counter", (), "Callers that fell silent with sessions of theirs."
    ),
    "edited": Metric(
        "turnout_edited_prompts_total", "counter", (), "Prompts whose earlier tokens differ from the history."
    ),
    "mismatches": Metric("turnout_refused_appends_total", "counter", (), "Appends that did not fit the history."),
    "surprises": Metric(
        "turnout_surprising_turns_total", "counter", (), "Turns that found clearly less cached than forecast."
    ),
    "late": Metric("turnout_late_events_total", "counter", (), "Ends of turns that had been given up."),
    "unknown": Metric("turnout_unknown_events_total", "counter", (), "Ends of turns and sessions that nobody knows."),
    "clock_clamped": Metric(
        "turnout_clamped_events_total", "counter", (), "Events whose time lay before the last one's."
    ),
    "index_full": Metric(
        "turnout_unindexed_prompts_total", "counter", (), "Prompts charged by count: the index is full."
    ),
    "open_turns": Metric("turnout_open_turns", "gauge", (), "Turns held or placed."),
    "held_turns": Metric("turnout_held_turns", "gauge", (), "Turns in the line."),
    "live_sessions": Metric("turnout_live_sessions", "gauge", (), "Sessions known."),
    "index_blocks": Metric("turnout_index_blocks", "gauge", (), "Blocks in the prefix index."),
    "index_bytes": Metric("turnout_index_bytes", "gauge", (), "Memory of the prefix index."),
}
"""Counters and sizes of the router; a restart with a state goes on counting."""

ENGINE_VALUES: Final = {
    "seen_s": Metric("turnout_engine_seen_seconds", "gauge", REPLICA, "Time since the engine's last sign of life."),
    "metrics_age_s": Metric("turnout_engine_metrics_age_seconds", "gauge", REPLICA, "Age of the engine's own numbers."),
    "deaths": Metric("turnout_engine_deaths_total", "counter", REPLICA, "Times that the engine was lost."),
    "restarts": Metric("turnout_engine_restarts_total", "counter", REPLICA, "Times that it was found restarted."),
}
"""What the feeds say of an engine."""

RANK_SUMS: Final = {
    "batches": Metric("turnout_feed_batches_total", "counter", REPLICA, "Batches of cache events applied."),
    "gaps": Metric("turnout_feed_gaps_total", "counter", REPLICA, "Times that batches were missing."),
    "replayed": Metric("turnout_feed_replayed_batches_total", "counter", REPLICA, "Batches that came by replay."),
    "resets": Metric(
        "turnout_feed_resets_total", "counter", REPLICA, "Times that a feed began anew, its past unknown."
    ),
    "unreadable": Metric("turnout_feed_unreadable_total", "counter", REPLICA, "Messages that could not be read."),
}
"""What the feeds say of its ranks, summed."""

OTHERS: Final = (
    Metric("turnout_ceiling_tokens", "gauge", REPLICA, "What commits may fill, by the limits in force."),
    Metric("turnout_sessions", "gauge", ("replica", "workload", "status"), "Charged sessions, `running` or `idle`."),
    Metric("turnout_paused_sessions", "gauge", WORKLOAD, "Sessions that gave up their KV and kept their place."),
    Metric("turnout_held_sessions", "gauge", ("workload", "status"), "Sessions that wait, `new` or `paused`."),
    Metric("turnout_mixture_finished_ratio", "gauge", WORKLOAD, "Share of finished sessions; no row before the first."),
    Metric(
        "turnout_mixture_distance_ratio",
        "gauge",
        (),
        "Half the sum of |share - target|, 0..1: how far the mixture is off.",
    ),
    Metric("turnout_engine_status", "gauge", ("replica", "status"), "1 = the engine is in this state (docs/feeds.md)."),
    Metric("turnout_feed_status", "gauge", ("replica", "status"), "1 = its cache events are in this state."),
    Metric(
        "turnout_feed_lag_seconds", "gauge", REPLICA, "Time since the last batch, of the rank that is furthest behind."
    ),
    Metric(
        "turnout_hit_shortfall_ratio", "gauge", REPLICA, "Share of forecast tokens missing, latest 256 continuations."
    ),
    Metric("turnout_hit_shortfall_alert", "gauge", REPLICA, "1 = the books are wrong; the status page says the cause."),
    Metric(
        "turnout_decisions_total", "counter", ("status", "reason"), "Decisions of this process, by outcome and reason."
    ),
    Metric("turnout_hold_seconds", "histogram", WORKLOAD, "Time that turns waited before they were decided."),
    Metric(
        "turnout_decision_seconds", "histogram", ("endpoint",), "Time that the router took per operation, no waiting."
    ),
    Metric("turnout_http_requests_total", "counter", ("endpoint", "status"), "Answers over HTTP, by route."),
    Metric("turnout_proxy_events_total", "counter", ("event",), "What became of requests to engines (docs/proxy.md)."),
    Metric("turnout_policy_steps_total", "counter", (), "Control steps taken."),
    Metric("turnout_policy_errors_total", "counter", (), "Control steps at which the policy failed."),
    Metric("turnout_policy_step_seconds", "gauge", (), "How long the latest control step took."),
    Metric("turnout_journal_bytes", "gauge", (), "Size of the journal; no row without a state."),
    Metric("turnout_journal_rotations_total", "counter", (), "Times that it began anew with a snapshot."),
    Metric("turnout_journal_errors_total", "counter", (), "Times that the disk failed."),
    Metric("turnout_journal_kept", "gauge", (), "1 = it is kept; 0 = the disk fails, and a restart would forget."),
    Metric("turnout_build_info", "gauge", ("version", "kernel"), "1; which build this is."),
)

TABLE: Final = (
    *REPLICA_COLUMNS.values(),
    *WORKLOAD_COLUMNS.values(),
    *COUNTS.values(),
    *ENGINE_VALUES.values(),
    *RANK_SUMS.values(),
    *OTHERS,
)
"""All of them. What the process itself uses (`process_*`) comes from prometheus-client beside it."""
