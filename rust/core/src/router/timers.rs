//! Timers: what happens by itself when time passes, and when that is next.

use super::Router;
use super::types::{Effect, Outcome, Reason, Status};
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
        }
        while let Some(&(_, turn)) = self.silence.first().filter(|first| first.0.saturating_add(self.turn_ttl) <= now) {
            self.drop_turn(turn, Ending::Lost, Status::Lost, Reason::Silent);
        }
        while let Some(&(_, session)) = self.quiet.first().filter(|first| first.0.saturating_add(self.session_ttl) <= now) {
            let completed = self.sessions[session].turns_completed > 0;
            self.finish_session(session, completed);
        }
        self.end_the_silent();
        if self.reattach_until.is_some_and(|until| until <= now) {
            self.reattach_until = None;
            while let Some(&turn) = self.unconfirmed.first() {
                self.drop_turn(turn, Ending::Lost, Status::Lost, Reason::Unconfirmed);
            }
        }
        while let Some(&(end, session)) = self.leases.first().filter(|first| first.0 <= now) {
            self.leases.remove(&(end, session));
            let state = &self.sessions[session];
            if let Some(home) = state.home {
                if state.gap.is_some() {
                    self.replicas[home as usize].released[state.workload as usize].insert((state.idle_since, session));
                }
                self.ledger.touch(home);
            }
        }
        self.closed.forget(now);
        self.groups.expire(now, self.session_ttl);
    }

    /// Gives up every turn that is open now unless an event names it within `after`: its caller may have gone with the process that a
    /// snapshot was restored for. Until then it counts in full.
    pub fn expect_callers(&mut self, now: Nanos, after: Nanos) -> Outcome {
        let seq = self.begin(now);
        self.unconfirmed = self.turns.iter().map(|(turn, _)| turn).collect();
        self.reattach_until = Some(self.now.saturating_add(after));
        self.pump(None);
        Outcome { seq, effect: Effect::Done }
    }

    /// When [`Self::tick`] is due next: a control step, a deadline, a silent turn, a quiet session, or the end of a lease
    /// that a held turn may be waiting for. `None` when nothing is due.
    #[must_use]
    pub fn wake_at(&self) -> Option<Nanos> {
        let first = |set: &std::collections::BTreeSet<(Nanos, u32)>, after: Nanos| set.first().map(|first| first.0.saturating_add(after));
        [
            self.next_control,
            self.reattach_until,
            first(&self.deadlines, 0),
            first(&self.silence, self.turn_ttl),
            first(&self.quiet, self.session_ttl),
            self.next_lease_end(),
            self.next_silent_end(),
        ]
        .into_iter()
        .flatten()
        .filter(|&at| at < Nanos::MAX)
        .min()
    }

    fn next_lease_end(&self) -> Option<Nanos> {
        if self.line.len() == 0 { None } else { self.leases.first().map(|first| first.0) }
    }
}
