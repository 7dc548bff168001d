//! Small messages by hand: what each engine does that the captured ones do not show, and every refusal with its words.

mod common;

use common::{Value, batch, by_name, by_position};
use turnout_wire::{Batch, Block, Event, Medium, Stored, decode_batch, decode_load};

fn decode(events: Vec<Value>) -> Batch {
    decode_batch(&batch(events)).expect("well formed")
}

fn stored(event: Value) -> Stored {
    match decode(vec![event]).events.pop() {
        Some(Event::Stored(stored)) => *stored,
        other => panic!("{other:?}"),
    }
}

fn refusal(event: Value) -> String {
    decode_batch(&batch(vec![event])).expect_err("malformed").to_string()
}

/// The required fields of a store, by name, some of them replaced.
fn store(changes: &[(&'static str, Value)]) -> Value {
    let mut fields = vec![
        ("block_hashes", Value::uints([7, 8])),
        ("parent_block_hash", Value::Uint(6)),
        ("token_ids", Value::uints([1, 2, 3, 4])),
        ("block_size", Value::Uint(2)),
    ];
    for (name, value) in changes {
        match fields.iter_mut().find(|field| field.0 == *name) {
            Some(field) => field.1 = value.clone(),
            None => fields.push((name, value.clone())),
        }
    }
    by_name("BlockStored", &fields)
}

#[test]
fn blocks_are_a_chain() {
    let stored = stored(store(&[]));
    let blocks: Vec<_> = stored.blocks().expect("told").collect();
    let expected =
        [Block { hash: 7, parent: Some(6), tokens: &[1, 2], extra_key: None }, Block { hash: 8, parent: Some(7), tokens: &[3, 4], extra_key: None }];
    assert_eq!(blocks, expected);
}

#[test]
fn an_offloading_connector_tells_no_tokens() {
    let medium = ("medium", Value::str("CPU"));
    let stored = stored(store(&[("token_ids", Value::Array(vec![])), ("block_size", Value::Uint(0)), medium]));
    assert_eq!((stored.hashes.len(), stored.tokens.len(), &stored.medium), (2, 0, &Medium::Other("CPU".to_owned())));
    assert!(stored.blocks().is_none());
}

#[test]
fn a_sliding_window_leaves_out_hashes() {
    let stored = stored(store(&[("block_hashes", Value::uints([8])), ("kv_cache_spec_sliding_window", Value::Uint(128))]));
    assert_eq!((stored.hashes.len(), stored.tokens.len(), stored.sliding_window_tokens), (1, 4, Some(128)));
    assert!(stored.blocks().is_none());
}

#[test]
fn a_salt_comes_by_name_or_in_the_position_of_the_adapter() {
    assert_eq!(stored(store(&[("cache_salt", Value::str("run"))])).cache_salt.as_deref(), Some("run"));
    let metadata = Value::Map(vec![(Value::str("other"), Value::Null), (Value::str("cache_salt"), Value::str("run"))]);
    let fields = [Value::uints([7]), Value::Null, Value::uints([1]), Value::Uint(1), Value::Null, Value::str("GPU"), metadata];
    let stored = stored(by_position("BlockStored", &fields));
    assert_eq!((stored.cache_salt.as_deref(), stored.lora_name, stored.medium), (Some("run"), None, Medium::Device));
}

#[test]
fn pairs_of_tokens_stand_for_their_first() {
    let pairs = Value::Array([1, 2, 3, 4].map(|token| Value::uints([token, token + 1])).to_vec());
    let stored = stored(store(&[("token_ids", pairs)]));
    assert_eq!((stored.tokens, stored.bigrams), (vec![1, 2, 3, 4], true));
}

#[test]
fn extra_keys_that_differ_look_different() {
    let image = |id: &str, at: i64| Value::Array(vec![Value::Array(vec![Value::str(id), Value::Int(at)])]);
    let keys = |first: Value, second: Value| stored(store(&[("extra_keys", Value::Array(vec![first, second]))])).extra_keys;
    let both = keys(image("a", -3), Value::Array(vec![Value::str("salt")]));
    assert!(both.get(0).is_some() && both.get(1).is_some() && both.get(0) != both.get(1) && both.get(2).is_none());
    assert_ne!(both, keys(image("a", -4), Value::Array(vec![Value::str("salt")])));
    let second = keys(Value::Null, image("a", -3));
    assert_eq!((second.get(0), second.get(1)), (None, both.get(0)));
    let first = keys(image("a", -3), Value::Null);
    assert_eq!((first.get(0), first.get(1)), (both.get(0), None));
    let none = keys(Value::Null, Value::Null);
    assert!(none.is_empty());
    assert_eq!(none, stored(store(&[])).extra_keys);
}

#[test]
fn what_is_unknown_is_skipped() {
    let deep = (0..1_000_000).fold(vec![], |mut bytes: Vec<u8>, _| {
        bytes.push(0x91);
        bytes
    });
    let mut payload = batch(vec![by_name("BlockMoved", &[("to", Value::Uint(1))]), by_position("X", &[Value::Bin(vec![0; 70_000])]), store(&[])]);
    let known = decode_batch(&payload).expect("well formed");
    assert_eq!((known.events.len(), known.ignored), (1, 2));

    // Further positions of the batch, one of them a million arrays deep.
    payload[0] = 0x95;
    payload.extend_from_slice(&deep);
    payload.extend_from_slice(b"\xc0\xd6\x01\0\0\0\0");
    assert_eq!(decode_batch(&payload).expect("well formed"), known);

    let tag_last = Value::Map(vec![(Value::Uint(3), Value::Null), (Value::str("type"), Value::str("AllBlocksCleared"))]);
    assert_eq!(decode(vec![tag_last]).events, [Event::Cleared]);
    let more = by_name("BlockRemoved", &[("block_hashes", Value::uints([1])), ("ownership", Value::str("a")), ("locality", Value::Null)]);
    assert!(matches!(&decode(vec![more]).events[..], [Event::Removed(removed)] if removed.hashes == [1]));
}

#[test]
fn numbers_of_the_wrong_kind_are_refused() {
    let cases = [
        (("token_ids", Value::Array(vec![Value::Int(-1)])), "events[0].token_ids (byte 75): got -1, accepted is an integer from 0 to 2^32 - 1"),
        (
            ("token_ids", Value::Array(vec![Value::Uint(1 << 32)])),
            "events[0].token_ids (byte 75): got 4294967296, accepted is an integer from 0 to 2^32 - 1",
        ),
        (("token_ids", Value::str("1234")), "events[0].token_ids (byte 74): got a string, accepted is an array"),
        (
            ("token_ids", Value::Array(vec![Value::uints([1, 2, 3])])),
            "events[0].token_ids (byte 75): got 3 token ids, accepted is a pair of token ids",
        ),
        (
            ("block_hashes", Value::Array(vec![Value::Bin(vec![1; 7])])),
            "events[0].block_hashes (byte 43): got 7 bytes, accepted is an integer or at least 8 bytes",
        ),
        (("block_size", Value::Null), "events[0].block_size (byte 90): got null, accepted is an integer from 0 to 2^32 - 1"),
        (("group_idx", Value::Float(0.0)), "events[0].group_idx (byte 101): got a float, accepted is an integer from 0 to 2^32 - 1"),
    ];
    for (change, words) in cases {
        assert_eq!(refusal(store(&[change])), words);
    }
}

#[test]
fn counts_that_do_not_fit_are_refused() {
    let cases: [(&[(&str, Value)], &str); 4] = [
        (&[("token_ids", Value::uints([1, 2, 3]))], "token_ids (byte 90): 3 token ids cannot fill 2 blocks of 2 tokens"),
        (&[("token_ids", Value::uints([1, 2]))], "token_ids (byte 89): 2 token ids cannot fill 2 blocks of 2 tokens"),
        (&[("block_size", Value::Uint(0))], "block_size (byte 91): got 0, accepted is at least 1 where there are token ids"),
        (
            &[("extra_keys", Value::Array(vec![Value::Null]))],
            "extra_keys (byte 104): got 1 entries for 2 block hashes, accepted is one entry per hash",
        ),
    ];
    for (changes, words) in cases {
        assert_eq!(refusal(store(changes)), format!("events[0].{words}"));
    }
}

#[test]
fn what_every_engine_sends_must_be_there() {
    let fields = [("block_hashes", Value::uints([7])), ("parent_block_hash", Value::Null), ("token_ids", Value::uints([1]))];
    assert_eq!(refusal(by_name("BlockStored", &fields)), "events[0].block_size (byte 75): the field is missing");
    assert_eq!(refusal(by_position("BlockStored", &[Value::uints([7])])), "events[0].parent_block_hash (byte 26): the field is missing");
    assert_eq!(refusal(by_position("BlockRemoved", &[])), "events[0].block_hashes (byte 25): the field is missing");
    assert_eq!(refusal(by_name("BlockRemoved", &[])).split(" (").next(), Some("events[0].block_hashes"));
    assert_eq!(refusal(Value::Map(vec![])), "events[0].type (byte 12): the field is missing");
    assert_eq!(refusal(Value::Array(vec![])), "events[0].type (byte 12): the field is missing");
    assert_eq!(refusal(Value::Null), "events[0].event (byte 11): got null, accepted is a tagged array or map");
    assert_eq!(decode_batch(b"\x90").expect_err("empty").to_string(), "ts (byte 1): the field is missing");
    assert_eq!(decode_batch(b"\x91\x01").expect_err("no events").to_string(), "events (byte 2): the field is missing");
    assert_eq!(decode_batch(b"").expect_err("nothing").to_string(), "batch (byte 0): the payload ends inside this value");
}

#[test]
fn claims_beyond_the_payload_are_refused() {
    let claim = b"\xdd\xff\xff\xff\xff";
    let head = |parts: &[&[u8]]| decode_batch(&parts.concat()).expect_err("a false claim").to_string();
    assert_eq!(head(&[claim]), "batch (byte 0): the payload ends inside this value");
    assert_eq!(head(&[b"\x92\x01", claim, b"\xc0\xc0"]), "events (byte 2): the payload ends inside this value");
    let hashes = head(&[b"\x92\x01\x91\x92\xacBlockRemoved", claim]);
    assert_eq!(hashes, "events[0].block_hashes (byte 17): the payload ends inside this value");
    let text = head(&[b"\x92\x01\x91\xdb\xff\xff\xff\xff"]);
    assert_eq!(text, "events[0].event (byte 3): got a string, accepted is a tagged array or map");
    let skipped = head(&[b"\x92\x01\x91\x92\xa1x\xdf\xff\xff\xff\xff"]);
    assert_eq!(skipped, "events[0].unknown field (byte 6): the payload ends inside this value");
    assert_eq!(head(&[b"\x92\x01\x91\x92\xa1x\xc1"]), "events[0].unknown field (byte 6): got the reserved byte 0xc1, accepted is a msgpack value");
    assert_eq!(head(&[b"\x92\x01\x91\x91\xa1\xff"]), "events[0].type (byte 4): the string is not UTF-8");
    assert_eq!(head(&[b"\x92\xcb\x7f\xf8\0\0\0\0\0\0\x90"]), "ts (byte 1): got NaN, accepted is a finite number");
}

#[test]
fn loads_of_older_and_newer_versions() {
    let old = by_position("LoadStat", &[1, 2, 3, 4].map(Value::Uint));
    let load = decode_load(&old.bytes()).expect("the first four fields");
    assert_eq!((load.running_requests, load.waiting_requests, load.kv_tokens, load.kv_capacity_tokens, load.rank), (1, 2, 3, 4, None));
    let new = by_position("LoadStat", &[1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 9, 9].map(Value::Uint));
    assert_eq!(decode_load(&new.bytes()).expect("two unknown fields").rank, Some(0));

    let refusal = |value: Value| decode_load(&value.bytes()).expect_err("malformed").to_string();
    assert_eq!(refusal(by_position("LoadStat", &[Value::Uint(1)])), "num_waiting_reqs (byte 11): the field is missing");
    assert_eq!(refusal(by_position("Load", &[])), "type (byte 0): got \"Load\", accepted is \"LoadStat\"");
    let negative = by_position("LoadStat", &[Value::Int(-5)]);
    assert_eq!(refusal(negative), "num_running_reqs (byte 10): got -5, accepted is an integer from 0 to 2^64 - 1");
}
