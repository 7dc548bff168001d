//! Where a turn goes: the cost of a replica in seconds, the rules of other routers for comparison, and ties.
//!
//! A rule ranks the replicas that may take a new or paused session; whether one may is decided before, and a continuation stays
//! where its session is charged, whatever the rule.

mod cache_aware;
mod dynamo;
mod least_loaded;
mod rule;

use crate::admission::enforced::ReplicaLimits;
use crate::prompt::mix64;
use crate::record::codec::record;
pub(crate) use cache_aware::{CacheAware, Regime};
pub(crate) use dynamo::Dynamo;
pub(crate) use least_loaded::LeastLoaded;
pub(crate) use rule::Placement;

/// Output that is assumed where neither the caller nor the limits say more, tokens.
const ASSUMED_OUTPUT_TOKENS: u64 = 512;
/// Costs within this relative distance are a tie.
const TIE: f64 = 1e-9;

/// What the cost of a replica depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) prefill_tokens_per_s: f64,
    pub(crate) decode_s_per_kv_token: f64,
    /// Seconds of prefill queued.
    pub(crate) backlog_s: f64,
    pub(crate) charge_tokens: u64,
}

impl Load {
    /// Seconds by which so many tokens of KV beside it make the decode of a turn longer.
    pub(crate) fn decode_s(&self, kv_tokens: f64, output_tokens: u64) -> f64 {
        output_tokens as f64 * kv_tokens * self.decode_s_per_kv_token
    }
}

/// Seconds until the turn is served, weighted: queued prefill, own prefill (reclaimed tokens will have to be computed again,
/// so they count like own ones), and the decode slowed by everything that is charged there.
pub(crate) fn cost(load: &Load, limits: &ReplicaLimits, uncached_tokens: u64, reclaimed_tokens: u64, output_tokens: u64) -> f64 {
    let prefill = (uncached_tokens + reclaimed_tokens) as f64 / load.prefill_tokens_per_s;
    let decode = load.decode_s(load.charge_tokens as f64, output_tokens);
    limits.cost_backlog * load.backlog_s + limits.cost_prefill * prefill + limits.cost_decode * decode
}

/// Output to expect of a turn for the cost.
pub(crate) fn expected_output(limit_tokens: u64, max_new_tokens: Option<u64>) -> u64 {
    let expected = if limit_tokens > 0 { limit_tokens } else { ASSUMED_OUTPUT_TOKENS };
    max_new_tokens.map_or(expected, |max| expected.min(max))
}

/// The seeded generator that breaks ties (`SplitMix64`).
#[derive(Debug, Clone)]
pub(crate) struct Ties(pub(crate) u64);

impl Ties {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        ((u128::from(mix64(self.0)) * n as u128) >> 64) as usize
    }

    /// A number from 0 to below 1.
    fn unit(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1u64 << 53) as f64
    }

    /// Sorts candidates (cost, replica) by cost and puts a random one of the cheapest first.
    pub(crate) fn rank(&mut self, candidates: &mut [(f64, u32)]) {
        candidates.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let Some(&(least, _)) = candidates.first() else { return };
        let ties = candidates.iter().take_while(|candidate| candidate.0 <= least + least.abs() * TIE).count();
        if ties > 1 {
            let chosen = self.below(ties);
            candidates[..=chosen].rotate_right(1);
        }
    }
}

record!(tuple Ties);
