//! Who holds how much of a path: of all replicas, or the best few of many.

use super::residency::{Knowledge, Residency};
use super::tree::{Cursor, Tree};
use crate::prompt::mix64;
use crate::record::codec::{Reader, Record, Taken, record};

/// Reused space for [`Residency::matches`].
#[derive(Debug, Clone, Default)]
pub struct Depths {
    /// By replica: blocks of the path that it holds.
    pub blocks: Vec<u32>,
    /// By replica: in which run of the path, counted from the deepest, it was seen last.
    seen: Vec<u32>,
}

/// A replica and the depth in blocks to which it holds a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Match {
    /// The replica.
    pub replica: u32,
    /// Blocks of the path from its root.
    pub blocks: u32,
}

impl Residency {
    /// Depth in blocks of the longest prefix of the path that each replica holds, by replica. O(replicas + holders on the path).
    pub fn matches(&self, tree: &Tree, cursor: Cursor, depths: &mut Depths) {
        let count = self.replica_count();
        depths.blocks.clear();
        depths.blocks.resize(count, 0);
        if tree.is_dropped(cursor.run) {
            return;
        }
        depths.seen.clear();
        depths.seen.resize(count, 0);
        let mut level = 0;
        for (run, offset) in tree.path(cursor).filter(|&(_, offset)| offset > 0) {
            level += 1;
            let state = &tree.runs[run as usize];
            for holder in state.holders.as_slice() {
                let replica = holder.replica as usize;
                let held = self.records.get(holder.id).blocks;
                // What is held of a deeper run counts while everything up to it is held too. Only a replica whose engine
                // reports holes ever breaks the chain.
                if held < offset || depths.seen[replica] + 1 != level || depths.blocks[replica] == 0 {
                    depths.blocks[replica] = if held == 0 { 0 } else { state.depth + held.min(offset) };
                }
                depths.seen[replica] = level;
            }
        }
        for (blocks, seen) in depths.blocks.iter_mut().zip(&depths.seen) {
            if *seen != level {
                *blocks = 0;
            }
        }
    }

    /// Depth in blocks of the longest prefix of the path that one replica holds. O(forks on the path).
    #[must_use]
    pub fn depth(&self, tree: &Tree, replica: u32, cursor: Cursor) -> u32 {
        if tree.is_dropped(cursor.run) {
            return 0;
        }
        let mut depth = None;
        for (run, offset) in tree.path(cursor).filter(|&(_, offset)| offset > 0) {
            let held = self.held(tree, run, replica);
            // What is held of a deeper run counts while everything up to it is held too.
            if held < offset || depth.is_none() {
                depth = (held > 0).then(|| tree.depth_before(run) + held.min(offset));
            }
            if depth.is_some() && self.knowledge(replica) == Knowledge::Own {
                break;
            }
        }
        depth.unwrap_or(0)
    }

    /// The `most` replicas that hold most of the path, deepest first, into `best`. Of many that hold equally much, some: which
    /// ones depends on the path, so that no replica is favoured. Stops at the depth where enough are found.
    pub fn best(&self, tree: &Tree, cursor: Cursor, most: usize, best: &mut Vec<Match>) {
        best.clear();
        if most == 0 || tree.is_dropped(cursor.run) {
            return;
        }
        let start = mix64(u64::from(cursor.run) << 32 | u64::from(cursor.offset)) as u32;
        let mut broken: Vec<Match> = Vec::new();
        for (run, offset) in tree.path(cursor).filter(|&(_, offset)| offset > 0) {
            let state = &tree.runs[run as usize];
            let before = best.len();
            let mut take = |best: &mut Vec<Match>, replica: u32, held: u32| {
                // Within a run each replica comes once; what matters is what was found deeper, at most `most` of them.
                let known = best[..before].iter().chain(&broken).any(|other| other.replica == replica);
                if held == 0 || known {
                    return;
                }
                let blocks = state.depth + held.min(offset);
                let real = if self.knowledge(replica) == Knowledge::Own { blocks } else { self.depth(tree, replica, cursor) };
                if real == blocks { best.push(Match { replica, blocks }) } else { broken.push(Match { replica, blocks: real }) }
            };
            let deepest_first = |found: &Match| (std::cmp::Reverse(found.blocks), found.replica);
            // Those beyond the level first: the few that may hold more of the path than it. Then those at it, until there are enough.
            let level = state.holders.level().unwrap_or(u32::MAX);
            let beyond = offset > level;
            if beyond {
                for replica in state.holders.beyond_level(start) {
                    take(best, replica, self.held(tree, run, replica));
                }
                best[before..].sort_by_key(deepest_first);
            }
            for replica in state.holders.at_level(start) {
                if best.len() >= most {
                    break;
                }
                if !beyond || !state.holders.is_beyond_level(replica) {
                    take(best, replica, offset.min(level));
                }
            }
            if best.len() < most {
                let rest = best.len();
                for holder in state.holders.as_slice() {
                    let held = self.records.get(holder.id).blocks;
                    if held < level {
                        take(best, holder.replica, held);
                    }
                }
                best[rest..].sort_by_key(deepest_first);
            }
            if best.len() >= most {
                break;
            }
        }
        best.extend(broken.into_iter().filter(|found| found.blocks > 0));
        best.sort_by_key(|found| std::cmp::Reverse(found.blocks));
        best.truncate(most);
    }
}

record!(Match { replica, blocks });

/// Scratch: nothing of it outlives a question.
impl Record for Depths {
    fn put(&self, _: &mut Vec<u8>) {}

    fn take(_: &mut Reader<'_>) -> Taken<Self> {
        Ok(Self::default())
    }
}
