//! The model engine against slower and simpler models of the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::prelude::*;
use turnout_sim::engine::cache::{BlockCache, CacheEvent, Chain, Table};
use turnout_sim::engine::model::EngineModel;
use turnout_sim::engine::{Engine, Event, Request};

/// Cached content as a list in order of reuse, oldest first: what the free queue must amount to.
#[derive(Default)]
struct NaiveCache {
    capacity: usize,
    /// Content and users of each used block, by owner.
    used: BTreeMap<u64, Vec<Option<u64>>>,
    /// Released blocks, oldest first.
    free: Vec<Option<u64>>,
}

impl NaiveCache {
    fn holds(&self, content: u64) -> bool {
        self.free.contains(&Some(content)) || self.used.values().flatten().any(|block| *block == Some(content))
    }

    fn hits(&self, chain: &[u64]) -> usize {
        chain.iter().take_while(|content| self.holds(**content)).count()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Prompts are chains out of a small tree, so that they share prefixes; every owner takes, computes all and releases.
    #[test]
    fn cache_evicts_like_a_list(capacity in 1u32..20, operations in proptest::collection::vec((0u64..6, 0u64..3, 1u64..8), 1..120)) {
        let mut cache = BlockCache::new(capacity);
        cache.events = Some(Vec::new());
        // What a listener to its events believes to be there.
        let mut told = BTreeSet::new();
        let mut naive = NaiveCache { capacity: capacity as usize, free: vec![None; capacity as usize], ..NaiveCache::default() };
        let mut tables: BTreeMap<u64, (Table, Chain)> = BTreeMap::new();
        for (owner, family, length) in operations {
            if let Some((table, chain)) = tables.remove(&owner) {
                cache.release(&table);
                let blocks = naive.used.remove(&owner).expect("the same owners");
                for (content, shared) in chain.iter().zip(&blocks).rev() {
                    // A block that somebody else still uses stays used.
                    let elsewhere = naive.used.values().flatten().any(|block| block == shared && shared.is_some());
                    if !elsewhere {
                        naive.free.push(Some(*content));
                    }
                }
                continue;
            }
            // Content number = family and depth, but the first two blocks are common to all families.
            let chain: Chain = (0..length).map(|depth| if depth < 2 { depth } else { family * 100 + depth }).collect();
            let hits = naive.hits(&chain);
            prop_assert_eq!(cache.hits(&chain) as usize, hits);
            let unused = chain[..hits].iter().filter(|content| naive.free.contains(&Some(**content))).count();
            let new = chain.len() - hits;
            let fits = unused + new <= naive.free.len();
            let taken = cache.take(&chain, length as u32, length as u32);
            prop_assert_eq!(taken.is_some(), fits);
            let Some((_, mut table)) = taken else { continue };
            naive.free.retain(|block| !block.is_some_and(|content| chain[..hits].contains(&content)));
            naive.free.drain(..new);
            naive.used.insert(owner, chain.iter().map(|content| Some(*content)).collect());
            if hits < chain.len() {
                cache.computed(&mut table, &chain, hits as u32, length as u32);
            }
            tables.insert(owner, (table, chain));
            prop_assert_eq!(cache.free_blocks() as usize, naive.free.len());
            prop_assert!(naive.free.len() <= naive.capacity);
            for event in cache.events.iter_mut().flat_map(|events| events.drain(..)) {
                match event {
                    CacheEvent::Stored { chain, from, to } => {
                        chain[from as usize..to as usize].iter().for_each(|content| note_stored(&mut told, *content));
                    }
                    CacheEvent::Removed { chain, from, to } => {
                        chain[from as usize..to as usize].iter().for_each(|content| assert!(told.remove(content), "removed what was stored"));
                    }
                    CacheEvent::Cleared => told.clear(),
                }
            }
            let there: BTreeSet<u64> = naive.free.iter().chain(naive.used.values().flatten()).flatten().copied().collect();
            prop_assert_eq!(&told, &there);
            for family in 0..3 {
                let all: Vec<u64> = (0..8).map(|depth| if depth < 2 { depth } else { family * 100 + depth }).collect();
                prop_assert_eq!(cache.hits(&all) as usize, naive.hits(&all), "family {}", family);
            }
        }
    }

    /// Whatever arrives when: every request finishes exactly once with all its output, and the memory is free at the end.
    #[test]
    fn everything_finishes(capacity in 12u64..60, requests in proptest::collection::vec((0u64..4_000, 1u64..150, 1u64..60, 0u64..3), 1..25)) {
        let (mut engine, events) = run(capacity, &requests, true);
        let mut finished = BTreeMap::<u64, u32>::new();
        for (_, event) in &events {
            if let Event::Finished { id, cached_tokens } = event {
                *finished.entry(*id).or_default() += 1;
                prop_assert!(*cached_tokens < requests[*id as usize].1.max(1));
            }
        }
        let possible: Vec<u64> = (0..requests.len() as u64).filter(|id| fits(capacity, requests[*id as usize])).collect();
        prop_assert_eq!(finished.keys().copied().collect::<Vec<_>>(), possible.clone());
        prop_assert!(finished.values().all(|&times| times == 1));
        prop_assert_eq!(engine.used_tokens(), 0);
        prop_assert_eq!(engine.output_tokens, possible.iter().map(|id| requests[*id as usize].2).sum::<u64>());
        prop_assert_eq!(engine.due(), None);
        engine.step(0, &mut Vec::new());
    }

    /// Jumping over quiet steps changes nothing but rounding: an engine that is interrupted at every step tells the same story.
    #[test]
    fn jumps_equal_single_steps(capacity in 12u64..60, requests in proptest::collection::vec((0u64..4_000, 1u64..150, 1u64..60, 0u64..3), 1..12)) {
        let (jumping, one) = run(capacity, &requests, true);
        let (stepping, two) = run(capacity, &requests, false);
        prop_assert_eq!(jumping.preemptions, stepping.preemptions);
        prop_assert_eq!(one.len(), two.len());
        for ((at, event), (time, other)) in one.iter().zip(&two) {
            prop_assert_eq!(event, other);
            // Every single step is rounded to a nanosecond.
            prop_assert!(at.abs_diff(*time) < 20_000, "{at} against {time}");
        }
    }
}

fn note_stored(told: &mut BTreeSet<u64>, content: u64) {
    assert!(told.insert(content), "nothing is stored twice where nobody computes the same at once");
}

fn fits(capacity: u64, (_, prompt, output, _): (u64, u64, u64, u64)) -> bool {
    (prompt + output).div_ceil(4) <= capacity
}

/// Plays requests (arrival in 0.1 ms, prompt, output, family) with blocks of 4. Without `jump` every decode step is its own
/// plan: an arrival that finds nothing to do forces that.
fn run(capacity: u64, requests: &[(u64, u64, u64, u64)], jump: bool) -> (Engine, Vec<(u64, Event)>) {
    let mut model = EngineModel::named("qwen3-8b-h200").unwrap();
    model.max_batched_tokens = 64;
    model.max_sequences = 5;
    let mut engine = Engine::new(model, capacity * 4, 4);
    engine.single_steps = !jump;
    let mut arrivals: Vec<(u64, Request)> = requests
        .iter()
        .enumerate()
        .filter(|(_, request)| fits(capacity, **request))
        .map(|(id, &(at, prompt, output, family))| {
            let blocks = (prompt + output) / 4;
            let chain: Arc<[u64]> =
                (0..blocks).map(|depth| if depth < prompt / 8 { family * 1_000 + depth } else { 1_000_000 + id as u64 * 1_000 + depth }).collect();
            (at * 100_000, Request { id: id as u64, prompt_tokens: prompt, output_tokens: output, chain })
        })
        .collect();
    arrivals.sort_by_key(|(at, request)| (*at, request.id));
    let mut arrivals = arrivals.into_iter().peekable();
    let (mut told, mut events) = (Vec::new(), Vec::new());
    loop {
        match (arrivals.peek().map(|arrival| arrival.0), engine.due()) {
            (Some(at), due) if due.is_none_or(|due| at < due) => {
                let (at, request) = arrivals.next().unwrap();
                engine.arrive(at, request);
            }
            (_, Some(due)) => {
                engine.step(due, &mut events);
                told.extend(events.drain(..).map(|event| (due, event)));
            }
            _ => return (engine, told),
        }
    }
}
