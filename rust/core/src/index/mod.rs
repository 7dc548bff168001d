//! The prefix index: which replicas hold the longest prefix of a token sequence, and where a session's history ends.
//!
//! A *run* is a maximal chain of blocks without a fork; its fingerprints lie contiguously in one arena. A fork makes a
//! child run that branches off at a block offset; existing runs are never split. A *cursor* is the end of a path: a run
//! and how many of its blocks belong to the path. `tree` stores the paths, `residency` who holds them in cache, `feed` what
//! engines say about that themselves.
//!
//! Cursors that must stay valid are *anchored*. A run lives while something anchored, held or branching needs it: what
//! lies beyond the last such offset is trimmed at once, so memory is bounded by live histories and replica capacity, and
//! by a hard limit in bytes above which nothing new is indexed.

mod arena;
mod audit;
mod children;
pub(crate) mod ends;
mod exact;
mod feed;
pub(crate) mod hasher;
mod holders;
mod lookup;
mod records;
mod residency;
mod tree;

pub use feed::{Applied, CacheEvent, FeedStats};
pub use lookup::{Depths, Match};
pub use residency::{Cut, Knowledge, Residency};
pub use tree::{Cursor, RunId, Tree};

use feed::Feeds;

use crate::error::{Error, Result};
use crate::record::codec::record;

/// Smallest limit in bytes: below it the fixed tables would be most of it.
pub const LEAST_BYTES: u64 = 1 << 20;
/// Bytes kept free for what grows by a few bytes at a time: anchors, holders of one run, size classes.
const MARGIN: u64 = 1 << 16;
/// Words of fingerprints below which a half-empty arena is left alone.
const PACKED_WORDS: u64 = 1 << 15;
/// Runs that one operation looks at while a dropped namespace is swept.
const SWEPT: u32 = 32;

/// The tree of paths with the residency marks on it.
#[derive(Debug)]
pub struct Index {
    /// Paths.
    pub tree: Tree,
    /// Who holds them.
    pub residency: Residency,
    feeds: Feeds,
    most_bytes: u64,
    /// Next run to look at for a namespace that was dropped; `None` when there is nothing to sweep.
    sweep_at: Option<RunId>,
    /// How often blocks were not indexed because the limit was reached.
    full: u64,
}

impl Index {
    /// An empty index; `seed` keys its hash tables.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let residency = Residency::default();
        Self { tree: Tree::new(seed), residency, feeds: Feeds::new(seed), most_bytes: u64::MAX, sweep_at: None, full: 0 }
    }

    /// Limits the memory of the index.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] below [`LEAST_BYTES`].
    pub fn with_limit(mut self, index_bytes: u64) -> Result<Self> {
        if index_bytes < LEAST_BYTES {
            let accepted = "at least 1,048,576 bytes";
            return Err(Error::InvalidArgument { argument: "index_bytes", value: index_bytes.to_string(), accepted });
        }
        self.most_bytes = index_bytes;
        Ok(self)
    }

    /// Follows `fingerprints` from a cursor and adds what is missing. Anchor the answer before anything is freed.
    ///
    /// Where the limit on memory leaves no room even after the coldest blocks of all replicas were forgotten, the answer is
    /// the end of what was there already: compare its depth.
    pub fn insert(&mut self, from: Cursor, fingerprints: &[u64]) -> Cursor {
        self.sweep();
        let (end, done) = self.tree.locate(from, fingerprints);
        let new = &fingerprints[done..];
        if new.is_empty() {
            return end;
        }
        self.pack();
        if !self.room_for(end, new.len()) {
            self.tree.anchor(end);
            let made = self.make_room(end, new.len());
            // Only the anchor goes: the caller has yet to say what it needs of the path.
            self.tree.drop_anchor(end);
            if !made {
                self.full += 1;
                return end;
            }
        }
        self.tree.grow(end, new)
    }

    /// Drops an anchor and frees what nobody needs any more.
    ///
    /// # Panics
    /// When the cursor is not anchored: a defect of the caller.
    pub fn unanchor(&mut self, cursor: Cursor) {
        self.tree.drop_anchor(cursor);
        self.residency.shrink(&mut self.tree, cursor.run);
    }

    /// Anchors one cursor in the place of another, which is not freed in between.
    ///
    /// # Panics
    /// When the other is not anchored: a defect of the caller.
    pub fn move_anchor(&mut self, from: Cursor, to: Cursor) {
        if from.run == to.run && from.offset <= to.offset {
            self.tree.raise_anchor(from, to.offset);
        } else {
            self.tree.anchor(to);
            self.unanchor(from);
        }
    }

    /// Marks the path as in use and expected on the replica by one more turn, unless the limit on memory leaves no room for the
    /// mark: answers whether it did, and only then is the turn to be confirmed and released.
    #[must_use]
    pub fn expect(&mut self, replica: u32, cursor: Cursor) -> bool {
        let room = self.room_for_marks(cursor);
        if room {
            self.residency.expect(&mut self.tree, replica, cursor);
        }
        room
    }

    /// Marks the path as resident and confirmed on the replica, unless the limit on memory leaves no room for the mark.
    pub fn hold(&mut self, replica: u32, cursor: Cursor) {
        if self.room_for_marks(cursor) {
            self.residency.hold(&mut self.tree, replica, cursor);
        }
    }

    /// Frees least recently used blocks of `replica` until at most `blocks` are resident, or everything left is in use.
    ///
    /// Where engine events say what is resident nothing is freed; but when own decisions and events together claim more than
    /// fits, the own decisions are out of date and are forgotten.
    ///
    /// With `report`, what was cut is noted for [`Residency::take_cuts`]: the bound is the engine's capacity.
    pub fn enforce(&mut self, replica: u32, blocks: u64, report: bool) {
        self.residency.report_cuts(report);
        match self.residency.knowledge(replica) {
            Knowledge::Own => self.residency.enforce(&mut self.tree, replica, blocks),
            Knowledge::Partial if self.residency.resident_blocks(replica) > blocks => {
                self.residency.set_knowledge(&mut self.tree, replica, Knowledge::Whole);
            }
            _ => {}
        }
        self.residency.report_cuts(false);
    }

    /// Forgets what `replica` holds: it was flushed. What a whole feed of engine events says stays, because the engine
    /// reports the flush itself.
    pub fn flush(&mut self, replica: u32) {
        let all = self.residency.knowledge(replica) != Knowledge::Whole;
        if all {
            self.end_feeds(replica);
        }
        self.residency.flush(&mut self.tree, replica, all);
    }

    /// Forgets everything about `replica`: it is gone.
    pub fn lose(&mut self, replica: u32) {
        self.end_feeds(replica);
        self.residency.flush(&mut self.tree, replica, true);
    }

    /// Reads what the next questions about these cursors will read, one kind of record after the other: within a kind the reads do not
    /// depend on each other, so the processor has all of them in flight at once.
    pub(crate) fn read_ahead<const N: usize>(&self, cursors: &[Option<Cursor>; N]) {
        let mut holdings = [None; N];
        for (holding, cursor) in holdings.iter_mut().zip(cursors) {
            let run = cursor.and_then(|cursor| self.tree.runs.get(cursor.run as usize));
            *holding = run.and_then(|run| run.holders.as_slice().first().map(|holder| holder.id));
        }
        let mut blocks = 0u32;
        for id in holdings.into_iter().flatten() {
            blocks |= self.residency.records.get(id).blocks;
        }
        // Keeps the compiler from leaving the reads out.
        std::hint::black_box(blocks);
    }

    /// Takes the name away from a namespace, in O(1): nothing that is looked up under it finds its paths any more, and nobody is
    /// judged to hold them. Cursors that are anchored in it stay current. The memory comes back while the index is used.
    pub fn drop_namespace(&mut self, namespace: &str) -> bool {
        let root = self.tree.existing_root(namespace);
        let dropped = self.tree.drop_root(namespace);
        if let Some(root) = root {
            self.residency.shrink(&mut self.tree, root.run);
            self.sweep_at = Some(0);
        }
        dropped
    }

    /// Looks at a few runs for what a dropped namespace has left behind.
    fn sweep(&mut self) {
        let Some(from) = self.sweep_at else { return };
        for at in from..from + SWEPT {
            // To forget one run may free all of them.
            let Some(run) = self.tree.runs.get(at as usize) else {
                self.sweep_at = None;
                return;
            };
            if run.alive && self.tree.is_dropped(at) {
                self.residency.forget(&mut self.tree, at);
            }
        }
        self.sweep_at = Some(from + SWEPT);
    }

    /// Packs the fingerprints when a large part of the arena is free: runs that grow leave slices of every smaller size behind. At
    /// most three words are copied for each that was freed since the last time.
    fn pack(&mut self) {
        let (free, words) = self.tree.arena_words();
        if words > PACKED_WORDS && free * 5 > words * 2 {
            self.tree.compact();
        }
    }

    fn room_for(&mut self, end: Cursor, blocks: usize) -> bool {
        let Ok(blocks) = u32::try_from(blocks) else { return false };
        let Some(growth) = self.tree.growth(end, blocks) else { return false };
        growth == 0 || self.has_room(growth)
    }

    /// Whether `bytes` more stay below the limit.
    fn has_room(&self, bytes: u64) -> bool {
        self.bytes().saturating_add(bytes).saturating_add(MARGIN) <= self.most_bytes
    }

    fn room_for_marks(&mut self, cursor: Cursor) -> bool {
        let runs = self.tree.path(cursor).count() as u32;
        let growth = self.residency.growth(runs);
        let room = growth == 0 || self.has_room(growth) || self.make_room(cursor, 0) && self.has_room(self.residency.growth(runs));
        self.full += u64::from(!room);
        room
    }

    /// Forgets the coldest blocks of the replicas that hold most until there is room for `blocks` more behind `end`, which is anchored.
    fn make_room(&mut self, end: Cursor, blocks: usize) -> bool {
        loop {
            let (free, words) = self.tree.arena_words();
            // Free slices may have the wrong size. Packing costs as much as everything that is stored, so it has to pay.
            if free > 0 && free >= blocks as u64 + words / 8 {
                self.tree.compact();
            }
            if self.room_for(end, blocks) && (blocks > 0 || self.has_room(MARGIN)) {
                return true;
            }
            let replicas = 0..self.residency.replica_count() as u32;
            let fullest = replicas
                .filter(|&replica| self.residency.can_evict(replica))
                .max_by_key(|&replica| (self.residency.resident_blocks(replica), std::cmp::Reverse(replica)));
            let Some(replica) = fullest else { return false };
            self.residency.evict(&mut self.tree, replica, (blocks as u64).max(words / 64).max(1));
        }
    }

    /// How often blocks or marks were left out because the limit on memory was reached.
    #[must_use]
    pub fn full_count(&self) -> u64 {
        self.full
    }

    /// Bytes held by the index: capacities of its tables, not what is used of them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tree.bytes() + self.residency.bytes() + self.feeds.bytes()
    }

    /// Recomputes every count of the index from scratch.
    ///
    /// # Errors
    /// What differs.
    pub fn audit(&self) -> std::result::Result<(), String> {
        if self.bytes() > self.most_bytes {
            return Err(format!("{} bytes, {} are allowed", self.bytes(), self.most_bytes));
        }
        self.tree.audit(|run| self.residency.needed_blocks(&self.tree, run))?;
        self.residency.audit(&self.tree)
    }
}

record!(Index { tree, residency, feeds, most_bytes, sweep_at, full });
