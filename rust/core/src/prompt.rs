//! What a prompt is to the core: fingerprints of its full blocks and the raw ids of its partial last block.
//!
//! Hashing needs no state of the router, so callers do it outside the router's lock and may reuse the result.

use crate::arch::Kernel;
use crate::error::{Error, Result};
use crate::record::codec::{Damaged, Reader, Record, Taken, record};

/// Largest accepted block size, in tokens.
pub const MAX_BLOCK_TOKENS: u32 = 4096;

/// Blocks that are hashed per call of the kernel: the zeros that make room for their fingerprints are still in the first-level cache
/// when they are overwritten.
const PIECE: usize = 256;

/// Secret that keys the fingerprints, so that nobody can build colliding prompts at will. One per installation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct HashKey(pub [u8; 16]);

impl std::fmt::Debug for HashKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HashKey(secret)")
    }
}

/// Turns tokens into block fingerprints under one key and one block size.
#[derive(Debug, Clone)]
pub struct BlockHasher {
    secret: HashKey,
    key: Box<[u32]>,
    kernel: Kernel,
}

impl BlockHasher {
    /// Makes a hasher that runs on the fastest kernel of this machine.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `1 <= block_tokens <= 4096`.
    pub fn new(key: &HashKey, block_tokens: u32) -> Result<Self> {
        Self::with_kernel(key, block_tokens, Kernel::detect())
    }

    /// [`new`](Self::new) with a chosen kernel. Every kernel gives the same fingerprints.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `1 <= block_tokens <= 4096`.
    #[allow(clippy::missing_panics_doc, reason = "8 bytes are 8 bytes")]
    pub fn with_kernel(secret: &HashKey, block_tokens: u32, kernel: Kernel) -> Result<Self> {
        if block_tokens == 0 || block_tokens > MAX_BLOCK_TOKENS {
            return Err(Error::InvalidArgument { argument: "block_tokens", value: block_tokens.to_string(), accepted: "1 to 4096" });
        }
        let (low, high) = secret.0.split_at(8);
        let mut state = u64::from_le_bytes(low.try_into().expect("8 bytes"));
        let stride = u64::from_le_bytes(high.try_into().expect("8 bytes")) | 1;
        let key = (0..block_tokens)
            .map(|_| {
                state = state.wrapping_add(stride);
                (mix64(state) >> 32) as u32
            })
            .collect();
        Ok(Self { secret: *secret, key, kernel })
    }

    /// What new tokens make of a partial block before them.
    pub(crate) fn continued(&self, tail: &[u32], tokens: &[u32]) -> Prompt {
        let mut prompt = Prompt { block_tokens: self.block_tokens(), fingerprints: Vec::new(), tail: tail.to_vec() };
        prompt.extend(self, tokens);
        prompt
    }

    /// The secret key.
    #[must_use]
    pub fn key(&self) -> &HashKey {
        &self.secret
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.key.len() as u32
    }

    /// Name of the instruction set it hashes with.
    #[must_use]
    pub fn kernel_name(&self) -> &'static str {
        self.kernel.name()
    }

    /// Fingerprint of one full block.
    ///
    /// # Panics
    /// Unless `block` has [`block_tokens`](Self::block_tokens) tokens.
    #[must_use]
    pub fn fingerprint(&self, block: &[u32]) -> u64 {
        let mut fingerprint = 0;
        self.kernel.blocks(block, &self.key, std::slice::from_mut(&mut fingerprint));
        fingerprint
    }

    /// Appends the fingerprints of the full blocks of `tokens` to `out` and answers the tokens after the last full block.
    /// Allocates only when `out` has to grow.
    pub fn hash_into<'tokens>(&self, tokens: &'tokens [u32], out: &mut Vec<u64>) -> &'tokens [u32] {
        let (full, rest) = tokens.split_at(tokens.len() / self.key.len() * self.key.len());
        out.reserve(full.len() / self.key.len());
        for piece in full.chunks(PIECE * self.key.len()) {
            let done = out.len();
            out.resize(done + piece.len() / self.key.len(), 0);
            self.kernel.blocks(piece, &self.key, &mut out[done..]);
        }
        rest
    }

    /// [`hash_into`](Self::hash_into) of tokens that follow a partial block; what follows the last full block becomes the new `tail`.
    pub(crate) fn hash_after(&self, tail: &mut Vec<u32>, mut tokens: &[u32], out: &mut Vec<u64>) {
        let block = self.key.len();
        if !tail.is_empty() {
            let (first, rest) = tokens.split_at(tokens.len().min(block - tail.len()));
            tail.extend_from_slice(first);
            if tail.len() < block {
                return;
            }
            out.push(self.fingerprint(tail));
            tail.clear();
            tokens = rest;
        }
        tail.extend_from_slice(self.hash_into(tokens, out));
    }

    /// Hashes a whole prompt.
    #[must_use]
    pub fn prompt(&self, tokens: &[u32]) -> Prompt {
        let mut prompt =
            Prompt { block_tokens: self.block_tokens(), fingerprints: Vec::with_capacity(tokens.len() / self.key.len()), tail: Vec::new() };
        prompt.extend(self, tokens);
        prompt
    }
}

/// Fingerprints of the full blocks of a token sequence, and the ids of its partial last block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    block_tokens: u32,
    fingerprints: Vec<u64>,
    tail: Vec<u32>,
}

impl Prompt {
    /// Appends tokens.
    ///
    /// # Panics
    /// When `hasher` has another block size than the one this prompt was made with.
    pub fn extend(&mut self, hasher: &BlockHasher, tokens: &[u32]) {
        assert_eq!(self.block_tokens, hasher.block_tokens(), "one prompt, one block size");
        hasher.hash_after(&mut self.tail, tokens, &mut self.fingerprints);
    }

    /// A prompt from parts that were hashed elsewhere with the same key.
    ///
    /// # Errors
    /// [`Error::InvalidTokens`] when the tail holds a full block or more.
    pub fn from_parts(block_tokens: u32, fingerprints: Vec<u64>, tail: Vec<u32>) -> Result<Self> {
        if tail.len() >= block_tokens as usize {
            return Err(Error::InvalidTokens {
                argument: "tail",
                problem: format!("{} tokens, fewer than one block ({block_tokens}) are accepted", tail.len()),
            });
        }
        Ok(Self { block_tokens, fingerprints, tail })
    }

    /// Length in tokens.
    #[must_use]
    pub fn tokens(&self) -> u64 {
        self.fingerprints.len() as u64 * u64::from(self.block_tokens) + self.tail.len() as u64
    }

    /// Tokens per block.
    #[must_use]
    pub fn block_tokens(&self) -> u32 {
        self.block_tokens
    }

    /// Fingerprints of the full blocks, first block first.
    #[must_use]
    pub fn fingerprints(&self) -> &[u64] {
        &self.fingerprints
    }

    /// Raw ids of the partial last block (fewer than one block).
    #[must_use]
    pub fn tail(&self) -> &[u32] {
        &self.tail
    }
}

/// Stafford's variant 13 of the 64-bit finaliser (the one of `SplitMix64`).
#[must_use]
pub(crate) fn mix64(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The kernel is that of the machine that reads it.
impl Record for BlockHasher {
    fn put(&self, to: &mut Vec<u8>) {
        self.secret.put(to);
        self.block_tokens().put(to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        let (key, block_tokens) = (Record::take(from)?, Record::take(from)?);
        Self::new(&key, block_tokens).map_err(|_| Damaged("a block size is out of range"))
    }
}

record!(tuple HashKey);
record!(Prompt { block_tokens, fingerprints, tail });
