//! Does a held turn fit on a replica, and if not, which limit binds?

use super::Router;
use super::types::{Reason, Receipt};
use crate::ledger::headroom;
use crate::sessions::TurnState;
use crate::units::{Nanos, UNBOUNDED_BLOCKS};

/// The answer for one turn and one replica.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fit {
    /// Blocks that the turn would add to the commit.
    pub(super) need: u64,
    /// The rule that binds, if any.
    pub(super) blocked: Option<Reason>,
    /// Value of the limit that binds, in its own unit; the ceiling when none does.
    pub(super) limit: f64,
    /// Blocks, sessions and sessions of the workload that would have to go first.
    pub(super) short: Shortage,
}

/// What is missing for a turn to fit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shortage {
    pub(super) blocks: u64,
    pub(super) sessions: u64,
    pub(super) workload_sessions: u64,
}

impl Router {
    /// Whether the turn may go to a replica: the answer of [`Self::candidates`] about one of them.
    pub(super) fn is_candidate(&self, turn: u32, replica: u32) -> bool {
        let state = &self.turns[turn];
        let listed = state.candidates.as_ref().is_none_or(|listed| listed.contains(&replica));
        listed && self.replicas[replica as usize].alive && (state.avoid != Some(replica) || self.candidates(turn).contains(&replica))
    }

    /// Replicas that may serve the turn. The replica of an earlier attempt is left out while there is another.
    pub(super) fn candidates(&self, turn: u32) -> Vec<u32> {
        let turn = &self.turns[turn];
        let mut allowed: Vec<u32> = match &turn.candidates {
            Some(listed) => listed.iter().copied().filter(|&slot| self.replicas[slot as usize].alive).collect(),
            None => self.live().collect(),
        };
        if allowed.len() > 1 {
            allowed.retain(|&slot| Some(slot) != turn.avoid);
        }
        allowed
    }

    /// Applies the admission rules to a turn whose session is not charged anywhere.
    pub(super) fn fit(&self, turn: u32, replica: u32) -> Fit {
        let (limits, state) = (&self.limits.replicas[replica as usize], &self.turns[turn]);
        let (sums, workload) = (self.ledger.replica(replica), state.workload);
        let (charge, commit) = (self.ledger.charge(replica), self.ledger.commit(replica));
        let prompt = state.prompt_tokens.div_ceil(self.block_tokens);
        let need = self.need(turn, replica);
        let workload_sessions = self.ledger.workload(replica, workload).sessions();
        let workload_cap = limits.workload_cap[workload as usize];
        let alone = charge == 0 && prompt <= limits.ceiling;
        let short = Shortage {
            blocks: if alone { 0 } else { (commit + need).saturating_sub(limits.ceiling) },
            sessions: (sums.sessions() + 1).saturating_sub(limits.session_cap),
            workload_sessions: (workload_sessions + 1).saturating_sub(workload_cap),
        };
        let cap = |cap: u64| if cap == u64::MAX { f64::INFINITY } else { cap as f64 };
        let (blocked, limit) = if charge > limits.overflow {
            (Some(Reason::Overcommitted), self.tokens(limits.overflow))
        } else if self.replicas[replica as usize].reserved_for.is_some_and(|other| other != turn) {
            (Some(Reason::Reserved), self.tokens(limits.ceiling))
        } else if sums.turns >= limits.turn_cap {
            (Some(Reason::TurnCap), cap(limits.turn_cap))
        } else if short.sessions > 0 {
            (Some(Reason::SessionCap), cap(limits.session_cap))
        } else if short.workload_sessions > 0 {
            (Some(Reason::WorkloadCap), cap(workload_cap))
        } else if short.blocks > 0 {
            (Some(Reason::Ceiling), self.tokens(limits.ceiling))
        } else {
            (None, self.tokens(limits.ceiling))
        };
        Fit { need, blocked, limit, short }
    }

    /// Blocks that placing the turn adds to the commit: what of its prompt is not claimed there, its output, its headroom.
    pub(super) fn need(&self, turn: u32, replica: u32) -> u64 {
        let state = &self.turns[turn];
        let limits = &self.limits.workloads[state.workload as usize];
        let output = state.max_new_tokens.map_or(limits.output_tokens, |max| max.min(limits.output_tokens));
        let session = &self.sessions[state.session];
        let grown = if session.admitted.is_some() { state.prompt_tokens.saturating_sub(session.base_tokens) } else { 0 };
        self.ledger.unclaimed(&self.index.tree, replica, state.cursor)
            + self.turn_private(turn)
            + output.div_ceil(self.block_tokens)
            + headroom(grown + output, limits.growth_tokens, self.block_tokens)
    }

    /// Tokens of a number of blocks, for receipts.
    pub(super) fn tokens(&self, blocks: u64) -> f64 {
        if blocks >= UNBOUNDED_BLOCKS { f64::INFINITY } else { (blocks * self.block_tokens) as f64 }
    }

    /// Idle sessions of the replica whose lease is over, longest idle first, with the blocks that each would free at most.
    pub(super) fn reclaimable(&self, replica: u32) -> Vec<(Nanos, u32, u64)> {
        let mut all = Vec::new();
        for (workload, idle) in self.replicas[replica as usize].idle.iter().enumerate() {
            let lease = self.limits.replicas[replica as usize].lease[workload];
            for &(since, session) in idle.iter().take_while(|(since, _)| since.saturating_add(lease) <= self.now) {
                let state = &self.sessions[session];
                let blocks = self.claimed_blocks(session) + state.headroom;
                all.push((since, session, blocks));
            }
        }
        all.sort_unstable();
        all
    }

    /// Whether [`Self::reclaimable`] has anybody.
    pub(super) fn has_reclaimable(&self, replica: u32) -> bool {
        let (state, limits) = (&self.replicas[replica as usize], &self.limits.replicas[replica as usize]);
        state.idle.iter().zip(&limits.lease).any(|(idle, &lease)| idle.first().is_some_and(|(since, _)| since.saturating_add(lease) <= self.now))
    }

    /// Pauses just enough idle sessions for the turn to fit, or none at all.
    pub(super) fn reclaim_for(&mut self, turn: u32, replica: u32) -> bool {
        let workload = self.turns[turn].workload;
        let mut victims = self.reclaimable(replica);
        // While the workload's own cap binds, only its own sessions help.
        let mut paused = Vec::new();
        loop {
            let fit = self.fit(turn, replica);
            if fit.blocked.is_none() {
                return true;
            }
            let own = fit.short.workload_sessions > 0;
            let next = victims.iter().position(|victim| !own || self.sessions[victim.1].workload == workload);
            let Some(next) = next.filter(|_| matches!(fit.blocked, Some(Reason::SessionCap | Reason::WorkloadCap | Reason::Ceiling))) else { break };
            let (since, session, _) = victims.remove(next);
            let claimed = self.sessions[session].claimed.expect("an idle session claims its history");
            self.pause(session);
            paused.push((since, session, claimed));
        }
        for (since, session, claimed) in paused.into_iter().rev() {
            self.unpause(session, replica, since, claimed);
        }
        false
    }

    /// Above the overflow, idle sessions go whatever their lease, longest idle first. What runs is never cut.
    pub(super) fn relieve(&mut self, replica: u32) {
        while self.ledger.charge(replica) > self.limits.replicas[replica as usize].overflow {
            let longest = self.replicas[replica as usize].idle.iter().filter_map(|idle| idle.first().copied()).min();
            let Some((_, session)) = longest else { return };
            self.pause(session);
        }
    }

    /// The numbers of a decision about a turn and a replica.
    pub(super) fn receipt(&mut self, turn: u32, replica: Option<u32>, need: u64, limit: f64) -> Receipt {
        self.index.residency.best(&self.index.tree, self.turns[turn].cursor, 1, &mut self.best);
        let matched = self.best.first().map_or(0, |found| found.blocks);
        let state = &self.turns[turn];
        Receipt {
            prompt_tokens: state.prompt_tokens,
            matched_tokens: u64::from(matched) * self.block_tokens,
            indexed: state.known_tokens == state.prompt_tokens,
            need_tokens: need * self.block_tokens,
            charge_tokens: replica.map_or(0, |slot| self.ledger.charge(slot) * self.block_tokens),
            commit_tokens: replica.map_or(0, |slot| self.ledger.commit(slot) * self.block_tokens),
            limit,
            reclaimable_tokens: 0,
            cost_s: f64::NAN,
            runner_up_cost_s: f64::NAN,
            limits_step: self.limits.step,
        }
    }

    /// Blocks that were admitted past a held turn.
    pub(super) fn bypassed(&mut self, turn: u32) -> Option<&mut u64> {
        match &mut self.turns[turn].state {
            TurnState::Held { bypassed, .. } => Some(bypassed),
            TurnState::Placed(_) => None,
        }
    }
}
