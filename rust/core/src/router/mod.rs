//! The state machine: events with a time stamp in, decisions out.
//!
//! Every event first runs the timers that are due, then itself, then pumps the line, so that no turn that fits is left
//! waiting. Turns placed, expired or lost by an event of somebody else leave by the outbox, each exactly once, in order.
//! One file per family of events; `book` keeps sessions and ledger in step for all of them.

mod audit;
mod book;
mod checks;
mod choose;
mod config;
mod ends;
mod families;
mod feeds;
mod finish;
mod fit;
mod fleet;
mod groups;
mod hints;
mod infer;
mod limits;
mod observe;
mod owners;
mod paths;
mod pump;
mod questions;
mod rank;
mod reclaim;
mod served;
mod sessions;
mod stats;
mod submit;
mod timers;
mod trunks;
pub mod types;
mod view;

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use crate::admission::enforced::Enforced;
use crate::admission::line::Line;
use crate::error::{Error, Result};
use crate::estimate::{Estimator, Rate};
use crate::index::hasher::TextState;
use crate::index::{Depths, Index, Knowledge, Match};
use crate::ledger::Ledger;
use crate::placement::{Load, Ties};
use crate::prompt::BlockHasher;
use crate::record::codec::record;
use crate::sessions::{ClosedTurns, Session, Slab, Turn, TurnState, Verdict};
use crate::units::{MAX_NANOS, Nanos, nanos, seconds};
use trunks::ClaimEnds;
use types::{Decision, Effect, Outcome, ReplicaConfig, RouterConfig, Stats, WorkloadConfig};

/// Blocks that residency may count on a replica of unknown capacity: a bound on memory, not a claim about the engine.
const UNKNOWN_CAPACITY_BLOCKS: u64 = 1 << 18;

/// A replica and what the core knows of it beside limits and ledger.
#[derive(Debug)]
struct Replica {
    config: ReplicaConfig,
    alive: bool,
    /// It admits nobody any more.
    closing: Option<Closing>,
    /// Capacity in blocks, [`crate::units::UNBOUNDED_BLOCKS`] when unknown.
    blocks: u64,
    weight_version: i64,
    /// Bumped when the engine drops its cache.
    weights_epoch: u32,
    /// When the prefill queued on it will be done, judged by its rate.
    prefill_until: Nanos,
    /// Placed turns without a first token.
    prefilling: u64,
    /// Continuations that said what they found in the cache, the tokens that were forecast for them, and those that were missing.
    shortfall: [u64; 3],
    /// Blocks that idle sessions lost to the engine's eviction since limits were applied last.
    lost_blocks: u64,
    observed: observe::Observed,
    /// Faded sums over reporting continuations: tokens forecast, and those of them that were found.
    hits: [f64; 2],
    /// Output tokens of turns that completed, and tokens of KV whose sessions ended.
    decoded: Rate,
    dead: Rate,
    /// The blocked turn it drains for.
    reserved_for: Option<u32>,
    idle: Vec<BTreeSet<(Nanos, u32)>>,
    /// Those of them that a hint has freed before their lease would have ended, or that it let end.
    released: Vec<BTreeSet<(Nanos, u32)>>,
}

/// Why a replica admits nobody.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Closing {
    /// It is being drained.
    Drain,
    /// It goes once nothing runs there.
    Remove,
}

impl Replica {
    fn accepts(&self) -> bool {
        self.alive && self.closing.is_none()
    }
}

/// A workload and its counters.
#[derive(Debug)]
struct Workload {
    config: WorkloadConfig,
    estimator: Estimator,
    arrivals: Rate,
    finishes: Rate,
    finished: i64,
    pauses: i64,
    moves: i64,
    forced: i64,
}

/// The decision core.
///
/// ```
/// use turnout_core::router::Router;
/// use turnout_core::router::types::{Completion, ReplicaConfig, RouterConfig, Status, Submit, TurnInput};
///
/// let replicas = vec![ReplicaConfig::new("a", 1e6), ReplicaConfig::new("b", 1e6)];
/// let mut router = Router::new(RouterConfig { replicas, ..RouterConfig::default() })?;
/// let prompt = router.hasher().prompt(&[7; 40]);
/// let decision = router.submit(0, &Submit { session: Some("s"), ..Submit::new(TurnInput::Prompt(&prompt)) })?;
/// assert_eq!(decision.status, Status::Placed);
/// router.complete(1, &decision.turn, &Completion { output: Some(&[&[1, 2, 3]]), ..Completion::default() })?;
/// router.end_session(2, "s", true)?;
/// # Ok::<(), turnout_core::error::Error>(())
/// ```
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each read by its own event")]
pub struct Router {
    hasher: BlockHasher,
    block_tokens: u64,
    max_held: usize,
    control_period: Option<Nanos>,
    turn_ttl: Nanos,
    session_ttl: Nanos,
    infer_sessions: bool,

    now: Nanos,
    seq: u64,
    /// Order of first admissions.
    admissions: u64,
    salt: i64,
    generated: u64,

    index: Index,
    ledger: Ledger,
    replicas: Vec<Replica>,
    replica_slots: HashMap<Arc<str>, u32, TextState>,
    workloads: Vec<Workload>,
    sessions: Slab<Session>,
    session_slots: HashMap<Arc<str>, u32, TextState>,
    /// Sessions by who answers for them.
    owners: HashMap<Arc<str>, BTreeSet<u32>, TextState>,
    turns: Slab<Turn>,
    turn_slots: HashMap<Arc<str>, u32, TextState>,
    closed: ClosedTurns,
    /// Sessions that wait for an aborted turn to come back, by its id.
    retries: HashMap<Arc<str>, u32, TextState>,
    groups: groups::Groups,
    claim_ends: ClaimEnds,

    limits: Enforced,
    applied_at: Nanos,
    view_step: i64,
    line: Line,
    ties: Ties,
    /// Slot after that of the last admission: where the round goes on.
    next_in_turn: u32,
    outbox: VecDeque<Decision>,
    stats: Stats,

    next_control: Option<Nanos>,
    policy_due: bool,
    deadlines: BTreeSet<(Nanos, u32)>,
    /// Replicas that go once nothing runs there.
    removing: Vec<u32>,
    /// Turns that were open when the router was restored, and that no event has named since; until when they are kept.
    unconfirmed: BTreeSet<u32>,
    reattach_until: Option<Nanos>,
    /// Placed turns by their last event.
    silence: BTreeSet<(Nanos, u32)>,
    /// Sessions without an open turn by their last activity.
    quiet: BTreeSet<(Nanos, u32)>,
    /// Those of workloads without end signals, by workload and last activity.
    unended: Vec<BTreeSet<(Nanos, u32)>>,
    /// Ends of their histories, where a prompt may continue a session that its caller does not name.
    history_ends: BTreeSet<infer::HistoryEnd>,
    /// Pumps so far.
    pumps: u64,
    /// Something changed that concerns every replica.
    all_changed: bool,
    /// Replicas that were reserved since the last pump began.
    just_reserved: Vec<u32>,
    /// When the leases of idle sessions end, as far as they have not.
    leases: BTreeSet<(Nanos, u32)>,
    /// Some session without a charge may have a known history that can be let go when the index is full.
    paused_paths: bool,
    /// Scratch for index answers, by replica slot.
    depths: Depths,
    best: Vec<Match>,
}

impl Router {
    /// Makes a router.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a capacity, rate, target, prior, period or size out of range, and for duplicate names.
    #[allow(clippy::missing_panics_doc, reason = "8 bytes are 8 bytes")]
    pub fn new(config: RouterConfig) -> Result<Self> {
        let hasher = BlockHasher::new(&config.hash_key, config.block_tokens)?;
        let key_seed = u64::from_le_bytes(config.hash_key.0[..8].try_into().expect("8 bytes"));
        let mut workloads = config.workloads;
        if workloads.is_empty() {
            workloads.push(WorkloadConfig::new("default"));
        }
        for (at, workload) in workloads.iter().enumerate() {
            workload.check()?;
            if workloads[..at].iter().any(|other| other.name == workload.name) {
                return Err(Error::InvalidArgument { argument: "workloads", value: format!("{:?} twice", workload.name), accepted: "unique names" });
            }
        }
        let period = |argument: &'static str, value: f64| {
            if value > 0.0 {
                Ok(value)
            } else {
                Err(Error::InvalidArgument { argument, value: value.to_string(), accepted: "seconds above 0, infinity to switch it off" })
            }
        };
        let control_period =
            Some(period("control_period_s", config.control_period_s)?).filter(|period| period.is_finite()).map(|period| nanos(period).max(1));
        let count = workloads.len();
        let mut router = Self {
            block_tokens: u64::from(config.block_tokens),
            hasher,
            max_held: config.max_held,
            control_period,
            turn_ttl: nanos(period("turn_ttl_s", config.turn_ttl_s)?),
            session_ttl: nanos(period("session_ttl_s", config.session_ttl_s)?),
            infer_sessions: config.infer_sessions,
            now: 0,
            seq: 0,
            admissions: 0,
            salt: 0,
            generated: 0,
            index: Index::new(key_seed).with_limit(config.index_bytes)?,
            ledger: Ledger::new(count),
            replicas: Vec::new(),
            replica_slots: HashMap::with_hasher(TextState(key_seed)),
            workloads: workloads.into_iter().map(Workload::new).collect(),
            sessions: Slab::default(),
            session_slots: HashMap::with_hasher(TextState(key_seed)),
            owners: HashMap::with_hasher(TextState(key_seed)),
            turns: Slab::default(),
            turn_slots: HashMap::with_hasher(TextState(key_seed)),
            closed: ClosedTurns::new(key_seed),
            retries: HashMap::with_hasher(TextState(key_seed)),
            groups: groups::Groups::new(key_seed),
            claim_ends: ClaimEnds::default(),
            limits: Enforced::new(count),
            applied_at: 0,
            view_step: -1,
            line: Line::new(count),
            ties: Ties(config.seed),
            next_in_turn: 0,
            outbox: VecDeque::new(),
            stats: Stats::default(),
            next_control: None,
            policy_due: true,
            deadlines: BTreeSet::new(),
            removing: Vec::new(),
            unconfirmed: BTreeSet::new(),
            reattach_until: None,
            silence: BTreeSet::new(),
            quiet: BTreeSet::new(),
            unended: vec![BTreeSet::new(); count],
            history_ends: BTreeSet::new(),
            pumps: 0,
            all_changed: true,
            just_reserved: Vec::new(),
            leases: BTreeSet::new(),
            paused_paths: false,
            depths: Depths::default(),
            best: Vec::new(),
        };
        for replica in config.replicas {
            replica.check()?;
            if !router.add_slot(replica.clone()) {
                return Err(Error::InvalidArgument { argument: "replicas", value: format!("{:?} twice", replica.name), accepted: "unique names" });
            }
        }
        Ok(router)
    }

    /// Runs the timers that are due.
    pub fn tick(&mut self, now: Nanos) -> Outcome {
        let seq = self.begin(now);
        self.pump(None);
        Outcome { seq, effect: Effect::Done }
    }

    /// Takes the next decision out of the outbox.
    pub fn drain(&mut self) -> Option<Decision> {
        self.outbox.pop_front()
    }

    /// Starts an event: moves the clock, never backwards, and runs what is due.
    fn begin(&mut self, now: Nanos) -> u64 {
        if now < self.now {
            self.stats.clock_clamped += 1;
        }
        self.now = self.now.max(now.min(MAX_NANOS));
        self.seq += 1;
        self.run_timers();
        self.seq
    }

    fn live(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.replicas.len() as u32).filter(|&slot| self.replicas[slot as usize].alive)
    }

    /// Replicas that admit sessions.
    fn accepting(&self) -> impl Iterator<Item = u32> + '_ {
        self.live().filter(|&slot| self.replicas[slot as usize].accepts())
    }

    fn root_name(&self, namespace: &str) -> Arc<str> {
        if self.salt == 0 { namespace.into() } else { format!("{namespace}\u{0}{}", self.salt).into() }
    }

    fn load(&self, replica: u32) -> Load {
        let state = &self.replicas[replica as usize];
        Load {
            prefill_tokens_per_s: state.config.prefill_tokens_per_s,
            decode_s_per_kv_token: state.config.decode_s_per_kv_token,
            backlog_s: seconds(state.prefill_until.saturating_sub(self.now)),
            charge_tokens: self.ledger.charge(replica) * self.block_tokens,
        }
    }

    /// Fills in the names of a verdict.
    fn decision(&self, turn: &Turn, verdict: &Verdict) -> Decision {
        let name = |slot: u32| self.replicas[slot as usize].config.name.clone();
        Decision {
            turn: turn.id.clone(),
            attempt: turn.attempt,
            status: verdict.status,
            replica: verdict.replica.map(name),
            cached_tokens: verdict.cached_tokens,
            alternatives: verdict.alternatives.map(|slot| slot.map(name)),
            reason: verdict.reason,
            receipt: verdict.receipt,
            seq: self.seq,
        }
    }

    /// Bounds what is judged resident by what the engine can hold beside the open outputs, which the index does not know yet.
    fn enforce_residency(&mut self, replica: u32) {
        let state = &self.replicas[replica as usize];
        let capacity = if state.config.kv_tokens.is_infinite() { UNKNOWN_CAPACITY_BLOCKS } else { state.blocks };
        let known = state.config.kv_tokens.is_finite();
        self.index.enforce(replica, capacity.saturating_sub(self.ledger.replica(replica).output), known);
        if known {
            self.release_lost();
        }
    }
}

impl Workload {
    fn new(config: WorkloadConfig) -> Self {
        let estimator = Estimator::new(&config);
        Self { config, estimator, arrivals: Rate::default(), finishes: Rate::default(), finished: 0, pauses: 0, moves: 0, forced: 0 }
    }
}

/// Names for an error message, the first few.
fn some_names<'a>(names: impl Iterator<Item = &'a Arc<str>>) -> String {
    let names: Vec<String> = names.take(9).map(|name| format!("{name:?}")).collect();
    match names.len() {
        0 => "none".into(),
        9 => format!("{}, ...", names[..8].join(", ")),
        _ => names.join(", "),
    }
}

/// A turn's output, reserved or reported, in tokens.
fn placed(turn: &Turn) -> Option<&crate::sessions::Placement> {
    match &turn.state {
        TurnState::Placed(placement) => Some(placement),
        TurnState::Held { .. } => None,
    }
}

record!(Replica {
    config,
    alive,
    closing,
    blocks,
    weight_version,
    weights_epoch,
    prefill_until,
    prefilling,
    shortfall,
    lost_blocks,
    observed,
    hits,
    decoded,
    dead,
    reserved_for,
    idle,
    released
});
record!(Closing as closing: Drain = 0, Remove = 1);
record!(Workload { config, estimator, arrivals, finishes, finished, pauses, moves, forced });
record!(Router {
    hasher,
    block_tokens,
    max_held,
    control_period,
    turn_ttl,
    session_ttl,
    infer_sessions,
    now,
    seq,
    admissions,
    salt,
    generated,
    index,
    ledger,
    replicas,
    replica_slots,
    workloads,
    sessions,
    session_slots,
    owners,
    turns,
    turn_slots,
    closed,
    retries,
    groups,
    claim_ends,
    limits,
    applied_at,
    view_step,
    line,
    ties,
    next_in_turn,
    outbox,
    stats,
    next_control,
    policy_due,
    deadlines,
    removing,
    unconfirmed,
    reattach_until,
    silence,
    quiet,
    unended,
    history_ends,
    pumps,
    all_changed,
    just_reserved,
    leases,
    paused_paths,
    depths,
    best
});
