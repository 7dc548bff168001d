//! Which of the replicas that may take a turn is wanted most: by cost, or by the rule of another router.

use std::hash::BuildHasher;

use super::Router;
use crate::placement::{Placement, Regime};
use crate::prompt::mix64;

impl Router {
    /// What decides about a turn under the cache-aware rule, with `self.depths` filled for it.
    pub(super) fn regime(&self, turn: u32) -> Regime {
        let Placement::CacheAware(rule) = self.limits.placement else { return Regime::Load };
        let candidates = self.candidates(turn);
        let loads = candidates.iter().map(|&slot| self.ledger.replica(slot).turns);
        let matched = candidates.iter().map(|&slot| self.depths.blocks[slot as usize]).max().unwrap_or(0);
        rule.regime(loads, u64::from(matched) * self.block_tokens, self.turns[turn].prompt_tokens)
    }

    /// How little a replica is wanted for a turn by the placement in force, with `self.depths` filled for it.
    pub(super) fn score(&self, turn: u32, replica: u32, reclaimed_tokens: u64, regime: Regime) -> f64 {
        let (sums, depth) = (self.ledger.replica(replica), self.depths.blocks[replica as usize]);
        match self.limits.placement {
            Placement::Cost => self.cost_of(turn, replica, reclaimed_tokens),
            Placement::RoundRobin => {
                let slots = self.replicas.len() as u32;
                f64::from((replica + slots - self.next_in_turn % slots) % slots)
            }
            Placement::LeastLoaded(rule) => rule.score(sums.turns, sums.sessions()),
            Placement::CacheAware(_) => match regime {
                Regime::Load => sums.turns as f64,
                Regime::Match => -f64::from(depth),
                Regime::Room => self.index.residency.resident_blocks(replica) as f64,
            },
            Placement::Dynamo(rule) => {
                let (state, load) = (&self.turns[turn], self.load(replica));
                let uncached = state.prompt_tokens - self.cached_tokens(replica, depth, state.prompt_tokens);
                let prefill = (load.backlog_s * load.prefill_tokens_per_s + uncached as f64) / self.block_tokens as f64;
                let added = self.ledger.unclaimed(&self.index.tree, replica, state.cursor) + self.turn_private(turn);
                rule.score(prefill, self.ledger.charge(replica) + added)
            }
            Placement::Hash => {
                let names = self.session_slots.hasher();
                let (session, replica) = (&self.sessions[self.turns[turn].session].id, &self.replicas[replica as usize].config.name);
                // The highest weight wins; 53 bits are exact as a float.
                -((mix64(names.hash_one(&**session) ^ names.hash_one(&**replica).rotate_left(32)) >> 11) as f64)
            }
        }
    }

    /// Sorts candidates (score, replica), best first; equal ones by the seeded generator.
    pub(super) fn rank(&mut self, possible: &mut [(f64, u32)]) {
        match self.limits.placement {
            Placement::Dynamo(rule) => rule.rank(&mut self.ties, possible),
            // No two of them are equal, and what is nearly equal is not.
            Placement::RoundRobin | Placement::Hash => possible.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1))),
            _ => self.ties.rank(possible),
        }
    }
}
