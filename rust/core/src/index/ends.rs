//! A sorted multiset of block offsets whose maximum is read in O(1), in 16 bytes while it holds one offset.

use std::collections::BTreeMap;

use crate::record::codec::{Reader, Record, Taken, record};

/// Offsets beside the largest that are kept in a sorted vector; above it they move to a tree, so that a run which forks
/// at every block costs O(log n) per fork and not O(n).
const FEW: usize = 64;

/// Multiset of offsets. The largest lies inline, so that the common case of one offset allocates nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ends {
    /// Largest offset; meaningless while `top_count` is 0.
    top: u32,
    top_count: u32,
    /// The other offsets with their counts.
    #[allow(clippy::box_collection, reason = "8 bytes inline instead of 32: most sets hold one offset")]
    rest: Option<Box<Rest>>,
}

#[derive(Debug, Clone)]
enum Rest {
    /// Ascending.
    Few(Vec<(u32, u32)>),
    Many(BTreeMap<u32, u32>),
}

impl Ends {
    /// Whether nothing is in it. An offset of 0 counts as something.
    pub(crate) fn is_empty(&self) -> bool {
        self.top_count == 0
    }

    /// Largest offset, 0 when empty.
    pub(crate) fn max(&self) -> u32 {
        if self.top_count == 0 { 0 } else { self.top }
    }

    /// Adds one offset.
    pub(crate) fn insert(&mut self, offset: u32) {
        if self.top_count == 0 {
            (self.top, self.top_count) = (offset, 1);
        } else if offset == self.top {
            self.top_count += 1;
        } else {
            let (rest, count) = if offset > self.top {
                let old = (self.top, self.top_count);
                (self.top, self.top_count) = (offset, 1);
                old
            } else {
                (offset, 1)
            };
            self.rest.get_or_insert_with(|| Box::new(Rest::Few(Vec::new()))).add(rest, count);
        }
    }

    /// Takes one offset away; `false` when it is not there.
    #[must_use]
    pub(crate) fn remove(&mut self, offset: u32) -> bool {
        if self.top_count > 0 && offset == self.top {
            self.top_count -= 1;
            if self.top_count == 0
                && let Some(rest) = &mut self.rest
                && let Some((top, count)) = rest.pop()
            {
                (self.top, self.top_count) = (top, count);
            }
        } else {
            let taken = self.rest.as_mut().is_some_and(|rest| rest.take_one(offset));
            if !taken {
                return false;
            }
        }
        if self.rest.as_ref().is_some_and(|rest| rest.is_empty()) {
            self.rest = None;
        }
        true
    }

    /// Moves one offset up to `to`; `false` when it is not there. The only offset of a set moves without touching the heap.
    #[must_use]
    pub(crate) fn raise(&mut self, from: u32, to: u32) -> bool {
        if self.top_count == 1 && self.top == from && to >= from {
            self.top = to;
            return true;
        }
        let removed = self.remove(from);
        if removed {
            self.insert(to);
        }
        removed
    }

    /// Bytes on the heap; those of a tree estimated from its entries.
    pub(crate) fn heap_bytes(&self) -> u64 {
        self.rest.as_ref().map_or(0, |rest| {
            let entries = match &**rest {
                Rest::Few(entries) => entries.capacity() * 8,
                Rest::Many(entries) => entries.len() * 16,
            };
            (size_of::<Rest>() + entries) as u64
        })
    }

    /// All offsets with their counts, in no particular order.
    #[cfg(test)]
    fn entries(&self) -> BTreeMap<u32, u32> {
        let mut all: BTreeMap<u32, u32> = match self.rest.as_deref() {
            Some(Rest::Few(entries)) => entries.iter().copied().collect(),
            Some(Rest::Many(entries)) => entries.clone(),
            None => BTreeMap::new(),
        };
        if self.top_count > 0 {
            all.insert(self.top, self.top_count);
        }
        all
    }
}

impl Rest {
    fn add(&mut self, offset: u32, count: u32) {
        match self {
            Self::Few(entries) => match entries.binary_search_by_key(&offset, |entry| entry.0) {
                Ok(at) => entries[at].1 += count,
                Err(at) if entries.len() < FEW => entries.insert(at, (offset, count)),
                Err(_) => {
                    let mut many: BTreeMap<u32, u32> = entries.iter().copied().collect();
                    many.insert(offset, count);
                    *self = Self::Many(many);
                }
            },
            Self::Many(entries) => *entries.entry(offset).or_default() += count,
        }
    }

    fn take_one(&mut self, offset: u32) -> bool {
        match self {
            Self::Few(entries) => {
                let Ok(at) = entries.binary_search_by_key(&offset, |entry| entry.0) else { return false };
                entries[at].1 -= 1;
                if entries[at].1 == 0 {
                    entries.remove(at);
                }
            }
            Self::Many(entries) => {
                let Some(count) = entries.get_mut(&offset) else { return false };
                *count -= 1;
                if *count == 0 {
                    entries.remove(&offset);
                }
            }
        }
        true
    }

    /// Takes the largest offset out.
    fn pop(&mut self) -> Option<(u32, u32)> {
        match self {
            Self::Few(entries) => entries.pop(),
            Self::Many(entries) => entries.pop_last(),
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Self::Few(entries) => entries.is_empty(),
            Self::Many(entries) => entries.is_empty(),
        }
    }
}

record!(Ends { top, top_count, rest });

impl Record for Rest {
    fn put(&self, to: &mut Vec<u8>) {
        match self {
            Self::Few(entries) => {
                to.push(0);
                entries.put(to);
            }
            Self::Many(entries) => {
                to.push(1);
                entries.put(to);
            }
        }
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Ok(if bool::take(from)? { Self::Many(Record::take(from)?) } else { Self::Few(Record::take(from)?) })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::Ends;

    proptest! {
        #[test]
        fn equals_a_map(operations in proptest::collection::vec((0..5u8, prop_oneof![0u32..12, 0u32..400], 0u32..9), 0..600)) {
            let mut ends = Ends::default();
            let mut model = BTreeMap::<u32, u32>::new();
            for (action, offset, further) in operations {
                if action < 2 {
                    ends.insert(offset);
                    *model.entry(offset).or_default() += 1;
                } else {
                    let present = model.contains_key(&offset);
                    let removed = if action == 2 { ends.raise(offset, offset + further) } else { ends.remove(offset) };
                    prop_assert_eq!(removed, present);
                    if present {
                        let count = model.get_mut(&offset).expect("present");
                        *count -= 1;
                        if *count == 0 {
                            model.remove(&offset);
                        }
                        if action == 2 {
                            *model.entry(offset + further).or_default() += 1;
                        }
                    }
                }
                prop_assert_eq!(ends.max(), model.keys().next_back().copied().unwrap_or(0));
                prop_assert_eq!(ends.is_empty(), model.is_empty());
                prop_assert_eq!(ends.entries(), model.clone());
            }
        }
    }

    #[test]
    fn one_offset_takes_no_heap() {
        let mut ends = Ends::default();
        ends.insert(7);
        ends.insert(7);
        assert_eq!((size_of::<Ends>(), ends.heap_bytes()), (16, 0));
    }
}
