//! Sessions whose callers do not say when they end.
//!
//! A workload may state that it gives no end signal. Its sessions end when they have been idle for longer than their lease and
//! than nearly all gaps between turns, as they were observed; or with their turn, where hardly any turn is followed by another,
//! or where the workload states that none is. What they teach ends at their last completion, not at this timeout.

use super::Router;
use crate::units::Nanos;

impl Router {
    /// Whether a session that has just completed a turn has ended with it.
    pub(super) fn ends_with_its_turn(&mut self, session: u32) -> bool {
        let state = &self.sessions[session];
        let workload = &mut self.workloads[state.workload as usize];
        let waits = !state.open.is_empty() || state.gap.is_some() || state.kept.is_some();
        !waits && (workload.config.one_turn || (!workload.config.ends && workload.estimator.gaps.rarely_followed()))
    }

    /// Notes that a session gets its next turn: a gap has ended, unless another turn of it is open.
    pub(super) fn note_gap(&mut self, session: u32) {
        let state = &self.sessions[session];
        if state.turns_completed > 0 && state.open.is_empty() {
            let gap = self.now - state.last_activity;
            self.workloads[state.workload as usize].estimator.gaps.followed(gap);
        }
    }

    /// How long an idle session of a workload is waited for, where nobody says that it has ended.
    pub(super) fn patience(&self, workload: usize) -> Nanos {
        let Some(long) = self.workloads[workload].estimator.gaps.long() else { return self.session_ttl };
        let lease = self.live().map(|slot| self.limits.replicas[slot as usize].lease[workload]).max().unwrap_or(0);
        // Who comes back after exactly the usual time is still waited for.
        long.max(lease).saturating_add(1).min(self.session_ttl)
    }

    /// Whether the session ends by its idleness: it has no open turn, and neither an end signal nor a hint to wait for.
    fn is_unended(&self, session: u32) -> bool {
        let state = &self.sessions[session];
        !self.workloads[state.workload as usize].config.ends && state.open.is_empty() && state.gap.is_none()
    }

    /// Lists a session without an open turn.
    pub(super) fn wait_for_end(&mut self, session: u32) {
        if self.is_unended(session) {
            let state = &self.sessions[session];
            self.unended[state.workload as usize].insert((state.last_activity, session));
        }
    }

    /// Takes a session off that list, before anything of it changes.
    pub(super) fn stop_waiting_for_end(&mut self, session: u32) {
        let state = &self.sessions[session];
        self.unended[state.workload as usize].remove(&(state.last_activity, session));
    }

    /// Ends the sessions that nobody waits for any more.
    pub(super) fn end_the_silent(&mut self) {
        for workload in 0..self.workloads.len() {
            if self.unended[workload].is_empty() {
                continue;
            }
            let patience = self.patience(workload);
            while let Some(&(_, session)) = self.unended[workload].first().filter(|first| first.0.saturating_add(patience) <= self.now) {
                let completed = self.sessions[session].turns_completed > 0;
                self.finish_session(session, completed);
            }
        }
    }

    /// When the next of them is due.
    pub(super) fn next_silent_end(&self) -> Option<Nanos> {
        let first = |(workload, waiting): (usize, &std::collections::BTreeSet<(Nanos, u32)>)| {
            waiting.first().map(|first| first.0.saturating_add(self.patience(workload)))
        };
        self.unended.iter().enumerate().filter_map(first).min()
    }

    /// What the lists must hold.
    pub(super) fn audit_unended(&self) -> std::result::Result<(), String> {
        let listed = self.unended.iter().map(std::collections::BTreeSet::len).sum::<usize>();
        let waiting = self.sessions.iter().filter(|(session, _)| self.is_unended(*session));
        let mut count = 0;
        for (session, state) in waiting {
            count += 1;
            if !self.unended[state.workload as usize].contains(&(state.last_activity, session)) {
                return Err(format!("session {:?} is not waited for, and nobody says when it ends", state.id));
            }
        }
        if count == listed { Ok(()) } else { Err(format!("{listed} sessions are waited for, {count} should be")) }
    }
}
