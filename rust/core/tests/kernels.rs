//! Every fingerprint kernel against the definition of NH, and prompts against the way their tokens arrive.

use proptest::collection::vec;
use proptest::prelude::*;
use turnout_core::arch::{Kernel, portable};
use turnout_core::prompt::{BlockHasher, HashKey, Prompt};

/// NH as the paper writes it, in numbers wide enough never to overflow, reduced at the end.
fn definition(block: &[u32], key: &[u32]) -> u64 {
    let keyed: Vec<u128> = block.iter().zip(key).map(|(&word, &key)| (u128::from(word) + u128::from(key)) % (1 << 32)).collect();
    let sum: u128 = keyed
        .chunks(2)
        .map(|pair| match pair {
            [a, b] => a * b,
            [a] => a * 0x9E37_79B9_7F4A_7C15,
            _ => unreachable!(),
        })
        .sum();
    (sum % (1 << 64)) as u64
}

/// Words at the ends of the range, where carries are lost or products overflow a signed lane, and words between.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![Just(0), Just(1), Just(u32::MAX), Just(1 << 31), any::<u32>(), any::<u32>()]
}

fn block_tokens() -> impl Strategy<Value = usize> {
    prop_oneof![20 => 1usize..=70, 4 => Just(16), 2 => Just(128), 1 => Just(4096)]
}

/// A key, the place where the tokens start in memory, and the tokens of some blocks after as many words as that.
fn blocks() -> impl Strategy<Value = (Vec<u32>, usize, Vec<u32>)> {
    (block_tokens(), 0usize..9, 0usize..11).prop_flat_map(|(size, offset, blocks)| {
        let key = prop_oneof![1 => Just(vec![0; size]), 1 => Just(vec![u32::MAX; size]), 6 => vec(word(), size)];
        let filled = offset + size * blocks;
        let words = prop_oneof![1 => Just(vec![0; filled]), 1 => Just(vec![u32::MAX; filled]), 6 => vec(word(), filled)];
        (key, Just(offset), words)
    })
}

fn hashers(key: [u8; 16], block_tokens: u32) -> Vec<BlockHasher> {
    Kernel::all().into_iter().map(|kernel| BlockHasher::with_kernel(&HashKey(key), block_tokens, kernel).expect("a valid size")).collect()
}

proptest! {
    #[test]
    fn every_kernel_is_the_definition((key, offset, words) in blocks()) {
        let tokens = &words[offset..];
        let expected: Vec<u64> = tokens.chunks(key.len()).map(|block| definition(block, &key)).collect();
        for kernel in Kernel::all() {
            // What stood in the memory before must not matter, nor may a kernel write past its blocks.
            let mut out = vec![0xDEAD_BEEF_DEAD_BEEF; 1 + expected.len() + 4];
            let before = out.clone();
            kernel.blocks(tokens, &key, &mut out[1..=expected.len()]);
            prop_assert_eq!(&out[1..=expected.len()], &expected, "{}", kernel.name());
            prop_assert_eq!(out[0], before[0], "{}", kernel.name());
            prop_assert_eq!(&out[1 + expected.len()..], &before[1 + expected.len()..], "{}", kernel.name());
        }
        for (block, &fingerprint) in tokens.chunks(key.len()).zip(&expected) {
            prop_assert_eq!(portable::nh(block, &key), fingerprint);
        }
    }

    #[test]
    fn a_prompt_is_the_same_however_its_tokens_arrive(
        key in any::<[u8; 16]>(),
        block_tokens in 1u32..=70,
        tokens in vec(word(), 0..600),
        cuts in vec(any::<prop::sample::Index>(), 0..8),
    ) {
        let hashers = hashers(key, block_tokens);
        let whole = hashers[0].prompt(&tokens);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(tokens.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(tokens.len());
        for (at, hasher) in hashers.iter().enumerate() {
            prop_assert_eq!(&hasher.prompt(&tokens), &whole, "{}", hasher.kernel_name());
            let (mut parts, mut from) = (hasher.prompt(&[]), 0);
            for (turn, &to) in cuts.iter().enumerate() {
                // Kernels may change between turns: a prompt moves between machines.
                parts.extend(&hashers[(at + turn) % hashers.len()], &tokens[from..to]);
                from = to;
            }
            prop_assert_eq!(&parts, &whole, "{}", hasher.kernel_name());
        }
    }

    #[test]
    fn hashing_into_appends_and_leaves_the_rest(key in any::<[u8; 16]>(), block_tokens in 1u32..=70, tokens in vec(word(), 0..300)) {
        for hasher in hashers(key, block_tokens) {
            let mut out = vec![7];
            let rest = hasher.hash_into(&tokens, &mut out);
            prop_assert_eq!(out[0], 7);
            let parts = Prompt::from_parts(block_tokens, out[1..].to_vec(), rest.to_vec()).expect("less than a block is left");
            prop_assert_eq!(&parts, &hasher.prompt(&tokens));
            for (block, &fingerprint) in tokens.chunks_exact(block_tokens as usize).zip(&out[1..]) {
                prop_assert_eq!(hasher.fingerprint(block), fingerprint);
            }
        }
    }
}

/// Fingerprints are kept and sent: a value that changes is a break of both. These come from a second implementation, outside Rust.
#[test]
fn fingerprints_never_change() {
    let golden: [(u32, [u64; 5]); 6] = [
        (1, [0x8453_2825_B5B1_27B9, 0x4556_D411_8B59_DF3E, 0x065A_7FFD_6102_96C3, 0x46A8_A7FE_36AB_4E48, 0x07AC_53EA_0C54_05CD]),
        (5, [0x9F60_4F15_46A4_83AC, 0x6A34_4586_FBDB_8DDF, 0x0789_800A_A73A_6DF6, 0x6279_D331_48C1_23F1, 0x4508_06E4_E06F_AFD0]),
        (12, [0x1AB6_FEDB_CA0A_D556, 0x6CA0_A255_E66D_935E, 0x16EF_4564_58B3_E026, 0x8D19_8ACA_20DD_BBAE, 0x8368_577D_3EEB_25F6]),
        (16, [0x6FE8_64E6_67AF_ACD1, 0xE1F3_3ED2_48FC_44F1, 0x0361_3AB4_970E_ED11, 0x1439_3EA7_51E7_A531, 0x2074_1E08_7986_6D51]),
        (35, [0x81B7_C90B_35EC_0BB7, 0x1FC8_6EC8_6B97_2BDF, 0xA131_0235_9D11_C979, 0x70E2_6EAA_CA5B_E485, 0x54F7_C056_F375_7D03]),
        (64, [0x5E3F_28B4_CCB4_B727, 0x9913_608F_0042_8827, 0x9869_85DD_6554_5927, 0x0C74_3680_FBEA_2A27, 0x122B_3E8A_C403_FB27]),
    ];
    let key = std::array::from_fn(|at| at as u8);
    for (block_tokens, expected) in golden {
        let tokens: Vec<u32> = (0..5 * block_tokens).map(|at| at.wrapping_mul(2_654_435_761)).collect();
        for hasher in hashers(key, block_tokens) {
            assert_eq!(hasher.prompt(&tokens).fingerprints(), expected, "{}, blocks of {block_tokens}", hasher.kernel_name());
        }
    }
}

#[test]
fn the_detected_kernel_comes_first_and_the_portable_one_last() {
    let names: Vec<&str> = Kernel::all().iter().map(Kernel::name).collect();
    assert_eq!(names.first(), Some(&Kernel::detect().name()));
    assert_eq!(names.last(), Some(&"portable"));
    assert_eq!(BlockHasher::new(&HashKey([0; 16]), 16).expect("a valid size").kernel_name(), names[0]);
    if cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
        assert!(names.len() > 1, "both have a vector unit that needs no detection: {names:?}");
    }
}

#[test]
fn tokens_that_do_not_fill_the_blocks_are_refused() {
    for kernel in Kernel::all() {
        for (tokens, key, out) in [(31, 16, 2), (33, 16, 2), (16, 16, 0), (0, 16, 1), (4, 0, 1), (0, 0, 0)] {
            let refused = std::panic::catch_unwind(|| kernel.blocks(&vec![1; tokens], &vec![1; key], &mut vec![0; out]));
            assert!(refused.is_err(), "{}: {tokens} tokens, {out} blocks of {key}", kernel.name());
        }
    }
}
