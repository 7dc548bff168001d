//! Payloads of real engines, of both forms, and hostile ones.

use base64::Engine;
use proptest::prelude::*;
use rmp::encode;
use turnout_wire::{Batch, Error, Event, LoadStat, Removed, Stored, decode_batch, decode_load};

struct Line {
    socket: String,
    sequence: u64,
    payload: Vec<u8>,
}

fn lines(name: &str) -> Vec<Line> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/wire/").to_owned() + name;
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let read = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        Line {
            socket: line["sock"].as_str().unwrap_or("kv").to_owned(),
            sequence: u64::from_str_radix(line["seq_be8"].as_str().unwrap(), 16).unwrap(),
            payload: base64::engine::general_purpose::STANDARD.decode(line["payload_b64"].as_str().unwrap()).unwrap(),
        }
    };
    text.lines().map(read).collect()
}

fn batches(name: &str) -> Vec<Batch> {
    lines(name).iter().filter(|line| line.socket == "kv").map(|line| decode_batch(&line.payload).unwrap()).collect()
}

/// Stored events and hashes, removed events and hashes, and clears.
fn counts(batches: &[Batch]) -> (usize, usize, usize, usize, usize) {
    let events = || batches.iter().flat_map(|batch| &batch.events);
    let stored: Vec<usize> = events().filter_map(|event| if let Event::Stored(stored) = event { Some(stored.hashes.len()) } else { None }).collect();
    let removed: Vec<usize> =
        events().filter_map(|event| if let Event::Removed(removed) = event { Some(removed.hashes.len()) } else { None }).collect();
    let cleared = events().filter(|event| **event == Event::Cleared).count();
    assert_eq!(batches.iter().map(|batch| batch.ignored).sum::<u32>(), 0);
    (stored.len(), stored.iter().sum(), removed.len(), removed.iter().sum(), cleared)
}

#[test]
fn every_captured_message_is_read() {
    assert_eq!(counts(&batches("vllm-0.33.0.sha256.int-hashes.jsonl")), (102, 222, 158, 158, 3));
    assert_eq!(counts(&batches("vllm-0.33.0.sha256_cbor.bytes-hashes.jsonl")), (100, 220, 158, 158, 0));
    assert_eq!(counts(&batches("vllm-0.33.0.duplicate-blocks.jsonl")), (92, 264, 202, 202, 0));
    assert_eq!(counts(&batches("sglang-0.5.23.kv+load.jsonl")), (23, 310, 9, 192, 1));
}

#[test]
fn both_forms_say_the_same() {
    let (maps, arrays) = (batches("vllm-0.33.0.sha256.int-hashes.jsonl"), batches("vllm-le0.23.array-form.REENCODED.jsonl"));
    assert_eq!(maps.len(), arrays.len());
    for (map, array) in maps.iter().zip(&arrays) {
        assert_eq!(map.events, array.events);
    }
    let sequences: Vec<u64> = lines("vllm-0.33.0.sha256.int-hashes.jsonl").iter().map(|line| line.sequence).collect();
    assert!(sequences.windows(2).all(|pair| pair[0] + 1 == pair[1]), "captured without a gap");
}

#[test]
fn fields_are_what_the_engines_sent() {
    let vllm = batches("vllm-0.33.0.sha256.int-hashes.jsonl");
    let Event::Stored(first) = vllm.iter().flat_map(|batch| &batch.events).find(|event| matches!(event, Event::Stored(_))).unwrap() else { panic!() };
    assert_eq!((first.hashes[0], first.parent, first.block_tokens), (12_473_590_524_380_491_476, None, 32));
    assert_eq!(
        (first.kind.as_deref(), first.group, &first.extra[..], first.other_medium.as_deref()),
        (Some("full_attention"), Some(0), &[][..], None)
    );
    let salts: Vec<_> = vllm
        .iter()
        .flat_map(|batch| &batch.events)
        .filter_map(|event| if let Event::Stored(stored) = event { stored.salt.as_deref() } else { None })
        .collect();
    assert_eq!(salts, ["runA"]);
    let bytes = batches("vllm-0.33.0.sha256_cbor.bytes-hashes.jsonl");
    let Event::Stored(first) = &bytes[0].events[0] else { panic!() };
    assert_eq!(first.hashes[0], 0x4547_2981_0657_0093);
    let sglang = batches("sglang-0.5.23.kv+load.jsonl");
    let Event::Stored(first) = &sglang[0].events[0] else { panic!() };
    assert_eq!((first.hashes[0].cast_signed(), first.block_tokens, first.tokens.len()), (-566_699_301_931_663_091, 16, 32));
    let loads: Vec<LoadStat> =
        lines("sglang-0.5.23.kv+load.jsonl").iter().filter(|line| line.socket == "load").map(|line| decode_load(&line.payload).unwrap()).collect();
    assert_eq!(loads.len(), 88);
    assert_eq!((loads[87].kv_tokens, loads[87].max_running_requests, loads[87].prefilled_tokens_total), (2_048, 1_024, 2_985));
}

fn stored() -> impl Strategy<Value = Event> {
    (1u32..5, 0usize..4, any::<Option<u64>>(), any::<bool>(), proptest::option::of("[a-z]{1,3}"), proptest::option::of(0u32..3)).prop_flat_map(
        |(block_tokens, blocks, parent, other, lora, group)| {
            (proptest::collection::vec(any::<u64>(), blocks), proptest::collection::vec(any::<u32>(), blocks * block_tokens as usize)).prop_map(
                move |(hashes, tokens)| {
                    let other_medium = other.then(|| "CPU".to_owned());
                    Event::Stored(Stored {
                        hashes,
                        parent,
                        tokens,
                        block_tokens,
                        other_medium,
                        group,
                        lora: lora.clone(),
                        namespace: lora.clone().unwrap_or_default(),
                        ..Stored::default()
                    })
                },
            )
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        stored(),
        (proptest::collection::vec(any::<u64>(), 0..4), any::<bool>(), proptest::option::of(0u32..3))
            .prop_map(|(hashes, other, group)| Event::Removed(Removed { hashes, other_medium: other.then(|| "DISK".to_owned()), group })),
        Just(Event::Cleared),
    ]
}

fn text(out: &mut Vec<u8>, text: Option<&str>) {
    match text {
        Some(text) => encode::write_str(out, text).unwrap(),
        None => encode::write_nil(out).unwrap(),
    }
}

fn number(out: &mut Vec<u8>, number: Option<u64>) {
    match number {
        Some(number) => encode::write_uint(out, number).map(|_| ()).unwrap(),
        None => encode::write_nil(out).unwrap(),
    }
}

/// Writes a message in one of the two forms.
fn encode_batch(events: &[Event], rank: Option<i64>, map: bool) -> Vec<u8> {
    let mut out = Vec::new();
    encode::write_array_len(&mut out, 3).unwrap();
    encode::write_f64(&mut out, 1.5).unwrap();
    encode::write_array_len(&mut out, events.len() as u32).unwrap();
    for event in events {
        let hashes = |out: &mut Vec<u8>, hashes: &[u64]| {
            encode::write_array_len(out, hashes.len() as u32).unwrap();
            for (at, &hash) in hashes.iter().enumerate() {
                // As one engine sends them, and as the other does.
                if at % 2 == 0 {
                    let _ = encode::write_uint(out, hash).unwrap();
                } else {
                    let _ = encode::write_sint(out, hash.cast_signed()).unwrap();
                }
            }
        };
        let (kind, fields): (&str, Vec<(&str, Vec<u8>)>) = match event {
            Event::Stored(stored) => {
                let mut fields: Vec<(&str, Vec<u8>)> = Vec::new();
                let mut field = |name, write: &dyn Fn(&mut Vec<u8>)| {
                    let mut out = Vec::new();
                    write(&mut out);
                    fields.push((name, out));
                };
                field("block_hashes", &|out| hashes(out, &stored.hashes));
                field("parent_block_hash", &|out| number(out, stored.parent));
                field("token_ids", &|out| {
                    encode::write_array_len(out, stored.tokens.len() as u32).unwrap();
                    for &token in &stored.tokens {
                        encode::write_uint(out, u64::from(token)).unwrap();
                    }
                });
                field("block_size", &|out| number(out, Some(u64::from(stored.block_tokens))));
                field("lora_id", &|out| number(out, None));
                field("medium", &|out| text(out, stored.other_medium.as_deref().or(Some("GPU"))));
                field("lora_name", &|out| text(out, stored.lora.as_deref()));
                field("extra_keys", &|out| encode::write_nil(out).unwrap());
                field("group_idx", &|out| number(out, stored.group.map(u64::from)));
                ("BlockStored", fields)
            }
            Event::Removed(removed) => {
                let mut all = (Vec::new(), Vec::new(), Vec::new());
                hashes(&mut all.0, &removed.hashes);
                text(&mut all.1, removed.other_medium.as_deref());
                number(&mut all.2, removed.group.map(u64::from));
                ("BlockRemoved", vec![("block_hashes", all.0), ("medium", all.1), ("group_idx", all.2)])
            }
            Event::Cleared => ("AllBlocksCleared", Vec::new()),
        };
        if map {
            encode::write_map_len(&mut out, fields.len() as u32 + 2).unwrap();
            // An unknown field in front, and the kind behind the others.
            encode::write_str(&mut out, "session_id").unwrap();
            encode::write_array_len(&mut out, 1).unwrap();
            encode::write_nil(&mut out).unwrap();
            for (name, value) in &fields {
                encode::write_str(&mut out, name).unwrap();
                out.extend_from_slice(value);
            }
            encode::write_str(&mut out, "type").unwrap();
            encode::write_str(&mut out, kind).unwrap();
        } else {
            encode::write_array_len(&mut out, fields.len() as u32 + 1).unwrap();
            encode::write_str(&mut out, kind).unwrap();
            for (_, value) in &fields {
                out.extend_from_slice(value);
            }
        }
    }
    match rank {
        Some(rank) => encode::write_sint(&mut out, rank).map(|_| ()).unwrap(),
        None => encode::write_nil(&mut out).unwrap(),
    }
    out
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(2_000)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(events in proptest::collection::vec(event(), 0..6), rank in any::<Option<i64>>(), map in any::<bool>()) {
        let batch = decode_batch(&encode_batch(&events, rank, map)).unwrap();
        prop_assert_eq!((batch.timestamp_s, batch.rank, batch.events, batch.ignored), (1.5, rank, events, 0));
    }

    #[test]
    fn random_bytes_are_refused_or_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decode_batch(&bytes);
        let _ = decode_load(&bytes);
    }

    #[test]
    fn broken_messages_are_refused_or_read(
        events in proptest::collection::vec(event(), 1..4),
        map in any::<bool>(),
        cut in any::<prop::sample::Index>(),
        hits in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let whole = encode_batch(&events, Some(0), map);
        let truncated = &whole[..cut.index(whole.len())];
        prop_assert!(decode_batch(truncated).is_err(), "every part of a message is needed");
        let mut damaged = whole;
        for (at, byte) in hits {
            let at = at.index(damaged.len());
            damaged[at] = byte;
        }
        let _ = decode_batch(&damaged);
    }
}

#[test]
fn hostile_messages_are_refused_at_their_byte() {
    let refused = |payload: &[u8]| decode_batch(payload).unwrap_err();
    assert_eq!(refused(&[]), Error::Truncated { at: 0 });
    // An array that claims 2^32 - 1 events takes no memory.
    let mut claims = vec![0x93, 0xcb, 0, 0, 0, 0, 0, 0, 0, 0, 0xdd, 0xff, 0xff, 0xff, 0xff];
    assert_eq!(refused(&claims), Error::Truncated { at: 15 });
    // A million arrays inside each other, in a place that is passed over.
    claims.truncate(10);
    claims.extend([0x91, 0x92, 0xa1, b'x']);
    claims.extend(std::iter::repeat_n(0x91, 1_000_000));
    assert_eq!(refused(&claims), Error::Truncated { at: 1_000_014 });
    claims.push(0xc0);
    claims.push(0x00);
    assert_eq!(decode_batch(&claims).unwrap().ignored, 1);
    claims.push(0x00);
    assert_eq!(refused(&claims), Error::Trailing { at: 1_000_016 });
    for (wrong, tokens, block_tokens) in [(true, vec![1, 2, 3], 2), (true, vec![], 0), (false, vec![1, 2, 3, 4], 4)] {
        let event = Event::Stored(Stored { hashes: vec![7], tokens, block_tokens, ..Stored::default() });
        assert_eq!(decode_batch(&encode_batch(&[event], None, true)).is_err(), wrong);
    }
    let error = decode_load(&[0x92, 0xa8, b'L', b'o', b'a', b'd', b'S', b't', b'a', b't', 0xff]).unwrap_err();
    assert_eq!(error.to_string(), "payload: at byte 10, accepted is a whole number of at least 0");
}
