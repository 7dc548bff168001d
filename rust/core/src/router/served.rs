//! What really happened to a turn, where that is not what was decided: another replica served it, or it comes back.

use super::types::{Cause, Completion, Reason, Status};
use super::{Router, placed};
use crate::sessions::{Kept, TurnState, Verdict};

impl Router {
    /// Moves a turn, with the charge of its session, to the replica that serves it. A turn that waited in the line runs from now on,
    /// whatever the limits say. While other turns of its session run, the charge stays with them.
    pub(super) fn served_at(&mut self, turn: u32, replica: u32) {
        let session = self.turns[turn].session;
        let Some(placement) = placed(&self.turns[turn]).copied() else {
            self.leave_line(turn);
            self.serve_held(turn, session, replica);
            return;
        };
        let home = placement.replica;
        if home == replica {
            return;
        }
        self.stats.served_elsewhere += 1;
        if self.sessions[session].running > 1 {
            self.index.hold(replica, self.turns[turn].cursor);
            self.enforce_residency(replica);
            return;
        }
        if let Some(epoch) = placement.residency_epoch {
            let cursor = self.turns[turn].cursor;
            self.index.residency.release(&mut self.index.tree, home, epoch, cursor, placement.started);
        }
        if !placement.started {
            self.prefill_done(home);
        }
        // A turn that was submitted later may have made the history already: then that is charged beside this turn.
        let beside = self.sessions[session].claimed.is_some();
        self.uncharge_turn(turn, &placement);
        self.uncharge_session(session);
        self.run_at(turn, session, replica);
        if beside {
            self.metered(session, replica, |router| router.claim_trunk(session));
        }
        if placement.reported {
            self.report_output(turn, placement.output_tokens);
        }
        if placement.started {
            self.started(turn);
        }
        self.enforce_residency(home);
        self.relieve(home);
        self.relieve(replica);
    }

    /// A held turn runs where it is served.
    fn serve_held(&mut self, turn: u32, session: u32, replica: u32) {
        self.stats.served_elsewhere += 1;
        self.stats.placed += 1;
        if self.sessions[session].admitted.is_none() {
            self.admissions += 1;
            let (workload, prompt_tokens) = (self.turns[turn].workload, self.turns[turn].prompt_tokens);
            let state = &mut self.sessions[session];
            (state.admitted, state.base_tokens) = (Some(self.admissions), prompt_tokens);
            self.line.admitted(workload, self.limits.workloads[workload as usize].toll);
        }
        self.run_at(turn, session, replica);
        self.relieve(replica);
    }

    /// Charges a session that is charged nowhere on a replica, with this turn of it.
    fn run_at(&mut self, turn: u32, session: u32, replica: u32) {
        let depth = self.index.residency.depth(&self.index.tree, replica, self.turns[turn].cursor);
        let cached_tokens = self.cached_tokens(replica, depth, self.turns[turn].prompt_tokens);
        let receipt = self.turns[turn].verdict.receipt;
        self.turns[turn].verdict =
            Verdict { status: Status::Placed, replica: Some(replica), cached_tokens, alternatives: [None; 3], reason: Reason::Elsewhere, receipt };
        self.charge_session(session, replica);
        self.charge_turn(turn);
        self.replicas[replica as usize].prefilling += 1;
        let uncached = self.turns[turn].prompt_tokens - cached_tokens;
        self.queue_prefill(replica, uncached);
        // Turns of the same session that waited with it are continuations now.
        for other in self.sessions[session].open.clone() {
            if matches!(self.turns[other].state, TurnState::Held { .. }) && other != turn {
                self.leave_line(other);
                self.continue_at_home(other, Reason::Continuation);
                self.announce(other, None);
            }
        }
    }

    /// Notes what the end of a turn says about the replica that served it. One that is not in the fleet has gone since: the session
    /// is charged nowhere, which is what `true` says.
    pub(super) fn note_server(&mut self, turn: u32, completion: &Completion<'_>) -> bool {
        let Some(name) = completion.served_by else { return false };
        if let Some(&replica) = self.replica_slots.get(name) {
            self.served_at(turn, replica);
            false
        } else {
            self.stats.served_elsewhere += u64::from(placed(&self.turns[turn]).is_some());
            true
        }
    }

    /// Counts an abort by its cause, and keeps the place of a turn that comes back.
    pub(super) fn note_abort(&mut self, turn: u32, completion: &Completion<'_>) {
        match completion.cause {
            Cause::Cancelled => {}
            Cause::Timeout => self.stats.aborted_timeout += 1,
            Cause::Error => self.stats.aborted_error += 1,
            Cause::Stale => self.stats.aborted_stale += 1,
        }
        if !completion.retry {
            return;
        }
        self.stats.retries += 1;
        let state = &self.turns[turn];
        let failed = matches!(completion.cause, Cause::Timeout | Cause::Error);
        let avoid = placed(state).filter(|_| failed).map(|placement| placement.replica);
        let (session, kept) = (state.session, Kept { turn: state.id.clone(), since: state.since, avoid });
        drop(self.take_kept(session));
        // An earlier attempt under the same id may have been a turn of another session: the place is where the last one was.
        if let Some(other) = self.retries.insert(kept.turn.clone(), session) {
            self.sessions[other].kept = None;
        }
        self.sessions[session].kept = Some(kept);
    }

    /// The place that an aborted turn of the session left, for its next one.
    pub(super) fn take_kept(&mut self, session: u32) -> Option<Kept> {
        let kept = self.sessions[session].kept.take()?;
        self.retries.remove(&kept.turn);
        Some(kept)
    }
}
