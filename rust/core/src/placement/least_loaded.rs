//! Least loaded: fewest turns in flight, as routers with sticky sessions place the first turn of each.

use super::rule::{Parameter, weight};
use crate::record::codec::record;

/// Weights of what is counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct LeastLoaded {
    /// Of a turn that is placed and has not ended.
    pub(crate) turns: f64,
    /// Of a charged session, running or idle.
    pub(crate) sessions: f64,
}

impl LeastLoaded {
    pub(super) const PARAMETERS: [Parameter; 2] = [weight("turns", 1.0), weight("sessions", 0.0)];

    /// The load of a replica.
    pub(crate) fn score(self, turns: u64, sessions: u64) -> f64 {
        self.turns * turns as f64 + self.sessions * sessions as f64
    }
}

record!(LeastLoaded { turns, sessions });
