//! A small sorted multiset of block offsets whose maximum is read in O(1).

/// Multiset of offsets. The largest lies inline, so that the common case of one offset allocates nothing.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ends {
    /// Largest offset; meaningless while `top_count` is 0.
    top: u32,
    top_count: u32,
    /// The other offsets with their counts, ascending.
    rest: Vec<(u32, u32)>,
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
            self.top = offset;
            self.top_count = 1;
        } else if offset == self.top {
            self.top_count += 1;
        } else if offset > self.top {
            self.rest.push((self.top, self.top_count));
            self.top = offset;
            self.top_count = 1;
        } else {
            match self.rest.binary_search_by_key(&offset, |entry| entry.0) {
                Ok(at) => self.rest[at].1 += 1,
                Err(at) => self.rest.insert(at, (offset, 1)),
            }
        }
    }

    /// Takes one offset away; `false` when it is not there.
    #[must_use]
    pub(crate) fn remove(&mut self, offset: u32) -> bool {
        if self.top_count > 0 && offset == self.top {
            self.top_count -= 1;
            if self.top_count == 0
                && let Some((top, count)) = self.rest.pop()
            {
                self.top = top;
                self.top_count = count;
            }
            return true;
        }
        let Ok(at) = self.rest.binary_search_by_key(&offset, |entry| entry.0) else { return false };
        self.rest[at].1 -= 1;
        if self.rest[at].1 == 0 {
            self.rest.remove(at);
        }
        true
    }

    /// All offsets with their counts, in no particular order.
    #[cfg(test)]
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.rest.iter().copied().chain((self.top_count > 0).then_some((self.top, self.top_count)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::Ends;

    proptest! {
        #[test]
        fn equals_a_map(operations in proptest::collection::vec((any::<bool>(), 0u32..12), 0..200)) {
            let mut ends = Ends::default();
            let mut model = BTreeMap::<u32, u32>::new();
            for (add, offset) in operations {
                if add {
                    ends.insert(offset);
                    *model.entry(offset).or_default() += 1;
                } else {
                    let present = model.contains_key(&offset);
                    prop_assert_eq!(ends.remove(offset), present);
                    if present {
                        let count = model.get_mut(&offset).expect("present");
                        *count -= 1;
                        if *count == 0 {
                            model.remove(&offset);
                        }
                    }
                }
                prop_assert_eq!(ends.max(), model.keys().next_back().copied().unwrap_or(0));
                prop_assert_eq!(ends.is_empty(), model.is_empty());
                prop_assert_eq!(ends.iter().collect::<BTreeMap<_, _>>(), model.clone());
            }
        }
    }
}
