//! Runs one operation of the core some number of times, for whoever counts instructions or time from outside:
//! `turnout-bench OPERATION COUNT`. Without arguments every operation is timed, each beside its bound.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::Instant;

use turnout_core::index::Index;
use turnout_core::prefix_index::{HistoryId, PrefixIndex, PrefixIndexConfig};
use turnout_core::router::Router;
use turnout_core::router::types::{Completion, ReplicaConfig, RouterConfig, Submit, TurnInput};

/// An operation: its name, what bounds it, and how to make it. The count comes first, so that room can be made for it.
type Case = (&'static str, &'static str, fn(usize) -> Box<dyn FnMut(usize)>);

const CASES: [Case; 13] = [
    ("hash-8192", "hash-8192", hash::<8192>),
    ("lookup-8192", "hash-8192", lookup::<8192>),
    ("hash-1536", "hash-1536", hash::<1536>),
    ("lookup-1536", "hash-1536", lookup::<1536>),
    ("hash-512", "hash-512", hash::<512>),
    ("extend-512", "hash-512", extend),
    ("peek", "peek", peek::<8>),
    ("peek-1024-replicas", "peek", peek::<1024>),
    ("evict-tail", "evict-tail", evict),
    ("submit-abort-8", "submit-abort-8", decide::<8>),
    ("submit-abort-64", "submit-abort-8", decide::<64>),
    ("turn-1k-sessions", "turn-1k-sessions", turn::<1_000>),
    ("turn-30k-sessions", "turn-1k-sessions", turn::<30_000>),
];

fn tokens(seed: u32, n: usize) -> Vec<u32> {
    (0..n as u32).map(|at| (seed.wrapping_mul(0x9E37_79B9) ^ at.wrapping_mul(2_654_435_761)) % 150_000).collect()
}

fn fleet(replicas: u32, kv_tokens: f64) -> PrefixIndex {
    let mut index = PrefixIndex::new(&PrefixIndexConfig::default()).expect("the default is accepted");
    for _ in 0..replicas {
        index.add_replica(kv_tokens).expect("a capacity above 0");
    }
    index
}

fn hash<const N: usize>(_: usize) -> Box<dyn FnMut(usize)> {
    let (hasher, prompt) = (fleet(0, 1.0).hasher().clone(), tokens(1, N));
    let mut fingerprints = Vec::new();
    Box::new(move |_| {
        fingerprints.clear();
        black_box(hasher.hash_into(black_box(&prompt), &mut fingerprints));
    })
}

fn lookup<const N: usize>(_: usize) -> Box<dyn FnMut(usize)> {
    let (mut index, prompt) = (fleet(8, 1e9), tokens(1, N));
    let hasher = index.hasher().clone();
    index.open("", &prompt, Some(3)).expect("the replica is there");
    let mut fingerprints = Vec::new();
    Box::new(move |_| {
        fingerprints.clear();
        hasher.hash_into(black_box(&prompt), &mut fingerprints);
        black_box(index.lookup("", &fingerprints, 8));
    })
}

/// Blocks whose slice has room for 32 more.
const ROOMY_BLOCKS: usize = 560;

fn extend(count: usize) -> Box<dyn FnMut(usize)> {
    let mut index = fleet(8, 1e12);
    // A run that outgrows its slice moves to one an eighth larger: so many blocks that the last ones fit without moving.
    let histories: Vec<HistoryId> = (0..count).map(|at| index.open("", &tokens(at as u32, 16 * ROOMY_BLOCKS), Some(3)).expect("there")).collect();
    let new = tokens(7, 512);
    Box::new(move |at| {
        black_box(index.extend(histories[at], black_box(&new), Some(3)).expect("open"));
    })
}

fn peek<const REPLICAS: u32>(_: usize) -> Box<dyn FnMut(usize)> {
    let mut index = fleet(REPLICAS, 1e12);
    let histories: Vec<HistoryId> = (0..1_000u32).map(|at| index.open("", &tokens(at, 256), Some(at % REPLICAS)).expect("there")).collect();
    // What all share, as a system prompt is shared.
    let shared = index.open("", &tokens(5_000, 4_096), None).expect("open");
    for replica in 0..REPLICAS {
        index.place(shared, replica).expect("there");
    }
    let own = index.fork(shared, None).expect("open");
    index.extend(own, &tokens(6_000, 256), Some(1)).expect("open");
    Box::new(move |at| {
        black_box(index.peek(histories[at % histories.len()]).expect("open"));
        black_box(index.holders(own, 8).expect("open"));
    })
}

fn evict(count: usize) -> Box<dyn FnMut(usize)> {
    let mut index = Index::new(1);
    index.residency.add_replica(0);
    for session in 0..count as u64 {
        let root = index.tree.root("");
        let end = index.insert(root, &[session, session + 1, session + 2, session + 3]);
        index.tree.anchor(end);
        index.hold(0, end);
    }
    Box::new(move |_| {
        let resident = index.residency.resident_blocks(0);
        index.enforce(0, resident - 4, false);
    })
}

fn decide<const REPLICAS: u32>(_: usize) -> Box<dyn FnMut(usize)> {
    let replicas = (0..REPLICAS).map(|at| ReplicaConfig::new(&format!("r{at}"), 1e8)).collect();
    let mut router = Router::new(RouterConfig { replicas, ..RouterConfig::default() }).expect("a fleet");
    let prompt = router.hasher().prompt(&tokens(1, 8_192));
    let first = router.submit(0, &Submit { session: Some("s"), ..Submit::new(TurnInput::Prompt(&prompt)) }).expect("accepted");
    router.complete(1, &first.turn, &Completion::default()).expect("never fails");
    let new = tokens(2, 64);
    Box::new(move |at| {
        let input = TurnInput::Append { base_tokens: 8_192, tokens: &new };
        let now = 2 + 2 * at as u64;
        let turn = router.submit(now, &Submit { session: Some("s"), ..Submit::new(input) }).expect("continues");
        black_box(router.abort(now + 1, &turn.turn, &Completion::default()).expect("never fails"));
    })
}

/// A whole turn, submitted, begun and completed, of one of many sessions: each has a history of its own of 256 tokens.
fn turn<const SESSIONS: u32>(_: usize) -> Box<dyn FnMut(usize)> {
    let replicas = (0..8).map(|at| ReplicaConfig::new(&format!("r{at}"), 1e9)).collect();
    let mut router = Router::new(RouterConfig { replicas, ..RouterConfig::default() }).expect("a fleet");
    let names: Vec<String> = (0..SESSIONS).map(|session| format!("s{session}")).collect();
    for (session, name) in names.iter().enumerate() {
        let prompt = router.hasher().prompt(&tokens(1 + session as u32, 256));
        let first = router.submit(0, &Submit { session: Some(name), ..Submit::new(TurnInput::Prompt(&prompt)) }).expect("accepted");
        router.complete(0, &first.turn, &Completion::default()).expect("never fails");
    }
    let new = tokens(2, 16);
    // What one turn adds is the history of the next one of its session.
    let mut grown = vec![256; names.len()];
    Box::new(move |at| {
        let session = at.wrapping_mul(7_919) % names.len();
        let input = TurnInput::Append { base_tokens: grown[session], tokens: &new };
        let now = 1 + at as u64;
        let turn = router.submit(now, &Submit { session: Some(&names[session]), ..Submit::new(input) }).expect("continues");
        router.progress(now, &turn.turn, 1, None).expect("placed");
        router.complete(now, &turn.turn, &Completion { output: Some(&[&[7]]), ..Completion::default() }).expect("never fails");
        grown[session] += 17;
    })
}

/// Nanoseconds of one operation, the best of some rounds.
fn time(make: fn(usize) -> Box<dyn FnMut(usize)>) -> f64 {
    const COUNT: usize = 2_000;
    let round = || {
        let mut operation = make(COUNT);
        let start = Instant::now();
        (0..COUNT).for_each(&mut operation);
        start.elapsed().as_nanos() as f64 / COUNT as f64
    };
    (0..7).map(|_| round()).fold(f64::INFINITY, f64::min)
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {
            println!("{:<20} {:>10} {:>10} {:>6}  bound", "operation", "ns", "bound ns", "ratio");
            for (name, bound, make) in CASES {
                let bounding = CASES.iter().find(|case| case.0 == bound).expect("bounds are operations").2;
                let (figure, least) = (time(make), time(bounding));
                println!("{name:<20} {figure:>10.1} {least:>10.1} {:>6.2}  {bound}", figure / least);
            }
            ExitCode::SUCCESS
        }
        [name, count] => {
            if let (Some((_, _, make)), Ok(count)) = (CASES.iter().find(|case| case.0 == name), count.parse::<usize>()) {
                // Always made for as many, so that two counts differ by the operations alone.
                let mut operation = make(1_000.max(count));
                (0..count).for_each(&mut operation);
                return ExitCode::SUCCESS;
            }
            let names: Vec<&str> = CASES.iter().map(|case| case.0).collect();
            eprintln!("OPERATION COUNT: got {name} {count}, accepted is one of {} and a whole number", names.join(", "));
            ExitCode::from(2)
        }
        _ => {
            eprintln!("accepted is nothing, or OPERATION COUNT");
            ExitCode::from(2)
        }
    }
}
