//! The prefix index against a model of one entry per block.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use turnout_core::index::{Cursor, Depths, Index};

const REPLICAS: usize = 3;
const NAMESPACES: [&str; 2] = ["", "adapter"];

/// A block is its namespace and everything up to it.
type Block = (usize, Vec<u64>);

#[derive(Debug, Clone, Default)]
struct Resident {
    last_used: u64,
    pins: u32,
    pending: u32,
    confirmed: bool,
}

#[derive(Default)]
struct Model {
    clock: u64,
    replicas: [BTreeMap<Block, Resident>; REPLICAS],
}

fn blocks(namespace: usize, path: &[u64]) -> impl DoubleEndedIterator<Item = Block> + '_ {
    (1..=path.len()).map(move |depth| (namespace, path[..depth].to_vec()))
}

impl Model {
    fn mark(&mut self, replica: usize, namespace: usize, path: &[u64], change: impl Fn(&mut Resident)) {
        self.clock += 1;
        for block in blocks(namespace, path) {
            let resident = self.replicas[replica].entry(block).or_default();
            resident.last_used = self.clock;
            change(resident);
        }
    }

    fn release(&mut self, replica: usize, namespace: usize, path: &[u64], confirmed: bool) {
        self.clock += 1;
        for block in blocks(namespace, path) {
            let resident = self.replicas[replica].get_mut(&block).expect("what is pinned is never evicted");
            resident.pins -= 1;
            resident.last_used = self.clock;
            if !confirmed {
                resident.pending -= 1;
            }
        }
        self.replicas[replica].retain(|_, resident| resident.confirmed || resident.pending > 0);
    }

    fn enforce(&mut self, replica: usize, most: usize) {
        while self.replicas[replica].len() > most {
            let free = self.replicas[replica].iter().filter(|(_, resident)| resident.pins == 0);
            let oldest = free.min_by_key(|(block, resident)| (resident.last_used, std::cmp::Reverse(block.1.len()))).map(|(block, _)| block.clone());
            let Some(block) = oldest else { return };
            self.replicas[replica].remove(&block);
        }
    }

    fn depth(&self, replica: usize, namespace: usize, path: &[u64]) -> u32 {
        blocks(namespace, path).take_while(|block| self.replicas[replica].contains_key(block)).count() as u32
    }
}

#[derive(Debug, Clone)]
enum Operation {
    /// A turn: anchors its path, is expected on a replica.
    Place {
        replica: usize,
        namespace: usize,
        path: Vec<u64>,
    },
    Confirm {
        turn: usize,
    },
    Release {
        turn: usize,
    },
    /// An anchored history, later dropped.
    Keep {
        namespace: usize,
        path: Vec<u64>,
    },
    Drop {
        kept: usize,
    },
    Hold {
        replica: usize,
        kept: usize,
    },
    Enforce {
        replica: usize,
        most: usize,
    },
    Flush {
        replica: usize,
    },
}

fn path() -> impl Strategy<Value = Vec<u64>> {
    // Few values and few depths: forks at every place, and paths that are prefixes of others.
    proptest::collection::vec(0u64..3, 0..9)
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        5 => (0..REPLICAS, 0..2usize, path()).prop_map(|(replica, namespace, path)| Operation::Place { replica, namespace, path }),
        3 => any::<usize>().prop_map(|turn| Operation::Confirm { turn }),
        4 => any::<usize>().prop_map(|turn| Operation::Release { turn }),
        3 => (0..2usize, path()).prop_map(|(namespace, path)| Operation::Keep { namespace, path }),
        2 => any::<usize>().prop_map(|kept| Operation::Drop { kept }),
        2 => (0..REPLICAS, any::<usize>()).prop_map(|(replica, kept)| Operation::Hold { replica, kept }),
        3 => (0..REPLICAS, 0..20usize).prop_map(|(replica, most)| Operation::Enforce { replica, most }),
        1 => (0..REPLICAS).prop_map(|replica| Operation::Flush { replica }),
    ]
}

struct Turn {
    replica: usize,
    namespace: usize,
    path: Vec<u64>,
    cursor: Cursor,
    epoch: u32,
    confirmed: bool,
}

struct Kept {
    namespace: usize,
    path: Vec<u64>,
    cursor: Cursor,
}

fn insert(index: &mut Index, namespace: usize, path: &[u64]) -> Cursor {
    let root = index.tree.root(NAMESPACES[namespace]);
    let cursor = index.insert(root, path);
    index.tree.anchor(cursor);
    cursor
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn equals_a_model_of_single_blocks(operations in proptest::collection::vec(operation(), 1..70), queries in proptest::collection::vec(path(), 4)) {
        let mut index = Index::new(7);
        for replica in 0..REPLICAS as u32 {
            index.residency.add_replica(replica);
        }
        let mut model = Model::default();
        // Cursors that nobody keeps any more, with the paths they named.
        let mut dropped: Vec<(Cursor, Vec<u64>)> = Vec::new();
        let (mut turns, mut kept): (Vec<Turn>, Vec<Kept>) = (Vec::new(), Vec::new());
        for operation in operations {
            match operation {
                Operation::Place { replica, namespace, path } => {
                    let cursor = insert(&mut index, namespace, &path);
                    prop_assert!(index.expect(replica as u32, cursor));
                    model.mark(replica, namespace, &path, |resident| { resident.pins += 1; resident.pending += 1; });
                    let epoch = index.residency.epoch(replica as u32);
                    turns.push(Turn { replica, namespace, path, cursor, epoch, confirmed: false });
                }
                Operation::Confirm { turn } if !turns.is_empty() => {
                    let at = turn % turns.len();
                    let turn = &mut turns[at];
                    if std::mem::replace(&mut turn.confirmed, true) { continue }
                    index.residency.confirm(&mut index.tree, turn.replica as u32, turn.epoch, turn.cursor);
                    if turn.epoch == index.residency.epoch(turn.replica as u32) {
                        for block in blocks(turn.namespace, &turn.path) {
                            let resident = model.replicas[turn.replica].get_mut(&block).expect("pinned");
                            resident.pending -= 1;
                            resident.confirmed = true;
                        }
                    }
                }
                Operation::Release { turn } if !turns.is_empty() => {
                    let turn = turns.swap_remove(turn % turns.len());
                    index.residency.release(&mut index.tree, turn.replica as u32, turn.epoch, turn.cursor, turn.confirmed);
                    if turn.epoch == index.residency.epoch(turn.replica as u32) {
                        model.release(turn.replica, turn.namespace, &turn.path, turn.confirmed);
                    }
                    index.unanchor(turn.cursor);
                    dropped.push((turn.cursor, turn.path));
                }
                Operation::Keep { namespace, path } => {
                    let cursor = insert(&mut index, namespace, &path);
                    kept.push(Kept { namespace, path, cursor });
                }
                Operation::Drop { kept: at } if !kept.is_empty() => {
                    let gone = kept.swap_remove(at % kept.len());
                    index.unanchor(gone.cursor);
                    dropped.push((gone.cursor, gone.path));
                }
                Operation::Hold { replica, kept: at } if !kept.is_empty() => {
                    let held = &kept[at % kept.len()];
                    index.hold(replica as u32, held.cursor);
                    model.mark(replica, held.namespace, &held.path, |resident| resident.confirmed = true);
                }
                Operation::Enforce { replica, most } => {
                    index.enforce(replica as u32, most as u64, false);
                    model.enforce(replica, most);
                }
                Operation::Flush { replica } => {
                    index.flush(replica as u32);
                    model.replicas[replica].clear();
                }
                _ => {}
            }
            index.audit().map_err(TestCaseError::fail)?;
            for (cursor, path) in dropped.iter().filter(|(cursor, _)| index.tree.is_current(*cursor)) {
                prop_assert_eq!(&index.tree.fingerprints(*cursor), path, "a cursor is stale, or names what it named");
            }
            let mut needed: BTreeSet<Block> = model.replicas.iter().flat_map(|blocks| blocks.keys().cloned()).collect();
            for (namespace, path, cursor) in turns.iter().map(|turn| (turn.namespace, &turn.path, turn.cursor)).chain(kept.iter().map(|kept| (kept.namespace, &kept.path, kept.cursor))) {
                prop_assert!(index.tree.is_current(cursor));
                prop_assert_eq!(&index.tree.fingerprints(cursor), path, "a cursor names its path for ever");
                needed.extend(blocks(namespace, path));
            }
            prop_assert_eq!(index.tree.blocks() as usize, needed.len(), "what nobody needs is gone, what somebody needs is there");
            let mut depths = Depths::default();
            for (namespace, name) in NAMESPACES.iter().enumerate() {
                for query in queries.iter().chain(kept.iter().map(|kept| &kept.path)) {
                    let Some(root) = index.tree.existing_root(name) else {
                        prop_assert!((0..REPLICAS).all(|replica| model.depth(replica, namespace, query) == 0));
                        continue;
                    };
                    let (cursor, found) = index.tree.locate(root, query);
                    prop_assert_eq!(found, blocks(namespace, query).take_while(|block| needed.contains(block)).count());
                    index.residency.matches(&index.tree, cursor, &mut depths);
                    let expected: Vec<u32> = (0..REPLICAS).map(|replica| model.depth(replica, namespace, query)).collect();
                    prop_assert_eq!(&depths.blocks, &expected);
                    let one_by_one: Vec<u32> = (0..REPLICAS as u32).map(|replica| index.residency.depth(&index.tree, replica, cursor)).collect();
                    prop_assert_eq!(&one_by_one, &expected);
                }
            }
            for (replica, resident) in model.replicas.iter().enumerate() {
                prop_assert_eq!(index.residency.resident_blocks(replica as u32) as usize, resident.len());
            }
        }
        for turn in turns {
            index.residency.release(&mut index.tree, turn.replica as u32, turn.epoch, turn.cursor, turn.confirmed);
            index.unanchor(turn.cursor);
        }
        for gone in kept {
            index.unanchor(gone.cursor);
        }
        for replica in 0..REPLICAS as u32 {
            index.flush(replica);
        }
        prop_assert_eq!((index.tree.blocks(), index.tree.run_count()), (0, 0));
    }
}
