//! What the hot paths take from the heap: counted, not timed.
#![allow(unsafe_code, reason = "a counting allocator has to implement the allocator's interface")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use turnout_core::index::Match;
use turnout_core::prefix_index::{PrefixIndex, PrefixIndexConfig};
use turnout_core::router::Router;
use turnout_core::router::types::{Completion, ReplicaConfig, RouterConfig, Submit, TurnInput};

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: every call is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller keeps the contract of `realloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.with(Cell::get);
    work();
    ALLOCATIONS.with(Cell::get) - before
}

fn tokens(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|at| (seed << 16) ^ at.wrapping_mul(2_654_435_761)).collect()
}

fn index(replicas: u32) -> PrefixIndex {
    let mut index = PrefixIndex::new(&PrefixIndexConfig::default()).unwrap();
    for _ in 0..replicas {
        index.add_replica(1e8).unwrap();
    }
    index
}

#[test]
fn lookups_and_peeks_allocate_nothing() {
    for replicas in [8, 1_024] {
        let mut index = index(replicas);
        let prompt = tokens(1, 8_192);
        let history = index.open("", &prompt, Some(0)).unwrap();
        for replica in 1..replicas {
            index.place(history, replica).unwrap();
        }
        let hasher = index.hasher().clone();
        let mut fingerprints = Vec::new();
        let mut found: Vec<Match> = Vec::new();
        // The first round makes the reused space.
        for round in 0..2 {
            let count = allocations(|| {
                fingerprints.clear();
                hasher.hash_into(&prompt, &mut fingerprints);
                found.clear();
                found.extend_from_slice(index.lookup("", &fingerprints, 16));
                assert_eq!((found.len(), found[0].blocks), (replicas.min(16) as usize, 512));
                assert_eq!(index.lookup_all("", &fingerprints).len(), replicas as usize);
                assert_eq!(index.peek(history).unwrap().unwrap().blocks, 512);
            });
            assert!(round == 0 || count == 0, "{count} allocations with {replicas} replicas");
        }
    }
}

#[test]
fn extending_within_capacity_allocates_nothing() {
    let mut index = index(4);
    let histories: Vec<_> = (0..100).map(|at| index.open("", &tokens(at, 2_048), Some(at % 4)).unwrap()).collect();
    let new = tokens(999, 100);
    // Warm: tails and scratch have their size, and runs the room to grow into.
    for (at, &history) in histories.iter().enumerate() {
        index.extend(history, &new, Some(at as u32 % 4)).unwrap();
    }
    let count = allocations(|| {
        for (at, &history) in histories.iter().enumerate() {
            index.extend(history, &new[..40], Some(at as u32 % 4)).unwrap();
        }
    });
    assert_eq!(count, 0, "in 100 extensions");
}

/// The router's decisions do take memory: names, the record of the turn, its answer. This is the bound that holds today.
#[test]
fn a_turn_of_a_known_session_allocates_a_bounded_number_of_times() {
    let replicas = (0..8).map(|at| ReplicaConfig::new(&format!("r{at}"), 1e7)).collect();
    let mut router = Router::new(RouterConfig { replicas, ..RouterConfig::default() }).unwrap();
    let prompt = router.hasher().prompt(&tokens(1, 8_192));
    let first = router.submit(0, &Submit { session: Some("s"), ..Submit::new(TurnInput::Prompt(&prompt)) }).unwrap();
    router.complete(1, &first.turn, &Completion::default()).unwrap();
    let new = tokens(2, 64);
    let mut counts = Vec::new();
    for now in 0..50u64 {
        counts.push(allocations(|| {
            let input = TurnInput::Append { base_tokens: 8_192 + 64 * now, tokens: &new };
            let turn =
                router.submit(2 + 2 * now, &Submit { turn: Some("t"), attempt: now as u32, session: Some("s"), ..Submit::new(input) }).unwrap();
            router.complete(3 + 2 * now, &turn.turn, &Completion::default()).unwrap();
        }));
    }
    counts.sort_unstable();
    assert!(counts[25] <= 24, "{counts:?}");
}
