//! The bound on memory, dropped namespaces and adversarial shapes.

use std::collections::HashMap;

use proptest::prelude::*;
use turnout_core::index::{Cursor, Depths, Index, LEAST_BYTES};

const REPLICAS: u32 = 3;

fn empty() -> Index {
    let mut index = Index::new(11);
    for replica in 0..REPLICAS {
        index.residency.add_replica(replica);
    }
    index
}

/// Fingerprints that look random and differ from seed to seed.
fn chain(seed: u64, blocks: usize) -> Vec<u64> {
    (0..blocks as u64).map(|at| (seed << 32 | at).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(31).wrapping_mul(0xBF58_476D_1CE4_E5B9)).collect()
}

#[derive(Debug, Clone)]
enum Operation {
    /// A path that shares the first blocks of another: anchored, expected or held on a replica.
    Add {
        like: u64,
        shared: usize,
        own: usize,
        replica: u32,
        kept: bool,
        running: bool,
    },
    Release {
        nth: usize,
    },
    Evict {
        replica: u32,
        blocks: u64,
    },
    Flush {
        replica: u32,
    },
    Drop {
        namespace: usize,
    },
}

const NAMESPACES: [&str; 2] = ["", "adapter"];

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        8 => (0u64..4, 0usize..6_000, 0usize..30_000, 0..REPLICAS, any::<bool>(), any::<bool>())
            .prop_map(|(like, shared, own, replica, kept, running)| Operation::Add { like, shared, own, replica, kept, running }),
        4 => any::<usize>().prop_map(|nth| Operation::Release { nth }),
        1 => (0..REPLICAS, 0u64..40_000).prop_map(|(replica, blocks)| Operation::Evict { replica, blocks }),
        1 => (0..REPLICAS).prop_map(|replica| Operation::Flush { replica }),
        1 => (0usize..2).prop_map(|namespace| Operation::Drop { namespace }),
    ]
}

struct Kept {
    cursor: Cursor,
    path: Vec<u64>,
    running: Option<(u32, u32)>,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_never_exceeds_its_limit(operations in proptest::collection::vec(operation(), 1..60)) {
        let mut index = empty().with_limit(LEAST_BYTES).unwrap();
        let mut kept: Vec<Kept> = Vec::new();
        for (seed, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Add { like, shared, own, replica, kept: keep, running } => {
                    let path = [chain(like, shared), chain(100 + seed as u64, own)].concat();
                    let root = index.tree.root(NAMESPACES[like as usize % 2]);
                    index.tree.anchor(root);
                    let cursor = index.insert(root, &path);
                    index.tree.anchor(cursor);
                    index.unanchor(root);
                    let path = path[..index.tree.depth(cursor) as usize].to_vec();
                    let marked = running && index.expect(replica, cursor);
                    if !running {
                        index.hold(replica, cursor);
                    }
                    if keep || marked {
                        kept.push(Kept { cursor, path, running: marked.then(|| (replica, index.residency.epoch(replica))) });
                    } else {
                        index.unanchor(cursor);
                    }
                }
                Operation::Release { nth } if !kept.is_empty() => {
                    let gone = kept.swap_remove(nth % kept.len());
                    if let Some((replica, epoch)) = gone.running {
                        index.residency.release(&mut index.tree, replica, epoch, gone.cursor, false);
                    }
                    index.unanchor(gone.cursor);
                }
                Operation::Evict { replica, blocks } => index.enforce(replica, blocks, false),
                Operation::Flush { replica } => index.flush(replica),
                Operation::Drop { namespace } => {
                    index.drop_namespace(NAMESPACES[namespace]);
                }
                Operation::Release { .. } => {}
            }
            prop_assert!(index.bytes() <= LEAST_BYTES, "{} bytes", index.bytes());
            index.audit().map_err(TestCaseError::fail)?;
            for Kept { cursor, path, .. } in &kept {
                prop_assert!(index.tree.is_current(*cursor), "what is anchored stays, whatever the limit asks for");
                prop_assert_eq!(&index.tree.fingerprints(*cursor), path);
            }
        }
    }

    #[test]
    fn a_dropped_namespace_is_found_by_nobody_and_gives_its_memory_back(paths in proptest::collection::vec((0u64..3, 1usize..40, 1usize..40, 0..REPLICAS), 1..40)) {
        let mut index = empty();
        let mut kept_blocks = empty();
        for (at, &(like, shared, own, replica)) in paths.iter().enumerate() {
            let path = [chain(like, shared), chain(100 + at as u64, own)].concat();
            let add = |target: &mut Index, namespace: &str| {
                let root = target.tree.root(namespace);
                let cursor = target.insert(root, &path);
                target.hold(replica, cursor);
            };
            add(&mut index, "gone");
            add(&mut index, "stays");
            add(&mut kept_blocks, "stays");
        }
        let root = index.tree.existing_root("gone").expect("it has paths");
        let (session, _) = index.tree.locate(root, &chain(paths[0].0, paths[0].1));
        index.tree.anchor(session);
        prop_assert!(index.drop_namespace("gone"));
        prop_assert!(!index.drop_namespace("gone"), "once");
        prop_assert!(index.tree.existing_root("gone").is_none());
        let mut depths = Depths::default();
        index.residency.matches(&index.tree, session, &mut depths);
        prop_assert!(depths.blocks.iter().all(|&blocks| blocks == 0), "nobody is judged to hold it");
        prop_assert!(index.tree.is_current(session), "but a session that is there keeps its history");
        index.unanchor(session);
        // Whatever is done next sweeps a little.
        for _ in 0..100 {
            let root = index.tree.root("stays");
            let _ = index.insert(root, &chain(paths[0].0, 1));
        }
        index.audit().map_err(TestCaseError::fail)?;
        prop_assert_eq!((index.tree.blocks(), index.tree.run_count()), (kept_blocks.tree.blocks(), kept_blocks.tree.run_count()));
        // The name is free again.
        let again = index.tree.root("gone");
        prop_assert_eq!(index.tree.depth(again), 0);
    }
}

/// Forking sessions that come and go: the memory is that of the largest moment, not of the history.
#[test]
fn a_churn_does_not_grow() {
    churn(60_000);
}

#[test]
#[ignore = "ten million operations take minutes"]
fn a_long_churn_does_not_grow() {
    churn(10_000_000);
}

fn churn(steps: u64) {
    let mut index = empty();
    let mut live: HashMap<u64, Cursor> = HashMap::new();
    let mut peak = 0;
    for step in 0..steps {
        let session = step % 97;
        let root = index.tree.root("");
        let path = [chain(step % 7, 30), chain(1_000 + step, (step % 50) as usize)].concat();
        let cursor = index.insert(root, &path);
        index.tree.anchor(cursor);
        index.hold((step % 3) as u32, cursor);
        if let Some(old) = live.insert(session, cursor) {
            index.unanchor(old);
        }
        index.enforce((step % 3) as u32, 2_000, false);
        if step == 20_000 {
            peak = index.bytes();
        }
    }
    assert!(index.bytes() <= peak + peak / 8, "{} bytes after {steps} steps, {peak} after 20,000", index.bytes());
    for (_, cursor) in live {
        index.unanchor(cursor);
    }
    for replica in 0..REPLICAS {
        index.flush(replica);
    }
    assert_eq!(index.tree.blocks(), 0);
    assert!(index.bytes() < 1_000, "{} bytes when nothing is left", index.bytes());
}

/// One prompt that forks on its whole length, deepest first, and siblings under one node.
#[test]
fn adversarial_shapes_stay_bounded() {
    adversarial(62_500, 25, 100_000);
}

/// Blocks of one token: a million-token prompt that forks at every token, and a million siblings. Prints what it took.
#[test]
#[ignore = "seconds and hundreds of megabytes"]
fn adversarial_shapes_at_full_size() {
    adversarial(1_000_000, 1, 1_000_000);
}

fn adversarial(blocks: u32, every: usize, siblings: u64) {
    let started = std::time::Instant::now();
    let mut index = empty();
    let trunk = chain(1, blocks as usize);
    let root = index.tree.root("");
    let end = index.insert(root, &trunk);
    index.hold(0, end);
    // Forks from the deepest to the first: every hold splits the eviction order once more.
    for at in (1..blocks).rev().step_by(every) {
        let branch = index.tree.ancestor(end, at);
        let fork = index.insert(branch, &chain(20_000_000 + u64::from(at), 1));
        index.hold(0, fork);
    }
    let forks = (1..blocks).rev().step_by(every).count() as u64;
    assert_eq!(index.residency.resident_blocks(0), u64::from(blocks) + forks);
    let (forked, fork_bytes) = (started.elapsed(), index.bytes());
    let parent = index.tree.ancestor(end, 10);
    for sibling in 0..siblings {
        let fork = index.insert(parent, &chain(10_000_000 + sibling, 1));
        index.hold(1, fork);
    }
    // 8 bytes of fingerprint in a slice of 4, a run, a holding and a slot in the table.
    let per_sibling = (index.bytes() - fork_bytes) / siblings;
    assert!(per_sibling < 256, "{per_sibling} bytes per sibling");
    let joined = started.elapsed();
    index.enforce(0, 0, false);
    index.enforce(1, 0, false);
    assert_eq!((index.tree.blocks(), index.residency.resident_blocks(1)), (0, 0));
    index.audit().unwrap();
    let (join, evict) = (joined.saturating_sub(forked), started.elapsed().saturating_sub(joined));
    println!("{forks} forks: {forked:?}, {fork_bytes} bytes; {siblings} siblings: {join:?}, {per_sibling} bytes each; all evicted: {evict:?}");
}
