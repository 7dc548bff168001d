//! One model engine as a server sees it: token ids in; output tokens, counters and cache events out.
//!
//! The next token is a hash of all tokens before it and of the seed, so equal contexts go on alike, however they were split into
//! prompt and output. Tokens are bytes of lower-case text, which a byte-level tokenizer reads back to the same ids.

use std::collections::HashMap;
use std::sync::Arc;

use turnout_core::error::{Error, Result};
use turnout_core::index::CacheEvent;
use turnout_core::prompt::{BlockHasher, HashKey};
use turnout_core::units::{Nanos, seconds};

use crate::engine::cache::Chain;
use crate::engine::model::EngineModel;
use crate::engine::{Engine, Event, Request};
use crate::feed::Item;
use crate::hash::Mixed;
use crate::scenario::mix;

/// What the model says: text of these letters.
const LETTERS: &[u8; 32] = b"etaoinshrdlucmfwypvbgkjqxz      ";

/// A request without a bound ends by itself after this many tokens and fewer than as many again as [`NATURAL_SPREAD`].
const NATURAL_LEAST: u64 = 16;
const NATURAL_SPREAD: u64 = 240;

/// Equal engines name equal blocks alike.
const BLOCK_KEY: HashKey = HashKey(*b"turnout's engine");

/// What came of a request since somebody asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// The caller's number for the request.
    pub id: u64,
    /// New output tokens.
    pub tokens: Vec<u32>,
    /// Prompt tokens that came from the cache.
    pub cached_tokens: u64,
    /// How often it lost its memory.
    pub preemptions: u64,
    /// Whether that is all.
    pub finished: bool,
}

/// The state of a server in numbers; what ends in `total` counts from the start.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Counters {
    /// KV capacity, tokens.
    pub kv_tokens: u64,
    /// KV tokens in use by running requests.
    pub used_tokens: u64,
    /// KV tokens that nobody uses and that are still cached.
    pub evictable_tokens: u64,
    /// Requests that run.
    pub running: u64,
    /// Requests that wait.
    pub waiting: u64,
    /// Their tokens.
    pub waiting_tokens: u64,
    /// Those of them that are not cached.
    pub waiting_uncached_tokens: u64,
    /// Requests that may run at once.
    pub max_running: u64,
    /// Requests that lost their memory.
    pub preemptions_total: u64,
    /// Prompt tokens that the cache was asked for.
    pub prefix_queries_total: u64,
    /// Prompt tokens that were cached.
    pub prefix_hits_total: u64,
    /// Output tokens.
    pub output_tokens_total: u64,
    /// Requests that ended with all their output.
    pub finished_total: u64,
    /// Requests that were aborted.
    pub aborted_total: u64,
    /// Time in steps with prefill, s.
    pub prefill_busy_s_total: f64,
}

/// Cache events of one step.
#[derive(Debug)]
pub struct Batch {
    items: Vec<Item>,
    block_tokens: u32,
}

impl Batch {
    /// The events, in order.
    #[must_use]
    pub fn events(&self) -> Vec<CacheEvent<'_>> {
        self.items.iter().map(|item| item.told(self.block_tokens)).collect()
    }
}

#[derive(Debug)]
struct Live {
    /// Prompt and the whole output to come.
    tokens: Vec<u32>,
    prompt_tokens: usize,
    /// Output tokens that were handed out.
    told: usize,
    cached_tokens: u64,
    preemptions: u64,
    aborted: bool,
    chain: Chain,
}

/// The engine of a server.
#[derive(Debug)]
pub struct Serving {
    engine: Engine,
    model: EngineModel,
    hasher: BlockHasher,
    seed: u64,
    now: Nanos,
    live: HashMap<u64, Live, Mixed>,
    /// Requests by the address of their chain, for the tokens of cache events.
    by_chain: HashMap<usize, u64, Mixed>,
    outputs: Vec<Output>,
    batches: Vec<Batch>,
    events: Vec<Event>,
    counters: Counters,
}

impl Serving {
    /// An idle engine.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a model, capacity or block size that cannot run.
    pub fn new(model: EngineModel, kv_tokens: u64, block_tokens: u32, seed: u64) -> Result<Self> {
        model.check()?;
        let hasher = BlockHasher::new(&BLOCK_KEY, block_tokens)?;
        let blocks = kv_tokens / u64::from(block_tokens);
        if blocks == 0 || blocks > u64::from(u32::MAX / 2) {
            return Err(Error::InvalidArgument { argument: "kv_tokens", value: kv_tokens.to_string(), accepted: "1 to 2^31 blocks of block_tokens" });
        }
        let mut engine = Engine::new(model, kv_tokens, u64::from(block_tokens));
        engine.publish_found();
        Ok(Self {
            engine,
            model,
            hasher,
            seed,
            now: 0,
            live: HashMap::default(),
            by_chain: HashMap::default(),
            outputs: Vec::new(),
            batches: Vec::new(),
            events: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// A request arrives. Without `max_new_tokens` it ends by itself after a while. Answers how many tokens it will have.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a number that is in use, an empty prompt, no output, or more tokens than the memory holds.
    pub fn submit(&mut self, now: Nanos, id: u64, prompt: &[u32], max_new_tokens: Option<u64>, seed: u64) -> Result<u64> {
        if self.live.contains_key(&id) {
            return Err(Error::InvalidArgument { argument: "request", value: id.to_string(), accepted: "a number that no open request has" });
        }
        if prompt.is_empty() {
            return Err(Error::InvalidArgument { argument: "tokens", value: "none".into(), accepted: "a prompt of at least one token" });
        }
        let room = self.engine.kv_tokens().saturating_sub(prompt.len() as u64);
        let mut state = prompt.iter().fold(mix(self.seed ^ mix(seed.wrapping_add(1))), |state, &token| mix(state ^ u64::from(token)));
        let length = max_new_tokens.unwrap_or_else(|| (NATURAL_LEAST + (state >> 32) % NATURAL_SPREAD).min(room));
        if length == 0 || length > room {
            let value = format!("{} prompt and {length} new tokens", prompt.len());
            return Err(Error::InvalidArgument {
                argument: "max_new_tokens",
                value,
                accepted: "at least 1, and with the prompt at most the KV capacity",
            });
        }
        let mut tokens = Vec::with_capacity(prompt.len() + length as usize);
        tokens.extend_from_slice(prompt);
        for _ in 0..length {
            let token = u32::from(LETTERS[(state >> 59) as usize]);
            tokens.push(token);
            state = mix(state ^ u64::from(token));
        }
        let mut fingerprints = Vec::new();
        self.hasher.hash_into(&tokens, &mut fingerprints);
        let chain: Chain = fingerprints
            .iter()
            .scan(0, |before, fingerprint| {
                *before = mix(*before ^ fingerprint.rotate_left(17));
                Some(*before)
            })
            .collect::<Arc<[u64]>>();
        self.run_to(now);
        self.by_chain.insert(chain.as_ptr().addr(), id);
        let request = Request { id, prompt_tokens: prompt.len() as u64, output_tokens: length, chain: chain.clone() };
        let live = Live { tokens, prompt_tokens: prompt.len(), told: 0, cached_tokens: 0, preemptions: 0, aborted: false, chain };
        self.live.insert(id, live);
        self.engine.arrive(self.now, request);
        Ok(length)
    }

    /// Time passes; answers what came of the requests that have news.
    pub fn advance(&mut self, now: Nanos) -> Vec<Output> {
        self.run_to(now);
        self.engine.look(self.now);
        let (live, outputs) = (&mut self.live, &mut self.outputs);
        self.engine.outputs(|id, produced| {
            if let Some(request) = live.get_mut(&id)
                && !request.aborted
                && produced as usize > request.told
            {
                outputs.push(request.output(id, produced as usize, false));
            }
        });
        std::mem::take(&mut self.outputs)
    }

    /// When the step in flight ends; `None` while idle.
    #[must_use]
    pub fn next_at(&self) -> Option<Nanos> {
        self.engine.due()
    }

    /// A request leaves; nothing is told of it any more. `false` when it is not there.
    pub fn abort(&mut self, now: Nanos, id: u64) -> bool {
        self.run_to(now);
        let Some(request) = self.live.get_mut(&id).filter(|request| !request.aborted) else { return false };
        request.aborted = true;
        self.counters.aborted_total += 1;
        self.outputs.retain(|output| output.id != id);
        if self.engine.abort(self.now, id) {
            self.forget(id);
        }
        true
    }

    /// New weights: nothing that is cached is found any more. What runs goes on.
    pub fn flush(&mut self, now: Nanos) {
        self.run_to(now);
        self.engine.flush();
        self.publish();
    }

    /// Cache events since the last call, by step.
    pub fn batches(&mut self) -> Vec<Batch> {
        std::mem::take(&mut self.batches)
    }

    /// The state in numbers.
    #[must_use]
    pub fn counters(&self) -> Counters {
        let (running, waiting) = self.engine.requests();
        let (waiting_tokens, waiting_uncached_tokens) = self.engine.waiting_tokens();
        Counters {
            kv_tokens: self.engine.kv_tokens(),
            used_tokens: self.engine.used_tokens(),
            evictable_tokens: self.engine.evictable_tokens(),
            running: running as u64,
            waiting: waiting as u64,
            waiting_tokens,
            waiting_uncached_tokens,
            max_running: self.model.max_sequences,
            preemptions_total: self.engine.preemptions,
            output_tokens_total: self.engine.output_tokens,
            prefill_busy_s_total: seconds(self.engine.prefill_time),
            ..self.counters
        }
    }

    /// Ends the steps up to `now`.
    fn run_to(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        while let Some(at) = self.engine.due().filter(|&at| at <= self.now) {
            let mut events = std::mem::take(&mut self.events);
            self.engine.step(at, &mut events);
            // Before requests are forgotten: their last blocks are among the news.
            self.publish();
            for event in events.drain(..) {
                self.tell(event);
            }
            self.events = events;
        }
    }

    fn tell(&mut self, event: Event) {
        match event {
            Event::FirstToken { id, cached_tokens } => {
                let request = self.live.get_mut(&id).expect("an engine's request is live");
                request.cached_tokens = cached_tokens;
                self.counters.prefix_queries_total += request.prompt_tokens as u64;
                self.counters.prefix_hits_total += cached_tokens;
            }
            Event::Progress { .. } => {}
            Event::Preempted { id } => self.live.get_mut(&id).expect("an engine's request is live").preemptions += 1,
            Event::Finished { id, .. } => {
                let request = self.live.get_mut(&id).expect("an engine's request is live");
                if !request.aborted {
                    let all = request.tokens.len() - request.prompt_tokens;
                    self.outputs.push(request.output(id, all, true));
                    self.counters.finished_total += 1;
                }
                self.forget(id);
            }
        }
    }

    fn forget(&mut self, id: u64) {
        if let Some(request) = self.live.remove(&id) {
            self.by_chain.remove(&request.chain.as_ptr().addr());
        }
    }

    fn publish(&mut self) {
        let events = self.engine.published();
        if events.is_empty() {
            return;
        }
        let block_tokens = self.hasher.block_tokens();
        let tokens = |address: usize| &self.live[&self.by_chain[&address]].tokens[..];
        let items = events.into_iter().map(|event| Item::new(event, block_tokens as usize, tokens)).collect();
        self.batches.push(Batch { items, block_tokens });
    }
}

impl Live {
    /// What was not told yet of the first `produced` output tokens.
    fn output(&mut self, id: u64, produced: usize, finished: bool) -> Output {
        let tokens = self.tokens[self.prompt_tokens + self.told..self.prompt_tokens + produced].to_vec();
        self.told = produced;
        Output { id, tokens, cached_tokens: self.cached_tokens, preemptions: self.preemptions, finished }
    }
}
