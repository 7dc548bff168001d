//! Paged KV memory with a prefix cache, as vLLM keeps it, in runs of blocks that live and die together.
//!
//! A block is identified by the chain hash of everything up to it; only full blocks are reused. Released blocks keep their
//! content and queue for reuse: a request releases its blocks tail first, so of equal age the tail is evicted first; blocks
//! that were never full go to the front of the queue. A run is
//! a stretch of one chain whose blocks have the same users, or the same place in that queue; it is cut where that ends, so
//! every operation costs steps per run, not per block. A second copy of some content is kept, but not found.
//! This is written independently of the router's prefix index on purpose: it judges that index.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

const NONE: u32 = u32::MAX;

/// Chain hashes are mixed already.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("only u64 keys are hashed");
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}

/// Chain hashes of a sequence; those of its prefixes are its beginning.
pub type Chain = Arc<[u64]>;

#[derive(Debug)]
struct Run {
    /// Whose blocks `from..to` these are; `None` for blocks without content.
    chain: Option<Chain>,
    from: u32,
    to: u32,
    users: u32,
    /// Whether its content is found here, and not in an earlier copy.
    found: bool,
    /// What was cut off at its beginning: whoever held both holds that too.
    before: u32,
    /// Neighbours in the free queue.
    previous: u32,
    next: u32,
}

impl Run {
    fn len(&self) -> u32 {
        self.to - self.from
    }

    /// How far the run agrees with a chain. Equal hashes at one depth are equal all the way up.
    fn agrees_to(&self, chain: &[u64]) -> u32 {
        let Some(own) = &self.chain else { return self.from };
        let to = self.to.min(chain.len() as u32);
        let (mut same, mut differs) = (self.from, to + 1);
        if to > same && own[to as usize - 1] == chain[to as usize - 1] {
            return to;
        }
        while same + 1 < differs {
            let middle = same.midpoint(differs);
            if own[middle as usize - 1] == chain[middle as usize - 1] { same = middle } else { differs = middle }
        }
        same
    }
}

/// The blocks that a request holds.
#[derive(Debug, Default)]
pub struct Table {
    /// Runs with content, (number, from, to) in order. Cutting a run later leaves its number with the last piece.
    parts: Vec<(u32, u32, u32)>,
    /// Blocks without content yet.
    pub blank: u32,
}

/// What the memory says of itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheEvent {
    /// Blocks `from..to` of a chain are in the cache.
    Stored {
        /// The chain.
        chain: Chain,
        /// First block.
        from: u32,
        /// One past the last block.
        to: u32,
    },
    /// Blocks `from..to` of a chain were reused for something else, the last one first.
    Removed {
        /// The chain.
        chain: Chain,
        /// First block.
        from: u32,
        /// One past the last block.
        to: u32,
    },
    /// Nothing is in the cache any more.
    Cleared,
}

/// The blocks of one engine.
#[derive(Debug)]
pub struct BlockCache {
    runs: Vec<Run>,
    spare: Vec<u32>,
    /// Runs that are found, by the hash of their first block.
    by_first: HashMap<u64, u32, BuildHasherDefault<Identity>>,
    /// Ends of the free queue: reused from the head, released to the tail.
    head: u32,
    tail: u32,
    free: u32,
    blocks: u32,
    /// What happened since the listener looked last; `None` while nobody listens.
    pub events: Option<Vec<CacheEvent>>,
    /// Whether it tells of what it keeps and does not find, too: second copies, and what was in use when all was forgotten.
    pub tells_copies: bool,
}

impl BlockCache {
    /// Memory of `blocks` empty blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        let (runs, spare, by_first) = (Vec::new(), Vec::new(), HashMap::default());
        let mut cache = Self { runs, spare, by_first, head: NONE, tail: NONE, free: 0, blocks, events: None, tells_copies: true };
        cache.push_blank(blocks);
        cache
    }

    /// Blocks that nobody uses, cached ones included.
    #[must_use]
    pub fn free_blocks(&self) -> u32 {
        self.free
    }

    /// Blocks that nobody uses and whose content is still found. Costs steps per run in the queue.
    #[must_use]
    pub fn evictable_blocks(&self) -> u32 {
        let (mut blocks, mut at) = (0, self.head);
        while at != NONE {
            let run = &self.runs[at as usize];
            blocks += if run.chain.is_some() { run.len() } else { 0 };
            at = run.next;
        }
        blocks
    }

    /// All blocks.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.blocks
    }

    /// Whether there is no memory at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Leading blocks of the chain that are cached.
    #[must_use]
    pub fn hits(&self, chain: &[u64]) -> u32 {
        self.walk(chain, |_, _| {})
    }

    /// Calls `visit` with each run on the way down the chain and the depth up to which it agrees; answers the last depth.
    fn walk(&self, chain: &[u64], mut visit: impl FnMut(u32, u32)) -> u32 {
        let mut depth = 0;
        while let Some(&run) = chain.get(depth as usize).and_then(|first| self.by_first.get(first)) {
            let agrees = self.runs[run as usize].agrees_to(chain);
            visit(run, agrees);
            depth = agrees;
        }
        depth
    }

    /// Takes the cached blocks at the start of `chain[..reusable]` and blank ones up to `blocks` in all; answers the number
    /// of cached ones. `None`, without a change, when there is no room.
    pub fn take(&mut self, chain: &[u64], reusable: u32, blocks: u32) -> Option<(u32, Table)> {
        let chain = &chain[..reusable.min(chain.len() as u32) as usize];
        let (mut found, mut unused, mut hits) = (Vec::new(), 0, 0);
        self.walk(chain, |run, to| {
            if self.runs[run as usize].users == 0 {
                unused += to - hits;
            }
            found.push((run, to));
            hits = to;
        });
        let blank = blocks - hits;
        if unused + blank > self.free {
            return None;
        }
        let mut table = Table { parts: Vec::with_capacity(found.len() + 2), blank };
        for (mut run, to) in found {
            if to < self.runs[run as usize].to {
                run = self.cut(run, to);
            }
            if self.runs[run as usize].users == 0 {
                self.unlink(run);
            }
            let state = &mut self.runs[run as usize];
            state.users += 1;
            table.parts.push((run, state.from, state.to));
        }
        self.evict(blank);
        Some((hits, table))
    }

    /// Takes blank blocks more. They must be there.
    pub fn take_blank(&mut self, blocks: u32) {
        self.evict(blocks);
    }

    /// Notes that the table's next blank blocks are full and computed: those of `chain[from..to]`.
    pub fn computed(&mut self, table: &mut Table, chain: &Chain, from: u32, to: u32) {
        if self.tells_copies {
            self.tell_stored(chain, from, to);
        }
        table.blank -= to - from;
        let mut at = from;
        while at < to {
            let copy = self.copied_to(table, chain, at).min(to);
            let end = if copy > at { copy } else { to };
            if copy == at && !self.tells_copies {
                self.tell_stored(chain, at, end);
            }
            self.append(table, chain, (at, end), copy == at);
            at = end;
        }
    }

    fn tell_stored(&mut self, chain: &Chain, from: u32, to: u32) {
        if let Some(events) = &mut self.events {
            events.push(CacheEvent::Stored { chain: chain.clone(), from, to });
        }
    }

    /// How far the content from `at` on is found already, in a run of somebody else.
    fn copied_to(&self, table: &Table, chain: &Chain, at: u32) -> u32 {
        if let Some(&run) = self.by_first.get(&chain[at as usize]) {
            return self.runs[run as usize].agrees_to(chain).max(at);
        }
        // It can only lie in the middle of a run where this table's part before it is a copy: what is taken is cut at its end.
        if table.parts.last().is_some_and(|&(run, ..)| self.runs[run as usize].found) {
            return at;
        }
        self.hits(chain).max(at)
    }

    fn append(&mut self, table: &mut Table, chain: &Chain, (from, to): (u32, u32), found: bool) {
        if let Some(last) = table.parts.last_mut() {
            let run = &mut self.runs[last.0 as usize];
            if run.users == 1 && run.to == from && run.found == found {
                // The longer chain starts with the one it replaces.
                (run.to, last.2) = (to, to);
                if run.chain.as_ref().is_none_or(|own| !Arc::ptr_eq(own, chain)) {
                    run.chain = Some(chain.clone());
                }
                return;
            }
        }
        let run = self.add(Run { chain: Some(chain.clone()), from, to, users: 1, found, before: NONE, previous: NONE, next: NONE });
        if found {
            self.by_first.insert(chain[from as usize], run);
        }
        table.parts.push((run, from, to));
    }

    /// Gives the blocks of a request back, the last one first.
    pub fn release(&mut self, table: &Table) {
        self.push_blank(table.blank);
        for &(run, from, _) in table.parts.iter().rev() {
            let mut piece = run;
            loop {
                let state = &mut self.runs[piece as usize];
                let (before, first) = (state.before, state.from);
                state.users -= 1;
                if state.users == 0 {
                    self.free += state.len();
                    self.link_last(piece);
                }
                if first <= from {
                    break;
                }
                piece = before;
            }
        }
    }

    /// Forgets all content. Blocks in use stay in use.
    pub fn clear(&mut self) {
        self.by_first.clear();
        let mut at = self.head;
        while at != NONE {
            let next = self.runs[at as usize].next;
            self.drop_run(at);
            at = next;
        }
        (self.head, self.tail) = (NONE, NONE);
        let free = std::mem::take(&mut self.free);
        self.push_blank(free);
        for run in &mut self.runs {
            run.found = false;
        }
        if let Some(events) = &mut self.events {
            events.push(CacheEvent::Cleared);
        }
    }

    /// Takes blocks from the head of the queue; their content is gone.
    fn evict(&mut self, mut blocks: u32) {
        debug_assert!(blocks <= self.free);
        self.free -= blocks;
        while blocks > 0 {
            let run = self.head;
            let state = &mut self.runs[run as usize];
            let gone = blocks.min(state.len());
            state.to -= gone;
            blocks -= gone;
            if let (Some(events), Some(chain), true) = (&mut self.events, &state.chain, state.found || self.tells_copies) {
                events.push(CacheEvent::Removed { chain: chain.clone(), from: state.to, to: state.to + gone });
            }
            if state.len() == 0 {
                if state.found
                    && let Some(chain) = &state.chain
                {
                    self.by_first.remove(&chain[state.from as usize]);
                }
                self.detach(run);
                self.drop_run(run);
            }
        }
    }

    /// Cuts a run at a depth; the first part becomes a run of its own, whose number is answered.
    fn cut(&mut self, run: u32, at: u32) -> u32 {
        let state = &mut self.runs[run as usize];
        let head = Run {
            chain: state.chain.clone(),
            from: state.from,
            to: at,
            users: state.users,
            found: state.found,
            before: state.before,
            previous: NONE,
            next: NONE,
        };
        state.from = at;
        let (queued, found) = (state.users == 0, state.found);
        let hash = |depth: u32| head.chain.as_ref().map(|chain| chain[depth as usize]);
        let (first, second) = (hash(head.from), hash(at));
        let new = self.add(head);
        self.runs[run as usize].before = new;
        if let (true, Some(first), Some(second)) = (found, first, second) {
            self.by_first.insert(first, new);
            self.runs[run as usize].found = *self.by_first.entry(second).or_insert(run) == run;
        }
        if queued {
            // The tail goes first, so the head stands behind it.
            let next = std::mem::replace(&mut self.runs[run as usize].next, new);
            (self.runs[new as usize].previous, self.runs[new as usize].next) = (run, next);
            match next {
                NONE => self.tail = new,
                next => self.runs[next as usize].previous = new,
            }
        }
        new
    }

    /// Blocks that hold nothing to find are reused before all others.
    fn push_blank(&mut self, blocks: u32) {
        if blocks == 0 {
            return;
        }
        self.free += blocks;
        let head = self.head;
        if head != NONE && self.runs[head as usize].chain.is_none() {
            self.runs[head as usize].to += blocks;
            return;
        }
        let run = self.add(Run { chain: None, from: 0, to: blocks, users: 0, found: false, before: NONE, previous: NONE, next: head });
        self.head = run;
        match head {
            NONE => self.tail = run,
            head => self.runs[head as usize].previous = run,
        }
    }

    fn add(&mut self, run: Run) -> u32 {
        if let Some(number) = self.spare.pop() {
            self.runs[number as usize] = run;
            return number;
        }
        self.runs.push(run);
        self.runs.len() as u32 - 1
    }

    fn drop_run(&mut self, run: u32) {
        self.runs[run as usize].chain = None;
        self.spare.push(run);
    }

    fn link_last(&mut self, run: u32) {
        let tail = std::mem::replace(&mut self.tail, run);
        (self.runs[run as usize].previous, self.runs[run as usize].next) = (tail, NONE);
        match tail {
            NONE => self.head = run,
            tail => self.runs[tail as usize].next = run,
        }
    }

    fn unlink(&mut self, run: u32) {
        self.free -= self.runs[run as usize].len();
        self.detach(run);
    }

    fn detach(&mut self, run: u32) {
        let Run { previous, next, .. } = self.runs[run as usize];
        match previous {
            NONE => self.head = next,
            previous => self.runs[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.runs[next as usize].previous = previous,
        }
    }
}
