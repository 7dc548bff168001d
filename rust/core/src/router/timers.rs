//! Timers: what happens by itself when time passes, and when that is next.

use super::Router;
use super::types::{Reason, Status};
use crate::sessions::Ending;
use crate::units::Nanos;

impl Router {
    /// Runs everything that is due at the time of the event, in a fixed order.
    pub(super) fn run_timers(&mut self) {
        let now = self.now;
        if self.next_control.is_some_and(|at| at <= now) {
            self.policy_due = true;
        }
        if self.policy_due && self.next_control.is_none_or(|at| at <= now) {
            // Whoever has no policy is not woken in a tight loop: the next reminder comes a period later.
            self.next_control = self.control_period.map(|period| now.saturating_add(period));
        }
        while let Some(&(_, turn)) = self.deadlines.first().filter(|first| first.0 <= now) {
            self.drop_turn(turn, Ending::Expired, Status::Expired, Reason::Deadline);
            self.timers_made_room = true;
        }
        while let Some(&(_, turn)) = self.silence.first().filter(|first| first.0.saturating_add(self.turn_ttl) <= now) {
            self.drop_turn(turn, Ending::Lost, Status::Lost, Reason::Silent);
            self.timers_made_room = true;
        }
        while let Some(&(_, session)) = self.quiet.first().filter(|first| first.0.saturating_add(self.session_ttl) <= now) {
            let completed = self.sessions[session].turns_completed > 0;
            self.finish_session(session, completed);
            self.timers_made_room = true;
        }
        self.closed.forget(now);
    }

    /// When [`Self::tick`] is due next: a control step, a deadline, a silent turn, a quiet session, or the end of a lease
    /// that a held turn may be waiting for. `None` when nothing is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        let first = |set: &std::collections::BTreeSet<(Nanos, u32)>, after: Nanos| set.first().map(|first| first.0.saturating_add(after));
        [
            self.next_control,
            first(&self.deadlines, 0),
            first(&self.silence, self.turn_ttl),
            first(&self.quiet, self.session_ttl),
            self.next_lease_end(),
        ]
        .into_iter()
        .flatten()
        .filter(|&at| at < Nanos::MAX)
        .min()
    }

    fn next_lease_end(&self) -> Option<Nanos> {
        if self.line.len() == 0 {
            return None;
        }
        let leases = self.live().flat_map(|slot| {
            let leases = &self.limits.replicas[slot as usize].lease;
            self.replicas[slot as usize].idle.iter().zip(leases).filter_map(|(idle, &lease)| {
                // Those whose lease is over have been considered already.
                let from = (self.now + 1).saturating_sub(lease);
                idle.range((from, 0)..).next().map(|&(since, _)| since.saturating_add(lease))
            })
        });
        leases.min()
    }
}
