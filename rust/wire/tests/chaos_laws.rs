//! Bytes that no engine sent: the decoder never panics, never asks for much memory, and what it accepts is consistent.
//! `PROPTEST_CASES` sets how often; each case of the damage test is 100 damaged payloads.
#![allow(unsafe_code)] // A counting allocator cannot be written without.

mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use common::{FILES, SGLANG, payloads};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use turnout_wire::{Event, decode_batch, decode_load};

/// Memory held now and at most, by this thread.
struct Counting;

thread_local! {
    static HELD: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

fn count(change: isize) {
    // The first and last allocations of a thread come when there is no local storage.
    let _ = HELD.try_with(|held| {
        let (now, most) = held.get();
        held.set((now + change, most.max(now + change)));
    });
}

// SAFETY: everything is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Most memory per byte of payload. The worst is a store without blocks: 17 bytes on the wire, about 260 in memory and 64 in a list
/// that doubles while it grows.
const FACTOR: usize = 32;

/// Memory for the words of an error.
const WORDS_BYTES: usize = 256;

fn decode_both(payload: &[u8]) {
    let before = HELD.with(Cell::get).0;
    HELD.with(|held| held.set((before, before)));
    let batch = decode_batch(payload);
    let load = decode_load(payload);
    let most = HELD.with(Cell::get).1 - before;
    assert!(most as usize <= FACTOR * payload.len() + WORDS_BYTES, "{most} bytes for a payload of {}", payload.len());

    let places = [batch.as_ref().err(), load.as_ref().err()].into_iter().flatten();
    places.for_each(|error| assert!(error.place().byte <= payload.len() && !error.to_string().is_empty()));
    for event in batch.iter().flat_map(|batch| &batch.events) {
        if let Event::Stored(stored) = event
            && !stored.tokens.is_empty()
        {
            let blocks = stored.tokens.len() / stored.block_tokens as usize;
            assert!(stored.hashes.len() <= blocks && stored.tokens.len() == blocks * stored.block_tokens as usize);
            assert_eq!(stored.blocks().map(Iterator::count), (stored.hashes.len() == blocks).then_some(blocks));
        }
    }
}

/// One damage to a payload.
#[derive(Debug, Clone)]
enum Damage {
    Put(Index, u8),
    Flip(Index, u8),
    Cut(Index),
    Insert(Index, Vec<u8>),
    Remove(Index, usize),
    /// Puts the rest of another captured payload here.
    Graft(Index, Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    // Headers of values, with lengths that lie.
    let header = prop_oneof![
        (0xc0u8..=0xdf, vec(any::<u8>(), 0..6)).prop_map(|(marker, rest)| [&[marker][..], &rest].concat()),
        (prop_oneof![Just(0xdd), Just(0xdf), Just(0xdb), Just(0xc6), Just(0xc9)]).prop_map(|marker| vec![marker, 0xff, 0xff, 0xff, 0xff]),
        (1usize..2_000).prop_map(|depth| vec![0x91; depth]),
    ];
    let at = any::<Index>;
    prop_oneof![
        3 => (at(), any::<u8>()).prop_map(|(at, byte)| Damage::Put(at, byte)),
        3 => (at(), 0u8..8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        1 => at().prop_map(Damage::Cut),
        2 => (at(), header).prop_map(|(at, bytes)| Damage::Insert(at, bytes)),
        1 => (at(), 1usize..16).prop_map(|(at, bytes)| Damage::Remove(at, bytes)),
        1 => (at(), at()).prop_map(|(at, from)| Damage::Graft(at, from)),
    ]
}

fn apply(damage: &Damage, payload: &mut Vec<u8>, other: &[u8]) {
    let len = payload.len();
    if len == 0 {
        return;
    }
    match damage {
        Damage::Put(at, byte) => payload[at.index(len)] = *byte,
        Damage::Flip(at, bit) => payload[at.index(len)] ^= 1 << bit,
        Damage::Cut(at) => payload.truncate(at.index(len)),
        Damage::Insert(at, bytes) => drop(payload.splice(at.index(len)..at.index(len), bytes.iter().copied())),
        Damage::Remove(at, bytes) => drop(payload.drain(at.index(len)..(at.index(len) + bytes).min(len))),
        Damage::Graft(at, from) => {
            payload.truncate(at.index(len));
            payload.extend_from_slice(&other[from.index(other.len())..]);
        }
    }
}

fn captured() -> Vec<Vec<u8>> {
    FILES.iter().flat_map(|file| payloads(file, "kv")).chain(payloads(SGLANG, "load")).collect()
}

#[test]
fn damaged_payloads() {
    let captured = captured();
    let cases = vec((any::<Index>(), any::<Index>(), vec(damage(), 1..5)), 100);
    let config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    let executions = Cell::new(0u64);
    let law = |cases: Vec<(Index, Index, Vec<Damage>)>| {
        for (which, other, damages) in cases {
            let mut payload = which.get(&captured).clone();
            let other: &Vec<u8> = other.get(&captured);
            for damage in &damages {
                apply(damage, &mut payload, other);
            }
            decode_both(&payload);
            executions.set(executions.get() + 1);
        }
        Ok(())
    };
    proptest::test_runner::TestRunner::new(config.clone()).run(&cases, law).expect("the law holds");
    assert_eq!(executions.get(), u64::from(config.cases) * 100);
    println!("{} damaged payloads decoded", executions.get());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes(bytes in vec(any::<u8>(), 0..400)) {
        decode_both(&bytes);
        // Past the head of a batch and of an event, where random bytes seldom come.
        decode_both(&[b"\x93\x01\x91", &bytes[..]].concat());
        decode_both(&[b"\x93\x01\x91\x9c\xabBlockStored", &bytes[..]].concat());
        decode_both(&[b"\x9b\xa8LoadStat", &bytes[..]].concat());
    }
}

#[test]
fn the_worst_per_byte() {
    let many = |event: &[u8]| {
        let count = 100_000u32;
        decode_both(&[b"\x92\x01\xdd", &count.to_be_bytes()[..], &event.repeat(count as usize)].concat());
    };
    many(b"\x91\xb0AllBlocksCleared");
    many(b"\x95\xabBlockStored\x90\xc0\x90\x01");
    many(b"\x92\xacBlockRemoved\x90");
    many(b"\x91\xa0");
    for marker in [0x91, 0x81, 0x92, 0xdd] {
        decode_both(&vec![marker; 1_000_000]);
        decode_both(&[b"\x92\x01\x91\x92\xa1x", &vec![marker; 1_000_000][..]].concat());
    }
    let claim = |bytes: u32| [&[0xdd][..], &bytes.to_be_bytes()].concat();
    let rest = vec![0x01; 1_000_000];
    decode_both(&[b"\x92\x01\x91\x95\xabBlockStored", &claim(1_000_000)[..], &rest].concat());
    decode_both(&[b"\x92\x01\x91\x95\xabBlockStored\x90\xc0", &claim(1_000_000)[..], &rest].concat());
    decode_both(&[b"\x92\x01", &claim(1_000_000)[..], &rest].concat());
    let keys = [b"\x92\x01\x91\x99\xabBlockStored\x90\xc0\x90\x01\xc0\xc0\xc0", &claim(1_000_000)[..], &rest].concat();
    decode_both(&keys);
}
