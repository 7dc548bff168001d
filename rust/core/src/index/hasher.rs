//! A seeded hasher for the index's own keys, whose parts are ids and keyed fingerprints.

use std::hash::{BuildHasher, Hasher};

use crate::prompt::mix64;
use crate::record::codec::record;

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

/// Builds [`TextHasher`]s with one seed, for strings that callers choose.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TextState(pub(crate) u64);

impl BuildHasher for TextState {
    type Hasher = TextHasher;

    fn build_hasher(&self) -> TextHasher {
        TextHasher { state: mix64(self.0), key: mix64(self.0 ^ KEY) | 1 }
    }
}

const KEY: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hashes short strings: each word is added to the state, multiplied by a key into 128 bits and folded. Who does not know the seed, which
/// comes from the secret key of the fingerprints, cannot choose strings that collide. A fifth of the instructions of `SipHash`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TextHasher {
    state: u64,
    key: u64,
}

impl Hasher for TextHasher {
    fn finish(&self) -> u64 {
        mix64(self.state)
    }

    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        // The length tells a word from the same one padded.
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.write_u64(u64::from_le_bytes(last) ^ (bytes.len() as u64) << 56);
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.key);
        self.state = (product as u64) ^ ((product >> 64) as u64) ^ self.key.rotate_left(17);
    }

    fn write_u8(&mut self, byte: u8) {
        // What ends a string: one addition tells it from what follows.
        self.state = self.state.wrapping_add(u64::from(byte));
    }
}

record!(tuple MixState);
record!(tuple TextState);

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::TextState;

    #[test]
    fn strings_that_differ_a_little_spread_over_the_table() {
        let state = TextState(7);
        let mut all = HashSet::new();
        let mut buckets = [0u32; 256];
        for n in 0..40_000u32 {
            for text in [format!("session-{n}"), format!("{n}"), "x".repeat(n as usize % 64) + &format!("\u{0}{n}")] {
                let hash = state.hash_one(&text);
                all.insert((text.clone(), hash));
                // Tables use the top and the low bits.
                buckets[(hash & 255) as usize] += 1;
            }
        }
        let hashes: HashSet<u64> = all.iter().map(|entry| entry.1).collect();
        assert_eq!(hashes.len(), all.len(), "no two of 120,000 strings collide in 64 bits");
        let expected = 120_000 / 256;
        assert!(buckets.iter().all(|&count| count > expected * 7 / 10 && count < expected * 13 / 10), "{buckets:?}");
        assert_ne!(state.hash_one("a"), TextState(8).hash_one("a"), "another seed, another table");
        assert_ne!(state.hash_one(("a", "b")), state.hash_one(("ab", "")), "what ends a string counts");
    }
}
