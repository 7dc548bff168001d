//! What the core remembers of sessions and turns.

mod closed;
mod slab;

use std::sync::Arc;

pub(crate) use closed::{ClosedTurns, Ending};
pub(crate) use slab::Slab;

use crate::admission::line::Place;
use crate::index::Cursor;
use crate::record::codec::{Reader, Record, Taken, record};
use crate::router::types::{Reason, Receipt, Status};
use crate::units::{MAX_SEQUENCE_TOKENS, Nanos};

/// One rollout. Charged on `home` while RUNNING (turns placed) or IDLE; without a home it is QUEUED (never admitted) or PAUSED.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: Arc<str>,
    pub(crate) workload: u32,
    /// The caller's namespace; with the salt of the moment it names the root.
    pub(crate) namespace: Arc<str>,
    pub(crate) root: Arc<str>,
    /// The caller named no session: it ends with its only turn, or, where sessions are inferred, when nothing of it is left.
    pub(crate) single_turn: bool,
    /// The session that waits for this one, by name: it may have ended.
    pub(crate) parent: Option<Arc<str>>,
    /// Who answers for it.
    pub(crate) owner: Option<Arc<str>>,
    /// It was admitted while its parent lived: it counts in no cap of sessions.
    pub(crate) member: bool,
    /// Replica on which the session is charged.
    pub(crate) home: Option<u32>,
    /// Where the full blocks of the history end. Anchored.
    pub(crate) trunk: Cursor,
    /// Raw ids of the known history after the trunk; fewer than one block.
    pub(crate) tail: Vec<u32>,
    /// Tokens of history (H).
    pub(crate) history_tokens: u64,
    /// Tokens of it whose ids are known (K).
    pub(crate) known_tokens: u64,
    /// Submit order of the turn whose end is the trunk.
    pub(crate) trunk_seq: u64,
    /// What is claimed of the trunk on `home`: all of it, or what the engine still holds. `None` while an open turn claims instead.
    pub(crate) claimed: Option<Cursor>,
    /// The sessions before and after it among those whose claims end in the same run.
    pub(crate) beside: (u32, u32),
    /// Order of the first admission; the session keeps this place when it is paused.
    pub(crate) admitted: Option<u64>,
    /// Prompt at the first admission, lowered when the path shrinks below it: growth counts from here.
    pub(crate) base_tokens: u64,
    /// L of phi, frozen at the session's own last event.
    pub(crate) growth_limit: u64,
    /// Blocks by which the session's expected peak exceeds what is there, as counted in the commit of `home`.
    pub(crate) headroom: u64,
    /// Open turns, held ones included, in submit order.
    pub(crate) open: Vec<u32>,
    /// Those of them that are placed.
    pub(crate) running: u32,
    /// Since when no turn runs.
    pub(crate) idle_since: Nanos,
    pub(crate) last_activity: Nanos,
    /// Weights epoch of `home` at the last completion; when it is older than the replica's, a move is free.
    pub(crate) weights_epoch: u32,
    pub(crate) meter: Meter,
    pub(crate) turns_completed: u64,
    /// How long it is expected to be idle after its last turn, until the next one comes.
    pub(crate) gap: Option<Nanos>,
    /// Output that is expected of its next turn.
    pub(crate) expected_tokens: Option<u64>,
    /// Priority of its turns that name none.
    pub(crate) priority: i32,
    /// The place that an aborted turn left to the next one.
    pub(crate) kept: Option<Kept>,
}

/// What a turn that was aborted to come back leaves to its next attempt.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) turn: Arc<str>,
    /// Since when it waits, see [`Turn::since`].
    pub(crate) since: u64,
    /// The replica that failed it.
    pub(crate) avoid: Option<u32>,
}

/// Residency of a session so far, for the estimators.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Meter {
    /// Until when it is counted.
    pub(crate) at: Nanos,
    /// Blocks that the session's own events added to the charge.
    pub(crate) added_blocks: u64,
    /// Integral of those over the time charged, block ns.
    pub(crate) block_ns: u128,
    /// Time charged.
    pub(crate) charged_ns: u64,
    /// The part of it with a turn that runs.
    pub(crate) active_ns: u64,
    /// The integrals at the last completion: residency ends there, not at the idle timeout.
    pub(crate) block_ns_completed: u128,
    /// See `block_ns_completed`.
    pub(crate) charged_ns_completed: u64,
    /// See `block_ns_completed`.
    pub(crate) active_ns_completed: u64,
}

impl Session {
    pub(crate) fn is_idle(&self) -> bool {
        self.home.is_some() && self.running == 0
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.home.is_none() && self.admitted.is_some()
    }

    /// Counts the time since the last call at the present charge.
    pub(crate) fn run_meter(&mut self, now: Nanos) {
        let elapsed = now.saturating_sub(self.meter.at);
        self.meter.at = now;
        if self.home.is_some() {
            self.meter.block_ns += u128::from(self.meter.added_blocks) * u128::from(elapsed);
            self.meter.charged_ns += elapsed;
            self.meter.active_ns += if self.running > 0 { elapsed } else { 0 };
        }
    }
}

/// One generate request.
#[derive(Debug)]
pub(crate) struct Turn {
    pub(crate) id: Arc<str>,
    pub(crate) attempt: u32,
    /// Submit order.
    pub(crate) seq: u64,
    /// Submit order of what it waits for: its own, that of an attempt whose place it took, or of the first of its group.
    pub(crate) since: u64,
    pub(crate) session: u32,
    pub(crate) workload: u32,
    /// End of the full blocks of the prompt. Anchored.
    pub(crate) cursor: Cursor,
    /// Raw ids after the cursor.
    pub(crate) tail: Vec<u32>,
    pub(crate) prompt_tokens: u64,
    /// Tokens of the prompt whose ids are known.
    pub(crate) known_tokens: u64,
    pub(crate) max_new_tokens: Option<u64>,
    pub(crate) samples: u32,
    /// Output that its caller expects, of each sample.
    pub(crate) expected_tokens: Option<u64>,
    pub(crate) priority: i32,
    /// The group that it belongs to.
    pub(crate) group: Option<u32>,
    /// Replicas that may serve it; `None` = all.
    pub(crate) candidates: Option<Vec<u32>>,
    /// Replicas that serve it only where no other may: what its caller named, and that of an earlier attempt.
    pub(crate) avoid: Vec<u32>,
    /// Seconds added to the placement cost, by replica.
    pub(crate) bias: Vec<(u32, f64)>,
    pub(crate) deadline: Option<Nanos>,
    pub(crate) submitted_at: Nanos,
    pub(crate) last_event: Nanos,
    pub(crate) state: TurnState,
    pub(crate) verdict: Verdict,
}

/// Where a turn stands.
#[derive(Debug, Clone, Copy)]
pub(crate) enum TurnState {
    /// In the line.
    Held {
        /// Its key there.
        place: Place,
        /// Blocks that were admitted past it since it blocked for room.
        bypassed: u64,
        /// What stood in its way when it was tried last.
        tried: Tried,
    },
    /// Running.
    Placed(Placement),
}

/// The last attempt to place a held turn.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tried {
    /// Number of the pump; 0 = never.
    pub(crate) pump: u64,
    /// The replica that came closest, where there was any.
    pub(crate) closest: Option<Closest>,
}

/// How close a replica came to taking a turn: the larger, the closer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Closest {
    /// Rules that it passed.
    pub(crate) passed: u8,
    /// Blocks that were missing; of two that miss as many the lower slot counts as closer.
    pub(crate) missing: std::cmp::Reverse<(u64, u32)>,
}

impl Closest {
    pub(crate) fn replica(self) -> u32 {
        self.missing.0.1
    }
}

impl Turn {
    /// Tokens that its output is reserved with, all samples together, where the policy reserves `limit` of a turn that says nothing.
    pub(crate) fn reserved_tokens(&self, limit: u64) -> u64 {
        let expected = if limit > 0 { self.expected_tokens.unwrap_or(limit) } else { 0 };
        u64::from(self.samples).saturating_mul(self.max_new_tokens.map_or(expected, |max| max.min(expected))).min(MAX_SEQUENCE_TOKENS)
    }

    /// Blocks of an output of so many tokens: the samples have their own, alike in length as far as anybody knows.
    pub(crate) fn output_blocks(&self, tokens: u64, block_tokens: u64) -> u64 {
        let samples = u64::from(self.samples);
        tokens.div_ceil(samples).div_ceil(block_tokens) * samples
    }
}

/// A running turn's part in the books.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placement {
    pub(crate) replica: u32,
    /// Residency epoch of the replica at placement; `None` when the index had no room to mark the path.
    pub(crate) residency_epoch: Option<u32>,
    /// The first token was reported.
    pub(crate) started: bool,
    /// Output so far as reported, else as reserved.
    pub(crate) output_tokens: u64,
    /// Blocks charged for that output.
    pub(crate) output_blocks: u64,
    /// Whether `output_tokens` is a report.
    pub(crate) reported: bool,
}

/// What was decided last about a turn, in slots; names are filled in when a decision leaves the core.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Verdict {
    pub(crate) status: Status,
    pub(crate) replica: Option<u32>,
    pub(crate) cached_tokens: u64,
    pub(crate) alternatives: [Option<u32>; 3],
    pub(crate) reason: Reason,
    pub(crate) receipt: Receipt,
}

record!(Session {
    id,
    workload,
    namespace,
    root,
    single_turn,
    parent,
    owner,
    member,
    home,
    trunk,
    tail,
    history_tokens,
    known_tokens,
    trunk_seq,
    claimed,
    beside,
    admitted,
    base_tokens,
    growth_limit,
    headroom,
    open,
    running,
    idle_since,
    last_activity,
    weights_epoch,
    meter,
    turns_completed,
    gap,
    expected_tokens,
    priority,
    kept
});
record!(Kept { turn, since, avoid });
record!(Meter { at, added_blocks, block_ns, charged_ns, active_ns, block_ns_completed, charged_ns_completed, active_ns_completed });
record!(Turn {
    id,
    attempt,
    seq,
    since,
    session,
    workload,
    cursor,
    tail,
    prompt_tokens,
    known_tokens,
    max_new_tokens,
    samples,
    expected_tokens,
    priority,
    group,
    candidates,
    avoid,
    bias,
    deadline,
    submitted_at,
    last_event,
    state,
    verdict
});
record!(Tried { pump, closest });
record!(Closest { passed, missing });
record!(Placement { replica, residency_epoch, started, output_tokens, output_blocks, reported });
record!(Verdict { status, replica, cached_tokens, alternatives, reason, receipt });

impl Record for TurnState {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Held { place, bypassed, tried } => {
                to.push(0);
                place.put(to);
                bypassed.put(to);
                tried.put(to);
            }
            Self::Placed(placement) => {
                to.push(1);
                placement.put(to);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Ok(if bool::take(from)? {
            Self::Placed(Record::take(from)?)
        } else {
            Self::Held { place: Record::take(from)?, bypassed: Record::take(from)?, tried: Record::take(from)? }
        })
    }
}
