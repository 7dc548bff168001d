//! What an engine's own events say about one run: which blocks are there, holes included.

use crate::record::codec::record;

/// Presence of a run's blocks on one replica.
#[derive(Debug, Default)]
pub(super) struct Exact {
    /// By block: how many engine blocks say that it is there (one, or one per data-parallel rank). No trailing zeros.
    counts: Vec<u32>,
    /// Blocks before the first hole.
    cutoff: u32,
}

impl Exact {
    /// Blocks before the first hole.
    pub(super) fn cutoff(&self) -> u32 {
        self.cutoff
    }

    /// Blocks before the first hole behind `from`, where the first `from` are there for another reason.
    pub(super) fn reach(&self, from: u32) -> u32 {
        if from <= self.cutoff {
            return self.cutoff;
        }
        let behind = self.counts.get(from as usize..).unwrap_or_default();
        from + behind.iter().take_while(|&&count| count > 0).count() as u32
    }

    /// Blocks up to the last one that is there.
    pub(super) fn span(&self) -> u32 {
        self.counts.len() as u32
    }

    pub(super) fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// A block is there once more.
    pub(super) fn store(&mut self, block: u32) {
        let at = block as usize;
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += 1;
        while self.is_held(self.cutoff) {
            self.cutoff += 1;
        }
    }

    /// A block is there once less.
    ///
    /// # Panics
    /// When it is not there: a defect of the caller.
    pub(super) fn remove(&mut self, block: u32) {
        let count = &mut self.counts[block as usize];
        *count = count.checked_sub(1).expect("a block is removed as often as it was stored");
        if *count == 0 {
            self.cutoff = self.cutoff.min(block);
            let used = self.counts.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
            self.counts.truncate(used);
        }
    }

    fn is_held(&self, block: u32) -> bool {
        self.counts.get(block as usize).is_some_and(|&count| count > 0)
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        (size_of::<Self>() + self.counts.capacity() * 4) as u64
    }

    /// Recomputes the cutoff: for the audit.
    pub(super) fn audited_cutoff(&self) -> u32 {
        self.counts.iter().take_while(|&&count| count > 0).count() as u32
    }
}

record!(Exact { counts, cutoff });

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Exact;

    proptest! {
        #[test]
        fn counts_copies_and_finds_the_first_hole(operations in proptest::collection::vec((any::<bool>(), 0u32..12), 0..120)) {
            let mut exact = Exact::default();
            let mut model = [0u16; 12];
            for (store, block) in operations {
                if store {
                    exact.store(block);
                    model[block as usize] += 1;
                } else if model[block as usize] > 0 {
                    exact.remove(block);
                    model[block as usize] -= 1;
                }
                prop_assert_eq!(exact.cutoff() as usize, model.iter().take_while(|&&count| count > 0).count());
                prop_assert_eq!(exact.span() as usize, model.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1));
                prop_assert_eq!((exact.cutoff(), exact.is_empty()), (exact.audited_cutoff(), model.iter().all(|&count| count == 0)));
            }
        }
    }
}
