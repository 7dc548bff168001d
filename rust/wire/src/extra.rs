//! Extra keys of blocks, kept as they were sent.

/// What beside the tokens decides whether a block can be reused: cache salt, adapter, images. One entry per block.
///
/// Entries are kept as the bytes on the wire and not as a digest, so that blocks with different extra keys never look equal,
/// whatever the clients choose as a salt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExtraKeys {
    bytes: Vec<u8>,
    /// End in `bytes` of the entry of each block; one that ends where it starts is absent. Empty when all are.
    ends: Vec<usize>,
}

impl ExtraKeys {
    /// Whether no block has extra keys.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Extra keys of the block at this position as one msgpack value, to be compared and hashed and not to be read; `None` when
    /// it has none.
    #[must_use]
    pub fn get(&self, block: usize) -> Option<&[u8]> {
        let end = *self.ends.get(block)?;
        let start = block.checked_sub(1).map_or(0, |before| self.ends[before]);
        (start < end).then(|| &self.bytes[start..end])
    }

    /// For a known number of blocks. `ends` is only reserved when the first entry comes, as most events have none.
    pub(crate) fn push(&mut self, at: usize, blocks: usize, entry: &[u8]) {
        if self.ends.is_empty() {
            self.ends.reserve_exact(blocks);
        }
        self.ends.resize(at, self.bytes.len());
        self.bytes.extend_from_slice(entry);
        self.ends.push(self.bytes.len());
    }

    /// Marks the blocks after the last entry as absent.
    pub(crate) fn finish(&mut self, blocks: usize) {
        if !self.ends.is_empty() {
            self.ends.resize(blocks, self.bytes.len());
        }
    }
}
