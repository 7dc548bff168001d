//! Which replica is judged to hold which part of a run in its cache, and what its cache evicts next.
//!
//! A holding says that a replica has the first `blocks` blocks of a run; the blocks before the run are held too (prefix
//! closure). A placed turn marks its path *expected* at once, so that a burst of siblings sees it; the first token or
//! the completion confirms it, an abort before that takes back what nobody else expects or confirmed.
//!
//! Eviction follows the engines: least recently used first, a path's tail before its head, nothing that a running turn
//! uses. A use moves a path's segments to the newest end of the replica's list, deepest run first: so along any path what
//! is deeper stands before what precedes it, and evicting from the oldest end keeps the closure without looking at children.
//!
//! A replica whose engine reports its cache (see `feed`) has no such order: events say what is there, holes included.

use super::exact::Exact;
use super::records::{List, Lists, Records};
use super::tree::{Cursor, NONE, RunId, Tree};

use crate::record::codec::record;

/// How what a replica holds is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Knowledge {
    /// From own decisions.
    #[default]
    Own,
    /// From own decisions and what engine events said so far: the feed began late, or has a gap.
    Partial,
    /// From engine events alone.
    Whole,
}

#[derive(Debug, Default)]
pub(super) struct ReplicaState {
    pub(super) blocks: u64,
    /// Bumped by a flush, so that turns placed before it do not touch what is held since.
    epoch: u32,
    knowledge: Knowledge,
}

/// A part of a run that a replica no longer holds: everything behind the first `keep` blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The replica.
    pub replica: u32,
    /// The run.
    pub run: RunId,
    /// Blocks of it that are still held.
    pub keep: u32,
}

/// All holdings.
#[derive(Debug, Default)]
pub struct Residency {
    pub(super) records: Records,
    pub(super) replicas: Vec<ReplicaState>,
    /// What was cut since they were taken last, where cuts are what the engine did and not what memory asked for.
    cuts: Vec<Cut>,
    report_cuts: bool,
}

impl Residency {
    /// Makes room for replica number `replica`.
    pub fn add_replica(&mut self, replica: u32) {
        if self.replicas.len() <= replica as usize {
            self.replicas.resize_with(replica as usize + 1, ReplicaState::default);
            self.records.lists.resize_with(replica as usize + 1, Lists::default);
        }
    }

    /// Replicas that there is room for.
    #[must_use]
    pub fn replica_count(&self) -> usize {
        self.replicas.len()
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

    /// How what the replica holds is known.
    #[must_use]
    pub fn knowledge(&self, replica: u32) -> Knowledge {
        self.replicas[replica as usize].knowledge
    }

    /// Says whether cuts are noted from now on.
    pub(super) fn report_cuts(&mut self, report: bool) {
        self.report_cuts = report;
    }

    /// What the engine is judged to have evicted since the last call, in order.
    pub fn take_cuts(&mut self) -> Vec<Cut> {
        std::mem::take(&mut self.cuts)
    }

    /// Marks the path as in use and expected on the replica by one more turn. O(forks on the path).
    pub fn expect(&mut self, tree: &mut Tree, replica: u32, cursor: Cursor) {
        self.mark(tree, replica, cursor, true);
    }

    /// Marks the path as resident and confirmed on the replica, used now. O(forks on the path).
    pub fn hold(&mut self, tree: &mut Tree, replica: u32, cursor: Cursor) {
        if self.knowledge(replica) != Knowledge::Whole {
            self.mark(tree, replica, cursor, false);
        }
    }

    fn mark(&mut self, tree: &mut Tree, replica: u32, cursor: Cursor, expected: bool) {
        let mut at = Some((cursor.run, cursor.offset));
        while let Some((run, offset)) = at {
            at = tree.parent(run);
            if offset == 0 {
                continue;
            }
            let id = self.find_or_add(tree, run, replica);
            if expected {
                self.records.change_extra(id, |extra| {
                    extra.pins.insert(offset);
                    extra.pending.insert(offset);
                });
            } else if self.records.extra(id).is_some() {
                self.records.change_extra(id, |extra| extra.confirmed = extra.confirmed.max(offset));
            }
            self.touch(tree, id, offset);
        }
    }

    /// Marks the path as computed by the turn that expected it.
    pub fn confirm(&mut self, tree: &mut Tree, replica: u32, epoch: u32, cursor: Cursor) {
        if self.epoch(replica) != epoch {
            return;
        }
        let own = self.knowledge(replica) != Knowledge::Whole;
        let mut at = Some((cursor.run, cursor.offset));
        while let Some((run, offset)) = at {
            at = tree.parent(run);
            let Some(id) = tree.runs[run as usize].holders.find(replica).filter(|_| offset > 0) else { continue };
            let pending = self.records.change_extra(id, |extra| {
                if own {
                    extra.confirmed = extra.confirmed.max(offset);
                }
                extra.pending.remove(offset)
            });
            debug_assert!(pending, "a turn confirms once");
            if !own {
                self.settle(tree, id);
            }
        }
    }

    /// Ends the turn's use of the path, which counts as a use now. An unconfirmed path is taken back where no other turn expects it.
    /// What nobody needs any more is freed when the turn's anchor goes.
    pub fn release(&mut self, tree: &mut Tree, replica: u32, epoch: u32, cursor: Cursor, confirmed: bool) {
        if self.epoch(replica) != epoch {
            return;
        }
        let mut at = Some((cursor.run, cursor.offset));
        while let Some((run, offset)) = at {
            at = tree.parent(run);
            let Some(id) = tree.runs[run as usize].holders.find(replica).filter(|_| offset > 0) else { continue };
            let known = self.records.change_extra(id, |extra| extra.pins.remove(offset) && (confirmed || extra.pending.remove(offset)));
            debug_assert!(known, "a turn releases once");
            let head = self.settle(tree, id);
            if let Some(id) = head {
                self.touch(tree, id, offset.min(self.records.get(id).blocks));
            }
        }
    }

    /// Evicts least recently used blocks of `replica` until at most `blocks` are resident, or everything left is in use.
    pub(super) fn enforce(&mut self, tree: &mut Tree, replica: u32, blocks: u64) {
        while let Some(excess) = self.replicas[replica as usize].blocks.checked_sub(blocks).filter(|&excess| excess > 0) {
            if !self.evict(tree, replica, excess) {
                return;
            }
        }
    }

    /// Whether anything of the replica can be evicted.
    pub(super) fn can_evict(&self, replica: u32) -> bool {
        self.records.oldest(replica, List::Cached).is_some()
    }

    /// Evicts at most `excess` blocks of the replica's oldest segment; `false` when nothing is evictable.
    pub(super) fn evict(&mut self, tree: &mut Tree, replica: u32, excess: u64) -> bool {
        let Some(oldest) = self.records.oldest(replica, List::Cached) else { return false };
        let segment = self.records.get(oldest);
        let (run, newer) = (segment.run, segment.newer);
        let id = tree.runs[run as usize].holders.find(replica).expect("a segment belongs to a holding");
        let start = if newer == NONE { 0 } else { self.records.get(newer).end };
        let blocks = self.records.get(id).blocks;
        let keep = blocks.saturating_sub(excess.min(u64::from(u32::MAX)) as u32).max(start).max(self.records.pinned(id));
        if keep == start && newer != NONE {
            // The oldest segment is the last of its holding, so the one before it ends the holding now.
            self.remove_older(oldest);
            self.end_at(tree, id, newer, keep);
        } else {
            self.end_at(tree, id, oldest, keep);
        }
        self.remove_if_empty(tree, id);
        self.shrink(tree, run);
        true
    }

    /// Forgets what own decisions say about the replica, and where `all` also what engine events said.
    pub(super) fn flush(&mut self, tree: &mut Tree, replica: u32, all: bool) {
        for id in self.holdings(replica) {
            let run = self.records.get(id).run;
            if self.records.extra(id).is_some() {
                self.records.change_extra(id, |extra| {
                    (extra.pins, extra.pending, extra.confirmed) = Default::default();
                    if all {
                        extra.exact = None;
                    }
                });
                self.settle(tree, id);
            } else {
                self.cut(tree, id, 0);
            }
            self.shrink(tree, run);
        }
        self.replicas[replica as usize].epoch += 1;
    }

    /// Forgets what replicas hold of a run whose namespace was dropped, but for what running turns use or engine events report.
    pub(super) fn forget(&mut self, tree: &mut Tree, run: RunId) {
        let ids: Vec<u32> = tree.runs[run as usize].holders.as_slice().iter().map(|holder| holder.id).collect();
        for id in ids {
            if self.knowledge(self.records.get(id).replica) != Knowledge::Own {
                continue;
            }
            let keep = self.records.pinned(id);
            self.cut(tree, id, keep);
        }
        self.shrink(tree, run);
    }

    /// Trims the run to what is needed, and its ancestors where that frees it.
    pub(super) fn shrink(&self, tree: &mut Tree, run: RunId) {
        let mut at = Some(run);
        while let Some(run) = at {
            at = if tree.runs[run as usize].alive { tree.trim(run, self.needed_blocks(tree, run)) } else { None };
        }
    }

    /// Blocks of the run that some replica needs in memory.
    pub(super) fn needed_blocks(&self, tree: &Tree, run: RunId) -> u32 {
        tree.runs[run as usize].holders.as_slice().iter().map(|holder| self.records.span(holder.id)).max().unwrap_or(0)
    }

    /// Blocks of the run that the replica holds.
    pub(super) fn held(&self, tree: &Tree, run: RunId, replica: u32) -> u32 {
        tree.runs[run as usize].holders.find(replica).map_or(0, |id| self.records.get(id).blocks)
    }

    /// Every holding of the replica.
    fn holdings(&self, replica: u32) -> Vec<u32> {
        let all = [List::Cached, List::Kept].into_iter().flat_map(|list| self.records.iter(replica, list));
        all.filter(|&id| self.records.get(id).newer == NONE).collect()
    }

    fn find_or_add(&mut self, tree: &mut Tree, run: RunId, replica: u32) -> u32 {
        if let Some(id) = tree.runs[run as usize].holders.find(replica) {
            return id;
        }
        let id = self.records.add(run, replica);
        self.records.link(id, if self.knowledge(replica) == Knowledge::Own { List::Cached } else { List::Kept });
        tree.holders(run, |holders| holders.set(replica, id));
        id
    }

    /// Notes that the first `offset` blocks of a holding are used now. Amortised O(1).
    fn touch(&mut self, tree: &mut Tree, id: u32, offset: u32) {
        let segment = self.records.get(id);
        let blocks = segment.blocks.max(offset);
        if self.knowledge(segment.replica) != Knowledge::Own {
            let exact = self.records.extra(id).and_then(|extra| extra.exact.as_ref());
            let blocks = exact.map_or(blocks, |exact| exact.reach(blocks));
            self.set_blocks(tree, id, blocks);
            self.records.get_mut(id).end = blocks;
            return;
        }
        // What the use covers whole becomes one segment with it: the holding's own record.
        while let Some(older) = self.older(id).filter(|&older| self.records.get(older).end <= offset) {
            self.remove_older(older);
        }
        if self.records.get(id).end > offset {
            self.records.split_off_rest(id);
        }
        self.records.unlink(id);
        self.records.get_mut(id).end = offset;
        self.set_blocks(tree, id, blocks);
        self.relink(id);
    }

    fn older(&self, id: u32) -> Option<u32> {
        Some(self.records.get(id).older).filter(|&older| older != NONE)
    }

    /// Removes a segment that is not the newest of its holding.
    fn remove_older(&mut self, id: u32) {
        let (newer, older) = (self.records.get(id).newer, self.records.get(id).older);
        self.records.get_mut(newer).older = older;
        if older != NONE {
            self.records.get_mut(older).newer = newer;
        }
        self.records.unlink(id);
        self.records.free(id);
    }

    /// Puts the newest segment of a holding known from own decisions, which stands in no list, at the newest end of the list it
    /// belongs to.
    fn relink(&mut self, id: u32) {
        let pinned = self.records.get(id).end <= self.records.pinned(id);
        self.records.link(id, if pinned { List::Kept } else { List::Cached });
    }

    fn set_blocks(&mut self, tree: &mut Tree, id: u32, blocks: u32) {
        let segment = self.records.get_mut(id);
        let (run, replica, before) = (segment.run, segment.replica, std::mem::replace(&mut segment.blocks, blocks));
        let total = &mut self.replicas[replica as usize].blocks;
        *total = *total + u64::from(blocks) - u64::from(before);
        tree.holders(run, |holders| {
            holders.note(replica, blocks);
            if holders.wants_level() {
                holders.choose_level(|id| self.records.get(id).blocks);
            }
        });
        if blocks < before && self.report_cuts {
            self.cuts.push(Cut { replica, run, keep: blocks });
        }
    }

    /// Reduces a holding to its first `keep` blocks. A holding of nothing that nothing else needs is removed: `None`.
    fn cut(&mut self, tree: &mut Tree, id: u32, keep: u32) -> Option<u32> {
        if keep < self.records.get(id).blocks {
            let mut last = id;
            while self.records.get(last).end < keep {
                last = self.records.get(last).older;
            }
            while let Some(older) = self.older(last) {
                self.remove_older(older);
            }
            self.end_at(tree, id, last, keep);
        }
        self.remove_if_empty(tree, id)
    }

    /// Sets the end of the oldest segment of a holding, and with it the end of the holding.
    fn end_at(&mut self, tree: &mut Tree, holding: u32, last: u32, keep: u32) {
        self.records.get_mut(last).end = keep;
        self.set_blocks(tree, holding, keep);
        if self.records.extra(holding).is_some_and(|extra| extra.confirmed > keep) {
            self.records.change_extra(holding, |extra| extra.confirmed = keep);
        }
        if keep <= self.records.pinned(holding) && self.records.list_of(last) == List::Cached {
            self.records.unlink(last);
            self.records.link(last, List::Kept);
        }
    }

    fn remove_if_empty(&mut self, tree: &mut Tree, id: u32) -> Option<u32> {
        let segment = self.records.get(id);
        if segment.blocks > 0 || self.records.extra(id).is_some_and(|extra| !extra.is_idle()) {
            return Some(id);
        }
        let (run, replica) = (segment.run, segment.replica);
        tree.holders(run, |holders| holders.remove(replica));
        self.records.unlink(id);
        self.records.free(id);
        None
    }

    /// Brings a holding in line with what is confirmed, expected and reported. `None` when nothing of it is left.
    pub(super) fn settle(&mut self, tree: &mut Tree, id: u32) -> Option<u32> {
        let knowledge = self.knowledge(self.records.get(id).replica);
        let Some(extra) = self.records.extra(id) else { return Some(id) };
        let own = if knowledge == Knowledge::Whole { 0 } else { extra.confirmed };
        let expected = own.max(extra.pending.max());
        let blocks = extra.exact.as_ref().map_or(expected, |exact| exact.reach(expected));
        let idle = extra.is_idle();
        if blocks > self.records.get(id).blocks {
            self.set_blocks(tree, id, blocks);
            self.records.get_mut(id).end = blocks;
        }
        let id = self.cut(tree, id, blocks)?;
        if idle {
            self.records.drop_extra(id);
        }
        Some(id)
    }

    /// Changes what engine events say about a run on a replica.
    pub(super) fn report(&mut self, tree: &mut Tree, replica: u32, run: RunId, change: impl FnOnce(&mut Exact)) {
        let id = self.find_or_add(tree, run, replica);
        self.records.change_extra(id, |extra| {
            let exact = extra.exact.get_or_insert_default();
            change(exact);
            if exact.is_empty() {
                extra.exact = None;
            }
        });
        self.settle(tree, id);
        self.shrink(tree, run);
    }

    /// Says how what the replica holds is known from now on. O(what it holds).
    pub(super) fn set_knowledge(&mut self, tree: &mut Tree, replica: u32, knowledge: Knowledge) {
        let before = std::mem::replace(&mut self.replicas[replica as usize].knowledge, knowledge);
        if before == knowledge || (before, knowledge) == (Knowledge::Whole, Knowledge::Partial) {
            return;
        }
        let mut ids = self.holdings(replica);
        ids.sort_unstable_by_key(|&id| (tree.depth_before(self.records.get(id).run), id));
        if before == Knowledge::Own {
            for &id in &ids {
                while let Some(older) = self.older(id) {
                    self.remove_older(older);
                }
                self.records.get_mut(id).end = self.records.get(id).blocks;
                self.records.unlink(id);
                self.records.link(id, List::Kept);
            }
        }
        let mut left = Vec::new();
        for id in ids {
            let run = self.records.get(id).run;
            // Own decisions know no holes: what lies behind one is given up, parents first.
            let reached = tree.parent(run).is_none_or(|(parent, offset)| {
                offset == 0 || tree.runs[parent as usize].holders.find(replica).is_some_and(|id| self.records.confirmed(id) >= offset)
            });
            self.records.change_extra(id, |extra| match knowledge {
                Knowledge::Own => {
                    let known = extra.exact.take().map_or(extra.confirmed, |exact| exact.reach(extra.confirmed));
                    extra.confirmed = if reached { known } else { 0 };
                }
                Knowledge::Whole => extra.confirmed = 0,
                Knowledge::Partial => {}
            });
            left.extend(self.settle(tree, id));
            self.shrink(tree, run);
        }
        if knowledge == Knowledge::Own {
            for id in left.into_iter().rev() {
                self.records.unlink(id);
                self.relink(id);
            }
        }
    }

    /// Bytes by which marking a path can grow the memory at most, but for a few per holder.
    pub(super) fn growth(&self, runs: u32) -> u64 {
        self.records.growth(runs)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.records.bytes() + (self.replicas.capacity() * size_of::<ReplicaState>()) as u64
    }
}

record!(Knowledge as knowledge: Own = 0, Partial = 1, Whole = 2);
record!(ReplicaState { blocks, epoch, knowledge });
record!(Cut { replica, run, keep });
record!(Residency { records, replicas, cuts, report_cuts });
