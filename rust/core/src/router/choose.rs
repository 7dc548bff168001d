//! Choose: a replica for a turn that nobody will report on.

use super::Router;
use super::types::{Decision, Reason, Status, Submit};
use crate::error::Result;
use crate::sessions::Verdict;

impl Router {
    /// Chooses a replica for a turn that is not tracked, for hosts that never say when a turn ends: where its session is charged, else
    /// the cheapest. No limit is asked, nothing is charged and nothing has to be completed; the prompt counts as computed there, so
    /// that what shares it follows. The decision has no turn id, and a session that is not known stays unknown.
    ///
    /// # Errors
    /// As [`Self::submit`].
    pub fn choose(&mut self, now: u64, submit: &Submit<'_>) -> Result<Decision> {
        let submit = Submit { turn: None, attempt: 0, parent: None, owner: None, group: None, group_size: None, ..*submit };
        let named = self.look_up(&submit)?;
        self.check_append(&submit)?;
        self.begin(now);
        if let Err(error) = self.check_append(&submit) {
            self.pump(None);
            return Err(error);
        }
        let known = submit.session.is_some_and(|name| self.session_slots.contains_key(name));
        let session = self.session_for(&submit, &named);
        let path = self.path_for(session, &submit);
        let turn = self.new_turn(&submit, session, path, named, None);
        let verdict = self.cheapest(turn, session);
        if let Some(replica) = verdict.replica {
            self.index.hold(replica, self.turns[turn].cursor);
            self.enforce_residency(replica);
            self.queue_prefill(replica, self.turns[turn].prompt_tokens - verdict.cached_tokens);
            self.stats.chosen += 1;
        }
        let decision = Decision { turn: "".into(), ..self.decision(&self.turns[turn], &verdict) };
        self.forget_turn(turn);
        if !known {
            self.forget_session(session);
        }
        self.pump(None);
        Ok(decision)
    }

    /// The home of the session where it may go there, else the candidate with the least cost.
    fn cheapest(&mut self, turn: u32, session: u32) -> Verdict {
        self.find_depths(turn);
        let mut ranked: Vec<(f64, u32)> = self.candidates(turn).into_iter().map(|slot| (self.cost_of(turn, slot, 0), slot)).collect();
        self.ties.rank(&mut ranked);
        let home = self.sessions[session].home;
        if let Some(at) = ranked.iter().position(|&(_, slot)| Some(slot) == home) {
            ranked[..=at].rotate_right(1);
        }
        let Some(&(cost_s, replica)) = ranked.first() else {
            let receipt = self.receipt(turn, None, 0, f64::INFINITY);
            let status = Status::Rejected;
            return Verdict { status, replica: None, cached_tokens: 0, alternatives: [None; 3], reason: Reason::NoReplica, receipt };
        };
        let mut receipt = self.receipt(turn, Some(replica), 0, self.tokens(self.limits.replicas[replica as usize].ceiling));
        (receipt.cost_s, receipt.runner_up_cost_s) = (cost_s, ranked.get(1).map_or(f64::NAN, |other| other.0));
        let mut alternatives = [None; 3];
        for (alternative, &(_, slot)) in alternatives.iter_mut().zip(&ranked[1..]) {
            *alternative = Some(slot);
        }
        let cached_tokens = self.cached_tokens(replica, self.depths.blocks[replica as usize], self.turns[turn].prompt_tokens);
        Verdict { status: Status::Placed, replica: Some(replica), cached_tokens, alternatives, reason: Reason::Chosen, receipt }
    }
}
