//! One model engine: first come first served, chunked prefill, continuous batching, preemption by recompute.
//!
//! Time passes in *plans*: a plan is one step with prefill in it, or as many decode steps as pass without anything to tell
//! or to change. An arrival shortens a plan to the step that is in flight. All decoding requests advance together, by one
//! counter, so a plan costs steps for those that have news, not for all that run.

pub mod cache;
mod decoding;
pub mod model;
mod serve;

use std::collections::VecDeque;

use cache::{BlockCache, Chain, Table};
use decoding::Decoding;
use model::EngineModel;
use turnout_core::units::{Nanos, nanos};

/// Output tokens between two progress reports of a turn.
pub const REPORT_TOKENS: u64 = 512;

/// A turn for an engine.
#[derive(Debug, Clone)]
pub struct Request {
    /// The caller's number for it.
    pub id: u64,
    /// Prompt length, tokens.
    pub prompt_tokens: u64,
    /// Output length, tokens, at least 1.
    pub output_tokens: u64,
    /// Chain hashes of the full blocks of prompt and output, at least.
    pub chain: Chain,
}

#[derive(Debug)]
struct Running {
    request: Request,
    /// Number of its admission: order among the running.
    seq: u64,
    /// Tokens with KV, and output tokens; those of a decoding request are read off the common counter.
    computed: u64,
    produced: u64,
    /// Where the counter of decode steps stood, or would have stood, when it had no output; while it decodes.
    joined: Option<i64>,
    reported: u64,
    cached_tokens: Option<u64>,
    table: Table,
    /// Blocks of the table whose content is registered.
    registered: u32,
}

impl Running {
    /// Tokens that must have KV before the next token can be sampled.
    fn context(&self) -> u64 {
        self.request.prompt_tokens + self.produced
    }
}

/// Something that happened to a request at the end of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The prompt is computed and the first token is out.
    FirstToken {
        /// The request.
        id: u64,
        /// Prompt tokens that came from the cache.
        cached_tokens: u64,
    },
    /// Output tokens so far.
    Progress {
        /// The request.
        id: u64,
        /// Their number.
        output_tokens: u64,
    },
    /// It lost its memory and waits to be computed again.
    Preempted {
        /// The request.
        id: u64,
    },
    /// It has left: all output is there, or it was aborted.
    Finished {
        /// The request.
        id: u64,
        /// Prompt tokens that came from the cache.
        cached_tokens: u64,
    },
}

#[derive(Debug)]
struct Plan {
    start: Nanos,
    steps: u64,
    /// (slot, new tokens) of each chunk; then `steps` is 1.
    chunks: Vec<(u32, u64)>,
    /// Decoding sequences, and the sum of their contexts.
    sequences: u64,
    context_tokens: u64,
    end: Nanos,
}

/// The engine.
#[derive(Debug)]
pub struct Engine {
    model: EngineModel,
    block_tokens: u64,
    cache: BlockCache,
    waiting: VecDeque<Running>,
    /// Running requests by slot; empty slots are in `spare`.
    slots: Vec<Option<Running>>,
    spare: Vec<u32>,
    /// Slots in the order of admission, and those among them that do not decode yet.
    order: Vec<u32>,
    prefilling: Vec<u32>,
    decoding: Decoding,
    admissions: u64,
    plan: Option<Plan>,
    /// Requests that leave at the end of the step in flight.
    aborted: Vec<u64>,
    /// Preemptions since the start.
    pub preemptions: u64,
    /// Tokens computed again after a preemption.
    pub recomputed_tokens: u64,
    /// Output tokens since the start.
    pub output_tokens: u64,
    /// Time spent in steps with prefill since the start.
    pub prefill_time: Nanos,
    /// Makes every decode step a plan of its own: slower, the same story. For checking the jumps.
    pub single_steps: bool,
}

impl Engine {
    /// An idle engine with the model's times and a KV memory of `kv_tokens`.
    #[must_use]
    pub fn new(model: EngineModel, kv_tokens: u64, block_tokens: u64) -> Self {
        Self {
            model,
            block_tokens,
            cache: BlockCache::new((kv_tokens / block_tokens) as u32),
            waiting: VecDeque::new(),
            slots: Vec::new(),
            spare: Vec::new(),
            order: Vec::new(),
            prefilling: Vec::new(),
            decoding: Decoding::new(block_tokens),
            admissions: 0,
            plan: None,
            aborted: Vec::new(),
            preemptions: 0,
            recomputed_tokens: 0,
            output_tokens: 0,
            prefill_time: 0,
            single_steps: false,
        }
    }

    /// From now on the cache tells what it stores and removes.
    pub fn publish(&mut self) {
        self.cache.events = Some(Vec::new());
    }

    /// What it told since the last call.
    pub fn published(&mut self) -> Vec<cache::CacheEvent> {
        self.cache.events.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether a request of this length can ever run here.
    #[must_use]
    pub fn holds(&self, request: &Request) -> bool {
        (request.prompt_tokens + request.output_tokens).div_ceil(self.block_tokens) <= u64::from(self.cache.len())
    }

    /// Requests that run or wait.
    #[must_use]
    pub fn load(&self) -> usize {
        self.order.len() + self.waiting.len()
    }

    /// KV tokens in use by running requests.
    #[must_use]
    pub fn used_tokens(&self) -> u64 {
        u64::from(self.cache.len() - self.cache.free_blocks()) * self.block_tokens
    }

    /// When the present plan ends; `None` while idle.
    #[must_use]
    pub fn due(&self) -> Option<Nanos> {
        self.plan.as_ref().map(|plan| plan.end)
    }

    /// The process dies and comes back: whatever ran, waited or was cached is gone. The counters stay.
    pub fn restart(&mut self) {
        let fresh = Self::new(self.model, u64::from(self.cache.len()) * self.block_tokens, self.block_tokens);
        let counters = (self.preemptions, self.recomputed_tokens, self.output_tokens, self.prefill_time, self.single_steps);
        let listens = self.cache.events.is_some();
        *self = fresh;
        self.cache.events = listens.then(Vec::new);
        (self.preemptions, self.recomputed_tokens, self.output_tokens, self.prefill_time, self.single_steps) = counters;
    }

    /// New weights: nothing that is cached is found any more. What runs goes on.
    pub fn flush(&mut self) {
        self.settle();
        self.cache.clear();
    }

    /// A request arrives. The step in flight ends first.
    pub fn arrive(&mut self, now: Nanos, request: Request) {
        self.waiting.push_back(Running {
            request,
            seq: 0,
            computed: 0,
            produced: 0,
            joined: None,
            reported: 0,
            cached_tokens: None,
            table: Table::default(),
            registered: 0,
        });
        self.shorten(now);
        if self.plan.is_none() {
            // Nothing runs, so nobody can be preempted.
            self.make_plan(now, &mut Vec::new());
        }
    }

    /// Ends the present plan with the step in flight.
    fn shorten(&mut self, now: Nanos) {
        if let Some(plan) = &mut self.plan
            && plan.chunks.is_empty()
        {
            let steps = decode_steps_until(&self.model, plan.sequences, plan.context_tokens, now.saturating_sub(plan.start)).clamp(1, plan.steps);
            plan.steps = steps;
            plan.end = plan.start + nanos(self.model.decode_s(plan.sequences, plan.context_tokens, steps));
        }
    }

    /// Ends the present plan, tells what happened, and makes the next one.
    pub fn step(&mut self, now: Nanos, events: &mut Vec<Event>) {
        let Some(plan) = self.plan.take() else { return };
        debug_assert_eq!(plan.end, now);
        // Nobody has taken blocks since the plan was made, so the room it counted on is there.
        self.cache.take_blank(self.decoding.blocks_between(1, plan.steps) as u32);
        self.output_tokens += plan.sequences * plan.steps;
        self.prefill_time += if plan.chunks.is_empty() { 0 } else { plan.end - plan.start };
        let mut news = self.decoding.advance(plan.steps);
        news.retain(|&(seq, slot)| runs(&self.slots, seq, slot));
        for &(slot, tokens) in &plan.chunks {
            self.compute(slot, tokens, &mut news);
        }
        news.sort_unstable();
        let mut finished = Vec::new();
        for &(_, slot) in &news {
            if self.tell(slot, events) {
                finished.push(slot);
            }
        }
        for &slot in &finished {
            self.finish(slot);
        }
        self.drop_aborted(events);
        self.make_plan(now, events);
    }

    /// Ends a prefill chunk; a request whose context is computed joins those that decode, which is news.
    fn compute(&mut self, slot: u32, tokens: u64, news: &mut Vec<(u64, u32)>) {
        let running = running(&mut self.slots, slot);
        running.computed += tokens;
        register(running, running.computed, &mut self.cache, self.block_tokens);
        if running.computed < running.context() {
            return;
        }
        running.produced += 1;
        self.output_tokens += 1;
        running.joined = Some(self.decoding.join(running.request.prompt_tokens, running.produced));
        self.prefilling.retain(|&other| other != slot);
        news.push((running.seq, slot));
    }

    /// Tells what a decoding request has reached; `true` when that is its end.
    fn tell(&mut self, slot: u32, events: &mut Vec<Event>) -> bool {
        let running = running(&mut self.slots, slot);
        let joined = running.joined.expect("only decoding requests have news");
        let produced = self.decoding.produced(joined);
        let (id, cached_tokens) = (running.request.id, running.cached_tokens.unwrap_or(0));
        if produced == 1 {
            events.push(Event::FirstToken { id, cached_tokens });
        }
        if produced >= running.request.output_tokens {
            events.push(Event::Finished { id, cached_tokens });
            return true;
        }
        if produced >= running.reported + REPORT_TOKENS {
            running.reported = produced;
            events.push(Event::Progress { id, output_tokens: produced });
        }
        let next = (running.reported + REPORT_TOKENS).min(running.request.output_tokens);
        self.decoding.expect_news(joined + next as i64, running.seq, slot);
        false
    }

    fn finish(&mut self, slot: u32) {
        let seq = running(&mut self.slots, slot).seq;
        let at = self.order.partition_point(|&other| self.slots[other as usize].as_ref().is_some_and(|running| running.seq < seq));
        self.order.remove(at);
        let mut running = self.leave(slot);
        self.settle_left(&mut running);
        self.cache.release(&running.table);
    }

    /// Takes a request out of its slot, and out of those that decode.
    fn leave(&mut self, slot: u32) -> Running {
        self.spare.push(slot);
        let mut running = self.slots[slot as usize].take().expect("it runs");
        if let Some(joined) = running.joined.take() {
            running.produced = self.decoding.leave(running.request.prompt_tokens, joined);
            running.computed = running.context() - 1;
            running.table.blank = running.computed.div_ceil(self.block_tokens) as u32 - running.registered;
        }
        running
    }

    fn settle_left(&mut self, left: &mut Running) {
        register(left, left.computed, &mut self.cache, self.block_tokens);
    }

    /// Registers what the decoding requests have filled since somebody looked.
    fn settle(&mut self) {
        for &slot in &self.order {
            let running = running(&mut self.slots, slot);
            let Some(joined) = running.joined else { continue };
            let computed = running.request.prompt_tokens + self.decoding.produced(joined) - 1;
            running.table.blank = computed.div_ceil(self.block_tokens) as u32 - running.registered;
            register(running, computed, &mut self.cache, self.block_tokens);
        }
    }

    /// Decides what the next step computes.
    fn make_plan(&mut self, now: Nanos, events: &mut Vec<Event>) {
        if !self.waiting.is_empty() || self.cache.events.is_some() {
            self.settle();
        }
        self.make_room(events);
        self.cache.take_blank(self.decoding.blocks_between(0, 1) as u32);
        let sequences = self.decoding.sequences();
        let mut budget = self.model.max_batched_tokens.saturating_sub(sequences);
        let mut chunks = Vec::new();
        for &slot in &self.prefilling {
            let running = running(&mut self.slots, slot);
            let tokens = (running.context() - running.computed).min(budget);
            if tokens > 0 {
                chunks.push((slot, tokens));
                budget -= tokens;
            }
        }
        while budget > 0 && (self.order.len() as u64) < self.model.max_sequences {
            let Some(slot) = self.admit() else { break };
            let running = running(&mut self.slots, slot);
            let tokens = (running.context() - running.computed).min(budget);
            chunks.push((slot, tokens));
            budget -= tokens;
        }
        if sequences == 0 && chunks.is_empty() {
            return;
        }
        let context_tokens = self.decoding.context_tokens();
        self.decoding.forget_news(|seq, slot| !runs(&self.slots, seq, slot));
        let steps = if chunks.is_empty() && !self.single_steps { self.decoding.quiet_steps(u64::from(self.cache.free_blocks())) } else { 1 };
        let took_s = if chunks.is_empty() {
            self.model.decode_s(sequences, context_tokens, steps)
        } else {
            let work: Vec<(u64, u64)> = chunks.iter().map(|&(slot, tokens)| (tokens, running(&mut self.slots, slot).computed)).collect();
            self.model.step_s(&work, sequences, context_tokens)
        };
        self.plan = Some(Plan { start: now, steps, chunks, sequences, context_tokens, end: now + nanos(took_s) });
    }

    /// Starts the first waiting request when its whole context fits beside what runs; answers its slot.
    fn admit(&mut self) -> Option<u32> {
        let next = self.waiting.front()?;
        let context = next.context();
        // The last token is always computed, so that there is something to sample from.
        let reusable = (context.saturating_sub(1) / self.block_tokens) as u32;
        let (hits, table) = self.cache.take(&next.request.chain, reusable, context.div_ceil(self.block_tokens) as u32)?;
        let mut next = self.waiting.pop_front()?;
        next.computed = u64::from(hits) * self.block_tokens;
        next.registered = hits;
        next.table = table;
        next.seq = self.admissions;
        self.admissions += 1;
        if next.cached_tokens.is_none() {
            next.cached_tokens = Some(next.computed.min(next.request.prompt_tokens));
        } else {
            self.recomputed_tokens += context - next.computed;
        }
        let slot = self.spare.pop().unwrap_or(self.slots.len() as u32);
        if slot as usize == self.slots.len() {
            self.slots.push(None);
        }
        self.slots[slot as usize] = Some(next);
        self.order.push(slot);
        self.prefilling.push(slot);
        Some(slot)
    }

    /// Preempts the youngest requests until every decoding one has room for its next token.
    fn make_room(&mut self, events: &mut Vec<Event>) {
        while self.decoding.blocks_between(0, 1) > u64::from(self.cache.free_blocks()) {
            let slot = self.order.pop().expect("whoever needs room is running");
            self.prefilling.retain(|&other| other != slot);
            let mut victim = self.leave(slot);
            self.settle_left(&mut victim);
            self.cache.release(&std::mem::take(&mut victim.table));
            victim.registered = 0;
            victim.computed = 0;
            self.preemptions += 1;
            events.push(Event::Preempted { id: victim.request.id });
            self.waiting.push_front(victim);
        }
    }
}

/// Whether the request of this admission still has this slot.
fn runs(slots: &[Option<Running>], seq: u64, slot: u32) -> bool {
    slots[slot as usize].as_ref().is_some_and(|running| running.seq == seq)
}

fn running(slots: &mut [Option<Running>], slot: u32) -> &mut Running {
    slots[slot as usize].as_mut().expect("a listed slot is taken")
}

/// Registers the blocks that have become full with `computed` tokens.
fn register(running: &mut Running, computed: u64, cache: &mut BlockCache, block_tokens: u64) {
    let full = (computed / block_tokens).min(running.request.chain.len() as u64) as u32;
    if full > running.registered {
        cache.computed(&mut running.table, &running.request.chain, running.registered, full);
        running.registered = full;
    }
}

/// Least number of decode steps that last at least `elapsed`: the step in flight is the last of them.
fn decode_steps_until(model: &EngineModel, sequences: u64, context_tokens: u64, elapsed: Nanos) -> u64 {
    let first = nanos(model.decode_s(sequences, context_tokens, 1)).max(1);
    // Steps only get longer, so this many are enough.
    let (mut less, mut enough) = (0, elapsed / first + 1);
    while less + 1 < enough {
        let middle = less.midpoint(enough);
        if nanos(model.decode_s(sequences, context_tokens, middle)) >= elapsed { enough = middle } else { less = middle }
    }
    enough
}
