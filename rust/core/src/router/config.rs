//! What a router is made of: replicas, workloads, sizes and times.

use std::sync::Arc;

use crate::prompt::HashKey;
use crate::record::codec::record;

/// One inference engine endpoint with its own KV cache.
#[derive(Debug, Clone, PartialEq)]
pub struct ReplicaConfig {
    /// Name, unique in the fleet.
    pub name: Arc<str>,
    /// KV capacity in tokens; `f64::INFINITY` = unknown.
    pub kv_tokens: f64,
    /// Prefill rate in uncached tokens per second, used in the placement cost.
    pub prefill_tokens_per_s: f64,
    /// Seconds by which one decode step gets longer per KV token it reads, used in the placement cost.
    pub decode_s_per_kv_token: f64,
    /// Tokens per KV block of the engine, which is what hits come in; `None` = that of the index.
    pub block_tokens: Option<u32>,
}

impl ReplicaConfig {
    /// A replica with the default rates (20,000 tokens/s prefill, 4e-8 s per KV token and decode step).
    #[must_use]
    pub fn new(name: &str, kv_tokens: f64) -> Self {
        Self { name: name.into(), kv_tokens, prefill_tokens_per_s: 20_000.0, decode_s_per_kv_token: 4e-8, block_tokens: None }
    }
}

/// A class of sessions, for quotas and mixture. Priors of 0 mean unknown.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkloadConfig {
    /// Name, unique.
    pub name: Arc<str>,
    /// Wanted share of finished sessions; NaN = unset.
    pub target: f64,
    /// Prior of the mean context of a live session, tokens.
    pub context_tokens: f64,
    /// Prior of a session's growth from its first prompt to its end, tokens.
    pub growth_tokens: f64,
    /// Prior of a session's residency from first placement to last completion, s.
    pub residency_s: f64,
    /// Whether callers say when its sessions end. Where not, one ends when it has been idle for longer than its lease and than nearly
    /// all gaps between turns so far.
    pub ends: bool,
    /// No turn of it is followed by another: its sessions end with their turn.
    pub one_turn: bool,
}

impl WorkloadConfig {
    /// A workload without target and priors.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), target: f64::NAN, context_tokens: 0.0, growth_tokens: 0.0, residency_s: 0.0, ends: true, one_turn: false }
    }
}

/// How a router is set up.
#[derive(Debug, Clone, PartialEq)]
pub struct RouterConfig {
    /// Replicas at the start; may be empty.
    pub replicas: Vec<ReplicaConfig>,
    /// Workloads; empty = one workload called `default`.
    pub workloads: Vec<WorkloadConfig>,
    /// Tokens per index block.
    pub block_tokens: u32,
    /// Most bytes that the prefix index may take; at least 2^20. When nothing can be forgotten any more, new tokens are
    /// charged by count and not indexed.
    pub index_bytes: u64,
    /// Seed of the generator that breaks ties of placement.
    pub seed: u64,
    /// Secret key of the fingerprints.
    pub hash_key: HashKey,
    /// Turns that may wait; one more is rejected.
    pub max_held: usize,
    /// Seconds between control steps.
    pub control_period_s: f64,
    /// Seconds without any event after which an open turn is aborted.
    pub turn_ttl_s: f64,
    /// Seconds of idleness after which a session is ended.
    pub session_ttl_s: f64,
    /// A turn without a session continues the one whose history its prompt continues, else begins one that stays; see
    /// [`crate::router::Router::continued_session`]. Otherwise it is a session by itself.
    pub infer_sessions: bool,
}

impl Default for RouterConfig {
    fn default() -> Self {
        Self {
            replicas: Vec::new(),
            workloads: Vec::new(),
            block_tokens: 16,
            index_bytes: 4 << 30,
            seed: 0,
            hash_key: HashKey([0; 16]),
            max_held: 1_000_000,
            control_period_s: 1.0,
            turn_ttl_s: 7200.0,
            session_ttl_s: 3600.0,
            infer_sessions: false,
        }
    }
}

record!(ReplicaConfig { name, kv_tokens, prefill_tokens_per_s, decode_s_per_kv_token, block_tokens });
record!(WorkloadConfig { name, target, context_tokens, growth_tokens, residency_s, ends, one_turn });
