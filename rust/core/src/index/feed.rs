//! What engines say about their own caches: batches of stored, removed and cleared blocks, with sequence numbers.
//!
//! An engine names a block by a hash of its own, which is opaque here. Each publisher (a data-parallel rank of a replica) has a
//! table from those hashes to places in the tree. The same hash can be stored several times and is gone when it was removed as
//! often. Blocks whose parent is unknown are counted and left out: what precedes them is not known to be there.
//!
//! Sizes: an engine block of a multiple of the index block covers several index blocks. Of engine blocks that divide the index
//! block, the one that completes it stands for it: engines with such small blocks remove one only after those behind it.
//! A replica with any other size stays on own decisions.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

use super::Index;
use super::hasher::MixState;
use super::residency::Knowledge;
use super::tree::{Cursor, RunId};
use crate::prompt::{BlockHasher, mix64};
use crate::record::codec::{Reader, Record, Taken, record};

/// One change of an engine's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheEvent<'a> {
    /// A chain of blocks is in the cache.
    Stored {
        /// Namespace of a chain without a parent; one with a parent is in that one's.
        namespace: &'a str,
        /// The engine's hashes of the blocks, in order.
        hashes: &'a [u64],
        /// Hash of the block before the first.
        parent: Option<u64>,
        /// Ids of all their tokens, `block_tokens` for each hash.
        tokens: &'a [u32],
        /// Tokens per engine block.
        block_tokens: u32,
        /// Cache group of a hybrid model.
        group: u32,
        /// Whether the group caches whole contexts, not windows of them. The first such group of a rank is followed.
        whole_context: bool,
        /// By block: digest of what else makes it unequal to others with the same tokens (an image behind placeholder tokens);
        /// 0 = nothing. May be shorter than `hashes`.
        extra: &'a [u64],
    },
    /// Blocks are gone.
    Removed {
        /// The engine's hashes of the blocks.
        hashes: &'a [u64],
        /// Cache group of a hybrid model.
        group: u32,
    },
    /// Everything of this publisher is gone.
    Cleared,
}

/// What became of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Applied {
    /// It was applied.
    Done,
    /// It was applied before.
    Duplicate,
    /// Batches are missing: this one was not applied. Replay from `expected` on, this one included, or reset the publisher.
    Gap {
        /// Number of the next batch that can be applied.
        expected: u64,
    },
}

/// Counters since the start, over all feeds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each name says what is counted")]
pub struct FeedStats {
    pub batches: u64,
    pub duplicate_batches: u64,
    pub gaps: u64,
    pub restarts: u64,
    pub stored_blocks: u64,
    pub removed_blocks: u64,
    pub unknown_parents: u64,
    pub unknown_removed: u64,
    pub other_sizes: u64,
    pub unindexed_blocks: u64,
    pub other_groups: u64,
}

impl FeedStats {
    /// Every counter with its name.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, u64); 11] {
        [
            ("feed_batches", self.batches),
            ("feed_duplicate_batches", self.duplicate_batches),
            ("feed_gaps", self.gaps),
            ("feed_restarts", self.restarts),
            ("feed_stored_blocks", self.stored_blocks),
            ("feed_removed_blocks", self.removed_blocks),
            ("feed_unknown_parents", self.unknown_parents),
            ("feed_unknown_removed", self.unknown_removed),
            ("feed_other_sizes", self.other_sizes),
            ("feed_unindexed_blocks", self.unindexed_blocks),
            ("feed_other_groups", self.other_groups),
        ]
    }
}

/// Where an engine block lies.
#[derive(Debug, Clone)]
enum Place {
    /// It ends a number of whole index blocks: the last of them, and how many it covers.
    Blocks { run: RunId, offset: u32, covers: u32 },
    /// It ends inside an index block: the blocks before (anchored), and the tokens since.
    Inside { before: Cursor, tokens: Arc<[u32]>, from: u32, to: u32 },
}

#[derive(Debug)]
struct Entry {
    copies: u32,
    place: Place,
}

/// One data-parallel rank of a replica.
#[derive(Debug)]
struct Publisher {
    rank: i64,
    /// Number of the next batch.
    next: u64,
    /// Number behind the last batch that was seen; above `next` while batches are missing.
    seen: u64,
    /// Nothing was stored before what we know.
    from_start: bool,
    /// The cache group that is followed, once one was seen.
    group: Option<u32>,
    entries: HashMap<u64, Entry, MixState>,
}

/// The feeds of all replicas.
#[derive(Debug, Default)]
pub(super) struct Feeds {
    /// By replica.
    publishers: Vec<Vec<Publisher>>,
    pub(super) stats: FeedStats,
    seed: u64,
}

/// Bytes of one entry in a publisher's table, its share of the slots included.
const ENTRY_BYTES: usize = size_of::<(u64, Entry)>() + 1;

impl Publisher {
    /// Whether the event is about the cache group that is followed, which the first event of such a group decides.
    fn follows(&mut self, event: &CacheEvent<'_>) -> bool {
        match *event {
            CacheEvent::Stored { group, whole_context, .. } => {
                if self.group.is_none() && whole_context {
                    self.group = Some(group);
                }
                self.group == Some(group)
            }
            CacheEvent::Removed { group, .. } => self.group == Some(group),
            CacheEvent::Cleared => true,
        }
    }
}

impl Feeds {
    pub(super) fn new(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    fn of(&mut self, replica: u32) -> &mut Vec<Publisher> {
        if self.publishers.len() <= replica as usize {
            self.publishers.resize_with(replica as usize + 1, Vec::new);
        }
        &mut self.publishers[replica as usize]
    }

    pub(super) fn bytes(&self) -> u64 {
        self.publishers.iter().flatten().map(|publisher| (publisher.entries.capacity() * ENTRY_BYTES + size_of::<Publisher>()) as u64).sum()
    }

    fn knowledge(&self, replica: u32) -> Knowledge {
        match self.publishers.get(replica as usize).map_or(&[][..], |publishers| publishers) {
            [] => Knowledge::Own,
            publishers if publishers.iter().all(|publisher| publisher.from_start && publisher.next >= publisher.seen) => Knowledge::Whole,
            _ => Knowledge::Partial,
        }
    }
}

/// The places of all entries, in an order that does not depend on the table.
fn places(entries: HashMap<u64, Entry, MixState>) -> impl Iterator<Item = Place> {
    let mut entries: Vec<(u64, Entry)> = entries.into_iter().collect();
    entries.sort_unstable_by_key(|entry| entry.0);
    entries.into_iter().map(|(_, entry)| entry.place)
}

impl Index {
    /// Applies a batch of cache events that an engine published under the number `sequence`. A batch is applied whole or not at all.
    ///
    /// The first batch of a rank may have any number; only when it is 0, or once the cache was cleared, is everything known that
    /// the engine holds. A number 0 later on means that the engine was started anew with an empty cache.
    pub fn apply(&mut self, hasher: &BlockHasher, replica: u32, rank: i64, sequence: u64, events: &[CacheEvent<'_>]) -> Applied {
        let publishers = self.feeds.of(replica);
        let at = publishers.iter().position(|publisher| publisher.rank == rank).unwrap_or(publishers.len());
        if at == publishers.len() {
            let entries = HashMap::with_hasher(MixState(self.feeds.seed));
            self.feeds.of(replica).push(Publisher { rank, next: sequence, seen: sequence, from_start: sequence == 0, group: None, entries });
        } else if sequence == 0 && publishers[at].next > 1 {
            self.feeds.stats.restarts += 1;
            self.clear_publisher(replica, at);
            let publisher = &mut self.feeds.of(replica)[at];
            (publisher.next, publisher.seen) = (0, 0);
        }
        let publisher = &mut self.feeds.of(replica)[at];
        publisher.seen = publisher.seen.max(sequence.saturating_add(1));
        let expected = publisher.next;
        let applied = match sequence.cmp(&expected) {
            Ordering::Less => {
                self.feeds.stats.duplicate_batches += 1;
                Applied::Duplicate
            }
            Ordering::Greater => {
                self.feeds.stats.gaps += 1;
                Applied::Gap { expected }
            }
            Ordering::Equal => {
                publisher.next += 1;
                self.feeds.stats.batches += 1;
                for event in events {
                    if let CacheEvent::Cleared = event {
                        self.clear_publisher(replica, at);
                    } else if !self.feeds.of(replica)[at].follows(event) {
                        self.feeds.stats.other_groups += 1;
                    } else if let CacheEvent::Removed { hashes, .. } = event {
                        self.removed(replica, at, hashes);
                    } else {
                        self.stored(hasher, replica, at, event);
                    }
                }
                Applied::Done
            }
        };
        self.update_knowledge(replica);
        applied
    }

    /// [`Self::apply`], noting what was cut for [`super::Residency::take_cuts`].
    pub fn apply_reporting(&mut self, hasher: &BlockHasher, replica: u32, rank: i64, sequence: u64, events: &[CacheEvent<'_>]) -> Applied {
        self.residency.report_cuts(true);
        let applied = self.apply(hasher, replica, rank, sequence, events);
        self.residency.report_cuts(false);
        applied
    }

    /// Starts a rank's feed anew: nothing is known of its cache, and `next` is the number of the batch to expect.
    pub fn reset_feed(&mut self, replica: u32, rank: i64, next: u64) {
        let publishers = self.feeds.of(replica);
        if let Some(at) = publishers.iter().position(|publisher| publisher.rank == rank) {
            self.clear_publisher(replica, at);
            let publisher = &mut self.feeds.of(replica)[at];
            (publisher.next, publisher.seen, publisher.from_start) = (next, next, next == 0);
        }
        self.update_knowledge(replica);
    }

    /// Forgets the feeds of a replica: what it holds is judged by own decisions again, starting from what the feeds said.
    pub fn end_feeds(&mut self, replica: u32) {
        self.residency.set_knowledge(&mut self.tree, replica, Knowledge::Own);
        let publishers = std::mem::take(self.feeds.of(replica));
        for place in publishers.into_iter().flat_map(|publisher| places(publisher.entries)) {
            if let Place::Inside { before, .. } = place {
                self.unanchor(before);
            }
        }
    }

    /// Counters of the feeds.
    #[must_use]
    pub fn feed_stats(&self) -> FeedStats {
        self.feeds.stats
    }

    fn update_knowledge(&mut self, replica: u32) {
        let knowledge = self.feeds.knowledge(replica);
        self.residency.set_knowledge(&mut self.tree, replica, knowledge);
    }

    fn clear_publisher(&mut self, replica: u32, at: usize) {
        let publisher = &mut self.feeds.of(replica)[at];
        publisher.from_start = true;
        let seed = MixState(self.feeds.seed);
        let entries = std::mem::replace(&mut self.feeds.of(replica)[at].entries, HashMap::with_hasher(seed));
        for place in places(entries) {
            self.unplace(replica, &place);
        }
    }

    fn stored(&mut self, hasher: &BlockHasher, replica: u32, at: usize, event: &CacheEvent<'_>) {
        let CacheEvent::Stored { namespace, hashes, parent, tokens, block_tokens, extra, .. } = *event else { return };
        let block = hasher.block_tokens();
        let fits = block_tokens > 0 && (block_tokens.is_multiple_of(block) || block.is_multiple_of(block_tokens));
        if !fits || tokens.len() as u64 != hashes.len() as u64 * u64::from(block_tokens) {
            self.feeds.stats.other_sizes += 1;
            return;
        }
        let entries = &self.feeds.of(replica)[at].entries;
        let (start, tail): (Cursor, Vec<u32>) = match parent.map(|hash| entries.get(&hash).map(|entry| entry.place.clone())) {
            None => (self.tree.root(namespace), Vec::new()),
            Some(Some(Place::Blocks { run, offset, .. })) => (self.tree.cursor(run, offset), Vec::new()),
            Some(Some(Place::Inside { before, tokens, from, to })) => (before, tokens[from as usize..to as usize].to_vec()),
            Some(None) => {
                self.feeds.stats.unknown_parents += 1;
                return;
            }
        };
        self.tree.anchor(start);
        let known = tail.len() as u32;
        let all: Arc<[u32]> = [&tail, tokens].concat().into();
        let mut fingerprints = Vec::new();
        hasher.hash_into(&all, &mut fingerprints);
        for (at, fingerprint) in fingerprints.iter_mut().enumerate() {
            // Engine blocks that reach into this index block.
            let from = (at as u32 * block).saturating_sub(known) / block_tokens;
            let to = ((at as u32 + 1) * block - known).div_ceil(block_tokens);
            for digest in extra.iter().take(to as usize).skip(from as usize).filter(|&&digest| digest != 0) {
                *fingerprint = mix64(*fingerprint ^ digest);
            }
        }
        let base = self.tree.depth(start);
        let room = self.has_room(hashes.len() as u64 * 2 * ENTRY_BYTES as u64);
        let end = if room { self.insert(start, &fingerprints) } else { start };
        self.tree.anchor(end);
        let reached = self.tree.depth(end) - base;
        // The runs of the path with the depth at which each begins, deepest first.
        let path: Vec<(RunId, u32)> = self.tree.path(end).map(|(run, _)| (run, self.tree.depth_before(run))).collect();
        for (nth, &hash) in hashes.iter().enumerate() {
            let to = known + (nth as u32 + 1) * block_tokens;
            let whole = to / block;
            if !room || whole > reached {
                self.feeds.stats.unindexed_blocks += (hashes.len() - nth) as u64;
                break;
            }
            let place = if to.is_multiple_of(block) {
                let depth = base + whole;
                let (run, begins) = path.iter().copied().find(|&(_, begins)| begins < depth).expect("the path reaches there");
                Place::Blocks { run, offset: depth - begins, covers: (block_tokens / block).max(1) }
            } else {
                Place::Inside { before: self.tree.ancestor(end, base + whole), tokens: all.clone(), from: whole * block, to }
            };
            self.feeds.stats.stored_blocks += 1;
            self.place(replica, at, hash, place);
        }
        self.unanchor(end);
        self.unanchor(start);
    }

    fn place(&mut self, replica: u32, at: usize, hash: u64, place: Place) {
        if let Some(entry) = self.feeds.of(replica)[at].entries.get_mut(&hash) {
            entry.copies += 1;
            return;
        }
        match &place {
            Place::Blocks { run, offset, covers } => {
                for (run, block) in self.covered(*run, *offset, *covers) {
                    self.residency.report(&mut self.tree, replica, run, |exact| exact.store(block));
                }
            }
            Place::Inside { before, .. } => self.tree.anchor(*before),
        }
        self.feeds.of(replica)[at].entries.insert(hash, Entry { copies: 1, place });
    }

    /// Index blocks of an engine block: the run of each, and its number there. They may reach into the parent run.
    fn covered(&self, run: RunId, offset: u32, covers: u32) -> Vec<(RunId, u32)> {
        let (mut run, mut offset) = (run, offset);
        let mut blocks = Vec::with_capacity(covers as usize);
        for _ in 0..covers {
            if offset == 0
                && let Some(parent) = self.tree.parent(run)
            {
                (run, offset) = parent;
            }
            offset -= 1;
            blocks.push((run, offset));
        }
        blocks
    }

    fn removed(&mut self, replica: u32, at: usize, hashes: &[u64]) {
        for hash in hashes {
            let entries = &mut self.feeds.of(replica)[at].entries;
            let Some(entry) = entries.get_mut(hash) else {
                self.feeds.stats.unknown_removed += 1;
                continue;
            };
            entry.copies -= 1;
            if entry.copies == 0 {
                let entry = entries.remove(hash).expect("it was there");
                self.unplace(replica, &entry.place);
            }
            self.feeds.stats.removed_blocks += 1;
        }
        let entries = &mut self.feeds.of(replica)[at].entries;
        if entries.len() * 8 < entries.capacity() {
            entries.shrink_to_fit();
        }
    }

    fn unplace(&mut self, replica: u32, place: &Place) {
        match place {
            Place::Blocks { run, offset, covers } => {
                for (run, block) in self.covered(*run, *offset, *covers) {
                    self.residency.report(&mut self.tree, replica, run, |exact| exact.remove(block));
                }
            }
            Place::Inside { before, .. } => self.unanchor(*before),
        }
    }
}

record!(FeedStats {
    batches,
    duplicate_batches,
    gaps,
    restarts,
    stored_blocks,
    removed_blocks,
    unknown_parents,
    unknown_removed,
    other_sizes,
    unindexed_blocks,
    other_groups
});
record!(Entry { copies, place });
record!(Publisher { rank, next, seen, from_start, group, entries });
record!(Feeds { publishers, stats, seed });

impl Record for Place {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Blocks { run, offset, covers } => {
                to.push(0);
                (*run, *offset, *covers).put(to);
            }
            Self::Inside { before, tokens, from, to: end } => {
                to.push(1);
                before.put(to);
                tokens.put(to);
                (*from, *end).put(to);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        if bool::take(from)? {
            let (before, tokens) = (Record::take(from)?, Record::take(from)?);
            let (begin, to) = Record::take(from)?;
            Ok(Self::Inside { before, tokens, from: begin, to })
        } else {
            let (run, offset, covers) = Record::take(from)?;
            Ok(Self::Blocks { run, offset, covers })
        }
    }
}
