//! Does a held turn fit on a replica, and if not, which limit binds?

use super::Router;
use super::types::{Reason, Receipt};
use crate::ledger::headroom;
use crate::units::UNBOUNDED_BLOCKS;

/// The answer for one turn and one replica.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fit {
    /// Blocks that the turn would add to the commit.
    pub(super) need: u64,
    /// The rule that binds, if any.
    pub(super) blocked: Option<Reason>,
    /// Value of the limit that binds, in its own unit; the ceiling when none does.
    pub(super) limit: f64,
    /// What would have to go first.
    pub(super) short: Shortage,
}

/// What is missing for a turn to fit.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Shortage {
    /// Blocks on the replica.
    pub(super) blocks: u64,
    /// Sessions on the replica.
    pub(super) sessions: u64,
    /// Sessions of the workload on the replica.
    pub(super) workload_sessions: u64,
    /// Blocks of the workload, anywhere.
    pub(super) workload_blocks: u64,
}

impl Router {
    /// Whether the turn may go to a replica: the answer of [`Self::candidates`] about one of them.
    pub(super) fn is_candidate(&self, turn: u32, replica: u32) -> bool {
        let state = &self.turns[turn];
        let listed = state.candidates.as_ref().is_none_or(|listed| listed.contains(&replica));
        listed && self.replicas[replica as usize].accepts() && (!state.avoid.contains(&replica) || self.candidates(turn).contains(&replica))
    }

    /// Whether the turn may go where other turns of its session run.
    pub(super) fn may_join(&self, turn: u32, replica: u32) -> bool {
        let state = &self.turns[turn];
        self.sessions[state.session].running > 0 && state.candidates.as_ref().is_none_or(|listed| listed.contains(&replica))
    }

    /// Replicas that may serve the turn. Those that it avoids are left out while there is another.
    pub(super) fn candidates(&self, turn: u32) -> Vec<u32> {
        let turn = &self.turns[turn];
        let mut allowed: Vec<u32> = match &turn.candidates {
            Some(listed) => listed.iter().copied().filter(|&slot| self.replicas[slot as usize].accepts()).collect(),
            None => self.accepting().collect(),
        };
        if allowed.iter().any(|slot| !turn.avoid.contains(slot)) {
            allowed.retain(|slot| !turn.avoid.contains(slot));
        }
        allowed
    }

    /// Applies the admission rules to a turn whose session is not charged anywhere.
    pub(super) fn fit(&self, turn: u32, replica: u32) -> Fit {
        let (limits, state) = (&self.limits.replicas[replica as usize], &self.turns[turn]);
        let (sums, workload) = (self.ledger.replica(replica), state.workload);
        let (charge, commit) = (self.ledger.charge(replica), self.ledger.commit(replica));
        let prompt = state.prompt_tokens.div_ceil(self.block_tokens);
        let need = self.need(turn, self.ledger.unclaimed(&self.index.tree, replica, state.cursor));
        let workload_sessions = self.ledger.workload(replica, workload).sessions();
        let workload_cap = limits.workload_cap[workload as usize];
        let alone = charge == 0 && prompt <= limits.ceiling;
        // Who waits for sub-agents must not keep them out: a member of a family counts in no cap of sessions.
        let counted = u64::from(!self.is_member(state.session));
        let short = Shortage {
            blocks: if alone { 0 } else { (commit + need).saturating_sub(limits.ceiling) },
            sessions: (sums.sessions() + counted).saturating_sub(limits.session_cap) * counted,
            workload_sessions: (workload_sessions + counted).saturating_sub(workload_cap) * counted,
            workload_blocks: self.above_limit(turn, replica),
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
        } else if short.workload_blocks > 0 {
            (Some(Reason::Limit), self.tokens(self.limits.workloads[workload as usize].limit))
        } else if short.blocks > 0 {
            (Some(Reason::Ceiling), self.tokens(limits.ceiling))
        } else {
            (None, self.tokens(limits.ceiling))
        };
        Fit { need, blocked, limit, short }
    }

    /// Blocks that placing the turn adds to the commit: what of its prompt is not claimed there, its output, its headroom.
    fn need(&self, turn: u32, unclaimed: u64) -> u64 {
        let state = &self.turns[turn];
        let limits = &self.limits.workloads[state.workload as usize];
        let output = state.reserved_tokens(limits.output_tokens);
        let session = &self.sessions[state.session];
        let grown = if session.admitted.is_some() { state.prompt_tokens.saturating_sub(session.base_tokens) } else { 0 };
        unclaimed
            + self.turn_private(turn)
            + state.output_blocks(output, self.block_tokens)
            + headroom(grown + output, limits.growth_tokens, self.block_tokens)
    }

    /// Blocks by which the turn would lift its workload above its limit. What others share with the workload is its own in full, so
    /// that nothing they do changes the answer. A workload that holds nothing may start with a prompt within the limit.
    fn above_limit(&self, turn: u32, replica: u32) -> u64 {
        let state = &self.turns[turn];
        let (limit, committed) = (self.limits.workloads[state.workload as usize].limit, self.ledger.total(state.workload));
        if limit == UNBOUNDED_BLOCKS || (committed == 0 && self.prompt_blocks(turn) <= limit) {
            return 0;
        }
        let unclaimed = self.ledger.unclaimed_by(&self.index.tree, replica, state.workload, state.cursor);
        (committed + self.need(turn, unclaimed)).saturating_sub(limit)
    }

    /// Tokens of a number of blocks, for receipts.
    pub(super) fn tokens(&self, blocks: u64) -> f64 {
        if blocks >= UNBOUNDED_BLOCKS { f64::INFINITY } else { (blocks * self.block_tokens) as f64 }
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
}
