//! The table that a policy returns: set-points that the core enforces until the next control step.

use std::sync::Arc;

use crate::record::codec::record;

/// Limits for a set of replicas and workloads, rows named so that they can be applied to a fleet that changed meanwhile.
///
/// A field left `None` means its default, never "as before". Matrices are row-major, replicas by workloads.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Limits {
    /// Names of the replica rows. A live replica that is not named gets defaults.
    pub replicas: Vec<Arc<str>>,
    /// Names of the workload rows.
    pub workloads: Vec<Arc<str>>,
    /// (R,) sessions charged on a replica, above which no new or paused session is admitted; infinite by default.
    pub session_cap: Option<Vec<f64>>,
    /// (R, W) the same per workload; 0 closes the replica to the workload; infinite by default.
    pub workload_cap: Option<Vec<f64>>,
    /// (R,) running turns, above which no new or paused session is admitted; infinite by default.
    pub turn_cap: Option<Vec<f64>>,
    /// (R,) tokens: admit only while commit + need stays at or below it; the replica's capacity by default.
    pub ceiling_tokens: Option<Vec<f64>>,
    /// (R,) tokens, at least the ceiling: above it idle sessions are reclaimed before their lease ends; the larger of capacity and ceiling by default.
    pub overflow_tokens: Option<Vec<f64>>,
    /// (W,) tokens of expected growth of a session (L of phi); 0 by default: commit equals charge.
    pub growth_tokens: Option<Vec<f64>>,
    /// (W,) tokens reserved as output of a turn that reports no progress, capped by its `max_new_tokens`; 0 by default.
    pub output_tokens: Option<Vec<f64>>,
    /// (W,) share of admissions between workloads that wait; 1 by default.
    pub weight: Option<Vec<f64>>,
    /// (W,) what one admission costs its workload's virtual time, before division by the weight; 1 by default.
    pub price: Option<Vec<f64>>,
    /// (W,) shape of the entitlements, from which reclaim takes in order; the weight by default.
    pub share: Option<Vec<f64>>,
    /// (W,) tokens of commit on all replicas below which a workload goes first and nothing idle is taken from it; 0 by default. Where
    /// they add up to more than the ceilings, all are scaled down alike.
    pub guarantee_tokens: Option<Vec<f64>>,
    /// (W,) tokens of commit on all replicas that admissions of a workload may not exceed; infinite by default.
    pub limit_tokens: Option<Vec<f64>>,
    /// (R, W) seconds for which an idle session cannot be reclaimed to place another; 0 by default; at most 600 s is granted.
    pub lease_s: Option<Vec<f64>>,
    /// Tokens admitted past a turn that is blocked for room, in multiples of its need; infinite allowed; 4 by default.
    pub bypass: Option<f64>,
    /// Turns tried per workload in one scan of the line; 8 by default.
    pub lookahead: Option<f64>,
    /// (R,) weight of the seconds of prefill that the turn itself needs; 2 by default: own delay, and work taken from others.
    pub cost_prefill: Option<Vec<f64>>,
    /// (R,) weight of the seconds of prefill queued on the replica; 1 by default.
    pub cost_backlog: Option<Vec<f64>>,
    /// (R,) weight of the seconds by which the replica's charge slows the decode of the turn; 1 by default.
    pub cost_decode: Option<Vec<f64>>,
    /// (R,) weight of the seconds by which the turns of its own group that run on the replica slow the decode of a turn; 0 by default.
    pub cost_spread: Option<Vec<f64>>,
    /// (W,) what decides between held turns of one priority, before the order in which they came: `fifo` (the default), `longest_first`
    /// or `shortest_first` by expected output.
    pub order: Option<Vec<Arc<str>>>,
    /// How the replicas that may take a new or paused session are ranked: `cost` (the default), `round_robin`, `least_loaded`,
    /// `cache_aware`, `dynamo` or `hash`.
    pub placement: Option<Arc<str>>,
    /// Parameters of the placement by name; those that are not named take its defaults.
    pub placement_args: Vec<(Arc<str>, f64)>,
    /// Sessions above `session_cap` or `workload_cap` are reclaimed as soon as they are idle, newest first; off by default.
    pub shed: Option<bool>,
}

record!(Limits {
    replicas,
    workloads,
    session_cap,
    workload_cap,
    turn_cap,
    ceiling_tokens,
    overflow_tokens,
    growth_tokens,
    output_tokens,
    weight,
    price,
    share,
    guarantee_tokens,
    limit_tokens,
    lease_s,
    bypass,
    lookahead,
    cost_prefill,
    cost_backlog,
    cost_decode,
    cost_spread,
    order,
    placement,
    placement_args,
    shed
});
