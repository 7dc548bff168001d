//! The NH universal hash (Black et al., UMAC, 1999) on 32-bit words, in plain Rust.

use super::Kernel;

pub(super) const KERNEL: Kernel = Kernel { name: "portable", run: blocks };

/// NH of one block: the sum over word pairs of `(a + ka) * (b + kb)`, additions modulo 2^32, the sum modulo 2^64.
///
/// `tokens` and `key` must have equal length; an odd last word is paired with its key alone. Two different blocks of
/// equal length collide with probability 2^-32 over the key.
#[must_use]
pub fn nh(tokens: &[u32], key: &[u32]) -> u64 {
    let (pairs, last) = tokens.as_chunks::<2>();
    let (key_pairs, key_last) = key.as_chunks::<2>();
    let mut sum = 0u64;
    for ([a, b], [ka, kb]) in pairs.iter().zip(key_pairs) {
        sum = sum.wrapping_add(u64::from(a.wrapping_add(*ka)) * u64::from(b.wrapping_add(*kb)));
    }
    if let ([a], [ka]) = (last, key_last) {
        // An odd-length block has no partner word. `a + ka` alone is already injective; spread it over 64 bits.
        sum = sum.wrapping_add(u64::from(a.wrapping_add(*ka)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    }
    sum
}

/// [`nh`] of every block.
#[inline]
pub(super) fn blocks(tokens: &[u32], key: &[u32], out: &mut [u64]) {
    match key.len() {
        // Sizes that matter and for which the compiler makes better code when it knows them. It makes worse code for 8.
        2 => fixed::<2>(tokens, key, out),
        16 => fixed::<16>(tokens, key, out),
        words => {
            for (out, block) in out.iter_mut().zip(tokens.chunks_exact(words)) {
                *out = nh(block, key);
            }
        }
    }
}

/// [`blocks`] for a block size known to the compiler.
#[inline]
fn fixed<const WORDS: usize>(tokens: &[u32], key: &[u32], out: &mut [u64]) {
    if let Some(key) = key.first_chunk::<WORDS>() {
        for (out, block) in out.iter_mut().zip(tokens.as_chunks::<WORDS>().0) {
            *out = nh(block, key);
        }
    }
}

/// Adds to every fingerprint what the words from `done` on contribute: the rest that fills no vector. `done` is even, so pairs stay pairs.
#[inline]
pub(super) fn add_rest(done: usize, tokens: &[u32], key: &[u32], out: &mut [u64]) {
    if done < key.len() {
        for (out, block) in out.iter_mut().zip(tokens.chunks_exact(key.len())) {
            *out = out.wrapping_add(nh(&block[done..], &key[done..]));
        }
    }
}
