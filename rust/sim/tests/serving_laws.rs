//! Whenever somebody looks, an engine answers alike, and its cache events say what it will find again.

use std::collections::HashMap;

use proptest::collection::vec;
use proptest::prelude::*;
use turnout_core::index::CacheEvent;
use turnout_sim::engine::model::EngineModel;
use turnout_sim::serving::Serving;

const BLOCK: u32 = 4;
const MS: u64 = 1_000_000;

/// A request: where it comes, which of a few contexts it extends, by how much, and how much it wants.
type Asked = (u64, u32, usize, u64);

fn engine(blocks: u64) -> Serving {
    let model = EngineModel { max_batched_tokens: 48, max_sequences: 6, ..EngineModel::named("qwen3-8b-h200").unwrap() };
    Serving::new(model, blocks * u64::from(BLOCK), BLOCK, 5).unwrap()
}

fn prompt(family: u32, length: usize) -> Vec<u32> {
    (0..length as u32).map(|at| family * 1_000 + at).collect()
}

/// What a listener knows: copies of each hash, and the hash of each chain of tokens.
#[derive(Default)]
struct Told {
    copies: HashMap<u64, u32>,
    children: HashMap<(u64, Vec<u32>), u64>,
}

impl Told {
    fn hear(&mut self, engine: &mut Serving) {
        for batch in engine.batches() {
            for event in batch.events() {
                match event {
                    CacheEvent::Cleared => self.copies.clear(),
                    CacheEvent::Removed { hashes, .. } => {
                        for hash in hashes {
                            *self.copies.get_mut(hash).expect("what goes was there") -= 1;
                        }
                    }
                    CacheEvent::Stored { hashes, mut parent, tokens, .. } => {
                        for (&hash, tokens) in hashes.iter().zip(tokens.chunks(BLOCK as usize)) {
                            *self.copies.entry(hash).or_default() += 1;
                            self.children.insert((parent.unwrap_or(0), tokens.to_vec()), hash);
                            parent = Some(hash);
                        }
                    }
                }
            }
        }
    }

    /// Tokens of a prompt that the engine will find.
    fn cached_tokens(&self, prompt: &[u32]) -> u64 {
        let (mut parent, mut found) = (0, 0);
        // The last token is always computed.
        for block in prompt[..prompt.len() - 1].chunks_exact(BLOCK as usize) {
            let Some(&hash) = self.children.get(&(parent, block.to_vec())) else { break };
            if self.copies.get(&hash).is_none_or(|&copies| copies == 0) {
                break;
            }
            (parent, found) = (hash, found + u64::from(BLOCK));
        }
        found
    }
}

/// Plays requests with looks in between; answers the output of each request that was not aborted.
fn play(asked: &[Asked], look_ms: u64, abort: Option<u64>, engine: &mut Serving, told: &mut Told) -> HashMap<u64, Vec<u32>> {
    let mut outputs: HashMap<u64, Vec<u32>> = HashMap::new();
    let mut hear = |engine: &mut Serving, now: u64| {
        for output in engine.advance(now) {
            let all = outputs.entry(output.id).or_default();
            all.extend(output.tokens);
            if output.finished {
                all.push(u32::MAX);
            }
        }
        told.hear(engine);
    };
    let mut now = 0;
    for (id, &(gap, family, length, wants)) in asked.iter().enumerate() {
        let at = now + gap * MS;
        while now + look_ms * MS < at {
            now += look_ms * MS;
            hear(engine, now);
        }
        now = at;
        engine.submit(now, id as u64, &prompt(family, length), Some(wants), 0).unwrap();
        if abort == Some(id as u64) {
            hear(engine, now + MS);
            engine.abort(now + MS, id as u64);
        }
    }
    while engine.next_at().is_some() {
        now += look_ms * MS;
        hear(engine, now);
    }
    outputs
}

fn requests() -> impl Strategy<Value = Vec<Asked>> {
    vec((0u64..60, 0u32..3, 1usize..60, 1u64..40), 1..14)
}

proptest! {
    /// How often somebody looks changes nothing; all output comes, in order, once.
    #[test]
    fn looking_changes_nothing(asked in requests(), blocks in 30u64..80, often in 1u64..9) {
        let (mut seldom, mut told) = (engine(blocks), Told::default());
        let once = play(&asked, 10_000, None, &mut seldom, &mut told);
        let mut closely = engine(blocks);
        prop_assert_eq!(&play(&asked, often, None, &mut closely, &mut Told::default()), &once);
        for (id, &(.., wants)) in asked.iter().enumerate() {
            prop_assert_eq!(once[&(id as u64)].len() as u64, wants + 1);
        }
        for one in [seldom.counters(), closely.counters()] {
            prop_assert_eq!((one.used_tokens, one.running, one.waiting), (0, 0, 0));
            prop_assert_eq!(one.finished_total, asked.len() as u64);
        }
    }

    /// After whatever happened, with an abort and new weights in the middle, what was told is what is found.
    #[test]
    fn what_is_told_is_what_is_found(asked in requests(), blocks in 30u64..80, abort in 0u64..14, flush in any::<bool>()) {
        let (mut engine, mut told) = (engine(blocks), Told::default());
        play(&asked, 7, Some(abort), &mut engine, &mut told);
        let aborted = u64::from((abort as usize) < asked.len());
        let counters = engine.counters();
        prop_assert_eq!((counters.used_tokens, counters.waiting), (0, 0));
        prop_assert!(counters.finished_total + counters.aborted_total == asked.len() as u64 && counters.aborted_total <= aborted);
        let mut now = 1_000_000 * MS;
        if flush {
            // With a request that runs: its copies are not told of when they go.
            engine.submit(now, 100, &prompt(0, 40), Some(30), 0).unwrap();
            now += 20 * MS;
            engine.flush(now);
            now += 10_000 * MS;
            engine.advance(now);
            told.hear(&mut engine);
        }
        for family in 0..3 {
            let next = prompt(family, 60);
            let expected = told.cached_tokens(&next);
            now += 10_000 * MS;
            engine.submit(now, 200 + u64::from(family), &next, Some(1), 0).unwrap();
            now += 10_000 * MS;
            let outputs = engine.advance(now);
            prop_assert_eq!(outputs[0].cached_tokens, expected);
            told.hear(&mut engine);
        }
    }
}

#[test]
fn a_context_goes_on_alike_however_it_is_split() {
    let mut engine = engine(100);
    engine.submit(0, 1, &prompt(0, 10), Some(8), 3).unwrap();
    let whole = engine.advance(1_000 * MS).remove(0).tokens;
    engine.submit(2_000 * MS, 2, &[&prompt(0, 10), &whole[..3]].concat(), Some(5), 3).unwrap();
    assert_eq!(engine.advance(3_000 * MS).remove(0).tokens, whole[3..]);
    engine.submit(4_000 * MS, 3, &prompt(0, 10), Some(8), 4).unwrap();
    assert_ne!(engine.advance(5_000 * MS).remove(0).tokens, whole);
}

#[test]
fn what_cannot_run_is_refused_by_name() {
    let mut engine = engine(4);
    let refused = |result: turnout_core::error::Result<u64>| result.unwrap_err().to_string();
    assert!(refused(engine.submit(0, 1, &[], Some(1), 0)).contains("tokens"));
    assert!(refused(engine.submit(0, 1, &prompt(0, 12), Some(5), 0)).contains("max_new_tokens"));
    assert!(refused(engine.submit(0, 1, &prompt(0, 16), None, 0)).contains("max_new_tokens"));
    assert!(refused(engine.submit(0, 1, &prompt(0, 12), Some(0), 0)).contains("max_new_tokens"));
    assert_eq!(engine.submit(0, 1, &prompt(0, 12), None, 0).unwrap(), 4);
    assert!(refused(engine.submit(0, 1, &prompt(0, 2), Some(1), 0)).contains("request"));
    assert!(!engine.abort(0, 7));
    assert_eq!((engine.advance(1_000 * MS).len(), engine.next_at()), (1, None));
}
