//! Which replicas hold part of a run: 16 bytes while there is one, a sorted vector with a bitset of the full ones above.

/// A replica's holding of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Holder {
    pub(super) replica: u32,
    /// Number of the holding.
    pub(super) id: u32,
}

const NOBODY: Holder = Holder { replica: u32::MAX, id: u32::MAX };

/// The holders of one run.
#[derive(Debug)]
pub(super) struct Holders {
    one: Holder,
    #[allow(clippy::box_collection, reason = "8 bytes inline: most runs have one holder")]
    many: Option<Box<Many>>,
}

#[derive(Debug, Default)]
struct Many {
    /// Ascending by replica.
    all: Vec<Holder>,
    /// By replica: it holds the run to its end. A cache, for answers that want a few of many holders.
    full: Vec<u64>,
}

impl Default for Holders {
    fn default() -> Self {
        Self { one: NOBODY, many: None }
    }
}

impl Holders {
    /// Ascending by replica.
    pub(super) fn as_slice(&self) -> &[Holder] {
        match &self.many {
            Some(many) => &many.all,
            None if self.one == NOBODY => &[],
            None => std::slice::from_ref(&self.one),
        }
    }

    pub(super) fn find(&self, replica: u32) -> Option<u32> {
        match &self.many {
            None => (self.one.replica == replica && self.one != NOBODY).then_some(self.one.id),
            Some(many) => many.all.binary_search_by_key(&replica, |holder| holder.replica).ok().map(|at| many.all[at].id),
        }
    }

    /// Adds a replica, or gives the one that is there another holding.
    pub(super) fn set(&mut self, replica: u32, id: u32) {
        let holder = Holder { replica, id };
        if self.many.is_none() && (self.one == NOBODY || self.one.replica == replica) {
            self.one = holder;
            return;
        }
        let many = self.many.get_or_insert_with(|| Box::new(Many { all: vec![self.one], full: Vec::new() }));
        match many.all.binary_search_by_key(&replica, |holder| holder.replica) {
            Ok(at) => many.all[at] = holder,
            Err(at) => many.all.insert(at, holder),
        }
    }

    pub(super) fn remove(&mut self, replica: u32) {
        self.set_full(replica, false);
        match &mut self.many {
            None => self.one = NOBODY,
            Some(many) => {
                if let Ok(at) = many.all.binary_search_by_key(&replica, |holder| holder.replica) {
                    many.all.remove(at);
                }
                if let [last] = many.all[..] {
                    self.one = last;
                    self.many = None;
                }
            }
        }
    }

    /// Notes whether the replica holds the run to its end. Kept only where there are many holders.
    pub(super) fn set_full(&mut self, replica: u32, full: bool) {
        let Some(many) = &mut self.many else { return };
        let (word, bit) = (replica as usize / 64, 1u64 << (replica % 64));
        if full {
            if many.full.len() <= word {
                many.full.resize(word + 1, 0);
            }
            many.full[word] |= bit;
        } else if let Some(word) = many.full.get_mut(word) {
            *word &= !bit;
        }
    }

    /// The run grew: nobody holds it to its new end yet.
    pub(super) fn none_full(&mut self) {
        if let Some(many) = &mut self.many {
            many.full.fill(0);
        }
    }

    /// Replicas that hold the run to its end, cyclically from `start`; nothing where there are few holders.
    pub(super) fn full_from(&self, start: u32) -> impl Iterator<Item = u32> + '_ {
        let words: &[u64] = self.many.as_ref().map_or(&[], |many| &many.full);
        let count = words.len();
        let first = if count == 0 { 0 } else { start as usize / 64 % count };
        (0..=count).filter(move |_| count > 0).flat_map(move |step| {
            let at = (first + step) % count;
            // The first word comes twice: its upper part first, the rest at the end.
            let upper = u64::MAX << (start % 64);
            let mask = match step {
                0 => upper,
                step if step == count => !upper,
                _ => u64::MAX,
            };
            bits(words[at] & mask).map(move |bit| at as u32 * 64 + bit)
        })
    }

    /// Whether `full_from` knows this replica: for the audit.
    pub(super) fn is_full(&self, replica: u32) -> Option<bool> {
        let many = self.many.as_ref()?;
        Some(many.full.get(replica as usize / 64).is_some_and(|word| word >> (replica % 64) & 1 == 1))
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        self.many.as_ref().map_or(0, |many| (size_of::<Many>() + many.all.capacity() * size_of::<Holder>() + many.full.capacity() * 8) as u64)
    }
}

fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros());
        word &= word.wrapping_sub(1);
        bit
    })
}

#[cfg(test)]
mod tests {
    use super::Holders;

    #[test]
    fn full_holders_come_cyclically_each_once() {
        let mut holders = Holders::default();
        for replica in [3, 64, 65, 200, 1_500] {
            holders.set(replica, replica);
        }
        for replica in [3, 64, 200, 1_500] {
            holders.set_full(replica, true);
        }
        assert_eq!(holders.full_from(64).collect::<Vec<_>>(), [64, 200, 1_500, 3]);
        assert_eq!(holders.full_from(4).collect::<Vec<_>>(), [64, 200, 1_500, 3]);
        assert_eq!(holders.full_from(9_999).count(), 4);
        holders.none_full();
        assert_eq!(holders.full_from(0).count(), 0);
    }
}
