//! What the router counts.

use crate::record::codec::record;

/// Counters since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each name says what is counted")]
pub struct Stats {
    pub submitted: u64,
    pub placed: u64,
    pub held: u64,
    pub rejected: u64,
    pub expired: u64,
    pub lost: u64,
    pub completed: u64,
    pub aborted: u64,
    /// Those of them that took too long, whose engine failed, and whose weights were too old.
    pub aborted_timeout: u64,
    pub aborted_error: u64,
    pub aborted_stale: u64,
    /// Aborted turns that were to come back.
    pub retries: u64,
    /// Turns that another replica served than the one they were placed on.
    pub served_elsewhere: u64,
    pub sessions_finished: u64,
    pub sessions_dropped: u64,
    pub pauses: u64,
    pub moves: u64,
    pub forced: u64,
    /// Decisions about turns that are not tracked.
    pub chosen: u64,
    /// Owners that were lost with sessions of theirs.
    pub owners_lost: u64,
    /// Prompts that did not continue their session's history: an earlier token differs.
    pub edited: u64,
    /// The same: it is a shorter part of the history.
    pub shortened: u64,
    /// The same: another namespace was named.
    pub other_namespace: u64,
    /// Appends that were refused because the history is another, or is not known to its end.
    pub mismatches: u64,
    /// Turns that ended with an output known by count only.
    pub counted_outputs: u64,
    /// Completed turns that found more than two blocks less in the cache than was forecast.
    pub surprises: u64,
    pub index_full: u64,
    pub paths_dropped: u64,
    pub lost_tokens: u64,
    pub late: u64,
    pub unknown: u64,
    pub clock_clamped: u64,
    pub open_turns: u64,
    pub held_turns: u64,
    pub live_sessions: u64,
    pub index_runs: u64,
    pub index_blocks: u64,
    pub index_bytes: u64,
}

impl Stats {
    /// Every counter with its name, in declaration order.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, u64); 38] {
        [
            ("submitted", self.submitted),
            ("placed", self.placed),
            ("held", self.held),
            ("rejected", self.rejected),
            ("expired", self.expired),
            ("lost", self.lost),
            ("completed", self.completed),
            ("aborted", self.aborted),
            ("aborted_timeout", self.aborted_timeout),
            ("aborted_error", self.aborted_error),
            ("aborted_stale", self.aborted_stale),
            ("retries", self.retries),
            ("served_elsewhere", self.served_elsewhere),
            ("sessions_finished", self.sessions_finished),
            ("sessions_dropped", self.sessions_dropped),
            ("pauses", self.pauses),
            ("moves", self.moves),
            ("forced", self.forced),
            ("chosen", self.chosen),
            ("owners_lost", self.owners_lost),
            ("edited", self.edited),
            ("shortened", self.shortened),
            ("other_namespace", self.other_namespace),
            ("mismatches", self.mismatches),
            ("counted_outputs", self.counted_outputs),
            ("surprises", self.surprises),
            ("index_full", self.index_full),
            ("paths_dropped", self.paths_dropped),
            ("lost_tokens", self.lost_tokens),
            ("late", self.late),
            ("unknown", self.unknown),
            ("clock_clamped", self.clock_clamped),
            ("open_turns", self.open_turns),
            ("held_turns", self.held_turns),
            ("live_sessions", self.live_sessions),
            ("index_runs", self.index_runs),
            ("index_blocks", self.index_blocks),
            ("index_bytes", self.index_bytes),
        ]
    }
}

record!(Stats {
    submitted,
    placed,
    held,
    rejected,
    expired,
    lost,
    completed,
    aborted,
    aborted_timeout,
    aborted_error,
    aborted_stale,
    retries,
    served_elsewhere,
    sessions_finished,
    sessions_dropped,
    pauses,
    moves,
    forced,
    chosen,
    owners_lost,
    edited,
    shortened,
    other_namespace,
    mismatches,
    counted_outputs,
    surprises,
    index_full,
    paths_dropped,
    lost_tokens,
    late,
    unknown,
    clock_clamped,
    open_turns,
    held_turns,
    live_sessions,
    index_runs,
    index_blocks,
    index_bytes
});
