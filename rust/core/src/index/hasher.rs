//! A seeded hasher for the index's own keys, whose parts are ids and keyed fingerprints.

use std::hash::{BuildHasher, Hasher};

use crate::prompt::mix64;

/// Builds [`MixHasher`]s with one seed.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct MixState(pub(crate) u64);

impl BuildHasher for MixState {
    type Hasher = MixHasher;

    fn build_hasher(&self) -> MixHasher {
        MixHasher(self.0)
    }
}

/// Mixes 64-bit words. Fingerprints are keyed already, so an attacker cannot choose the words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MixHasher(u64);

impl Hasher for MixHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = mix64(self.0.rotate_left(23) ^ word);
    }
}

/// `SipHash` with a seed, for strings that callers choose.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TextState(pub(crate) u64);

impl BuildHasher for TextState {
    type Hasher = std::hash::DefaultHasher;

    fn build_hasher(&self) -> Self::Hasher {
        let mut hasher = std::hash::DefaultHasher::new();
        hasher.write_u64(self.0);
        hasher
    }
}
