//! What the encoder writes is what the decoder reads, and has the fields of the captured messages.

mod common;

use turnout_core::index::CacheEvent;
use turnout_wire::{Batch, DeviceEvents, Dialect, Event, LoadStat, decode_batch, decode_load, encode_batch, encode_load};

const HASHES: [u64; 2] = [7, u64::MAX - 3];

fn events() -> Vec<CacheEvent<'static>> {
    let stored = |parent, tokens| CacheEvent::Stored {
        namespace: "",
        hashes: &HASHES,
        parent,
        tokens,
        block_tokens: 2,
        group: 0,
        whole_context: true,
        extra: &[],
    };
    vec![
        stored(None, &[1, 2, 3, u32::MAX]),
        stored(Some(u64::MAX), &[300, 70_000, 0, 127]),
        CacheEvent::Removed { hashes: &HASHES, group: 0 },
        CacheEvent::Cleared,
    ]
}

#[test]
fn both_forms_are_read_back() {
    for dialect in [Dialect::Vllm, Dialect::Sglang] {
        let batch = decode_batch(&encode_batch(12.5, &events(), 3, dialect)).unwrap();
        assert_eq!((batch.timestamp_s, batch.rank, batch.ignored), (12.5, Some(3), 0));
        let read = DeviceEvents::from(batch);
        assert_eq!((read.left_out, format!("{:?}", read.events())), (0, format!("{:?}", events())));
    }
}

/// A captured message that is read and written again has the same bytes, time and all.
#[test]
fn captured_messages_are_written_alike() {
    for (file, dialect) in [(common::VLLM_INT, Dialect::Vllm), (common::SGLANG, Dialect::Sglang)] {
        let mut alike = 0;
        for payload in common::payloads(file, "kv") {
            let batch: Batch = decode_batch(&payload).unwrap();
            let (time, rank) = (batch.timestamp_s, batch.rank.unwrap());
            let salted = batch.events.iter().any(|event| matches!(event, Event::Stored(stored) if !stored.extra_keys.is_empty()));
            let written = encode_batch(time, &DeviceEvents::from(batch).events(), rank, dialect);
            if !salted {
                assert_eq!(written, payload, "{file}");
                alike += 1;
            }
        }
        assert!(alike > 10, "{file}: {alike}");
    }
}

#[test]
fn load_reports_are_read_back_and_written_alike() {
    for payload in common::payloads(common::SGLANG, "load") {
        assert_eq!(encode_load(&decode_load(&payload).unwrap()), payload);
    }
    let load = LoadStat { running_requests: 300, kv_capacity_tokens: 1 << 40, prefill_busy_us: 7, rank: Some(0), ..LoadStat::default() };
    assert_eq!(decode_load(&encode_load(&load)).unwrap(), load);
}
