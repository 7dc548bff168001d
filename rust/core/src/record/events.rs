//! The events of a router as values that can be written down and done again.

use super::codec::{Damaged, Reader, Record, Taken, record};
use crate::control::limits::Limits;
use crate::index::CacheEvent;
use crate::prompt::Prompt;
use crate::router::types::{Cause, Hint, Metrics, ReplicaConfig, WeightsMode};
use crate::units::Nanos;

/// Declares the events: number, name, and fields. Writing, reading and naming follow from the one list.
macro_rules! events {
    ($($number:literal $variant:ident $name:literal { $($field:ident: $type:ty),* $(,)? })*) => {
        /// One event, its names and tokens owned.
        #[derive(Debug, Clone, PartialEq)]
        pub(super) enum Event {
            $($variant { $($field: $type),* },)*
        }

        impl Event {
            /// Its name, as the calls of the router have it.
            pub(super) const fn name(&self) -> &'static str {
                match self { $(Self::$variant { .. } => $name),* }
            }
        }

        impl Record for Event {
            fn put(&self, to: &mut Vec<u8>) {
                match self {
                    $(Self::$variant { $($field),* } => {
                        to.push($number);
                        $(Record::put($field, to);)*
                    })*
                }
            }

            fn take(from: &mut Reader<'_>) -> Taken<Self> {
                Ok(match from.bytes(1)?[0] {
                    $($number => Self::$variant { $($field: Record::take(from)?),* },)*
                    _ => return Err(Damaged("no such event")),
                })
            }
        }
    };
}

events! {
    0 Tick "tick" {}
    1 Submit "submit" { request: Request }
    2 Choose "choose" { request: Request }
    3 Progress "progress" { turn: String, output_tokens: u64, served_by: Option<String> }
    4 Complete "complete" { turn: String, end: End }
    5 Abort "abort" { turn: String, end: End }
    6 Fork "fork" { session: String, child: String }
    7 EndSession "end_session" { session: String, completed: bool }
    8 OwnerLost "owner_lost" { owner: String }
    9 AddReplica "add_replica" { replica: ReplicaConfig }
    10 SetReplica "set_replica" { replica: ReplicaConfig }
    11 DrainReplica "drain_replica" { replica: String }
    12 RemoveReplica "remove_replica" { replica: String }
    13 LoseReplica "lose_replica" { replica: String }
    14 WeightsUpdated "weights_updated" { version: i64, mode: WeightsMode, replica: Option<String> }
    15 Observe "observe" { replica: String, metrics: Metrics }
    16 CacheEvents "kv_events" { replica: String, rank: i64, sequence: u64, events: Vec<CacheChange> }
    17 ResetFeed "reset_feed" { replica: String, rank: i64, next: u64 }
    18 EndFeeds "end_feeds" { replica: String }
    19 SetLimits "set_limits" { limits: Box<Limits>, step: i64 }
    20 View "view" {}
    21 Drain "drain" {}
    23 Rescan "rescan" {}
    24 Hint "hint" { session: String, hint: Hint }
    22 ExpectCallers "expect_callers" { after: Nanos }
}

/// A request to place a turn.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Request {
    pub(super) turn: Option<String>,
    pub(super) attempt: u32,
    pub(super) session: Option<String>,
    pub(super) parent: Option<String>,
    pub(super) workload: Option<String>,
    pub(super) namespace: Option<String>,
    pub(super) input: Input,
    pub(super) max_new_tokens: Option<u64>,
    pub(super) samples: u32,
    pub(super) group: Option<String>,
    pub(super) group_size: Option<u32>,
    pub(super) expected_tokens: Option<u64>,
    pub(super) priority: i32,
    pub(super) candidates: Option<Vec<String>>,
    pub(super) avoid: Vec<String>,
    pub(super) at: Option<String>,
    pub(super) bias: Vec<(String, f64)>,
    pub(super) owner: Option<String>,
    pub(super) hold: bool,
    pub(super) deadline: Option<Nanos>,
}

record!(Request {
    turn,
    attempt,
    session,
    parent,
    workload,
    namespace,
    input,
    max_new_tokens,
    samples,
    group,
    group_size,
    expected_tokens,
    priority,
    candidates,
    avoid,
    at,
    bias,
    owner,
    hold,
    deadline
});

/// What a turn asks: no token but those of partial blocks.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Input {
    /// Blocks that the session's history begins with as well, and what follows them.
    Prompt {
        known_blocks: u32,
        rest: Blocks,
    },
    Grown {
        base_tokens: u64,
        suffix: Blocks,
    },
    Count {
        prompt_tokens: u64,
    },
}

/// Fingerprints and a tail, without the size of the blocks: that is the router's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Blocks {
    pub(super) fingerprints: Vec<Fingerprint>,
    pub(super) tail: Vec<u32>,
}

record!(Blocks { fingerprints, tail });

/// Eight bytes: seven bits a byte would only make them longer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Fingerprint(pub(super) u64);

impl Record for Fingerprint {
    fn put(&self, to: &mut Vec<u8>) {
        to.extend(self.0.to_le_bytes());
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Ok(Self(u64::from_le_bytes(from.bytes(8)?.try_into().expect("8 bytes"))))
    }
}

impl Blocks {
    pub(super) fn of(prompt: &Prompt, from: usize) -> Self {
        Self { fingerprints: prompt.fingerprints()[from..].iter().copied().map(Fingerprint).collect(), tail: prompt.tail().to_vec() }
    }

    /// The prompt, with `before` in front.
    pub(super) fn prompt(&self, block_tokens: u32, before: &[u64]) -> Result<Prompt, Damaged> {
        let fingerprints = before.iter().copied().chain(self.fingerprints.iter().map(|fingerprint| fingerprint.0)).collect();
        Prompt::from_parts(block_tokens, fingerprints, self.tail.clone()).map_err(|_| Damaged("a tail is longer than a block"))
    }
}

impl Record for Input {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Prompt { known_blocks, rest } => {
                to.push(0);
                known_blocks.put(to);
                rest.put(to);
            }
            Self::Grown { base_tokens, suffix } => {
                to.push(1);
                base_tokens.put(to);
                suffix.put(to);
            }
            Self::Count { prompt_tokens } => {
                to.push(2);
                prompt_tokens.put(to);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Ok(match from.bytes(1)?[0] {
            0 => Self::Prompt { known_blocks: Record::take(from)?, rest: Record::take(from)? },
            1 => Self::Grown { base_tokens: Record::take(from)?, suffix: Record::take(from)? },
            2 => Self::Count { prompt_tokens: Record::take(from)? },
            _ => return Err(Damaged("no such input")),
        })
    }
}

/// What is known when a turn ends.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct End {
    pub(super) grown: Option<Vec<Blocks>>,
    pub(super) output_tokens: Option<u64>,
    pub(super) prompt_tokens: Option<u64>,
    pub(super) cached_tokens: Option<u64>,
    pub(super) served_by: Option<String>,
    pub(super) keep: Option<u32>,
    pub(super) cause: Cause,
    pub(super) retry: bool,
}

record!(End { grown, output_tokens, prompt_tokens, cached_tokens, served_by, keep, cause, retry });

/// A change of an engine's cache. Its tokens are those that the engine published.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum CacheChange {
    Stored {
        namespace: String,
        hashes: Vec<u64>,
        parent: Option<u64>,
        tokens: Vec<u32>,
        block_tokens: u32,
        group: u32,
        whole_context: bool,
        extra: Vec<u64>,
    },
    Removed {
        hashes: Vec<u64>,
        group: u32,
    },
    Cleared,
}

impl CacheChange {
    pub(super) fn of(event: &CacheEvent<'_>) -> Self {
        match *event {
            CacheEvent::Stored { namespace, hashes, parent, tokens, block_tokens, group, whole_context, extra } => Self::Stored {
                namespace: namespace.into(),
                hashes: hashes.into(),
                parent,
                tokens: tokens.into(),
                block_tokens,
                group,
                whole_context,
                extra: extra.into(),
            },
            CacheEvent::Removed { hashes, group } => Self::Removed { hashes: hashes.into(), group },
            CacheEvent::Cleared => Self::Cleared,
        }
    }

    pub(super) fn event(&self) -> CacheEvent<'_> {
        match self {
            Self::Stored { namespace, hashes, parent, tokens, block_tokens, group, whole_context, extra } => CacheEvent::Stored {
                namespace,
                hashes,
                parent: *parent,
                tokens,
                block_tokens: *block_tokens,
                group: *group,
                whole_context: *whole_context,
                extra,
            },
            Self::Removed { hashes, group } => CacheEvent::Removed { hashes, group: *group },
            Self::Cleared => CacheEvent::Cleared,
        }
    }
}

impl Record for CacheChange {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Stored { namespace, hashes, parent, tokens, block_tokens, group, whole_context, extra } => {
                to.push(0);
                namespace.put(to);
                hashes.put(to);
                parent.put(to);
                tokens.put(to);
                (*block_tokens, *group).put(to);
                whole_context.put(to);
                extra.put(to);
            }
            Self::Removed { hashes, group } => {
                to.push(1);
                hashes.put(to);
                group.put(to);
            }
            Self::Cleared => to.push(2),
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Ok(match from.bytes(1)?[0] {
            0 => Self::Stored {
                namespace: Record::take(from)?,
                hashes: Record::take(from)?,
                parent: Record::take(from)?,
                tokens: Record::take(from)?,
                block_tokens: Record::take(from)?,
                group: Record::take(from)?,
                whole_context: Record::take(from)?,
                extra: Record::take(from)?,
            },
            1 => Self::Removed { hashes: Record::take(from)?, group: Record::take(from)? },
            2 => Self::Cleared,
            _ => return Err(Damaged("no such change of a cache")),
        })
    }
}
