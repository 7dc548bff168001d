//! The fingerprint kernel for SSE2, which every `x86_64` has: four words per vector.

use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_add_epi64, _mm_loadu_si128, _mm_mul_epu32, _mm_setzero_si128, _mm_srli_epi64, _mm_storeu_si128, _mm_unpackhi_epi64,
    _mm_unpacklo_epi64,
};

use super::{Kernel, portable};

/// Words per vector.
const LANES: usize = 4;
/// Blocks that are summed side by side, so that one store writes all their fingerprints.
const SIDE: usize = 2;

pub(super) fn kernel() -> Option<Kernel> {
    std::arch::is_x86_feature_detected!("sse2").then_some(Kernel { name: "sse2", run })
}

/// For [`kernel`], and for wider kernels to hand down blocks too small for them: a CPU that has those has SSE2.
pub(super) fn run(tokens: &[u32], key: &[u32], out: &mut [u64]) {
    if key.len() < LANES {
        return portable::blocks(tokens, key, out);
    }
    // SAFETY: whoever calls this got it from `kernel`, which has found SSE2, or has found a wider set that contains it.
    unsafe { blocks(tokens, key, out) }
}

#[target_feature(enable = "sse2")]
fn blocks(tokens: &[u32], key: &[u32], out: &mut [u64]) {
    match key.as_chunks() {
        ([a], []) => fixed(tokens, [load(a)], out),
        ([a, b], []) => fixed(tokens, [load(a), load(b)], out),
        ([a, b, c, d], []) => fixed(tokens, [load(a), load(b), load(c), load(d)], out),
        _ => any(tokens, key, out),
    }
}

/// Blocks of `VECTORS` whole vectors: their key stays in registers.
#[inline]
#[target_feature(enable = "sse2")]
fn fixed<const VECTORS: usize>(tokens: &[u32], key: [__m128i; VECTORS], out: &mut [u64]) {
    let (twos, rest) = tokens.as_chunks().0.as_chunks::<VECTORS>().0.as_chunks::<SIDE>();
    let (out_twos, out_rest) = out.as_chunks_mut::<SIDE>();
    for (out, [a, b]) in out_twos.iter_mut().zip(twos) {
        store(out, across([vertical(a, key), vertical(b, key)]));
    }
    for (out, block) in out_rest.iter_mut().zip(rest) {
        *out = lanes(vertical(block, key));
    }
}

/// NH of one block, spread over two lanes.
#[inline]
#[target_feature(enable = "sse2")]
fn vertical<const VECTORS: usize>(block: &[[u32; LANES]; VECTORS], key: [__m128i; VECTORS]) -> __m128i {
    let mut sum = _mm_setzero_si128();
    for at in 0..VECTORS {
        sum = _mm_add_epi64(sum, products(load(&block[at]), key[at]));
    }
    sum
}

/// Blocks of any size.
#[inline]
#[target_feature(enable = "sse2")]
fn any(tokens: &[u32], key: &[u32], out: &mut [u64]) {
    let words = key.len();
    let whole = words / LANES * LANES;
    let (out_twos, out_rest) = out.as_chunks_mut::<SIDE>();
    let (twos, rest) = tokens.split_at(out_twos.len() * SIDE * words);
    for (out, two) in out_twos.iter_mut().zip(twos.chunks_exact(SIDE * words)) {
        let (a, b) = two.split_at(words);
        store(out, across(side_by_side([a, b], key)));
        portable::add_rest(whole, two, key, out);
    }
    for (out, block) in out_rest.iter_mut().zip(rest.chunks_exact(words)) {
        let [sum] = side_by_side([block], key);
        *out = lanes(sum);
        portable::add_rest(whole, block, key, std::slice::from_mut(out));
    }
}

/// NH of the whole vectors of some blocks, each spread over two lanes. A vector of the key is read once for all of them.
#[inline]
#[target_feature(enable = "sse2")]
fn side_by_side<const N: usize>(blocks: [&[u32]; N], key: &[u32]) -> [__m128i; N] {
    let mut sums = [_mm_setzero_si128(); N];
    let mut vectors = [[].as_slice(); N];
    let (key, _) = key.as_chunks::<LANES>();
    for at in 0..N {
        vectors[at] = &blocks[at].as_chunks::<LANES>().0[..key.len()];
    }
    for (at, key) in key.iter().enumerate() {
        let key = load(key);
        for (sum, vectors) in sums.iter_mut().zip(vectors) {
            *sum = _mm_add_epi64(*sum, products(load(&vectors[at]), key));
        }
    }
    sums
}

/// `(a + ka) * (b + kb)` of the two word pairs.
#[inline]
#[target_feature(enable = "sse2")]
fn products(words: __m128i, key: __m128i) -> __m128i {
    let keyed = _mm_add_epi32(words, key);
    _mm_mul_epu32(keyed, _mm_srli_epi64::<32>(keyed))
}

/// The sums across two vectors: a transposition that adds on its way.
#[inline]
#[target_feature(enable = "sse2")]
fn across([a, b]: [__m128i; SIDE]) -> __m128i {
    _mm_add_epi64(_mm_unpacklo_epi64(a, b), _mm_unpackhi_epi64(a, b))
}

/// The sum across one vector.
#[inline]
#[target_feature(enable = "sse2")]
fn lanes(sum: __m128i) -> u64 {
    let mut lanes = [0u64; SIDE];
    store(&mut lanes, sum);
    lanes[0].wrapping_add(lanes[1])
}

#[inline]
#[target_feature(enable = "sse2")]
fn load(words: &[u32; LANES]) -> __m128i {
    // SAFETY: the array has the 16 bytes that are read, and the load needs no alignment.
    unsafe { _mm_loadu_si128(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn store(out: &mut [u64; SIDE], sums: __m128i) {
    // SAFETY: the array has the 16 bytes that are written, and the store needs no alignment.
    unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), sums) }
}
