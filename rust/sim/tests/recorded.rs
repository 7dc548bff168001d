//! The model engine against cache events that a real vLLM told: the same requests, block for block and in the same order.

use std::path::Path;
use std::sync::Arc;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use turnout_sim::engine::cache::CacheEvent;
use turnout_sim::engine::model::EngineModel;
use turnout_sim::engine::{Engine, Request};
use turnout_wire::{Event, decode_batch};

const BLOCK: u64 = 32;
/// `--num-gpu-blocks-override 64`, of which vLLM keeps one for itself.
const BLOCKS: u64 = 63;

/// What happened to one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Told {
    Stored(u64),
    Removed(u64),
}

/// Blocks that vLLM 0.33.0 told of, in order, and its chains: the blocks of each request from the first one on.
fn recorded(file: &str) -> (Vec<Told>, Vec<Vec<u64>>) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/wire").join(file);
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let (mut told, mut chains) = (Vec::new(), Vec::<Vec<u64>>::new());
    for line in text.lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("one JSON per line");
        let payload = BASE64_STANDARD.decode(line["payload_b64"].as_str().expect("a string")).expect("base64");
        for event in decode_batch(&payload).expect("a batch").events {
            match event {
                Event::Stored(stored) => {
                    told.extend(stored.hashes.iter().map(|&hash| Told::Stored(hash)));
                    match stored.parent.and_then(|parent| chains.iter_mut().find(|chain| chain.last() == Some(&parent))) {
                        Some(chain) => chain.extend(&stored.hashes),
                        None if stored.parent.is_none() => chains.push(stored.hashes.clone()),
                        // A copy of what another request has stored: that chain has it already.
                        None => {}
                    }
                }
                Event::Removed(removed) => told.extend(removed.hashes.iter().map(|&hash| Told::Removed(hash))),
                Event::Cleared => panic!("nobody cleared the cache in this file"),
            }
        }
    }
    (told, chains)
}

/// Plays requests that come together, to the end of all; adds what the engine tells.
fn play(engine: &mut Engine, now: &mut u64, requests: Vec<Request>, told: &mut Vec<Told>) {
    let mut events = Vec::new();
    for request in requests {
        engine.arrive(*now, request);
    }
    while let Some(due) = engine.due() {
        *now = due;
        engine.step(due, &mut events);
        for event in engine.published() {
            match event {
                CacheEvent::Stored { chain, from, to } => told.extend(chain[from as usize..to as usize].iter().map(|&hash| Told::Stored(hash))),
                CacheEvent::Removed { chain, from, to } => {
                    told.extend(chain[from as usize..to as usize].iter().rev().map(|&hash| Told::Removed(hash)));
                }
                CacheEvent::Cleared => panic!("nobody cleared the cache"),
            }
        }
    }
}

/// Prompt and output of a recorded request, tokens: whole blocks as told, and an unfinished one that no event tells of.
fn request(id: u64, chain: &[u64], prompt_tokens: u64, output_tokens: u64) -> Request {
    Request { id, prompt_tokens, output_tokens, chain: Arc::from(chain) }
}

/// Four equal prompts at once, of which one is a step ahead; then twelve requests one after another, 22 blocks each of 63.
#[test]
fn vllm_evicts_in_this_order() {
    let (expected, chains) = recorded("vllm-0.33.0.duplicate-blocks.jsonl");
    assert_eq!(chains.iter().map(Vec::len).collect::<Vec<_>>(), [[6].as_slice(), &[21; 12]].concat());
    let model = EngineModel { max_sequences: 8, ..EngineModel::named("qwen3-8b-h200").unwrap() };
    let mut engine = Engine::new(model, BLOCKS * BLOCK, BLOCK);
    engine.publish();
    // vLLM tells of every step.
    engine.single_steps = true;
    let (mut now, mut told) = (0, Vec::new());
    // 160 tokens are five blocks, of which the last has to be computed by each: the engine keeps one token to compute.
    play(&mut engine, &mut now, (0..4).map(|id| request(id, &chains[0], 160, 40)).collect(), &mut told);
    for (id, chain) in (4..).zip(&chains[1..]) {
        play(&mut engine, &mut now, vec![request(id, chain, 500, 190)], &mut told);
    }
    for (at, (told, expected)) in told.iter().zip(&expected).enumerate() {
        assert_eq!(told, expected, "block event {at}");
    }
    assert_eq!(told.len(), expected.len());
}
