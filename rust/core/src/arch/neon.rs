//! The fingerprint kernel for NEON: pairs are taken apart over eight words, so that a widening multiplication finds its factors.

use std::arch::aarch64::{
    uint32x4_t, uint64x2_t, vaddq_u32, vaddq_u64, vaddvq_u64, vdupq_n_u64, vget_low_u32, vld1q_u32, vmlal_high_u32, vmlal_u32, vpaddq_u64, vst1q_u64,
    vuzp1q_u32, vuzp2q_u32,
};

use super::{Kernel, portable};

/// Words per step: two vectors, the even words and the odd ones.
const STEP: usize = 8;
/// Blocks that are summed side by side, so that one store writes all their fingerprints.
const SIDE: usize = 2;

pub(super) fn kernel() -> Option<Kernel> {
    std::arch::is_aarch64_feature_detected!("neon").then_some(Kernel { name: "neon", run })
}

/// Private: only [`kernel`] hands it out.
fn run(tokens: &[u32], key: &[u32], out: &mut [u64]) {
    if key.len() < STEP {
        return portable::blocks(tokens, key, out);
    }
    // SAFETY: whoever calls this got it from `kernel`, which has found NEON.
    unsafe { blocks(tokens, key, out) }
}

#[target_feature(enable = "neon")]
fn blocks(tokens: &[u32], key: &[u32], out: &mut [u64]) {
    if let ([low, high], []) = key.as_chunks() {
        // The usual size: its key stays in four registers.
        let key = [load(low), load(high)];
        let (twos, rest) = tokens.as_chunks::<{ SIDE * 2 * STEP }>();
        let (out_twos, out_rest) = out.as_chunks_mut::<SIDE>();
        for (out, two) in out_twos.iter_mut().zip(twos) {
            let (blocks, _) = two.as_chunks();
            store(out, vpaddq_u64(sixteen(&blocks[0], key), sixteen(&blocks[1], key)));
        }
        for (out, block) in out_rest.iter_mut().zip(rest.as_chunks().0) {
            *out = vaddvq_u64(sixteen(block, key));
        }
        return;
    }
    let words = key.len();
    let whole = words / STEP * STEP;
    let (out_twos, out_rest) = out.as_chunks_mut::<SIDE>();
    let (twos, rest) = tokens.split_at(out_twos.len() * SIDE * words);
    for (out, two) in out_twos.iter_mut().zip(twos.chunks_exact(SIDE * words)) {
        let (a, b) = two.split_at(words);
        store(out, vpaddq_u64(vertical(a, key), vertical(b, key)));
        portable::add_rest(whole, two, key, out);
    }
    for (out, block) in out_rest.iter_mut().zip(rest.chunks_exact(words)) {
        *out = vaddvq_u64(vertical(block, key));
        portable::add_rest(whole, block, key, std::slice::from_mut(out));
    }
}

/// NH of one block of 16 words, spread over two lanes.
#[inline]
#[target_feature(enable = "neon")]
fn sixteen(block: &[u32; 2 * STEP], [low, high]: [[uint32x4_t; 2]; 2]) -> uint64x2_t {
    let (chunks, _) = block.as_chunks();
    let zero = vdupq_n_u64(0);
    vaddq_u64(add_products(zero, load(&chunks[0]), low), add_products(zero, load(&chunks[1]), high))
}

/// NH of the whole steps of one block, spread over two lanes.
#[inline]
#[target_feature(enable = "neon")]
fn vertical(block: &[u32], key: &[u32]) -> uint64x2_t {
    let mut sum = vdupq_n_u64(0);
    for (words, key) in block.as_chunks().0.iter().zip(key.as_chunks().0) {
        sum = add_products(sum, load(words), load(key));
    }
    sum
}

/// Adds `(a + ka) * (b + kb)` of the four word pairs.
#[inline]
#[target_feature(enable = "neon")]
fn add_products(sum: uint64x2_t, words: [uint32x4_t; 2], key: [uint32x4_t; 2]) -> uint64x2_t {
    let keyed = [vaddq_u32(words[0], key[0]), vaddq_u32(words[1], key[1])];
    let (even, odd) = (vuzp1q_u32(keyed[0], keyed[1]), vuzp2q_u32(keyed[0], keyed[1]));
    vmlal_high_u32(vmlal_u32(sum, vget_low_u32(even), vget_low_u32(odd)), even, odd)
}

#[inline]
#[target_feature(enable = "neon")]
fn load(words: &[u32; STEP]) -> [uint32x4_t; 2] {
    let words = words.as_ptr();
    // SAFETY: the array has the eight words that are read, four by each load.
    unsafe { [vld1q_u32(words), vld1q_u32(words.add(4))] }
}

#[inline]
#[target_feature(enable = "neon")]
fn store(out: &mut [u64; SIDE], sums: uint64x2_t) {
    // SAFETY: the array has the two words that are written.
    unsafe { vst1q_u64(out.as_mut_ptr(), sums) }
}
