//! Which replica is judged to hold which part of a run in its cache, and what its cache evicts next.
//!
//! A holding says that a replica has the first `blocks` blocks of a run; the blocks before the run are held too (prefix
//! closure). A placed turn marks its path *expected* at once, so that a burst of siblings sees it; the first token or
//! the completion confirms it, an abort before that takes back what nobody else expects or confirmed.
//!
//! Eviction follows the engines: least recently used first, a path's tail before its head, nothing that a running turn
//! uses. Along any path the time of last use never grows with depth, so ordering whole holdings by the time of their last
//! segment and evicting from its end keeps the closure without looking at children.

use std::collections::BTreeSet;

use super::ends::Ends;
use super::tree::{Cursor, RunId, Tree};

/// One replica's part of one run.
#[derive(Debug)]
struct Holding {
    run: RunId,
    replica: u32,
    /// Blocks of the run judged resident, expected ones included.
    blocks: u32,
    /// The part of it that a first token or a completion confirmed.
    confirmed: u32,
    /// Where the paths of running turns end or leave the run: nothing before the last of them is evictable.
    pins: Ends,
    /// Those of turns that have not confirmed yet.
    pending: Ends,
    /// When the last segment, which ends at `blocks`, was used.
    last_used: u64,
    /// Segments before it that were used later: (end, time), ends descending, times ascending.
    newer: Vec<(u32, u64)>,
}

/// Key of a replica's eviction order: oldest use first, then deepest.
type Age = (u64, std::cmp::Reverse<u32>, u32);

#[derive(Debug, Default)]
struct ReplicaState {
    blocks: u64,
    /// Bumped by a flush, so that turns placed before it do not touch what is held since.
    epoch: u32,
    evictable: BTreeSet<Age>,
}

/// All holdings.
#[derive(Debug, Default)]
pub struct Residency {
    holdings: Vec<Holding>,
    free: Vec<u32>,
    replicas: Vec<ReplicaState>,
    clock: u64,
}

impl Residency {
    /// Makes room for replica number `replica`.
    pub fn add_replica(&mut self, replica: u32) {
        if self.replicas.len() <= replica as usize {
            self.replicas.resize_with(replica as usize + 1, ReplicaState::default);
        }
    }

    /// Blocks judged resident on the replica.
    #[must_use]
    pub fn resident_blocks(&self, replica: u32) -> u64 {
        self.replicas[replica as usize].blocks
    }

    /// How often the replica was flushed. Hand it back with [`Self::confirm`] and [`Self::release`].
    #[must_use]
    pub fn epoch(&self, replica: u32) -> u32 {
        self.replicas[replica as usize].epoch
    }

    /// Depth in blocks of the longest prefix of the path that each replica holds, written into `depths` by replica number.
    pub fn matches(&self, tree: &Tree, cursor: Cursor, depths: &mut [u32]) {
        depths.fill(0);
        for (run, offset) in tree.path(cursor) {
            let run = &tree.runs[run as usize];
            for &(replica, id) in &run.holders {
                let depth = &mut depths[replica as usize];
                if *depth == 0 {
                    *depth = run.depth + self.holdings[id as usize].blocks.min(offset);
                }
            }
        }
    }

    /// Marks the path as in use and expected on the replica by one more turn. O(forks on the path).
    pub fn expect(&mut self, tree: &mut Tree, replica: u32, cursor: Cursor) {
        self.mark(tree, replica, cursor, |holding, offset| {
            holding.pins.insert(offset);
            holding.pending.insert(offset);
        });
    }

    /// Marks the path as computed by the turn that expected it.
    pub fn confirm(&mut self, tree: &Tree, replica: u32, epoch: u32, cursor: Cursor) {
        if self.epoch(replica) != epoch {
            return;
        }
        for (run, offset) in tree.path(cursor) {
            if let Some(id) = find(tree, run, replica) {
                let holding = &mut self.holdings[id as usize];
                let pending = holding.pending.remove(offset);
                debug_assert!(pending, "a turn confirms once");
                holding.confirmed = holding.confirmed.max(offset.min(holding.blocks));
            }
        }
    }

    /// Ends the turn's use of the path. An unconfirmed path is taken back where no other turn expects it.
    pub fn release(&mut self, tree: &mut Tree, replica: u32, epoch: u32, cursor: Cursor, confirmed: bool) {
        if self.epoch(replica) != epoch {
            return;
        }
        self.clock += 1;
        let path: Vec<(RunId, u32)> = tree.path(cursor).filter(|&(_, offset)| offset > 0).collect();
        for (run, offset) in path {
            let Some(id) = find(tree, run, replica) else { continue };
            self.unlist(tree, id);
            let holding = &mut self.holdings[id as usize];
            let pinned = holding.pins.remove(offset);
            debug_assert!(pinned, "a turn releases once");
            if confirmed {
                holding.touch(offset, self.clock);
            } else {
                let pending = holding.pending.remove(offset);
                debug_assert!(pending, "it has not confirmed");
                let keep = holding.confirmed.max(holding.pending.max());
                self.cut(id, keep);
            }
            self.list_or_remove(tree, id);
            self.shrink(tree, run);
        }
    }

    /// Marks the path as resident and confirmed on the replica, used now. O(forks on the path).
    pub fn hold(&mut self, tree: &mut Tree, replica: u32, cursor: Cursor) {
        self.mark(tree, replica, cursor, |_, _| ());
        for (run, offset) in tree.path(cursor) {
            if let Some(id) = find(tree, run, replica) {
                let holding = &mut self.holdings[id as usize];
                holding.confirmed = holding.confirmed.max(offset);
            }
        }
    }

    fn mark(&mut self, tree: &mut Tree, replica: u32, cursor: Cursor, change: impl Fn(&mut Holding, u32)) {
        self.clock += 1;
        let mut at = Some((cursor.run, cursor.offset));
        while let Some((run, offset)) = at {
            at = tree.parent(run);
            if offset == 0 {
                continue;
            }
            let id = self.find_or_add(tree, run, replica);
            self.unlist(tree, id);
            let holding = &mut self.holdings[id as usize];
            let grown = offset.saturating_sub(holding.blocks);
            self.replicas[replica as usize].blocks += u64::from(grown);
            holding.touch(offset, self.clock);
            change(holding, offset);
            self.list_or_remove(tree, id);
        }
    }

    pub(super) fn enforce(&mut self, tree: &mut Tree, replica: u32, blocks: u64) {
        loop {
            let state = &self.replicas[replica as usize];
            let Some(excess) = state.blocks.checked_sub(blocks).filter(|&excess| excess > 0) else { return };
            let Some(&(_, _, id)) = state.evictable.first() else { return };
            self.unlist(tree, id);
            let holding = &self.holdings[id as usize];
            let run = holding.run;
            let segment_start = holding.newer.first().map_or(0, |segment| segment.0).max(holding.pins.max());
            let keep = holding.blocks.saturating_sub(excess.min(u64::from(u32::MAX)) as u32).max(segment_start);
            self.cut(id, keep);
            self.list_or_remove(tree, id);
            self.shrink(tree, run);
        }
    }

    pub(super) fn flush(&mut self, tree: &mut Tree, replica: u32) {
        let ids: Vec<u32> = (0..self.holdings.len() as u32)
            .filter(|&id| self.holdings[id as usize].replica == replica && self.holdings[id as usize].blocks > 0)
            .collect();
        for id in ids {
            self.unlist(tree, id);
            let run = self.holdings[id as usize].run;
            self.cut(id, 0);
            (self.holdings[id as usize].pins, self.holdings[id as usize].pending) = (Ends::default(), Ends::default());
            self.list_or_remove(tree, id);
            self.shrink(tree, run);
        }
        self.replicas[replica as usize].epoch += 1;
    }

    /// Trims the run to what is needed, and its ancestors where that frees it.
    pub(super) fn shrink(&self, tree: &mut Tree, run: RunId) {
        let mut at = Some(run);
        while let Some(run) = at {
            at = if tree.runs[run as usize].alive { tree.trim(run, self.held_blocks(tree, run)) } else { None };
        }
    }

    /// Blocks of the run that some replica holds.
    pub(super) fn held_blocks(&self, tree: &Tree, run: RunId) -> u32 {
        tree.runs[run as usize].holders.iter().map(|&(_, id)| self.holdings[id as usize].blocks).max().unwrap_or(0)
    }

    fn find_or_add(&mut self, tree: &mut Tree, run: RunId, replica: u32) -> u32 {
        let holders = &mut tree.runs[run as usize].holders;
        let at = match holders.binary_search_by_key(&replica, |holder| holder.0) {
            Ok(at) => return holders[at].1,
            Err(at) => at,
        };
        let fresh =
            Holding { run, replica, blocks: 0, confirmed: 0, pins: Ends::default(), pending: Ends::default(), last_used: 0, newer: Vec::new() };
        let id = if let Some(id) = self.free.pop() {
            self.holdings[id as usize] = fresh;
            id
        } else {
            self.holdings.push(fresh);
            self.holdings.len() as u32 - 1
        };
        holders.insert(at, (replica, id));
        id
    }

    /// Reduces a holding to its first `keep` blocks.
    fn cut(&mut self, id: u32, keep: u32) {
        let holding = &mut self.holdings[id as usize];
        let freed = holding.blocks.saturating_sub(keep);
        if freed == 0 {
            return;
        }
        holding.blocks = keep;
        holding.confirmed = holding.confirmed.min(keep);
        // Segments that now begin at or behind the end are gone; the last one left becomes the tail.
        while let Some(&(end, time)) = holding.newer.first() {
            if end < keep {
                break;
            }
            holding.last_used = time;
            holding.newer.remove(0);
        }
        self.replicas[holding.replica as usize].blocks -= u64::from(freed);
    }

    fn age(&self, tree: &Tree, id: u32) -> Age {
        let holding = &self.holdings[id as usize];
        (holding.last_used, std::cmp::Reverse(tree.runs[holding.run as usize].depth), id)
    }

    /// Takes a holding out of the eviction order before it changes.
    fn unlist(&mut self, tree: &Tree, id: u32) {
        let age = self.age(tree, id);
        let replica = self.holdings[id as usize].replica;
        self.replicas[replica as usize].evictable.remove(&age);
    }

    /// Puts a changed holding back into the eviction order, or removes it when nothing of it is left.
    fn list_or_remove(&mut self, tree: &mut Tree, id: u32) {
        let holding = &self.holdings[id as usize];
        let (run, replica) = (holding.run, holding.replica);
        if holding.blocks == 0 && holding.pins.is_empty() {
            let holders = &mut tree.runs[run as usize].holders;
            if let Ok(at) = holders.binary_search_by_key(&replica, |holder| holder.0) {
                holders.remove(at);
            }
            self.free.push(id);
            if self.free.len() == self.holdings.len() {
                (self.holdings, self.free) = (Vec::new(), Vec::new());
            }
        } else if holding.blocks > holding.pins.max() {
            let age = self.age(tree, id);
            self.replicas[replica as usize].evictable.insert(age);
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let evictable: usize = self.replicas.iter().map(|state| state.evictable.len()).sum();
        (self.holdings.capacity() * size_of::<Holding>() + self.free.capacity() * 4 + evictable * size_of::<Age>()) as u64
    }

    pub(super) fn audit(&self, tree: &Tree) -> Result<(), String> {
        let mut blocks = vec![0u64; self.replicas.len()];
        let mut evictable = vec![0usize; self.replicas.len()];
        for (run_id, run) in tree.runs.iter().enumerate().filter(|(_, run)| run.alive) {
            for &(replica, id) in &run.holders {
                let holding = &self.holdings[id as usize];
                if (holding.run, holding.replica) != (run_id as RunId, replica) || holding.blocks > run.len || holding.confirmed > holding.blocks {
                    return Err(format!("holding {id} does not fit run {run_id}"));
                }
                blocks[replica as usize] += u64::from(holding.blocks);
                evictable[replica as usize] += usize::from(holding.blocks > holding.pins.max());
                if let Some((parent, parent_offset)) = tree.parent(run_id as RunId).filter(|&(_, offset)| offset > 0) {
                    let above = find(tree, parent, replica).map_or(0, |id| self.holdings[id as usize].blocks);
                    if above < parent_offset {
                        return Err(format!("replica {replica} holds run {run_id} but not what precedes it"));
                    }
                }
            }
        }
        for (replica, state) in self.replicas.iter().enumerate() {
            if state.blocks != blocks[replica] || state.evictable.len() != evictable[replica] {
                return Err(format!("replica {replica}: {} blocks counted, {} held", state.blocks, blocks[replica]));
            }
        }
        Ok(())
    }
}

impl Holding {
    /// Notes that the first `offset` blocks were used at `time`, which is later than every time noted so far.
    fn touch(&mut self, offset: u32, time: u64) {
        if offset >= self.blocks {
            self.newer.clear();
            self.blocks = offset;
            self.last_used = time;
            return;
        }
        while self.newer.last().is_some_and(|&(end, _)| end <= offset) {
            self.newer.pop();
        }
        self.newer.push((offset, time));
    }
}

fn find(tree: &Tree, run: RunId, replica: u32) -> Option<u32> {
    let holders = &tree.runs[run as usize].holders;
    holders.binary_search_by_key(&replica, |holder| holder.0).ok().map(|at| holders[at].1)
}
