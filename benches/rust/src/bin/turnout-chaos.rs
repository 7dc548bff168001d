//! Calls the public face of the core with arguments that nobody should use, in any order: unknown names, closed handles, counts at
//! the edges, events out of order, clocks that run backwards. Demands no panic, green audits, and the same answers when a history is
//! played again: `turnout-chaos SECONDS [SEED]`.

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hasher};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use turnout_core::control::limits::Limits;
use turnout_core::index::CacheEvent;
use turnout_core::prefix_index::{HistoryId, PrefixIndex, PrefixIndexConfig};
use turnout_core::prompt::HashKey;
use turnout_core::router::Router;
use turnout_core::router::types::{Cause, Completion, Metrics, ReplicaConfig, RouterConfig, Submit, TurnInput, WeightsMode, WorkloadConfig};

/// Operations in one history.
const OPERATIONS: u32 = 120;
/// Operations between two audits.
const AUDIT_EVERY: u32 = 12;

/// `SplitMix64`.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        x ^ (x >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// A number that is small, at an edge, or anything.
    fn number(&mut self) -> u64 {
        match self.below(8) {
            0 => u64::MAX,
            1 => 1 << 40,
            2 => self.next(),
            3 => 0,
            _ => self.below(200),
        }
    }

    /// A real number that is sensible, at an edge, or none.
    fn real(&mut self) -> f64 {
        match self.below(9) {
            0 => f64::NAN,
            1 => f64::INFINITY,
            2 => -1.0,
            3 => 0.0,
            4 => 1e300,
            _ => self.below(4_000) as f64,
        }
    }

    fn pick<'a, T: ?Sized>(&mut self, from: &[&'a T]) -> &'a T {
        from[self.below(from.len() as u64) as usize]
    }

    /// Tokens of few values, so that prompts share prefixes and fork everywhere.
    fn tokens(&mut self) -> Vec<u32> {
        let (first, len) = (self.below(3) as u32, self.below(60));
        (0..len).map(|at| if self.chance(9) { self.below(3) as u32 } else { first + (at as u32 / 7) % 2 }).collect()
    }
}

const SESSIONS: [&str; 6] = ["a", "b", "c", "d", "", "never"];
const TURNS: [&str; 7] = ["1", "2", "3", "4", "5", "", "never"];
const REPLICAS: [&str; 5] = ["r0", "r1", "r2", "", "never"];
const SPACES: [&str; 3] = ["", "adapter", "\u{0}7"];

/// A batch of cache events: hashes of few values, so that parents, repeats and removals meet.
struct Cache {
    hashes: Vec<u64>,
    parent: Option<u64>,
    tokens: Vec<u32>,
    extra: Vec<u64>,
    block_tokens: u32,
    kind: u64,
    group: u32,
    namespace: &'static str,
}

impl Cache {
    fn new(dice: &mut Dice) -> Self {
        let (count, block_tokens) = (dice.below(4), [1, 2, 4, 8, 3, 0][dice.below(6) as usize]);
        let len = if dice.chance(8) { dice.below(20) } else { count * u64::from(block_tokens) };
        Self {
            hashes: (0..count).map(|_| dice.below(12)).collect(),
            parent: (!dice.chance(3)).then(|| dice.below(12)),
            tokens: (0..len).map(|_| dice.below(2) as u32).collect(),
            extra: (0..dice.below(3)).map(|_| dice.below(2)).collect(),
            block_tokens,
            kind: dice.below(10),
            group: dice.below(8).saturating_sub(6) as u32,
            namespace: SPACES[dice.below(3) as usize],
        }
    }

    fn event(&self) -> CacheEvent<'_> {
        let Self { hashes, parent, tokens, extra, block_tokens, group, namespace, .. } = self;
        let (parent, block_tokens, group) = (*parent, *block_tokens, *group);
        match self.kind {
            0 => CacheEvent::Cleared,
            1..4 => CacheEvent::Removed { hashes, group },
            kind => CacheEvent::Stored { namespace, hashes, parent, tokens, block_tokens, group, whole_context: kind > 4, extra },
        }
    }
}

/// Operations between two snapshots.
const RESTORE_EVERY: u64 = 41;

/// One history of the index; answers a digest of everything it said.
fn index_history(seed: u64, restoring: bool) -> Result<u64, String> {
    let mut dice = Dice(seed);
    let mut said = DefaultHasher::new();
    let block_tokens = [1, 2, 4, 16][dice.below(4) as usize];
    let index_bytes = if dice.chance(4) { 1 << 20 } else { 1 << 30 };
    let config = PrefixIndexConfig { hash_key: HashKey([seed as u8; 16]), block_tokens, index_bytes };
    let mut index = PrefixIndex::new(&config).map_err(|error| error.to_string())?;
    let mut handles: Vec<HistoryId> = vec![HistoryId(0), HistoryId(u64::MAX)];
    let mut text = String::new();
    for operation in 0..OPERATIONS {
        if restoring && u64::from(operation) % RESTORE_EVERY == seed % RESTORE_EVERY {
            (index, _) = PrefixIndex::restore(&index.snapshot(&Vec::new())).map_err(|error| format!("operation {operation}: {error}"))?;
        }
        text.clear();
        let history = handles[dice.below(handles.len() as u64) as usize];
        let (row, space) = (dice.below(5) as u32, dice.pick(&SPACES));
        let replica = (!dice.chance(4)).then_some(row);
        let answer: Result<(), std::fmt::Error> = match dice.below(15) {
            0 => write!(text, "{:?}", index.add_replica(dice.real())),
            1..4 => {
                let opened = index.open(space, &dice.tokens(), replica);
                handles.extend(opened.as_ref().ok());
                write!(text, "{opened:?}")
            }
            4 => {
                let forked = index.fork(history, (!dice.chance(3)).then(|| dice.number()));
                handles.extend(forked.as_ref().ok());
                write!(text, "{forked:?}")
            }
            5 | 6 => write!(text, "{:?}", index.extend(history, &dice.tokens(), replica)),
            7 => write!(text, "{:?}", index.close(history)),
            8 => write!(text, "{:?}", index.place(history, row)),
            9 => write!(text, "{:?}", index.holders(history, dice.below(4) as usize)),
            10 => {
                let fingerprints = index.hasher().prompt(&dice.tokens()).fingerprints().to_vec();
                write!(text, "{:?} {:?}", index.lookup(space, &fingerprints, 9).to_vec(), index.lookup_all(space, &fingerprints))
            }
            11 | 12 => {
                let events: Vec<Cache> = (0..dice.below(4)).map(|_| Cache::new(&mut dice)).collect();
                let events: Vec<CacheEvent<'_>> = events.iter().map(Cache::event).collect();
                let sequence = if dice.chance(5) { dice.number() } else { u64::from(operation) / 6 };
                write!(text, "{:?}", index.apply(row, dice.below(2) as i64, sequence, &events))
            }
            13 if dice.chance(3) => write!(text, "{:?} {:?}", index.flush(row), dice.chance(2).then(|| index.lose_replica(row))),
            13 => write!(text, "{}", index.drop_namespace(space)),
            _ => write!(text, "{:?}", index.stats()),
        };
        answer.map_err(|error| error.to_string())?;
        said.write(text.as_bytes());
        if operation % AUDIT_EVERY == 0 {
            index.audit().map_err(|error| format!("operation {operation}: {error}"))?;
        }
    }
    index.audit().map_err(|error| error.to_string())?;
    Ok(said.finish())
}

fn limits(dice: &mut Dice, router: &Router) -> Limits {
    let (replicas, workloads) = (router.replicas(), router.workloads());
    let (r, w) = (replicas.len(), workloads.len());
    let mut column = |n: usize| (!dice.chance(2)).then(|| (0..n).map(|_| dice.real()).collect::<Vec<f64>>());
    Limits {
        session_cap: column(r),
        workload_cap: column(r * w),
        turn_cap: column(r),
        ceiling_tokens: column(r),
        growth_tokens: column(w),
        output_tokens: column(w),
        weight: column(w),
        price: column(w),
        lease_s: column(r * w),
        share: column(w),
        guarantee_tokens: column(w),
        limit_tokens: column(w),
        replicas,
        workloads,
        ..Limits::default()
    }
}

/// One history of the router.
#[allow(clippy::too_many_lines, reason = "one arm per event")]
fn router_history(seed: u64, restoring: bool) -> Result<u64, String> {
    let mut dice = Dice(seed);
    let mut said = DefaultHasher::new();
    let replicas = (0..dice.below(3)).map(|at| ReplicaConfig::new(REPLICAS[at as usize], 200.0 + 100.0 * at as f64)).collect();
    let workloads = vec![WorkloadConfig::new("x"), WorkloadConfig::new("y")];
    let config = RouterConfig { replicas, workloads, block_tokens: [1, 4, 16][dice.below(3) as usize], seed, max_held: 5, ..RouterConfig::default() };
    let mut router = Router::new(config).map_err(|error| error.to_string())?;
    let mut text = String::new();
    let mut now = 0u64;
    for operation in 0..OPERATIONS {
        if restoring && u64::from(operation) % RESTORE_EVERY == seed % RESTORE_EVERY {
            router = Router::restore(&router.snapshot()).map_err(|error| format!("operation {operation}: {error}"))?;
        }
        text.clear();
        // Mostly forwards, sometimes far, sometimes back.
        now = match dice.below(30) {
            0 => dice.next(),
            1 => now / 2,
            2 => now.saturating_add(4_000_000_000_000),
            _ => now.saturating_add(dice.below(3_000_000_000)),
        };
        let (session, turn, replica) = (dice.pick(&SESSIONS), dice.pick(&TURNS), dice.pick(&REPLICAS));
        let tokens = dice.tokens();
        let lists = vec![&tokens[..]; if dice.chance(4) { dice.below(3) as usize } else { 1 }];
        let completion = Completion {
            output: (!dice.chance(2)).then_some(&lists[..]),
            output_tokens: (!dice.chance(3)).then(|| dice.number()),
            cached_tokens: (!dice.chance(3)).then(|| dice.number()),
            prompt_tokens: dice.chance(4).then(|| dice.number()),
            served_by: dice.chance(4).then_some(replica),
            keep: dice.chance(3).then(|| dice.below(3) as u32),
            cause: Cause::NAMES[dice.below(4) as usize].1,
            retry: dice.chance(3),
            grown: None,
        };
        let answer = match dice.below(21) {
            0..6 => {
                let prompt = router.hasher().prompt(&dice.tokens());
                let input = match dice.below(6) {
                    0 => TurnInput::Count { prompt_tokens: dice.number() },
                    1 | 2 => TurnInput::Append { base_tokens: dice.number(), tokens: &tokens },
                    _ => TurnInput::Prompt(&prompt),
                };
                let bias = [(replica, dice.real())];
                let submit = Submit {
                    parent: dice.chance(5).then(|| dice.pick(&SESSIONS)),
                    owner: dice.chance(5).then(|| dice.pick(&["one", "two"])),
                    at: dice.chance(9).then(|| dice.pick(&REPLICAS)),
                    bias: if dice.chance(8) { &bias } else { &[] },
                    priority: dice.next() as i32,
                    samples: if dice.chance(4) { dice.below(4) as u32 } else { 1 },
                    group: dice.chance(4).then(|| dice.pick(&SESSIONS)),
                    group_size: dice.chance(6).then(|| dice.below(5) as u32),
                    expected_tokens: dice.chance(4).then(|| dice.number()),
                    avoid: if dice.chance(4) { std::slice::from_ref(&replica) } else { &[] },
                    turn: (!dice.chance(4)).then_some(turn),
                    attempt: dice.below(3) as u32,
                    session: (!dice.chance(4)).then_some(session),
                    workload: (!dice.chance(3)).then(|| dice.pick(&["x", "y", "never"])),
                    namespace: (!dice.chance(3)).then(|| dice.pick(&SPACES)),
                    max_new_tokens: (!dice.chance(3)).then(|| dice.number()),
                    candidates: dice.chance(6).then_some(std::slice::from_ref(&replica)),
                    hold: !dice.chance(6),
                    deadline: dice.chance(6).then(|| dice.number()),
                    input,
                };
                if dice.chance(8) { write!(text, "{:?}", router.choose(now, &submit)) } else { write!(text, "{:?}", router.submit(now, &submit)) }
            }
            6 | 7 => write!(text, "{:?}", router.complete(now, turn, &completion)),
            8 => write!(text, "{:?}", router.abort(now, turn, &completion)),
            9 => write!(text, "{:?}", router.progress(now, turn, dice.number(), dice.chance(4).then_some(replica))),
            10 => write!(text, "{:?}", router.end_session(now, session, dice.chance(2))),
            11 => write!(text, "{:?}", router.fork(now, session, dice.pick(&SESSIONS))),
            12 if dice.chance(2) => write!(text, "{:?}", router.lose_replica(now, replica)),
            12 => write!(text, "{:?}", router.add_replica(now, ReplicaConfig::new(replica, dice.real()))),
            13 => {
                let mode = [WeightsMode::Flush, WeightsMode::Keep, WeightsMode::Salt][dice.below(3) as usize];
                write!(text, "{:?}", router.weights_updated(now, dice.number() as i64, mode, dice.chance(2).then_some(replica)))
            }
            14 => {
                let step = if dice.chance(4) { dice.number() as i64 } else { router.view(now).step };
                let limits = limits(&mut dice, &router);
                write!(text, "{:?}", router.set_limits(now, &limits, step))
            }
            15 => {
                let events: Vec<Cache> = (0..dice.below(4)).map(|_| Cache::new(&mut dice)).collect();
                let events: Vec<CacheEvent<'_>> = events.iter().map(Cache::event).collect();
                write!(text, "{:?}", router.cache_events(now, replica, 0, u64::from(operation) / 20, &events))
            }
            16 => write!(text, "{:?} {:?}", router.peek_session(session), router.end_feeds(now, replica)),
            17 if dice.chance(2) => write!(text, "{:?}", router.drain_replica(now, replica)),
            17 => write!(text, "{:?}", router.remove_replica(now, replica)),
            18 => write!(text, "{:?}", router.set_replica(now, ReplicaConfig::new(replica, dice.real()))),
            19 if dice.chance(2) => write!(text, "{:?}", router.owner_lost(now, dice.pick(&["one", "two", "three"]))),
            19 => {
                let metrics = Metrics {
                    kv_fraction: dice.chance(2).then(|| dice.real()),
                    preemptions_total: dice.chance(2).then(|| dice.number()),
                    kv_tokens: dice.chance(3).then(|| dice.real()),
                    ..Metrics::default()
                };
                write!(text, "{:?}", router.observe(now, replica, &metrics))
            }
            _ => write!(text, "{:?} {:?}", router.wake_at(), router.tick(now)),
        };
        answer.map_err(|error| error.to_string())?;
        while let Some(decision) = router.drain() {
            write!(text, "{decision:?}").map_err(|error| error.to_string())?;
        }
        said.write(text.as_bytes());
        if operation % AUDIT_EVERY == 0 {
            router.audit().map_err(|error| format!("operation {operation}: {error}"))?;
        }
    }
    router.audit().map_err(|error| error.to_string())?;
    Ok(said.finish())
}

/// Plays a history twice, the second time with snapshots on the way from which it goes on.
fn play(name: &str, seed: u64, history: fn(u64, bool) -> Result<u64, String>) -> Result<(), String> {
    let once = |restoring: bool| std::panic::catch_unwind(|| history(seed, restoring)).map_err(|_| "a panic".to_owned())?;
    let (first, second) = (once(false), once(true));
    match (first, second) {
        (Ok(first), Ok(second)) if first == second => Ok(()),
        (Ok(_), Ok(_)) => Err(format!("{name}, seed {seed}: played again, with snapshots on the way, it answers differently")),
        (Err(problem), _) | (_, Err(problem)) => Err(format!("{name}, seed {seed}: {problem}")),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<u64> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let (Some(&seconds), first) = (arguments.first(), arguments.get(1).copied().unwrap_or(0)) else {
        eprintln!("accepted is SECONDS [SEED]");
        return ExitCode::from(2);
    };
    let until = Instant::now() + Duration::from_secs(seconds);
    let mut seed = first;
    while Instant::now() < until || seed == first {
        for result in [play("index", seed, index_history), play("router", seed, router_history)] {
            if let Err(problem) = result {
                eprintln!("{problem}");
                return ExitCode::FAILURE;
            }
        }
        seed += 1;
    }
    let histories = 4 * (seed - first);
    println!(
        "{histories} histories, {} operations in {seconds} s: no panic, every audit green, every replay equal, snapshots on the way included",
        histories * u64::from(OPERATIONS)
    );
    ExitCode::SUCCESS
}
