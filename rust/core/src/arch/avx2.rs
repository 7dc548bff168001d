//! The fingerprint kernel for AVX2: eight words per vector.

use std::arch::x86_64::{
    __m256i, _mm256_add_epi32, _mm256_add_epi64, _mm256_loadu_si256, _mm256_mul_epu32, _mm256_permute2x128_si256, _mm256_setzero_si256,
    _mm256_srli_epi64, _mm256_storeu_si256, _mm256_unpackhi_epi64, _mm256_unpacklo_epi64,
};

use super::{Kernel, portable, sse2};

/// Words per vector.
const LANES: usize = 8;
/// Blocks that are summed side by side, so that one store writes all their fingerprints.
const SIDE: usize = 4;

pub(super) fn kernel() -> Option<Kernel> {
    std::arch::is_x86_feature_detected!("avx2").then_some(Kernel { name: "avx2", run })
}

/// Private: only [`kernel`] hands it out.
fn run(tokens: &[u32], key: &[u32], out: &mut [u64]) {
    if key.len() < LANES {
        return sse2::run(tokens, key, out);
    }
    // SAFETY: whoever calls this got it from `kernel`, which has found AVX2.
    unsafe { blocks(tokens, key, out) }
}

#[target_feature(enable = "avx2")]
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
#[target_feature(enable = "avx2")]
fn fixed<const VECTORS: usize>(tokens: &[u32], key: [__m256i; VECTORS], out: &mut [u64]) {
    let (fours, rest) = tokens.as_chunks().0.as_chunks::<VECTORS>().0.as_chunks::<SIDE>();
    let (out_fours, out_rest) = out.as_chunks_mut::<SIDE>();
    for (out, [a, b, c, d]) in out_fours.iter_mut().zip(fours) {
        store(out, across([vertical(a, key), vertical(b, key), vertical(c, key), vertical(d, key)]));
    }
    for (out, block) in out_rest.iter_mut().zip(rest) {
        *out = lanes(vertical(block, key));
    }
}

/// NH of one block, spread over four lanes.
#[inline]
#[target_feature(enable = "avx2")]
fn vertical<const VECTORS: usize>(block: &[[u32; LANES]; VECTORS], key: [__m256i; VECTORS]) -> __m256i {
    let mut sum = _mm256_setzero_si256();
    for at in 0..VECTORS {
        sum = _mm256_add_epi64(sum, products(load(&block[at]), key[at]));
    }
    sum
}

/// Blocks of any size.
#[inline]
#[target_feature(enable = "avx2")]
fn any(tokens: &[u32], key: &[u32], out: &mut [u64]) {
    let words = key.len();
    let whole = words / LANES * LANES;
    let (out_fours, out_rest) = out.as_chunks_mut::<SIDE>();
    let (fours, rest) = tokens.split_at(out_fours.len() * SIDE * words);
    for (out, four) in out_fours.iter_mut().zip(fours.chunks_exact(SIDE * words)) {
        let (front, back) = four.split_at(2 * words);
        let ((a, b), (c, d)) = (front.split_at(words), back.split_at(words));
        store(out, across(side_by_side([a, b, c, d], key)));
        portable::add_rest(whole, four, key, out);
    }
    for (out, block) in out_rest.iter_mut().zip(rest.chunks_exact(words)) {
        let [sum] = side_by_side([block], key);
        *out = lanes(sum);
        portable::add_rest(whole, block, key, std::slice::from_mut(out));
    }
}

/// NH of the whole vectors of some blocks, each spread over four lanes. A vector of the key is read once for all of them.
#[inline]
#[target_feature(enable = "avx2")]
fn side_by_side<const N: usize>(blocks: [&[u32]; N], key: &[u32]) -> [__m256i; N] {
    let mut sums = [_mm256_setzero_si256(); N];
    let mut vectors = [[].as_slice(); N];
    let (key, _) = key.as_chunks::<LANES>();
    for at in 0..N {
        vectors[at] = &blocks[at].as_chunks::<LANES>().0[..key.len()];
    }
    for (at, key) in key.iter().enumerate() {
        let key = load(key);
        for (sum, vectors) in sums.iter_mut().zip(vectors) {
            *sum = _mm256_add_epi64(*sum, products(load(&vectors[at]), key));
        }
    }
    sums
}

/// `(a + ka) * (b + kb)` of the four word pairs.
#[inline]
#[target_feature(enable = "avx2")]
fn products(words: __m256i, key: __m256i) -> __m256i {
    let keyed = _mm256_add_epi32(words, key);
    _mm256_mul_epu32(keyed, _mm256_srli_epi64::<32>(keyed))
}

/// The sums across four vectors: a transposition that adds on its way.
#[inline]
#[target_feature(enable = "avx2")]
fn across([a, b, c, d]: [__m256i; SIDE]) -> __m256i {
    let ab = _mm256_add_epi64(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b));
    let cd = _mm256_add_epi64(_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d));
    _mm256_add_epi64(_mm256_permute2x128_si256::<0x20>(ab, cd), _mm256_permute2x128_si256::<0x31>(ab, cd))
}

/// The sum across one vector.
#[inline]
#[target_feature(enable = "avx2")]
fn lanes(sum: __m256i) -> u64 {
    let mut lanes = [0; SIDE];
    store(&mut lanes, sum);
    lanes.iter().fold(0, |sum: u64, lane| sum.wrapping_add(*lane))
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(words: &[u32; LANES]) -> __m256i {
    // SAFETY: the array has the 32 bytes that are read, and the load needs no alignment.
    unsafe { _mm256_loadu_si256(words.as_ptr().cast()) }
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(out: &mut [u64; SIDE], sums: __m256i) {
    // SAFETY: the array has the 32 bytes that are written, and the store needs no alignment.
    unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), sums) }
}
