//! Turns that ended: remembered for a while, so that late and repeated events are told apart from nonsense.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::index::hasher::TextState;
use crate::record::codec::record;
use crate::units::{NANOS_PER_SECOND, Nanos};

/// Ended turns that are remembered at most.
const REMEMBERED: usize = 65_536;
/// For how long they are remembered at most.
const REMEMBERED_FOR: Nanos = 600 * NANOS_PER_SECOND;

/// How a turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    Completed,
    Aborted,
    /// Aborted by a later attempt: what it generated is not history.
    Replaced,
    Expired,
    Lost,
}

#[derive(Debug)]
pub(crate) struct ClosedTurns {
    by_id: HashMap<Arc<str>, (u32, Ending, u64), TextState>,
    order: VecDeque<(Nanos, Arc<str>, u64)>,
    count: u64,
}

impl ClosedTurns {
    pub(crate) fn new(seed: u64) -> Self {
        Self { by_id: HashMap::with_hasher(TextState(seed)), order: VecDeque::new(), count: 0 }
    }

    /// How the turn ended, and in which attempt.
    pub(crate) fn get(&self, id: &str) -> Option<(u32, Ending)> {
        self.by_id.get(id).map(|&(attempt, ending, _)| (attempt, ending))
    }

    pub(crate) fn insert(&mut self, now: Nanos, id: Arc<str>, attempt: u32, ending: Ending) {
        self.count += 1;
        self.by_id.insert(id.clone(), (attempt, ending, self.count));
        self.order.push_back((now, id, self.count));
        self.forget(now);
    }

    pub(crate) fn forget(&mut self, now: Nanos) {
        while let Some((at, _, _)) = self.order.front() {
            if self.order.len() <= REMEMBERED && now.saturating_sub(*at) <= REMEMBERED_FOR {
                break;
            }
            let (_, id, count) = self.order.pop_front().expect("not empty");
            // A later attempt of the same turn has an entry of its own.
            if self.by_id.get(&id).is_some_and(|entry| entry.2 == count) {
                self.by_id.remove(&id);
            }
        }
    }
}

record!(Ending as ending: Completed = 0, Aborted = 1, Replaced = 2, Expired = 3, Lost = 4);
record!(ClosedTurns { by_id, order, count });
