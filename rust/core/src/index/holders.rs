//! Which replicas hold part of a run: 16 bytes while there is one, a sorted vector with two bitsets above.

use crate::record::codec::record;

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

/// More than one holder.
///
/// Most replicas that share a run share it up to the same block: the end of a system prompt, or of a group's prompt, behind
/// which only the replica of the first sample holds more. That block is the *level*, and two bitsets say who reaches it and
/// who holds more, so that a few of many holders are found without looking at all of them.
#[derive(Debug)]
struct Many {
    /// Ascending by replica.
    all: Vec<Holder>,
    /// Blocks of the run; [`NO_LEVEL`] before the first choice.
    level: u32,
    /// By replica: it holds at least `level` blocks.
    reach: Vec<u64>,
    /// By replica: it holds more.
    beyond: Vec<u64>,
    /// How many reach the level, and how many hold more.
    reaching: u32,
    holding_more: u32,
    /// Changes since the level was chosen.
    changes: u32,
}

const NO_LEVEL: u32 = u32::MAX;

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
        let first = self.one;
        let many = self.many.get_or_insert_with(|| {
            Box::new(Many { all: vec![first], level: NO_LEVEL, reach: Vec::new(), beyond: Vec::new(), reaching: 0, holding_more: 0, changes: 0 })
        });
        match many.all.binary_search_by_key(&replica, |holder| holder.replica) {
            Ok(at) => many.all[at] = holder,
            Err(at) => many.all.insert(at, holder),
        }
    }

    pub(super) fn remove(&mut self, replica: u32) {
        self.note(replica, 0);
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

    /// Notes how many blocks a replica holds now.
    pub(super) fn note(&mut self, replica: u32, blocks: u32) {
        let Some(many) = &mut self.many else { return };
        many.changes += 1;
        if many.level != NO_LEVEL {
            many.note(replica, blocks);
        }
    }

    /// Whether the level no longer says much, and there were as many changes since it was chosen as there are holders.
    pub(super) fn wants_level(&self) -> bool {
        self.many.as_ref().is_some_and(|many| {
            let holders = many.all.len() as u32;
            many.level == NO_LEVEL || many.changes >= holders && (many.reaching * 2 < holders || many.holding_more * 2 > holders)
        })
    }

    /// Chooses the level anew: the median of what the holders hold. Amortised O(1) for each change.
    pub(super) fn choose_level(&mut self, blocks_of: impl Fn(u32) -> u32) {
        let Some(many) = &mut self.many else { return };
        let mut blocks: Vec<u32> = many.all.iter().map(|holder| blocks_of(holder.id)).collect();
        let middle = (blocks.len() - 1) / 2;
        many.level = *blocks.select_nth_unstable(middle).1;
        (many.reaching, many.holding_more, many.changes) = (0, 0, 0);
        many.reach.fill(0);
        many.beyond.fill(0);
        for at in 0..many.all.len() {
            let holder = many.all[at];
            many.note(holder.replica, blocks_of(holder.id));
        }
    }

    /// The level; nothing where there are few holders.
    pub(super) fn level(&self) -> Option<u32> {
        self.many.as_ref().map(|many| many.level).filter(|&level| level != NO_LEVEL)
    }

    /// Replicas that hold more than the level, cyclically from `start`.
    pub(super) fn beyond_level(&self, start: u32) -> impl Iterator<Item = u32> + '_ {
        cyclic(self.many.as_ref().map_or(&[], |many| &many.beyond), start)
    }

    /// Whether a replica holds more than the level.
    pub(super) fn is_beyond_level(&self, replica: u32) -> bool {
        self.many.as_ref().is_some_and(|many| bit(&many.beyond, replica))
    }

    /// Replicas that hold at least the level, those that hold more included, cyclically from `start`.
    pub(super) fn at_level(&self, start: u32) -> impl Iterator<Item = u32> + '_ {
        cyclic(self.many.as_ref().map_or(&[], |many| &many.reach), start)
    }

    /// Whether the bitsets are right about a holder of so many blocks: for the audit.
    pub(super) fn notes_right(&self, replica: u32, blocks: u32) -> bool {
        let Some(many) = self.many.as_ref().filter(|many| many.level != NO_LEVEL) else { return true };
        let reach = blocks >= many.level && blocks > 0;
        bit(&many.reach, replica) == reach && bit(&many.beyond, replica) == (blocks > many.level)
    }

    pub(super) fn heap_bytes(&self) -> u64 {
        self.many.as_ref().map_or(0, |many| {
            (size_of::<Many>() + many.all.capacity() * size_of::<Holder>() + (many.reach.capacity() + many.beyond.capacity()) * 8) as u64
        })
    }
}

impl Many {
    fn note(&mut self, replica: u32, blocks: u32) {
        let reaching = set(&mut self.reach, replica, blocks >= self.level && blocks > 0);
        self.reaching = self.reaching.wrapping_add_signed(reaching);
        let holding_more = set(&mut self.beyond, replica, blocks > self.level);
        self.holding_more = self.holding_more.wrapping_add_signed(holding_more);
    }
}

fn bit(words: &[u64], bit: u32) -> bool {
    words.get(bit as usize / 64).is_some_and(|word| word >> (bit % 64) & 1 == 1)
}

/// Sets a bit; answers by how much the number of set bits changed.
fn set(words: &mut Vec<u64>, bit: u32, on: bool) -> i32 {
    let (at, mask) = (bit as usize / 64, 1u64 << (bit % 64));
    if words.len() <= at {
        if !on {
            return 0;
        }
        words.resize(at + 1, 0);
    }
    let before = words[at] & mask != 0;
    if on {
        words[at] |= mask;
    } else {
        words[at] &= !mask;
    }
    i32::from(on) - i32::from(before)
}

/// The set bits, cyclically from `start`.
fn cyclic(words: &[u64], start: u32) -> impl Iterator<Item = u32> + '_ {
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

fn bits(mut word: u64) -> impl Iterator<Item = u32> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros());
        word &= word.wrapping_sub(1);
        bit
    })
}

record!(Holder { replica, id });
record!(Holders { one, many });
record!(Many { all, level, reach, beyond, reaching, holding_more, changes });

#[cfg(test)]
mod tests {
    use super::Holders;

    #[test]
    fn holders_come_cyclically_each_once() {
        let blocks = |id: u32| if id == 200 { 90 } else { 50 + id % 2 };
        let mut holders = Holders::default();
        for replica in [64, 65, 200, 1_500, 4] {
            holders.set(replica, replica);
            holders.note(replica, blocks(replica));
            if holders.wants_level() {
                holders.choose_level(blocks);
            }
        }
        assert_eq!(holders.level(), Some(50));
        assert_eq!(holders.at_level(64).collect::<Vec<_>>(), [64, 65, 200, 1_500, 4]);
        assert_eq!(holders.at_level(5).collect::<Vec<_>>(), [64, 65, 200, 1_500, 4]);
        assert_eq!(holders.at_level(9_999).count(), 5);
        assert_eq!(holders.beyond_level(0).collect::<Vec<_>>(), [65, 200]);
        holders.note(65, 49);
        assert!(holders.notes_right(65, 49) && !holders.notes_right(65, 50));
        assert_eq!(holders.at_level(0).collect::<Vec<_>>(), [4, 64, 200, 1_500]);
        for replica in [64, 65, 200, 1_500] {
            holders.remove(replica);
        }
        assert_eq!((holders.as_slice().len(), holders.heap_bytes(), holders.level()), (1, 0, None));
    }
}
