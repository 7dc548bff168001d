//! Arguments and answers of the router's events.

use std::sync::Arc;

pub use super::config::{ReplicaConfig, RouterConfig, WorkloadConfig};
pub use super::stats::Stats;
use crate::prompt::Prompt;
use crate::record::codec::{Damaged, Reader, Record, Taken, record};
use crate::units::Nanos;

/// What a turn asks the engine to compute.
#[derive(Debug, Clone, Copy)]
pub enum TurnInput<'a> {
    /// The whole prompt.
    Prompt(&'a Prompt),
    /// New tokens after a history of exactly `base_tokens`.
    Append {
        /// History length that the caller assumes.
        base_tokens: u64,
        /// The new tokens.
        tokens: &'a [u32],
    },
    /// New tokens as [`Self::Append`], hashed: what they make of the partial block at the end of the history.
    Grown {
        /// History length that the caller assumes.
        base_tokens: u64,
        /// That partial block and the new tokens.
        suffix: &'a Prompt,
    },
    /// Only the prompt's length is known.
    Count {
        /// Prompt length in tokens.
        prompt_tokens: u64,
    },
}

/// A request to place a turn.
#[derive(Debug, Clone, Copy)]
pub struct Submit<'a> {
    /// The turn's id; generated when absent.
    pub turn: Option<&'a str>,
    /// Number of this attempt; a higher one aborts the earlier.
    pub attempt: u32,
    /// The session; absent = a session of this turn alone, or with `infer_sessions` one that stays.
    pub session: Option<&'a str>,
    /// The workload; absent = that of the session, else the first one.
    pub workload: Option<&'a str>,
    /// The session that waits for this one, as an agent does for its sub-agents. One that is not known is no hindrance.
    pub parent: Option<&'a str>,
    /// Model, adapter, salt: what makes equal tokens unequal caches. Absent = that of the session, else `""`.
    pub namespace: Option<&'a str>,
    /// What is asked.
    pub input: TurnInput<'a>,
    /// Upper bound of the output, of each sample.
    pub max_new_tokens: Option<u64>,
    /// Outputs that are asked for at once, at least 1: each is reserved for.
    pub samples: u32,
    /// Turns of one prompt that are wanted together: they queue where the first of them began, and [`Limits::cost_spread`] weighs
    /// what they take from each other.
    ///
    /// [`Limits::cost_spread`]: crate::control::limits::Limits::cost_spread
    pub group: Option<&'a str>,
    /// Turns that the group will have; absent = it ends when none of its turns is open.
    pub group_size: Option<u32>,
    /// Output that the caller expects, of each sample; it stands for that of its workload.
    pub expected_tokens: Option<u64>,
    /// Replicas that may serve this turn; absent = all.
    pub candidates: Option<&'a [&'a str]>,
    /// Replicas that serve it only where no other candidate does. One that is not in the fleet is avoided already.
    pub avoid: &'a [&'a str],
    /// The replica that the caller has chosen: the turn is placed there whatever the limits say, counted as forced where they say no.
    pub at: Option<&'a str>,
    /// Seconds that a caller adds to the placement cost of some replicas, or takes off it.
    pub bias: &'a [(&'a str, f64)],
    /// Who answers for the session: when it is lost, so is the session.
    pub owner: Option<&'a str>,
    /// Order among the held turns of its workload, after paused sessions before new ones: the highest first. 0 is usual, and leaves
    /// the word to the session's hint.
    pub priority: i32,
    /// `false`: never hold; place at once and count it as forced when limits say no.
    pub hold: bool,
    /// Nanoseconds after which a held turn leaves the line as expired.
    pub deadline: Option<Nanos>,
}

impl<'a> Submit<'a> {
    /// A submit with defaults.
    #[must_use]
    pub fn new(input: TurnInput<'a>) -> Self {
        Self {
            turn: None,
            attempt: 0,
            session: None,
            workload: None,
            parent: None,
            namespace: None,
            input,
            max_new_tokens: None,
            samples: 1,
            group: None,
            group_size: None,
            expected_tokens: None,
            candidates: None,
            avoid: &[],
            at: None,
            bias: &[],
            owner: None,
            priority: 0,
            hold: true,
            deadline: None,
        }
    }
}

/// What is known when a turn ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct Completion<'a> {
    /// Ids of the generated tokens, one list per sample.
    pub output: Option<&'a [&'a [u32]]>,
    /// The same, hashed: what each makes of the partial block at the end of the prompt.
    pub grown: Option<&'a [Prompt]>,
    /// Number of generated tokens, of all samples together, where ids are unknown.
    pub output_tokens: Option<u64>,
    /// Length of the prompt as the engine counted it, where that is not what was submitted.
    pub prompt_tokens: Option<u64>,
    /// Prompt tokens that the engine served from its cache.
    pub cached_tokens: Option<u64>,
    /// The replica that served the turn, where that is not the one it was placed on. One that is not in the fleet has gone since.
    pub served_by: Option<&'a str>,
    /// The sample that continues the session, of a turn with several; absent = none: the session goes on from the prompt.
    pub keep: Option<u32>,
    /// Why a turn is aborted.
    pub cause: Cause,
    /// An aborted turn is coming back: it keeps its place in the line.
    pub retry: bool,
}

/// Why a caller aborts a turn: a closed list, for counting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Cause {
    /// Nobody wants it any more.
    #[default]
    Cancelled,
    /// It took too long. A retry avoids the replica.
    Timeout,
    /// The engine failed. A retry avoids the replica.
    Error,
    /// Its weights are too old.
    Stale,
}

impl Cause {
    /// Every cause by its name.
    pub const NAMES: [(&'static str, Self); 4] =
        [("cancelled", Self::Cancelled), ("timeout", Self::Timeout), ("error", Self::Error), ("stale", Self::Stale)];
}

/// What a caller knows of a session before its next turn; what is left out stays as it was.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Hint {
    /// Nanoseconds from now, or from the end of its running turn on, until its next turn is expected.
    pub idle: Option<Nanos>,
    /// Output that is expected of its next turn.
    pub expected_tokens: Option<u64>,
    /// Priority of its turns from now on, those that wait included, where their submit names none.
    pub priority: Option<i32>,
}

/// Where a turn stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// Send it to the replica now.
    Placed,
    /// It waits in the line; it will leave by the outbox.
    Held,
    /// It can never be served like this; nothing of it is kept.
    Rejected,
    /// Its deadline passed while it was held.
    Expired,
    /// Its replica was lost while it ran.
    Lost,
}

impl Status {
    /// Its name in lower case, as Python and JSON have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Placed => "placed",
            Self::Held => "held",
            Self::Rejected => "rejected",
            Self::Expired => "expired",
            Self::Lost => "lost",
        }
    }
}

/// Why: a closed list, for counting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// Placed: its session is charged there.
    Continuation,
    /// Placed: its session was admitted.
    Admitted,
    /// Placed: its paused session was admitted again.
    Resumed,
    /// Placed: its session was moved after the replica's cache was flushed.
    Moved,
    /// Placed against a limit because the caller cannot wait.
    Forced,
    /// Chosen, not tracked: no limit was asked, and nothing is charged.
    Chosen,
    /// Held: no replica accepts (none exists, or none of its candidates).
    NoReplica,
    /// Held: the replica's charge is above its overflow.
    Overcommitted,
    /// Held: the replica is reserved for a turn that waits longer.
    Reserved,
    /// Held: running turns are at `turn_cap`.
    TurnCap,
    /// Held: sessions are at `session_cap`.
    SessionCap,
    /// Held: sessions of the workload are at `workload_cap`.
    WorkloadCap,
    /// Held: what its workload would commit on all replicas is above `limit_tokens`.
    Limit,
    /// Held: commit + need is above `ceiling_tokens`.
    Ceiling,
    /// Held: it waits behind others of its workload.
    Behind,
    /// Rejected: the prompt is larger than any replica can ever hold.
    TooLarge,
    /// Rejected: the line is full.
    LineFull,
    /// Expired: the deadline passed.
    Deadline,
    /// Lost: the replica was lost.
    ReplicaLost,
    /// Lost: nobody asked about the turn since the router was restored.
    Unconfirmed,
    /// Lost: the turn was silent for longer than `turn_ttl_s`.
    Silent,
    /// Lost: its session was ended, or its owner is gone.
    SessionEnded,
    /// Placed: another replica than the one it was sent to serves it.
    Elsewhere,
}

impl Reason {
    /// Its name in lower case, as Python and JSON have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Continuation => "continuation",
            Self::Admitted => "admitted",
            Self::Resumed => "resumed",
            Self::Moved => "moved",
            Self::Forced => "forced",
            Self::Chosen => "chosen",
            Self::NoReplica => "no_replica",
            Self::Overcommitted => "overcommitted",
            Self::Reserved => "reserved",
            Self::TurnCap => "turn_cap",
            Self::SessionCap => "session_cap",
            Self::WorkloadCap => "workload_cap",
            Self::Limit => "limit",
            Self::Ceiling => "ceiling",
            Self::Behind => "behind",
            Self::TooLarge => "too_large",
            Self::LineFull => "line_full",
            Self::Deadline => "deadline",
            Self::ReplicaLost => "replica_lost",
            Self::Unconfirmed => "unconfirmed",
            Self::Silent => "silent",
            Self::SessionEnded => "session_ended",
            Self::Elsewhere => "elsewhere",
        }
    }
}

/// The numbers behind a decision, in tokens and seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Receipt {
    /// Prompt length.
    pub prompt_tokens: u64,
    /// Longest prefix that any considered replica is judged to hold.
    pub matched_tokens: u64,
    /// Whether the whole prompt is in the index; where not, it is charged by count.
    pub indexed: bool,
    /// What the turn adds to the commit of the replica.
    pub need_tokens: u64,
    /// Charge of the replica before the decision.
    pub charge_tokens: u64,
    /// Commit of the replica before the decision.
    pub commit_tokens: u64,
    /// Value of the limit that bound (held), or of the ceiling (placed); infinite when there is none.
    pub limit: f64,
    /// Tokens of idle sessions on the replica that could be reclaimed now.
    pub reclaimable_tokens: u64,
    /// Placement cost of the chosen replica, s.
    pub cost_s: f64,
    /// Placement cost of the best other replica, s; NaN when there is none.
    pub runner_up_cost_s: f64,
    /// Step of the limits in force; -1 before the first.
    pub limits_step: i64,
}

/// The answer to a submit, and what leaves by the outbox.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// The turn.
    pub turn: Arc<str>,
    /// Its attempt.
    pub attempt: u32,
    /// Where it stands.
    pub status: Status,
    /// The replica (placed, lost), or the one that came closest (held).
    pub replica: Option<Arc<str>>,
    /// Prompt tokens judged to be in the replica's cache.
    pub cached_tokens: u64,
    /// Other replicas in order of cost, at most three.
    pub alternatives: [Option<Arc<str>>; 3],
    /// Why.
    pub reason: Reason,
    /// The numbers.
    pub receipt: Receipt,
    /// Number of the event that caused it.
    pub seq: u64,
}

/// What became of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It was applied.
    Done,
    /// It said what was known already.
    Duplicate,
    /// Its turn or session had ended before.
    Late,
    /// Its turn or session was never seen, or is forgotten.
    Unknown,
    /// Batches of cache events are missing before it; it was not applied.
    Gap {
        /// Number of the next batch that can be applied.
        expected: u64,
    },
}

impl Effect {
    /// Its name in lower case, as Python and JSON have it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Duplicate => "duplicate",
            Self::Late => "late",
            Self::Unknown => "unknown",
            Self::Gap { .. } => "gap",
        }
    }
}

/// The answer to every event but submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Number of the event: the order under the lock.
    pub seq: u64,
    /// What became of it.
    pub effect: Effect,
}

/// What an engine reports about itself; every part may be absent.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Metrics {
    /// Share of its KV blocks in use, 0 to 1.
    pub kv_fraction: Option<f64>,
    /// Requests that run.
    pub running: Option<u64>,
    /// Requests that wait inside the engine.
    pub waiting: Option<u64>,
    /// Preemptions since the engine started.
    pub preemptions_total: Option<u64>,
    /// KV capacity in tokens, where the engine knows it better than the configuration.
    pub kv_tokens: Option<f64>,
}

/// What a weight update does to a replica's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WeightsMode {
    /// The engine drops its cache.
    Flush,
    /// The cache stays and is used on.
    Keep,
    /// New turns use a new cache namespace.
    Salt,
}

record!(Status as status: Placed = 0, Held = 1, Rejected = 2, Expired = 3, Lost = 4);
record!(Reason as reason: Continuation = 0, Admitted = 1, Resumed = 2, Moved = 3, Forced = 4, Chosen = 5, NoReplica = 6, Overcommitted = 7, Reserved = 8, TurnCap = 9, SessionCap = 10, WorkloadCap = 11, Limit = 12, Ceiling = 13, Behind = 14, TooLarge = 15, LineFull = 16, Deadline = 17, ReplicaLost = 18, Unconfirmed = 19, Silent = 20, SessionEnded = 21, Elsewhere = 22);
record!(Cause as cause: Cancelled = 0, Timeout = 1, Error = 2, Stale = 3);
record!(Receipt {
    prompt_tokens,
    matched_tokens,
    indexed,
    need_tokens,
    charge_tokens,
    commit_tokens,
    limit,
    reclaimable_tokens,
    cost_s,
    runner_up_cost_s,
    limits_step
});
record!(Decision { turn, attempt, status, replica, cached_tokens, alternatives, reason, receipt, seq });
record!(Hint { idle, expected_tokens, priority });
record!(Metrics { kv_fraction, running, waiting, preemptions_total, kv_tokens });
record!(WeightsMode as weightsmode: Flush = 0, Keep = 1, Salt = 2);

record!(Outcome { seq, effect });

impl Record for Effect {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Done => to.push(0),
            Self::Duplicate => to.push(1),
            Self::Late => to.push(2),
            Self::Unknown => to.push(3),
            Self::Gap { expected } => {
                to.push(4);
                expected.put(to);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Ok(match u8::take(from)? {
            0 => Self::Done,
            1 => Self::Duplicate,
            2 => Self::Late,
            3 => Self::Unknown,
            4 => Self::Gap { expected: Record::take(from)? },
            _ => return Err(Damaged("no such effect")),
        })
    }
}
