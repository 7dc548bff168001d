//! A hasher for the simulation's own names and numbers: nobody attacks them, and every run hashes alike.

use std::hash::{BuildHasherDefault, Hasher};

/// State of maps keyed by names and numbers that the simulation made.
pub(crate) type Mixed = BuildHasherDefault<Multiply>;

#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Multiply(u64);

impl Hasher for Multiply {
    fn finish(&self) -> u64 {
        // Tables take the low bits, the product has its best ones on top.
        self.0.rotate_left(26)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, value: u8) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = (self.0.rotate_left(5) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    }
}
