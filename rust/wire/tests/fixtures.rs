//! Messages captured from real engines. The expected numbers were counted by another msgpack implementation.

mod common;

use common::{FILES, SGLANG, VLLM_ARRAY, VLLM_BYTES, VLLM_DUPLICATES, VLLM_INT, payloads};
use turnout_wire::{Batch, Event, LoadStat, Medium, decode_batch, decode_load};

#[derive(Debug, Default, PartialEq, Eq)]
struct Count {
    batches: u32,
    stored: u32,
    stored_hashes: usize,
    parents: usize,
    tokens: usize,
    token_sum: u64,
    extra_keys: usize,
    removed: u32,
    removed_hashes: usize,
    cleared: u32,
    /// All hashes of stores and removals, xor.
    hashes: u64,
}

fn batches(file: &str) -> Vec<Batch> {
    payloads(file, "kv").iter().map(|payload| decode_batch(payload).expect(file)).collect()
}

fn count(file: &str) -> Count {
    let mut count = Count::default();
    for batch in batches(file) {
        count.batches += 1;
        assert_eq!((batch.rank, batch.ignored), (Some(0), 0));
        assert!(batch.timestamp_s > 1.7e9);
        for event in &batch.events {
            match event {
                Event::Stored(stored) => {
                    count.stored += 1;
                    count.stored_hashes += stored.hashes.len();
                    count.parents += usize::from(stored.parent.is_some());
                    count.tokens += stored.tokens.len();
                    count.token_sum += stored.tokens.iter().map(|&token| u64::from(token)).sum::<u64>();
                    count.hashes ^= stored.hashes.iter().fold(0, |all, hash| all ^ hash);
                    count.extra_keys += stored.blocks().expect("tokens are told").filter(|block| block.extra_key.is_some()).count();
                    assert_eq!(stored.medium, Medium::Device);
                }
                Event::Removed(removed) => {
                    count.removed += 1;
                    count.removed_hashes += removed.hashes.len();
                    count.hashes ^= removed.hashes.iter().fold(0, |all, hash| all ^ hash);
                    assert_eq!(removed.medium, Medium::Device);
                }
                Event::Cleared => count.cleared += 1,
            }
        }
    }
    count
}

#[test]
fn vllm_with_integer_hashes() {
    let expected = Count {
        batches: 82,
        stored: 102,
        stored_hashes: 222,
        parents: 88,
        tokens: 7_104,
        token_sum: 565_508,
        extra_keys: 1,
        removed: 158,
        removed_hashes: 158,
        cleared: 3,
        hashes: 0xf811_17cd_7785_5e84,
    };
    assert_eq!(count(VLLM_INT), expected);
    assert_eq!(count(VLLM_ARRAY), expected);
}

#[test]
fn vllm_with_hashes_in_bytes() {
    let expected = Count {
        batches: 80,
        stored: 100,
        stored_hashes: 220,
        parents: 87,
        tokens: 7_040,
        token_sum: 558_810,
        removed: 158,
        removed_hashes: 158,
        hashes: 0xbad0_1969_c3b1_886c,
        ..Count::default()
    };
    assert_eq!(count(VLLM_BYTES), expected);
}

#[test]
fn vllm_with_blocks_that_are_held_several_times() {
    let expected = Count {
        batches: 148,
        stored: 92,
        stored_hashes: 264,
        parents: 79,
        tokens: 8_448,
        token_sum: 146_880,
        removed: 202,
        removed_hashes: 202,
        hashes: 0x3d3a_60bb_6621_1a36,
        ..Count::default()
    };
    assert_eq!(count(VLLM_DUPLICATES), expected);
}

#[test]
fn sglang_with_signed_hashes() {
    let expected = Count {
        batches: 18,
        stored: 23,
        stored_hashes: 310,
        parents: 13,
        tokens: 4_960,
        token_sum: 443_418,
        removed: 9,
        removed_hashes: 192,
        cleared: 1,
        hashes: 0xc739_5c2f_a3bc_e64a,
        ..Count::default()
    };
    assert_eq!(count(SGLANG), expected);
}

#[test]
fn both_forms_say_the_same() {
    assert_eq!(batches(VLLM_INT), batches(VLLM_ARRAY));
}

#[test]
fn all_fields_of_a_store() {
    let salted = batches(VLLM_INT).into_iter().flat_map(|batch| batch.events).find_map(|event| match event {
        Event::Stored(stored) if !stored.extra_keys.is_empty() => Some(stored),
        _ => None,
    });
    let salted = salted.expect("one request had a salt");
    assert_eq!((salted.hashes.as_slice(), salted.parent, salted.block_tokens), (&[13_127_602_606_709_053_965][..], None, 32));
    assert_eq!((salted.group, salted.spec_kind.as_deref(), salted.sliding_window_tokens), (Some(0), Some("full_attention"), None));
    assert_eq!((&salted.lora_name, salted.lora_id, &salted.cache_salt, salted.bigrams), (&None, None, &None, false));
    assert_eq!(salted.extra_keys.get(0), Some(&b"\x91\xa4runA"[..]));
    assert_eq!(salted.extra_keys.get(1), None);
}

#[test]
fn loads() {
    let loads: Vec<_> = payloads(SGLANG, "load").iter().map(|payload| decode_load(payload).expect("a load")).collect();
    assert_eq!(loads.len(), 88);
    let idle = LoadStat { kv_capacity_tokens: 2_048, rank: Some(0), running_requests_limit: 1_024, ..LoadStat::default() };
    assert_eq!(loads[0], idle);
    let busy = LoadStat {
        running_requests: 3,
        waiting_requests: 5,
        kv_tokens: 960,
        waiting_uncached_tokens: 1_025,
        total_tokens: 2_460,
        prefilled_uncached_tokens: 1_244,
        prefill_busy_us: 76_489,
        ..idle
    };
    assert!(loads.contains(&busy));
    let sum = |field: fn(&LoadStat) -> u64| loads.iter().map(field).sum::<u64>();
    assert_eq!((sum(|load| load.running_requests), sum(|load| load.waiting_requests), sum(|load| load.kv_tokens)), (125, 110, 56_960));
    assert_eq!((sum(|load| load.waiting_uncached_tokens), sum(|load| load.total_tokens)), (23_339, 89_960));
    assert_eq!((sum(|load| load.prefilled_uncached_tokens), sum(|load| load.prefill_busy_us)), (143_361, 6_445_185));
}

#[test]
fn every_cut_is_refused_and_so_is_a_byte_too_many() {
    for file in FILES {
        for mut payload in payloads(file, "kv") {
            for bytes in 0..payload.len() {
                assert!(decode_batch(&payload[..bytes]).is_err());
            }
            payload.push(0xc0);
            let error = decode_batch(&payload).expect_err("a byte too many").to_string();
            assert_eq!(error, format!("batch (byte {}): 1 bytes follow the message", payload.len() - 1));
        }
    }
    for mut payload in payloads(SGLANG, "load") {
        (0..payload.len()).for_each(|bytes| assert!(decode_load(&payload[..bytes]).is_err()));
        payload.push(0xc0);
        assert!(decode_load(&payload).is_err());
    }
}
