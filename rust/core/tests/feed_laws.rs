//! The feed of engine events against a model of one entry per block, with own decisions mixed in.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use turnout_core::index::{Applied, CacheEvent, Cursor, Depths, Index, Knowledge, Match};
use turnout_core::prompt::{BlockHasher, HashKey};

/// Tokens per index block.
const BLOCK: usize = 2;
const REPLICAS: usize = 2;

/// The engine's name of a block: everything up to its end.
fn engine_hash(path: &[u32]) -> u64 {
    path.iter().fold(path.len() as u64, |hash, &token| (hash ^ u64::from(token)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29))
}

#[derive(Debug, Clone)]
enum Event {
    /// The blocks of a path behind the first `known` engine blocks.
    Stored {
        path: Vec<u32>,
        known: usize,
    },
    Removed {
        nth: usize,
    },
    RemovedUnknown,
    Cleared,
}

#[derive(Debug, Clone)]
enum Operation {
    Batch { replica: usize, rank: i64, skip: u64, events: Vec<Event> },
    Repeat { replica: usize, rank: i64, back: u64 },
    Restart { replica: usize, rank: i64 },
    Reset { replica: usize, rank: i64 },
    EndFeeds { replica: usize },
    Flush { replica: usize },
    Lose { replica: usize },
    Place { replica: usize, path: Vec<u32> },
    Confirm { turn: usize },
    Release { turn: usize },
    Hold { replica: usize, path: Vec<u32> },
    OverCapacity { replica: usize, blocks: u64 },
}

fn path() -> impl Strategy<Value = Vec<u32>> {
    proptest::collection::vec(0u32..2, 0..17)
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (path(), 0usize..4).prop_map(|(path, known)| Event::Stored { path, known }),
        4 => any::<usize>().prop_map(|nth| Event::Removed { nth }),
        1 => Just(Event::RemovedUnknown),
        1 => Just(Event::Cleared),
    ]
}

fn operation() -> impl Strategy<Value = Operation> {
    let replica = || 0..REPLICAS;
    prop_oneof![
        12 => (replica(), 0i64..2, prop_oneof![6 => Just(0u64), 1 => 1u64..3], proptest::collection::vec(event(), 0..4))
            .prop_map(|(replica, rank, skip, events)| Operation::Batch { replica, rank, skip, events }),
        1 => (replica(), 0i64..2, 1u64..3).prop_map(|(replica, rank, back)| Operation::Repeat { replica, rank, back }),
        1 => (replica(), 0i64..2).prop_map(|(replica, rank)| Operation::Restart { replica, rank }),
        1 => (replica(), 0i64..2).prop_map(|(replica, rank)| Operation::Reset { replica, rank }),
        1 => replica().prop_map(|replica| Operation::EndFeeds { replica }),
        1 => replica().prop_map(|replica| Operation::Flush { replica }),
        1 => replica().prop_map(|replica| Operation::Lose { replica }),
        3 => (replica(), path()).prop_map(|(replica, path)| Operation::Place { replica, path }),
        2 => any::<usize>().prop_map(|turn| Operation::Confirm { turn }),
        2 => any::<usize>().prop_map(|turn| Operation::Release { turn }),
        2 => (replica(), path()).prop_map(|(replica, path)| Operation::Hold { replica, path }),
        1 => (replica(), 0u64..6).prop_map(|(replica, blocks)| Operation::OverCapacity { replica, blocks }),
    ]
}

/// One data-parallel rank of the model: copies by stored path.
#[derive(Debug, Clone, Default)]
struct Rank {
    next: u64,
    seen: u64,
    from_start: bool,
    stored: BTreeMap<Vec<u32>, u32>,
}

#[derive(Debug, Clone, Default)]
struct Replica {
    ranks: BTreeMap<i64, Rank>,
    /// Paths of whole index blocks that own decisions confirmed.
    own: BTreeSet<Vec<u32>>,
    /// Expected paths by number of turns.
    pending: BTreeMap<Vec<u32>, u32>,
    epoch: u32,
}

impl Replica {
    fn knowledge(&self) -> Knowledge {
        if self.ranks.is_empty() {
            Knowledge::Own
        } else if self.ranks.values().all(|rank| rank.from_start && rank.next >= rank.seen) {
            Knowledge::Whole
        } else {
            Knowledge::Partial
        }
    }

    fn reported(&self, engine_block: usize, block: &[u32]) -> bool {
        let names = |stored: &Vec<u32>| {
            if engine_block < BLOCK { stored == block } else { stored.starts_with(block) && stored.len() < block.len() + engine_block }
        };
        self.ranks.values().any(|rank| rank.stored.keys().any(names))
    }

    fn held(&self, engine_block: usize, path: &[u32]) -> u32 {
        (1..=path.len() / BLOCK)
            .take_while(|blocks| {
                let block = &path[..blocks * BLOCK];
                self.reported(engine_block, block)
                    || self.pending.contains_key(block)
                    || self.knowledge() != Knowledge::Whole && self.own.contains(block)
            })
            .count() as u32
    }

    /// What is known from events alone wipes what own decisions said.
    fn settle(&mut self) {
        if self.knowledge() == Knowledge::Whole {
            self.own.clear();
        }
    }

    /// Back to own decisions, from what was known: what lies behind a hole is given up.
    fn end_feeds(&mut self, engine_block: usize) {
        let reported: BTreeSet<Vec<u32>> = self
            .ranks
            .values()
            .flat_map(|rank| rank.stored.keys())
            .flat_map(|stored| (1..=stored.len() / BLOCK).map(|blocks| stored[..blocks * BLOCK].to_vec()))
            .filter(|block| self.reported(engine_block, block))
            .collect();
        let known: BTreeSet<Vec<u32>> = reported.union(&self.own).cloned().collect();
        self.own = known.iter().filter(|block| (1..=block.len() / BLOCK).all(|blocks| known.contains(&block[..blocks * BLOCK]))).cloned().collect();
        self.ranks.clear();
    }
}

fn blocks(path: &[u32]) -> impl Iterator<Item = Vec<u32>> + '_ {
    (1..=path.len() / BLOCK).map(|blocks| path[..blocks * BLOCK].to_vec())
}

struct Turn {
    replica: usize,
    path: Vec<u32>,
    cursor: Cursor,
    epoch: u32,
    model_epoch: u32,
    confirmed: bool,
}

/// An event as the engine sends it.
enum Sent {
    Stored { hashes: Vec<u64>, parent: Option<u64>, tokens: Vec<u32> },
    Removed(u64),
    Cleared,
}

struct World {
    engine_block: usize,
    hasher: BlockHasher,
    index: Index,
    replicas: Vec<Replica>,
    turns: Vec<Turn>,
}

impl World {
    fn new(engine_block: usize) -> Self {
        let hasher = BlockHasher::new(&HashKey([3; 16]), BLOCK as u32).unwrap();
        let mut index = Index::new(1);
        for replica in 0..REPLICAS as u32 {
            index.residency.add_replica(replica);
        }
        Self { engine_block, hasher, index, replicas: vec![Replica::default(); REPLICAS], turns: Vec::new() }
    }

    fn batch(&mut self, replica: usize, rank: i64, sequence: u64, events: &[Event]) -> Applied {
        let size = self.engine_block;
        let model = &mut self.replicas[replica];
        let fresh = Rank { next: sequence, seen: sequence, from_start: sequence == 0, stored: BTreeMap::new() };
        let state = model.ranks.entry(rank).or_insert(fresh);
        if sequence == 0 && state.next > 1 {
            *state = Rank { from_start: true, ..Rank::default() };
        }
        state.seen = state.seen.max(sequence + 1);
        let applies = sequence == state.next;
        // The events as the engine would send them: hashes, and the tokens of new blocks.
        let mut sent: Vec<Sent> = Vec::new();
        let mut stored = state.stored.clone();
        for event in events {
            match event {
                Event::Stored { path, known } => {
                    let all = path.len() / size;
                    let known = (*known).min(all);
                    let path = &path[..all * size];
                    let hashes: Vec<u64> = (known + 1..=all).map(|n| engine_hash(&path[..n * size])).collect();
                    let parent = (known > 0).then(|| engine_hash(&path[..known * size]));
                    let reachable = known == 0 || stored.contains_key(&path[..known * size]);
                    sent.push(Sent::Stored { hashes, parent, tokens: path[known * size..].to_vec() });
                    if reachable {
                        for n in known + 1..=all {
                            *stored.entry(path[..n * size].to_vec()).or_default() += 1;
                        }
                    }
                }
                Event::Removed { nth } => {
                    let Some(path) = stored.keys().nth(nth % stored.len().max(1)).cloned() else { continue };
                    sent.push(Sent::Removed(engine_hash(&path)));
                    let copies = stored.get_mut(&path).unwrap();
                    *copies -= 1;
                    if *copies == 0 {
                        stored.remove(&path);
                    }
                }
                Event::RemovedUnknown => sent.push(Sent::Removed(12_345)),
                Event::Cleared => {
                    sent.push(Sent::Cleared);
                    stored.clear();
                }
            }
        }
        if applies {
            state.from_start |= sent.iter().any(|event| matches!(event, Sent::Cleared));
            state.next += 1;
            state.stored = stored;
        }
        model.settle();
        let events: Vec<CacheEvent<'_>> = sent
            .iter()
            .map(|event| match event {
                Sent::Stored { hashes, parent, tokens } => CacheEvent::Stored {
                    namespace: "",
                    hashes,
                    parent: *parent,
                    tokens,
                    block_tokens: size as u32,
                    group: 0,
                    whole_context: true,
                    extra: &[],
                },
                Sent::Removed(hash) => CacheEvent::Removed { hashes: std::slice::from_ref(hash), group: 0 },
                Sent::Cleared => CacheEvent::Cleared,
            })
            .collect();
        self.index.apply(&self.hasher, replica as u32, rank, sequence, &events)
    }

    fn insert(&mut self, path: &[u32]) -> Cursor {
        let root = self.index.tree.root("");
        let prompt = self.hasher.prompt(path);
        let cursor = self.index.insert(root, prompt.fingerprints());
        self.index.tree.anchor(cursor);
        cursor
    }

    fn expect_less(model: &mut Replica, path: &[u32]) {
        for block in blocks(path) {
            let turns = model.pending.get_mut(&block).expect("expected");
            *turns -= 1;
            if *turns == 0 {
                model.pending.remove(&block);
            }
        }
    }

    fn apply(&mut self, operation: Operation) -> Result<(), TestCaseError> {
        match operation {
            Operation::Batch { replica, rank, skip, events } => {
                let known = self.replicas[replica].ranks.get(&rank);
                let next = known.map_or(skip, |rank| rank.next + skip);
                let gap = known.is_some() && skip > 0;
                let applied = self.batch(replica, rank, next, &events);
                prop_assert_eq!(applied, if gap { Applied::Gap { expected: next - skip } } else { Applied::Done });
            }
            Operation::Repeat { replica, rank, back } => {
                let Some(next) = self.replicas[replica].ranks.get(&rank).map(|rank| rank.next) else { return Ok(()) };
                if next > back {
                    prop_assert_eq!(self.batch(replica, rank, next - back, &[Event::Cleared]), Applied::Duplicate);
                }
            }
            Operation::Restart { replica, rank } if self.replicas[replica].ranks.get(&rank).is_some_and(|rank| rank.next > 1) => {
                prop_assert_eq!(self.batch(replica, rank, 0, &[]), Applied::Done);
            }
            Operation::Reset { replica, rank } => {
                self.index.reset_feed(replica as u32, rank, 7);
                if let Some(state) = self.replicas[replica].ranks.get_mut(&rank) {
                    *state = Rank { next: 7, seen: 7, ..Rank::default() };
                }
                self.replicas[replica].settle();
            }
            Operation::EndFeeds { replica } => {
                self.index.end_feeds(replica as u32);
                self.replicas[replica].end_feeds(self.engine_block);
            }
            Operation::Flush { replica } => {
                self.index.flush(replica as u32);
                let model = &mut self.replicas[replica];
                if model.knowledge() != Knowledge::Whole {
                    model.ranks.clear();
                }
                model.own.clear();
                model.pending.clear();
                model.epoch += 1;
            }
            Operation::Lose { replica } => {
                self.index.lose(replica as u32);
                self.replicas[replica] = Replica { epoch: self.replicas[replica].epoch + 1, ..Replica::default() };
            }
            Operation::Place { replica, path } => {
                let cursor = self.insert(&path);
                prop_assert!(self.index.expect(replica as u32, cursor));
                let epoch = self.index.residency.epoch(replica as u32);
                for block in blocks(&path) {
                    *self.replicas[replica].pending.entry(block).or_default() += 1;
                }
                self.turns.push(Turn { replica, path, cursor, epoch, model_epoch: self.replicas[replica].epoch, confirmed: false });
            }
            Operation::Confirm { turn } if !self.turns.is_empty() => {
                let at = turn % self.turns.len();
                let turn = &mut self.turns[at];
                if std::mem::replace(&mut turn.confirmed, true) {
                    return Ok(());
                }
                self.index.residency.confirm(&mut self.index.tree, turn.replica as u32, turn.epoch, turn.cursor);
                let model = &mut self.replicas[turn.replica];
                if turn.model_epoch == model.epoch {
                    Self::expect_less(model, &turn.path);
                    if model.knowledge() != Knowledge::Whole {
                        model.own.extend(blocks(&turn.path));
                    }
                }
            }
            Operation::Release { turn } if !self.turns.is_empty() => {
                let turn = self.turns.swap_remove(turn % self.turns.len());
                self.index.residency.release(&mut self.index.tree, turn.replica as u32, turn.epoch, turn.cursor, turn.confirmed);
                self.index.unanchor(turn.cursor);
                let model = &mut self.replicas[turn.replica];
                if turn.model_epoch == model.epoch && !turn.confirmed {
                    Self::expect_less(model, &turn.path);
                }
            }
            Operation::Hold { replica, path } => {
                let cursor = self.insert(&path);
                self.index.hold(replica as u32, cursor);
                self.index.unanchor(cursor);
                let model = &mut self.replicas[replica];
                if model.knowledge() != Knowledge::Whole {
                    model.own.extend(blocks(&path));
                }
            }
            Operation::OverCapacity { replica, blocks } if self.index.residency.knowledge(replica as u32) == Knowledge::Partial => {
                let over = self.index.residency.resident_blocks(replica as u32) > blocks;
                self.index.enforce(replica as u32, blocks, true);
                if over {
                    // From then on events alone count, until a batch says otherwise.
                    self.replicas[replica].own.clear();
                }
                prop_assert_eq!(self.index.residency.knowledge(replica as u32) == Knowledge::Whole, over);
                self.index.reset_feed(replica as u32, 99, 0);
            }
            _ => {}
        }
        Ok(())
    }

    fn check(&self, queries: &[Vec<u32>]) -> Result<(), TestCaseError> {
        self.index.audit().map_err(TestCaseError::fail)?;
        for (replica, model) in self.replicas.iter().enumerate() {
            prop_assert_eq!(self.index.residency.knowledge(replica as u32), model.knowledge());
        }
        let mut depths = Depths::default();
        let mut best = Vec::new();
        for query in queries {
            let expected: Vec<u32> = self.replicas.iter().map(|model| model.held(self.engine_block, query)).collect();
            let Some(root) = self.index.tree.existing_root("") else {
                prop_assert!(expected.iter().all(|&blocks| blocks == 0));
                continue;
            };
            let (cursor, _) = self.index.tree.locate(root, self.hasher.prompt(query).fingerprints());
            self.index.residency.matches(&self.index.tree, cursor, &mut depths);
            prop_assert_eq!(&depths.blocks, &expected, "query {:?}", query);
            let one_by_one: Vec<u32> = (0..REPLICAS as u32).map(|replica| self.index.residency.depth(&self.index.tree, replica, cursor)).collect();
            prop_assert_eq!(&one_by_one, &expected);
            for most in 0..=REPLICAS {
                self.index.residency.best(&self.index.tree, cursor, most, &mut best);
                let mut deepest: Vec<u32> = expected.iter().copied().filter(|&blocks| blocks > 0).collect();
                deepest.sort_unstable_by_key(|&blocks| std::cmp::Reverse(blocks));
                deepest.truncate(most);
                prop_assert_eq!(best.iter().map(|found| found.blocks).collect::<Vec<_>>(), deepest);
                let right = best.iter().all(|&Match { replica, blocks }| expected[replica as usize] == blocks);
                prop_assert!(right, "{:?} of {:?}", best, expected);
            }
        }
        Ok(())
    }
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(3_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn events_and_decisions_equal_a_model_of_single_blocks(
        engine_block in prop_oneof![Just(1usize), Just(2), Just(4)],
        operations in proptest::collection::vec(operation(), 1..50),
        queries in proptest::collection::vec(path(), 5),
    ) {
        let mut world = World::new(engine_block);
        for operation in operations {
            world.apply(operation)?;
            world.check(&queries)?;
        }
        for turn in std::mem::take(&mut world.turns) {
            world.index.residency.release(&mut world.index.tree, turn.replica as u32, turn.epoch, turn.cursor, turn.confirmed);
            world.index.unanchor(turn.cursor);
        }
        for replica in 0..REPLICAS as u32 {
            world.index.lose(replica);
        }
        prop_assert_eq!((world.index.tree.blocks(), world.index.tree.run_count()), (0, 0), "nothing is left");
    }
}
