//! What real engines published, replayed into the index: who holds what equals a plain reading of the events at every step.

use std::collections::BTreeMap;

use base64::Engine;
use turnout_core::index::Applied;
use turnout_core::prefix_index::{PrefixIndex, PrefixIndexConfig};
use turnout_wire::{DeviceEvents, Event, decode_batch};

/// Stored blocks by hash: copies, and namespace with all tokens up to the block's end.
type Cache = BTreeMap<u64, (u32, String, Vec<u32>)>;

fn payloads(name: &str) -> Vec<(u64, Vec<u8>)> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/wire/").to_owned() + name;
    let read = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let payload = base64::engine::general_purpose::STANDARD.decode(line["payload_b64"].as_str().unwrap()).unwrap();
        (line["sock"] != "load").then(|| (u64::from_str_radix(line["seq_be8"].as_str().unwrap(), 16).unwrap(), payload))
    };
    std::fs::read_to_string(path).unwrap().lines().filter_map(read).collect()
}

fn replay(name: &str, block_tokens: u32) -> (PrefixIndex, Cache) {
    let mut index = PrefixIndex::new(&PrefixIndexConfig { block_tokens, ..PrefixIndexConfig::default() }).unwrap();
    let replica = index.add_replica(1e6).unwrap();
    let mut cache = Cache::new();
    let mut seen: Vec<(String, Vec<u32>)> = Vec::new();
    for (sequence, payload) in payloads(name) {
        let batch = decode_batch(&payload).unwrap();
        let device = DeviceEvents::from(batch.clone());
        assert_eq!(device.left_out, 0);
        assert_eq!(index.apply(replica, 0, sequence, &device.events()).unwrap(), Applied::Done);
        assert_eq!(index.apply(replica, 0, sequence, &device.events()).unwrap(), Applied::Duplicate);
        for event in batch.events {
            match event {
                Event::Cleared => cache.clear(),
                Event::Removed(removed) => {
                    for hash in removed.hashes {
                        let entry = cache.get_mut(&hash).expect("engines remove what they stored");
                        entry.0 -= 1;
                        if entry.0 == 0 {
                            cache.remove(&hash);
                        }
                    }
                }
                Event::Stored(stored) => {
                    // One request of the captures has a salt: the only text among the extra keys of a first block.
                    let salted = stored.extra_keys.get(0).map_or("", |_| "runA");
                    let (namespace, mut path) =
                        stored.parent.map_or((salted.to_owned(), Vec::new()), |parent| (cache[&parent].1.clone(), cache[&parent].2.clone()));
                    for (hash, tokens) in stored.hashes.iter().zip(stored.tokens.chunks(stored.block_tokens as usize)) {
                        path.extend_from_slice(tokens);
                        cache.entry(*hash).or_insert_with(|| (0, namespace.clone(), path.clone())).0 += 1;
                    }
                    seen.push((namespace, path));
                }
            }
        }
        index.audit().unwrap();
        for (namespace, path) in &seen {
            let fingerprints = index.hasher().prompt(path).fingerprints().to_vec();
            let held = index.lookup(namespace, &fingerprints, 1).first().map_or(0, |found| found.blocks as usize * block_tokens as usize);
            let covered = |tokens: usize| {
                cache.values().any(|(_, other, stored)| other == namespace && stored.len() >= tokens && stored.starts_with(&path[..tokens]))
            };
            let expected =
                (1..=path.len() / block_tokens as usize).take_while(|blocks| covered(blocks * block_tokens as usize)).count() * block_tokens as usize;
            assert_eq!(held, expected, "{name}, batch {sequence}");
        }
    }
    (index, cache)
}

#[test]
fn vllm_blocks_of_32_in_an_index_of_16() {
    for name in ["vllm-0.33.0.sha256.int-hashes.jsonl", "vllm-0.33.0.sha256_cbor.bytes-hashes.jsonl", "vllm-le0.23.array-form.REENCODED.jsonl"] {
        let (index, cache) = replay(name, 16);
        let stats = index.stats();
        assert_eq!((stats.feed.unknown_parents, stats.feed.unknown_removed, stats.feed.other_sizes), (0, 0, 0), "{name}");
        assert!(!cache.is_empty() && stats.blocks > 0);
    }
}

#[test]
fn a_block_stored_four_times_is_gone_when_it_was_removed_four_times() {
    let (index, _) = replay("vllm-0.33.0.duplicate-blocks.jsonl", 32);
    assert_eq!((index.stats().feed.stored_blocks, index.stats().feed.removed_blocks), (264, 202));
}

#[test]
fn sglang_pages_of_16_in_any_index() {
    for block_tokens in [16, 8, 1] {
        replay("sglang-0.5.23.kv+load.jsonl", block_tokens);
    }
    // Smaller than the index block: two pages make a block, and the second stands for both.
    replay("sglang-0.5.23.kv+load.jsonl", 32);
    // Neither divides the other: the replica stays on own decisions, and that is counted.
    let mut index = PrefixIndex::new(&PrefixIndexConfig { block_tokens: 24, ..PrefixIndexConfig::default() }).unwrap();
    let replica = index.add_replica(1e6).unwrap();
    for (sequence, payload) in payloads("sglang-0.5.23.kv+load.jsonl") {
        index.apply(replica, 0, sequence, &DeviceEvents::from(decode_batch(&payload).unwrap()).events()).unwrap();
    }
    assert_eq!((index.stats().feed.other_sizes, index.stats().feed.stored_blocks), (23, 0));
}
