//! The records behind residency: holdings, the segments of different age in them, and the lists they stand in.
//!
//! A holding says that a replica has the first `blocks` blocks of a run. Its blocks were used at different times: a path
//! that leaves the run early uses only the first of them. So a holding is a chain of *segments*, the newest first, each
//! ending deeper and used earlier than the one before. The newest is the holding's own record. Every segment stands in one of
//! two lists of its replica: `cached`, oldest use first, which is what the engine would evict next, or `kept`, which may not
//! be evicted: a running turn uses it, or engine events say exactly what is there.

use super::ends::Ends;
use super::exact::Exact;
use super::tree::{NONE, RunId};

use crate::record::codec::record;

/// Which list a segment stands in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum List {
    /// Evictable, oldest use first.
    Cached,
    /// Not evictable.
    Kept,
}

/// One segment: 36 bytes. The first of a holding carries the holding's own fields.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) run: RunId,
    pub(super) replica: u32,
    /// Of the newest segment: blocks of the run judged resident, expected ones included.
    pub(super) blocks: u32,
    /// Blocks of the run up to the end of this segment; it starts where the next newer one ends.
    pub(super) end: u32,
    /// The next older segment of the holding.
    pub(super) older: u32,
    /// The next newer one; [`NONE`] at the holding's own record.
    pub(super) newer: u32,
    /// Neighbours in the list; of a free record, `next` is the next free one.
    prev: u32,
    next: u32,
    /// Of the newest segment: number of the [`Extra`], in the low 31 bits; [`NO_EXTRA`] without one. The top bit says
    /// which list the segment stands in.
    extra_and_list: u32,
}

const NO_EXTRA: u32 = u32::MAX >> 1;
const KEPT: u32 = 1 << 31;

/// What only holdings in use by running turns, or known from engine events, have to remember.
#[derive(Debug, Default)]
pub(super) struct Extra {
    /// Where the paths of running turns end or leave the run: nothing before the last of them is evictable.
    pub(super) pins: Ends,
    /// Those of turns that have not confirmed yet.
    pub(super) pending: Ends,
    /// Blocks that a first token or a completion confirmed. Without an extra all of them are confirmed.
    pub(super) confirmed: u32,
    /// What the engine's own events say.
    pub(super) exact: Option<Box<Exact>>,
}

#[derive(Debug, Clone, Copy)]
struct Span {
    oldest: u32,
    newest: u32,
}

impl Default for Span {
    fn default() -> Self {
        Self { oldest: NONE, newest: NONE }
    }
}

/// The two lists of a replica.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lists {
    cached: Span,
    kept: Span,
}

/// All records.
#[derive(Debug)]
pub(super) struct Records {
    segments: Vec<Segment>,
    first_free: u32,
    free: u32,
    extras: Vec<Extra>,
    free_extras: Vec<u32>,
    /// By replica.
    pub(super) lists: Vec<Lists>,
    /// Heap bytes of the extras.
    pub(super) side_bytes: u64,
}

impl Default for Records {
    fn default() -> Self {
        Self { segments: Vec::new(), first_free: NONE, free: 0, extras: Vec::new(), free_extras: Vec::new(), lists: Vec::new(), side_bytes: 0 }
    }
}

impl Records {
    pub(super) fn get(&self, id: u32) -> &Segment {
        &self.segments[id as usize]
    }

    pub(super) fn get_mut(&mut self, id: u32) -> &mut Segment {
        &mut self.segments[id as usize]
    }

    /// A new record that stands in no list yet.
    pub(super) fn add(&mut self, run: RunId, replica: u32) -> u32 {
        let fresh = Segment { run, replica, blocks: 0, end: 0, older: NONE, newer: NONE, prev: NONE, next: NONE, extra_and_list: NO_EXTRA };
        if self.first_free != NONE {
            let id = self.first_free;
            self.first_free = self.segments[id as usize].next;
            self.free -= 1;
            self.segments[id as usize] = fresh;
            return id;
        }
        let grown = grown(self.segments.len(), self.segments.capacity(), 1);
        self.segments.reserve_exact(grown - self.segments.len());
        self.segments.push(fresh);
        self.segments.len() as u32 - 1
    }

    /// Frees a record that stands in no list. When none is left the memory goes back.
    pub(super) fn free(&mut self, id: u32) {
        let extra = self.segments[id as usize].extra_and_list & NO_EXTRA;
        if extra != NO_EXTRA {
            self.drop_extra(id);
        }
        self.segments[id as usize].next = self.first_free;
        self.first_free = id;
        self.free += 1;
        if self.free as usize == self.segments.len() {
            let lists = std::mem::take(&mut self.lists);
            *self = Self { lists, ..Self::default() };
        }
    }

    /// Bytes by which marking a path through `runs` runs can grow the records at most.
    pub(super) fn growth(&self, runs: u32) -> u64 {
        let segments = (2 * runs as usize).saturating_sub(self.free as usize);
        let extras = (runs as usize).saturating_sub(self.free_extras.len());
        let more = |len: usize, capacity: usize, new: usize| grown(len, capacity, new) - capacity;
        let segments = more(self.segments.len(), self.segments.capacity(), segments) * size_of::<Segment>();
        let extras = more(self.extras.len(), self.extras.capacity(), extras) * (size_of::<Extra>() + 4);
        (segments + extras) as u64
    }

    pub(super) fn extra(&self, id: u32) -> Option<&Extra> {
        let extra = self.segments[id as usize].extra_and_list & NO_EXTRA;
        (extra != NO_EXTRA).then(|| &self.extras[extra as usize])
    }

    /// Changes the extra of a holding, which is made when there is none, and counts the bytes it takes.
    pub(super) fn change_extra<T>(&mut self, id: u32, change: impl FnOnce(&mut Extra) -> T) -> T {
        let segment = &mut self.segments[id as usize];
        if segment.extra_and_list & NO_EXTRA == NO_EXTRA {
            let confirmed = segment.blocks;
            let extra = self.free_extras.pop().unwrap_or_else(|| {
                let grown = grown(self.extras.len(), self.extras.capacity(), 1);
                self.extras.reserve_exact(grown - self.extras.len());
                // Room for every number at once, so that giving an extra back takes no memory.
                self.free_extras.reserve_exact(grown);
                self.extras.push(Extra::default());
                self.extras.len() as u32 - 1
            });
            self.extras[extra as usize].confirmed = confirmed;
            segment.extra_and_list = segment.extra_and_list & KEPT | extra;
        }
        let extra = &mut self.extras[(segment.extra_and_list & NO_EXTRA) as usize];
        let before = extra.heap_bytes();
        let answer = change(extra);
        self.side_bytes = self.side_bytes + extra.heap_bytes() - before;
        answer
    }

    /// Forgets the extra of a holding.
    pub(super) fn drop_extra(&mut self, id: u32) {
        let segment = &mut self.segments[id as usize];
        let extra = segment.extra_and_list & NO_EXTRA;
        segment.extra_and_list |= NO_EXTRA;
        self.side_bytes -= self.extras[extra as usize].heap_bytes();
        self.extras[extra as usize] = Extra::default();
        self.free_extras.push(extra);
    }

    /// Last block that a running turn uses.
    pub(super) fn pinned(&self, id: u32) -> u32 {
        self.extra(id).map_or(0, |extra| extra.pins.max())
    }

    /// Blocks confirmed by own decisions.
    pub(super) fn confirmed(&self, id: u32) -> u32 {
        self.extra(id).map_or(self.get(id).blocks, |extra| extra.confirmed)
    }

    /// Blocks of the run that must stay in memory for the holding: with holes more than it counts as resident.
    pub(super) fn span(&self, id: u32) -> u32 {
        let exact = self.extra(id).and_then(|extra| extra.exact.as_ref()).map_or(0, |exact| exact.span());
        self.get(id).blocks.max(exact)
    }

    pub(super) fn list_of(&self, id: u32) -> List {
        if self.segments[id as usize].extra_and_list & KEPT == 0 { List::Cached } else { List::Kept }
    }

    /// The record that is evicted next.
    pub(super) fn oldest(&self, replica: u32, list: List) -> Option<u32> {
        let lists = &self.lists[replica as usize];
        let oldest = match list {
            List::Cached => lists.cached.oldest,
            List::Kept => lists.kept.oldest,
        };
        (oldest != NONE).then_some(oldest)
    }

    /// Every record of a list, oldest first.
    pub(super) fn iter(&self, replica: u32, list: List) -> impl Iterator<Item = u32> + '_ {
        std::iter::successors(self.oldest(replica, list), |&id| {
            let next = self.segments[id as usize].next;
            (next != NONE).then_some(next)
        })
    }

    /// Puts a record that stands in no list at the newest end of one.
    pub(super) fn link(&mut self, id: u32, list: List) {
        let segment = &mut self.segments[id as usize];
        let lists = &mut self.lists[segment.replica as usize];
        let ends = match list {
            List::Cached => &mut lists.cached,
            List::Kept => &mut lists.kept,
        };
        segment.extra_and_list = segment.extra_and_list & NO_EXTRA | if list == List::Kept { KEPT } else { 0 };
        (segment.prev, segment.next) = (ends.newest, NONE);
        let newest = std::mem::replace(&mut ends.newest, id);
        if newest == NONE {
            ends.oldest = id;
        } else {
            self.segments[newest as usize].next = id;
        }
    }

    /// Takes a record out of its list.
    pub(super) fn unlink(&mut self, id: u32) {
        let list = self.list_of(id);
        let segment = &self.segments[id as usize];
        let (prev, next, replica) = (segment.prev, segment.next, segment.replica);
        let lists = &mut self.lists[replica as usize];
        let ends = match list {
            List::Cached => &mut lists.cached,
            List::Kept => &mut lists.kept,
        };
        if prev == NONE {
            ends.oldest = next;
        }
        if next == NONE {
            ends.newest = prev;
        }
        if prev != NONE {
            self.segments[prev as usize].next = next;
        }
        if next != NONE {
            self.segments[next as usize].prev = prev;
        }
    }

    /// Gives the part of the newest segment that is about to stay behind a record of its own, in the list place of the newest.
    pub(super) fn split_off_rest(&mut self, id: u32) {
        let head = &self.segments[id as usize];
        let (run, replica, end, older, next) = (head.run, head.replica, head.end, head.older, head.next);
        let list = self.list_of(id);
        let rest = self.add(run, replica);
        // Into the list right behind the newest, which is taken out afterwards.
        let segment = &mut self.segments[rest as usize];
        (segment.end, segment.older, segment.newer) = (end, older, id);
        (segment.prev, segment.next) = (id, next);
        segment.extra_and_list = NO_EXTRA | if list == List::Kept { KEPT } else { 0 };
        self.segments[id as usize].next = rest;
        self.segments[id as usize].older = rest;
        if older != NONE {
            self.segments[older as usize].newer = rest;
        }
        if next == NONE {
            let lists = &mut self.lists[replica as usize];
            match list {
                List::Cached => lists.cached.newest = rest,
                List::Kept => lists.kept.newest = rest,
            }
        } else {
            self.segments[next as usize].prev = rest;
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        let segments = self.segments.capacity() * size_of::<Segment>();
        let extras = self.extras.capacity() * size_of::<Extra>() + self.free_extras.capacity() * 4;
        (segments + extras + self.lists.capacity() * size_of::<Lists>()) as u64 + self.side_bytes
    }

    /// Recounts the heap bytes of the extras.
    pub(super) fn audited_side_bytes(&self) -> u64 {
        self.extras.iter().map(Extra::heap_bytes).sum()
    }
}

impl Extra {
    fn heap_bytes(&self) -> u64 {
        self.pins.heap_bytes() + self.pending.heap_bytes() + self.exact.as_ref().map_or(0, |exact| exact.heap_bytes())
    }

    /// Whether the holding needs none of this any more.
    pub(super) fn is_idle(&self) -> bool {
        self.pins.is_empty() && self.pending.is_empty() && self.exact.is_none()
    }
}

/// Capacity of a table once it holds `new` more entries: a quarter more at a time.
pub(super) fn grown(len: usize, capacity: usize, new: usize) -> usize {
    if len + new <= capacity { capacity } else { (len + new).max(capacity + (capacity / 4).max(16)) }
}

record!(Segment { run, replica, blocks, end, older, newer, prev, next, extra_and_list });
record!(Extra { pins, pending, confirmed, exact });
record!(Span { oldest, newest });
record!(Lists { cached, kept });
record!(Records { segments, first_free, free, extras, free_extras, lists, side_bytes });
