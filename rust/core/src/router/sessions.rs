//! Forks and ends of sessions.

use super::Router;
use super::trunks::ClaimEnds;
use super::types::{Effect, Outcome, Reason, Status};
use crate::error::{Error, Result};
use crate::sessions::Ending;

impl Router {
    /// Starts a session on the history of another. It charges nothing until its first turn is placed, and then only what differs.
    ///
    /// # Errors
    /// [`Error::UnknownSession`] for the parent; [`Error::InvalidArgument`] when the child's name is taken by a session that is no such fork.
    pub fn fork(&mut self, now: u64, session: &str, child: &str) -> Result<Outcome> {
        let parent = *self.session_slots.get(session).ok_or_else(|| Error::UnknownSession { session: session.into() })?;
        if let Some(&existing) = self.session_slots.get(child) {
            let (existing, parent) = (&self.sessions[existing], &self.sessions[parent]);
            let same = existing.admitted.is_none()
                && existing.open.is_empty()
                && existing.trunk == parent.trunk
                && existing.history_tokens == parent.history_tokens;
            if !same {
                return Err(Error::InvalidArgument { argument: "child", value: format!("{child:?}"), accepted: "a session name that is not in use" });
            }
            let seq = self.begin(now);
            self.pump(None);
            return Ok(Outcome { seq, effect: Effect::Duplicate });
        }
        let seq = self.begin(now);
        // A timer may have ended the parent.
        let Some(&parent) = self.session_slots.get(session) else {
            self.pump(None);
            return Err(Error::UnknownSession { session: session.into() });
        };
        let state = &self.sessions[parent];
        let (workload, namespace, root) = (state.workload, state.namespace.clone(), state.root.clone());
        let (trunk, tail, history_tokens, known_tokens) = (state.trunk, state.tail.clone(), state.history_tokens, state.known_tokens);
        let slot = self.add_session(child.into(), workload, namespace, false);
        self.index.tree.anchor(trunk);
        self.wake_up(slot);
        let state = &mut self.sessions[slot];
        let empty = std::mem::replace(&mut state.trunk, trunk);
        (state.root, state.tail, state.history_tokens, state.known_tokens) = (root, tail, history_tokens, known_tokens);
        self.index.unanchor(empty);
        self.fall_quiet(slot);
        self.paused_paths = true;
        self.pump(None);
        Ok(Outcome { seq, effect: Effect::Done })
    }

    /// Ends a session: its open turns are aborted and leave by the outbox, its charge is gone. `completed = false` is not counted in the mixture.
    /// Never fails for an unknown session.
    ///
    /// # Errors
    /// None at present; the type leaves room.
    pub fn end_session(&mut self, now: u64, session: &str, completed: bool) -> Result<Outcome> {
        let seq = self.begin(now);
        let effect = if let Some(&slot) = self.session_slots.get(session) {
            self.finish_session(slot, completed);
            Effect::Done
        } else {
            self.stats.unknown += 1;
            Effect::Unknown
        };
        self.pump(None);
        Ok(Outcome { seq, effect })
    }

    pub(super) fn finish_session(&mut self, session: u32, completed: bool) {
        // Marked so that closing its last turn does not end it a second time.
        self.sessions[session].single_turn = false;
        for turn in self.sessions[session].open.clone() {
            self.drop_turn(turn, Ending::Aborted, Status::Lost, Reason::SessionEnded);
        }
        let grown = self.grown_tokens(session);
        if let Some(home) = self.sessions[session].home {
            let now = self.now;
            let dead = self.claimed_blocks(session) * self.block_tokens;
            self.replicas[home as usize].dead.add(now, dead as f64);
        }
        self.uncharge_session(session);
        let state = &self.sessions[session];
        let workload = &mut self.workloads[state.workload as usize];
        if completed {
            self.stats.sessions_finished += 1;
            workload.finished += 1;
            workload.finishes.count(self.now);
            if state.turns_completed > 0 {
                workload.estimator.gaps.ended();
                workload.estimator.session(&state.meter, grown, state.history_tokens);
            }
        } else {
            self.stats.sessions_dropped += 1;
        }
        self.forget_session(session);
    }

    /// Removes a session from the tables. It must be off the books, without open turns.
    pub(super) fn forget_session(&mut self, session: u32) {
        self.disown(session);
        drop(self.take_kept(session));
        self.wake_up(session);
        let state = self.sessions.remove(session);
        self.session_slots.remove(&state.id);
        self.index.unanchor(state.trunk);
        if self.sessions.len() == 0 {
            // Nobody claims anything any more: the memory goes back.
            self.claim_ends = ClaimEnds::default();
        }
    }
}
