//! Storage of fingerprints: one vector, cut into slices of growing size classes with a free list each.
//!
//! A run's fingerprints lie contiguously, so comparing a prompt with a run is one linear pass. Slices grow by about an
//! eighth, so the slack is at most 1/8 plus one smallest class, and copying while a run grows stays linear in its length.

/// Blocks in the smallest class. A fork often adds only a few blocks.
const SMALLEST: u32 = 4;

/// A slice of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) start: u32,
    pub(crate) capacity: u32,
}

/// The arena.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    words: Vec<u64>,
    /// Free slices of each class, by start.
    free: Vec<Vec<u32>>,
    /// Capacity of each class, ascending.
    classes: Vec<u32>,
    free_words: u64,
}

impl Arena {
    /// Class that holds `blocks`, made on demand.
    fn class(&mut self, blocks: u32) -> usize {
        while self.classes.last().is_none_or(|&largest| largest < blocks) {
            let next = self.classes.last().map_or(SMALLEST, |&last| last + (last / 8).max(SMALLEST));
            self.classes.push(next);
            self.free.push(Vec::new());
        }
        self.classes.partition_point(|&capacity| capacity < blocks)
    }

    /// A slice for at least `blocks` fingerprints.
    ///
    /// # Panics
    /// Beyond 2^32 fingerprints (32 GiB).
    pub(crate) fn allocate(&mut self, blocks: u32) -> Slice {
        let class = self.class(blocks);
        let capacity = self.classes[class];
        if let Some(start) = self.free[class].pop() {
            self.free_words -= u64::from(capacity);
            return Slice { start, capacity };
        }
        let start = u32::try_from(self.words.len()).expect("the arena holds at most 2^32 fingerprints");
        self.words.resize(self.words.len() + capacity as usize, 0);
        Slice { start, capacity }
    }

    /// Gives a slice back. When nothing is in use any more, the memory goes back too.
    pub(crate) fn release(&mut self, slice: Slice) {
        if slice.capacity == 0 {
            return;
        }
        let class = self.class(slice.capacity);
        self.free[class].push(slice.start);
        self.free_words += u64::from(slice.capacity);
        if self.free_words == self.words.len() as u64 {
            *self = Self::default();
        }
    }

    /// Moves `used` fingerprints to a slice of another capacity.
    pub(crate) fn resize(&mut self, slice: Slice, used: u32, blocks: u32) -> Slice {
        let new = self.allocate(blocks);
        let from = slice.start as usize;
        self.words.copy_within(from..from + used as usize, new.start as usize);
        self.release(slice);
        new
    }

    pub(crate) fn get(&self, slice: Slice, from: u32, to: u32) -> &[u64] {
        &self.words[(slice.start + from) as usize..(slice.start + to) as usize]
    }

    pub(crate) fn write(&mut self, slice: Slice, at: u32, values: &[u64]) {
        let from = (slice.start + at) as usize;
        self.words[from..from + values.len()].copy_from_slice(values);
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        (self.words.capacity() * 8 + self.free.iter().map(|list| list.capacity() * 4).sum::<usize>()) as u64
    }
}
