//! The prefix index by itself: for whoever wants to know who holds which prefix and has a router already.
//!
//! Replicas are numbers, histories are handles. A history is a token sequence that grows by [`PrefixIndex::extend`], forks by
//! [`PrefixIndex::fork`] and is let go by [`PrefixIndex::close`]; asking who holds it never reads its tokens again.

use crate::error::{Error, Result};
use crate::index::{Applied, CacheEvent, Cursor, Depths, FeedStats, Index, Match};
use crate::prompt::{BlockHasher, HashKey};
use crate::record::codec::record;
use crate::sessions::Slab;
use crate::units::{UNBOUNDED_BLOCKS, capacity_blocks};

/// How a prefix index is set up.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PrefixIndexConfig {
    /// Secret key of the fingerprints.
    pub hash_key: HashKey,
    /// Tokens per block.
    pub block_tokens: u32,
    /// Most bytes that the index may take; at least 2^20.
    pub index_bytes: u64,
}

impl Default for PrefixIndexConfig {
    fn default() -> Self {
        Self { hash_key: HashKey([0; 16]), block_tokens: 16, index_bytes: 4 << 30 }
    }
}

/// Histories whose records are read together: about as many cache misses as a core has in flight.
const READ_AHEAD: usize = 16;

/// Handle of a history. Handles are not reused, so one that was closed is told from every later one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HistoryId(pub u64);

#[derive(Debug)]
struct History {
    serial: u32,
    /// End of the full blocks that are indexed. Anchored.
    cursor: Cursor,
    /// Tokens after them; fewer than one block unless the index was full.
    tail: Vec<u32>,
    tokens: u64,
    /// Nothing behind the cursor is indexed, because there was no room: the history cannot be extended in the index any more.
    cut: bool,
}

/// Counters since the start, and sizes now.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each name says what is counted")]
pub struct PrefixIndexStats {
    pub histories: u64,
    pub blocks: u64,
    pub runs: u64,
    pub bytes: u64,
    /// Calls that named a history that is closed, or never was.
    pub stale: u64,
    /// Histories whose end is not in the index for want of room.
    pub cut_histories: u64,
    /// Times that blocks or marks were left out for want of room.
    pub full: u64,
    pub feed: FeedStats,
}

impl PrefixIndexStats {
    /// Every counter with its name.
    pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
        [
            ("histories", self.histories),
            ("blocks", self.blocks),
            ("runs", self.runs),
            ("bytes", self.bytes),
            ("stale", self.stale),
            ("cut_histories", self.cut_histories),
            ("full", self.full),
        ]
        .into_iter()
        .chain(self.feed.entries())
    }
}

/// The index.
///
/// ```
/// use turnout_core::prefix_index::{PrefixIndex, PrefixIndexConfig};
///
/// let mut index = PrefixIndex::new(&PrefixIndexConfig::default())?;
/// let replica = index.add_replica(100_000.0)?;
/// let history = index.open("", &[7; 40], Some(replica))?;
/// index.extend(history, &[8; 8], Some(replica))?;
/// assert_eq!(index.peek(history)?.map(|found| found.blocks * 16), Some(48));
/// # Ok::<(), turnout_core::error::Error>(())
/// ```
#[derive(Debug)]
pub struct PrefixIndex {
    hasher: BlockHasher,
    index: Index,
    /// By replica: capacity in blocks; `None` after it was lost.
    capacities: Vec<Option<u64>>,
    histories: Slab<History>,
    serial: u32,
    cut_histories: u64,
    stale: u64,
    /// Reused space.
    fingerprints: Vec<u64>,
    best: Vec<Match>,
    depths: Depths,
}

impl PrefixIndex {
    /// An empty index without replicas.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a block size or a limit out of range.
    #[allow(clippy::missing_panics_doc, reason = "8 bytes are 8 bytes")]
    pub fn new(config: &PrefixIndexConfig) -> Result<Self> {
        let seed = u64::from_le_bytes(config.hash_key.0[..8].try_into().expect("8 bytes"));
        let index = Index::new(seed).with_limit(config.index_bytes)?;
        Ok(Self {
            hasher: BlockHasher::new(&config.hash_key, config.block_tokens)?,
            index,
            capacities: Vec::new(),
            histories: Slab::default(),
            serial: 0,
            cut_histories: 0,
            stale: 0,
            fingerprints: Vec::new(),
            best: Vec::new(),
            depths: Depths::default(),
        })
    }

    /// The hasher of this index. Clone it to hash outside a lock.
    #[must_use]
    pub fn hasher(&self) -> &BlockHasher {
        &self.hasher
    }

    /// Adds a replica that holds up to `kv_tokens`; infinite = unknown, bounded by the memory of the index alone.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `kv_tokens` is at least 1.
    pub fn add_replica(&mut self, kv_tokens: f64) -> Result<u32> {
        if kv_tokens.is_nan() || kv_tokens < 1.0 {
            let accepted = "tokens above 0, infinity when unknown";
            return Err(Error::InvalidArgument { argument: "kv_tokens", value: kv_tokens.to_string(), accepted });
        }
        let replica = self.capacities.len() as u32;
        self.capacities.push(Some(capacity_blocks(kv_tokens, self.hasher.block_tokens())));
        self.index.residency.add_replica(replica);
        Ok(replica)
    }

    fn check_replica(&self, replica: u32) -> Result<u64> {
        self.capacities.get(replica as usize).copied().flatten().ok_or_else(|| Error::InvalidArgument {
            argument: "replica",
            value: replica.to_string(),
            accepted: "the number of a replica that was added and not lost",
        })
    }

    /// Forgets what a replica holds: it was flushed, or got new weights.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a replica that is not there.
    pub fn flush(&mut self, replica: u32) -> Result<()> {
        self.check_replica(replica)?;
        self.index.flush(replica);
        Ok(())
    }

    /// Removes a replica for good; its number is not used again.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a replica that is not there.
    pub fn lose_replica(&mut self, replica: u32) -> Result<()> {
        self.check_replica(replica)?;
        self.index.lose(replica);
        self.capacities[replica as usize] = None;
        Ok(())
    }

    /// The `most` replicas that hold most of a prompt, given as the fingerprints of its full blocks; deepest first.
    pub fn lookup(&mut self, namespace: &str, fingerprints: &[u64], most: usize) -> &[Match] {
        self.best.clear();
        if let Some(root) = self.index.tree.existing_root(namespace) {
            let (cursor, _) = self.index.tree.locate(root, fingerprints);
            self.index.residency.best(&self.index.tree, cursor, most, &mut self.best);
        }
        &self.best
    }

    /// Blocks of a prompt that each replica holds, by replica.
    pub fn lookup_all(&mut self, namespace: &str, fingerprints: &[u64]) -> &[u32] {
        if let Some(root) = self.index.tree.existing_root(namespace) {
            let (cursor, _) = self.index.tree.locate(root, fingerprints);
            self.index.residency.matches(&self.index.tree, cursor, &mut self.depths);
        } else {
            self.depths.blocks.clear();
            self.depths.blocks.resize(self.capacities.len(), 0);
        }
        &self.depths.blocks
    }

    /// Starts a history with a prompt, and marks it as resident on a replica.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a replica that is not there.
    pub fn open(&mut self, namespace: &str, tokens: &[u32], replica: Option<u32>) -> Result<HistoryId> {
        replica.map(|replica| self.check_replica(replica)).transpose()?;
        let root = self.index.tree.root(namespace);
        self.index.tree.anchor(root);
        let id = self.add(History { serial: 0, cursor: root, tail: Vec::new(), tokens: 0, cut: false });
        self.grow(id, tokens, replica);
        Ok(id)
    }

    /// Appends tokens to a history, and marks all of it as resident on a replica. Answers its length in tokens. The history itself is
    /// not read: the cost is that of the new tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a closed history or a replica that is not there.
    pub fn extend(&mut self, id: HistoryId, tokens: &[u32], replica: Option<u32>) -> Result<u64> {
        self.slot(id)?;
        replica.map(|replica| self.check_replica(replica)).transpose()?;
        self.grow(id, tokens, replica);
        Ok(self.histories[id.0 as u32].tokens)
    }

    fn grow(&mut self, id: HistoryId, tokens: &[u32], replica: Option<u32>) {
        let block = self.hasher.block_tokens() as usize;
        let history = &mut self.histories[id.0 as u32];
        history.tokens += tokens.len() as u64;
        let old = history.cursor;
        if !history.cut {
            // At once, so that a history that grows takes memory once. Larger blocks take what they need.
            history.tail.reserve_exact(block.min(64).saturating_sub(history.tail.len()));
            self.fingerprints.clear();
            self.hasher.hash_after(&mut history.tail, tokens, &mut self.fingerprints);
            let end = self.index.insert(old, &self.fingerprints);
            if self.index.tree.depth(end) < self.index.tree.depth(old) + self.fingerprints.len() as u32 {
                history.cut = true;
                history.tail = Vec::new();
                self.cut_histories += 1;
            }
            history.cursor = end;
            self.index.move_anchor(old, end);
        }
        if let Some(replica) = replica {
            self.hold(id, replica);
        }
    }

    fn hold(&mut self, id: HistoryId, replica: u32) {
        self.index.hold(replica, self.histories[id.0 as u32].cursor);
        let capacity = self.capacities[replica as usize].unwrap_or(UNBOUNDED_BLOCKS);
        self.index.enforce(replica, capacity, false);
    }

    /// Marks a history as resident on a replica, used now.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a closed history or a replica that is not there.
    pub fn place(&mut self, id: HistoryId, replica: u32) -> Result<()> {
        self.slot(id)?;
        self.check_replica(replica)?;
        self.hold(id, replica);
        Ok(())
    }

    /// Starts a history on the first `at_tokens` of another, or on all of it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a closed history, a length beyond it, or one inside a block whose tokens are not kept: cuts are
    /// at whole blocks, or within the partial last one.
    pub fn fork(&mut self, id: HistoryId, at_tokens: Option<u64>) -> Result<HistoryId> {
        let slot = self.slot(id)?;
        let block = u64::from(self.hasher.block_tokens());
        let parent = &self.histories[slot];
        let depth = u64::from(self.index.tree.depth(parent.cursor)) * block;
        let at = at_tokens.unwrap_or(parent.tokens);
        let whole = at == parent.tokens;
        if at > parent.tokens || !whole && (at > depth + parent.tail.len() as u64 || at < depth && !at.is_multiple_of(block)) {
            return Err(Error::InvalidArgument {
                argument: "at_tokens",
                value: at.to_string(),
                accepted: "a multiple of the block size, or a place in the partial last block, not beyond the history",
            });
        }
        let (cursor, tail, cut) = if at >= depth {
            (parent.cursor, if whole { parent.tail.clone() } else { parent.tail[..(at - depth) as usize].to_vec() }, whole && parent.cut)
        } else {
            (self.index.tree.ancestor(parent.cursor, (at / block) as u32), Vec::new(), false)
        };
        self.index.tree.anchor(cursor);
        self.cut_histories += u64::from(cut);
        Ok(self.add(History { serial: 0, cursor, tail, tokens: at, cut }))
    }

    /// Lets go of a history. What replicas hold of it stays until they evict it.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a closed history.
    pub fn close(&mut self, id: HistoryId) -> Result<()> {
        let slot = self.slot(id)?;
        let history = self.histories.remove(slot);
        self.cut_histories -= u64::from(history.cut);
        self.index.unanchor(history.cursor);
        Ok(())
    }

    /// Length of a history in tokens.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a closed history.
    pub fn tokens(&mut self, id: HistoryId) -> Result<u64> {
        let slot = self.slot(id)?;
        Ok(self.histories[slot].tokens)
    }

    /// The replica that holds most of a history. O(forks on it), and no token is read.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a closed history.
    pub fn peek(&mut self, id: HistoryId) -> Result<Option<Match>> {
        Ok(self.holders(id, 1)?.first().copied())
    }

    /// The `most` replicas that hold most of a history, deepest first.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a closed history.
    pub fn holders(&mut self, id: HistoryId, most: usize) -> Result<&[Match]> {
        let slot = self.slot(id)?;
        self.index.residency.best(&self.index.tree, self.histories[slot].cursor, most, &mut self.best);
        Ok(&self.best)
    }

    /// [`Self::holders`] of many histories, in order. The records of a few histories are read ahead together, so that their cache misses
    /// overlap instead of waiting for one another.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for the first closed history; the answers before it were given.
    pub fn holders_of_each(&mut self, ids: &[HistoryId], most: usize, mut answer: impl FnMut(&[Match])) -> Result<()> {
        for together in ids.chunks(READ_AHEAD) {
            let mut cursors = [None; READ_AHEAD];
            for (cursor, id) in cursors.iter_mut().zip(together) {
                *cursor = self.histories.get(id.0 as u32).map(|history| history.cursor);
            }
            self.index.read_ahead(&cursors);
            for &id in together {
                answer(self.holders(id, most)?);
            }
        }
        Ok(())
    }

    /// Applies a batch of cache events of an engine.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a replica that is not there.
    pub fn apply(&mut self, replica: u32, rank: i64, sequence: u64, events: &[CacheEvent<'_>]) -> Result<Applied> {
        self.check_replica(replica)?;
        Ok(self.index.apply(&self.hasher, replica, rank, sequence, events))
    }

    /// Takes the name away from a namespace, in O(1). Histories in it live on; nobody is judged to hold them.
    pub fn drop_namespace(&mut self, namespace: &str) -> bool {
        self.index.drop_namespace(namespace)
    }

    /// Counters and sizes.
    #[must_use]
    pub fn stats(&self) -> PrefixIndexStats {
        PrefixIndexStats {
            histories: self.histories.len() as u64,
            blocks: self.index.tree.blocks(),
            runs: self.index.tree.run_count(),
            bytes: self.index.bytes(),
            stale: self.stale,
            cut_histories: self.cut_histories,
            full: self.index.full_count(),
            feed: self.index.feed_stats(),
        }
    }

    /// Recomputes every count from scratch.
    ///
    /// # Errors
    /// [`Error::Internal`] naming the first difference.
    pub fn audit(&self) -> Result<()> {
        self.index.audit().map_err(|problem| Error::Internal { problem })
    }

    fn add(&mut self, history: History) -> HistoryId {
        self.serial = self.serial.wrapping_add(1);
        let serial = self.serial;
        let slot = self.histories.insert(History { serial, ..history });
        HistoryId(u64::from(serial) << 32 | u64::from(slot))
    }

    fn slot(&mut self, id: HistoryId) -> Result<u32> {
        let (serial, slot) = ((id.0 >> 32) as u32, id.0 as u32);
        match self.histories.get(slot) {
            Some(history) if history.serial == serial => Ok(slot),
            _ => {
                self.stale += 1;
                let accepted = "a handle from open or fork that is not closed";
                Err(Error::InvalidArgument { argument: "history", value: id.0.to_string(), accepted })
            }
        }
    }
}

record!(History { serial, cursor, tail, tokens, cut });
record!(PrefixIndex { hasher, index, capacities, histories, serial, cut_histories, stale, fingerprints, best, depths });
