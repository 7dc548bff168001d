//! Storage of fingerprints: one vector, cut into slices of growing size classes with a free list each.
//!
//! A run's fingerprints lie contiguously, so comparing a prompt with a run is one linear pass. Slices grow by about an
//! eighth, so the slack is at most 1/8 plus one smallest class, and copying while a run grows stays linear in its length.
//! Free slices of one class cannot serve another: when that waste would make the vector grow, the owner compacts instead.
//! A free slice holds the link to the next one of its class, so giving memory back never takes memory.

use crate::record::codec::record;

/// Blocks in the smallest class. A fork often adds only a few blocks.
const SMALLEST: u32 = 4;
/// Words by which the vector grows at least: half a page table's worth of system calls fewer, 32 KiB too much at most.
const GROWTH: usize = 4096;
/// Words that fit the 32-bit starts of slices.
const MOST: u64 = u32::MAX as u64;

/// A slice of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) start: u32,
    pub(crate) capacity: u32,
}

/// End of a list of free slices.
const END: u32 = u32::MAX;

/// Nothing.
pub(crate) const EMPTY: Slice = Slice { start: 0, capacity: 0 };

/// The arena.
#[derive(Debug, Default)]
pub(crate) struct Arena {
    words: Vec<u64>,
    /// First free slice of each class.
    free: Vec<u32>,
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
            self.free.push(END);
        }
        self.classes.partition_point(|&capacity| capacity < blocks)
    }

    /// Bytes by which [`Self::allocate`] would grow the arena; `None` when it cannot address that much.
    pub(crate) fn growth(&mut self, blocks: u32) -> Option<u64> {
        let class = self.class(blocks);
        if self.free[class] != END {
            return Some(0);
        }
        let needed = self.words.len() + self.classes[class] as usize;
        if needed as u64 > MOST {
            return None;
        }
        Some((self.grown(needed).saturating_sub(self.words.capacity()) * 8) as u64)
    }

    /// Capacity of the vector once it has to hold `needed` words.
    fn grown(&self, needed: usize) -> usize {
        let capacity = self.words.capacity();
        if needed <= capacity { capacity } else { needed.max(capacity + (capacity / 8).max(GROWTH)) }
    }

    /// A slice for at least `blocks` fingerprints. Ask [`Self::growth`] first.
    pub(crate) fn allocate(&mut self, blocks: u32) -> Slice {
        let class = self.class(blocks);
        let capacity = self.classes[class];
        let start = self.free[class];
        if start != END {
            self.free[class] = self.words[start as usize] as u32;
            self.free_words -= u64::from(capacity);
            return Slice { start, capacity };
        }
        let start = self.words.len() as u32;
        let needed = self.words.len() + capacity as usize;
        let grown = self.grown(needed);
        self.words.reserve_exact(grown - self.words.len());
        self.words.resize(needed, 0);
        Slice { start, capacity }
    }

    /// Gives a slice back. When nothing is in use any more, the memory goes back too.
    pub(crate) fn release(&mut self, slice: Slice) {
        if slice.capacity == 0 {
            return;
        }
        let class = self.class(slice.capacity);
        self.words[slice.start as usize] = u64::from(self.free[class]);
        self.free[class] = slice.start;
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

    /// Words that belong to no slice.
    pub(crate) fn free_words(&self) -> u64 {
        self.free_words
    }

    /// Words in all slices, free ones included.
    pub(crate) fn words(&self) -> u64 {
        self.words.len() as u64
    }

    /// Copies the slices that are in use, given with the fingerprints used in each, to a new vector without gaps.
    pub(crate) fn compact<'a>(&mut self, slices: impl Iterator<Item = (&'a mut Slice, u32)>) {
        let mut packed = Self { classes: std::mem::take(&mut self.classes), ..Self::default() };
        packed.free = vec![END; packed.classes.len()];
        packed.words.reserve_exact((self.words.len() as u64 - self.free_words) as usize);
        for (slice, used) in slices.filter(|(slice, _)| slice.capacity > 0) {
            let start = packed.words.len();
            packed.words.extend_from_slice(self.get(*slice, 0, used));
            packed.words.resize(start + slice.capacity as usize, 0);
            slice.start = start as u32;
        }
        *self = packed;
    }

    /// Bytes held.
    pub(crate) fn bytes(&self) -> u64 {
        (self.words.capacity() * 8 + (self.free.capacity() + self.classes.capacity()) * 4) as u64
    }
}

record!(Slice { start, capacity });
record!(Arena { words, free, classes, free_words });
