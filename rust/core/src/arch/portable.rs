//! The NH universal hash (Black et al., UMAC, 1999) on 32-bit words, in plain Rust.

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
