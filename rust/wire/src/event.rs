//! What a payload says, independent of the engine and of the form it was sent in.

use crate::extra::ExtraKeys;

/// Name that an engine gives to a block: an opaque id. Ids of different kinds of engine are never comparable.
///
/// An integer is taken as its 64-bit pattern, signed or not. Of a digest in bytes the last 8 are taken, big-endian, as vLLM itself
/// does where it sends integers.
pub type Hash = u64;

/// All that an engine published in one message.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// Wall clock of the engine when it published, in seconds since 1970.
    pub timestamp_s: f64,
    /// Data-parallel rank of the publisher.
    pub rank: Option<i64>,
    /// The events, in order.
    pub events: Vec<Event>,
    /// Events of an unknown kind, which were skipped.
    pub ignored: u32,
}

/// One change of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Blocks are now in a cache.
    Stored(Box<Stored>),
    /// Blocks are no longer in a cache.
    Removed(Removed),
    /// All blocks of this publisher are gone.
    Cleared,
}

/// Blocks that are now in a cache, each the child of the one before it.
///
/// An engine may hold a block several times, and then says so several times: count, do not set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// The blocks.
    pub hashes: Vec<Hash>,
    /// The block before the first; `None` at the start of a sequence.
    pub parent: Option<Hash>,
    /// Token ids of the blocks. Not always `hashes.len() * block_tokens` of them: read them through [`Stored::blocks`].
    pub tokens: Vec<u32>,
    /// Tokens per block; may be 0 where `tokens` is empty.
    pub block_tokens: u32,
    /// Whether `token_ids` were pairs of a token and its successor, as `SGLang` sends them where a draft model reads along. `tokens`
    /// are then the first of each pair; what the block holds depends on one token more.
    pub bigrams: bool,
    /// Where the blocks are.
    pub medium: Medium,
    /// Group of layers that the blocks belong to; hybrid models send one event per group, with the same hashes.
    pub group: Option<u32>,
    /// Kind of attention of that group, such as `full_attention`.
    pub spec_kind: Option<String>,
    /// Attention window of that group, in tokens.
    pub sliding_window_tokens: Option<u32>,
    /// Name of the adapter.
    pub lora_name: Option<String>,
    /// Number of the adapter, from engines that do not send its name.
    pub lora_id: Option<i64>,
    /// Salt of the request, from engines that do not put it into `extra_keys`.
    pub cache_salt: Option<String>,
    /// What beside the tokens decides whether a block can be reused, per block.
    pub extra_keys: ExtraKeys,
}

/// One block of a [`Stored`] event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block<'a> {
    /// The block.
    pub hash: Hash,
    /// The block before it.
    pub parent: Option<Hash>,
    /// Its token ids, `block_tokens` of them.
    pub tokens: &'a [u32],
    /// Its extra keys; see [`ExtraKeys::get`].
    pub extra_key: Option<&'a [u8]>,
}

impl Stored {
    /// The blocks with their tokens, or `None` where the event does not tell which tokens belong to which block. That is so for two
    /// events of vLLM: an offloading connector sends no tokens at all, and a group with a sliding window leaves out the hashes of
    /// the blocks that are outside the window, but not their tokens.
    #[must_use]
    pub fn blocks(&self) -> Option<impl Iterator<Item = Block<'_>>> {
        let block_tokens = self.block_tokens as usize;
        let told = block_tokens > 0 && self.hashes.len().checked_mul(block_tokens) == Some(self.tokens.len());
        told.then(|| {
            let parents = std::iter::once(self.parent).chain(self.hashes.iter().copied().map(Some));
            let tokens = self.tokens.chunks_exact(block_tokens);
            self.hashes.iter().zip(parents).zip(tokens).enumerate().map(|(at, ((&hash, parent), tokens))| Block {
                hash,
                parent,
                tokens,
                extra_key: self.extra_keys.get(at),
            })
        })
    }
}

/// Blocks that are no longer in a cache.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// The blocks.
    pub hashes: Vec<Hash>,
    /// Where they were.
    pub medium: Medium,
    /// Group of layers that they belonged to.
    pub group: Option<u32>,
}

/// Where blocks are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub enum Medium {
    /// In the memory of the accelerator: `GPU` on the wire, or nothing.
    #[default]
    Device,
    /// Elsewhere, by the name on the wire: `CPU`, `CPU_PINNED`, `STORAGE`, `DISK`, `EXTERNAL` and what else comes.
    Other(String),
}
