//! The model engine, plainly: every request and every block is looked at in every step. What the engine must equal.

mod cache;

use std::collections::VecDeque;

use cache::BlockCache;
use turnout_core::units::{Nanos, nanos};
use turnout_sim::engine::model::EngineModel;
use turnout_sim::engine::{Event, REPORT_TOKENS, Request};

#[derive(Debug)]
struct Running {
    request: Request,
    /// Tokens with KV.
    computed: u64,
    produced: u64,
    reported: u64,
    cached_tokens: Option<u64>,
    table: Vec<u32>,
    /// Blocks of the table whose content is registered.
    registered: usize,
    /// The whole context was computed once since its admission: from then on each step gives a token.
    decoding: bool,
}

impl Running {
    /// Tokens that must have KV before the next token can be sampled.
    fn context(&self) -> u64 {
        self.request.prompt_tokens + self.produced
    }

    /// All but the newest token have KV: the next step decodes it.
    fn decodes(&self) -> bool {
        self.decoding
    }
}

#[derive(Debug)]
struct Plan {
    start: Nanos,
    steps: u64,
    /// (index among the running, new tokens) of each chunk; then `steps` is 1.
    chunks: Vec<(usize, u64)>,
    /// Decoding sequences, and the sum of their contexts.
    sequences: u64,
    context_tokens: u64,
    end: Nanos,
}

/// The engine.
#[derive(Debug)]
pub(super) struct Engine {
    model: EngineModel,
    block_tokens: u64,
    cache: BlockCache,
    waiting: VecDeque<Running>,
    running: Vec<Running>,
    plan: Option<Plan>,
    /// Preemptions since the start.
    pub(super) preemptions: u64,
    /// Tokens computed again after a preemption.
    pub(super) recomputed_tokens: u64,
    /// Output tokens since the start.
    pub(super) output_tokens: u64,
}

impl Engine {
    /// An idle engine with the model's times and a KV memory of `kv_tokens`.
    pub(super) fn new(model: EngineModel, kv_tokens: u64, block_tokens: u64) -> Self {
        Self {
            model,
            block_tokens,
            cache: BlockCache::new((kv_tokens / block_tokens) as u32),
            waiting: VecDeque::new(),
            running: Vec::new(),
            plan: None,
            preemptions: 0,
            recomputed_tokens: 0,
            output_tokens: 0,
        }
    }

    /// Blocks that two requests computed at the same time.
    pub(super) fn copies(&self) -> u64 {
        self.cache.copies
    }

    /// KV tokens in use by running requests.
    pub(super) fn used_tokens(&self) -> u64 {
        u64::from(self.cache.len() - self.cache.free_blocks()) * self.block_tokens
    }

    /// When the present plan ends; `None` while idle.
    pub(super) fn due(&self) -> Option<Nanos> {
        self.plan.as_ref().map(|plan| plan.end)
    }

    /// A request arrives. The step in flight ends first.
    pub(super) fn arrive(&mut self, now: Nanos, request: Request) {
        self.waiting.push_back(Running {
            request,
            computed: 0,
            produced: 0,
            reported: 0,
            cached_tokens: None,
            table: Vec::new(),
            registered: 0,
            decoding: false,
        });
        match &mut self.plan {
            Some(plan) if plan.chunks.is_empty() => {
                let steps = decode_steps_until(&self.model, plan.sequences, plan.context_tokens, now.saturating_sub(plan.start)).clamp(1, plan.steps);
                plan.steps = steps;
                plan.end = plan.start + nanos(self.model.decode_s(plan.sequences, plan.context_tokens, steps));
            }
            Some(_) => {}
            // Nothing runs, so nobody can be preempted.
            None => self.make_plan(now, &mut Vec::new()),
        }
    }

    /// Ends the present plan, tells what happened, and makes the next one.
    pub(super) fn step(&mut self, now: Nanos, events: &mut Vec<Event>) {
        let Some(plan) = self.plan.take() else { return };
        debug_assert_eq!(plan.end, now);
        // Nobody has taken blocks since the plan was made, so the room it counted on is there.
        self.extend_tables(plan.steps);
        let mut chunks = vec![0; self.running.len()];
        for &(at, tokens) in &plan.chunks {
            chunks[at] = tokens;
        }
        for (running, &chunk) in self.running.iter_mut().zip(&chunks) {
            let (id, cached_tokens) = (running.request.id, running.cached_tokens.unwrap_or(0));
            if chunk > 0 {
                running.computed += chunk;
                if running.computed < running.context() {
                    register(running, &mut self.cache, self.block_tokens);
                    continue;
                }
                running.produced += 1;
                running.decoding = true;
                self.output_tokens += 1;
                if running.produced == 1 {
                    events.push(Event::FirstToken { id, cached_tokens });
                }
            } else if running.decodes() {
                running.computed += plan.steps;
                running.produced += plan.steps;
                self.output_tokens += plan.steps;
            } else {
                continue;
            }
            register(running, &mut self.cache, self.block_tokens);
            if running.produced >= running.request.output_tokens {
                events.push(Event::Finished { id, cached_tokens });
            } else if running.produced >= running.reported + REPORT_TOKENS {
                running.reported = running.produced;
                events.push(Event::Progress { id, output_tokens: running.produced });
            }
        }
        let cache = &mut self.cache;
        self.running.retain(|running| {
            let finished = running.produced >= running.request.output_tokens;
            if finished {
                cache.release(&running.table);
            }
            !finished
        });
        self.make_plan(now, events);
    }

    /// Decides what the next step computes.
    fn make_plan(&mut self, now: Nanos, events: &mut Vec<Event>) {
        self.make_room(events);
        self.extend_tables(1);
        let decoding: Vec<bool> = self.running.iter().map(Running::decodes).collect();
        let sequences = decoding.iter().filter(|&&decodes| decodes).count() as u64;
        let mut budget = self.model.max_batched_tokens.saturating_sub(sequences);
        let mut chunks = Vec::new();
        for (at, running) in self.running.iter().enumerate().filter(|&(at, _)| !decoding[at]) {
            let tokens = (running.context() - running.computed).min(budget);
            if tokens > 0 {
                chunks.push((at, tokens));
                budget -= tokens;
            }
        }
        while budget > 0 && (self.running.len() as u64) < self.model.max_sequences && self.admit() {
            let at = self.running.len() - 1;
            let tokens = (self.running[at].context() - self.running[at].computed).min(budget);
            chunks.push((at, tokens));
            budget -= tokens;
        }
        let context_tokens = self.running.iter().filter(|running| running.decodes()).map(Running::context).sum();
        let steps = if chunks.is_empty() { self.quiet_steps() } else { 1 };
        if sequences == 0 && chunks.is_empty() {
            return;
        }
        let took_s = if chunks.is_empty() {
            self.model.decode_s(sequences, context_tokens, steps)
        } else {
            let work: Vec<(u64, u64)> = chunks.iter().map(|&(at, tokens)| (tokens, self.running[at].computed)).collect();
            self.model.step_s(&work, sequences, context_tokens)
        };
        self.plan = Some(Plan { start: now, steps, chunks, sequences, context_tokens, end: now + nanos(took_s) });
    }

    /// Starts the first waiting request when its whole context fits beside what runs.
    fn admit(&mut self) -> bool {
        let Some(next) = self.waiting.front() else { return false };
        let context = next.context();
        // The last token is always computed, so that there is something to sample from.
        let reusable = (context.saturating_sub(1) / self.block_tokens) as usize;
        let chain = &next.request.chain;
        let hits = self.cache.hits(&chain[..reusable.min(chain.len())]);
        let blocks = context.div_ceil(self.block_tokens) as usize;
        let Some(table) = self.cache.take(&chain[..hits], blocks - hits) else { return false };
        let mut next = self.waiting.pop_front().expect("there is a first one");
        next.computed = hits as u64 * self.block_tokens;
        next.registered = hits;
        next.table = table;
        if next.cached_tokens.is_none() {
            next.cached_tokens = Some(next.computed.min(next.request.prompt_tokens));
        } else {
            self.recomputed_tokens += context - next.computed;
        }
        self.running.push(next);
        true
    }

    /// Preempts the youngest requests until every decoding one has room for its next token.
    fn make_room(&mut self, events: &mut Vec<Event>) {
        while self.blocks_for(1) > u64::from(self.cache.free_blocks()) {
            let mut victim = self.running.pop().expect("whoever needs room is running");
            self.cache.release(&victim.table);
            victim.table = Vec::new();
            victim.registered = 0;
            victim.computed = 0;
            victim.decoding = false;
            self.preemptions += 1;
            events.push(Event::Preempted { id: victim.request.id });
            self.waiting.push_front(victim);
        }
    }

    /// Blocks that `steps` decode steps take.
    fn blocks_for(&self, steps: u64) -> u64 {
        let decoding = self.running.iter().filter(|running| running.decodes());
        decoding.map(|running| (running.computed + steps).div_ceil(self.block_tokens).saturating_sub(running.table.len() as u64)).sum()
    }

    /// Decode steps until somebody finishes, reports or lacks room; at least 1.
    fn quiet_steps(&self) -> u64 {
        let until_news = self
            .running
            .iter()
            .filter(|running| running.decodes())
            .map(|running| (running.request.output_tokens - running.produced).min(running.reported + REPORT_TOKENS - running.produced))
            .min()
            .unwrap_or(1)
            .max(1);
        let free = u64::from(self.cache.free_blocks());
        if self.blocks_for(until_news) <= free {
            return until_news;
        }
        // The largest number of steps that still has room; one step has, because make_room saw to it.
        let (mut fits, mut lacks) = (1, until_news);
        while fits + 1 < lacks {
            let middle = fits.midpoint(lacks);
            if self.blocks_for(middle) <= free { fits = middle } else { lacks = middle }
        }
        fits
    }

    /// Gives the decoding requests the blocks that so many steps fill.
    fn extend_tables(&mut self, steps: u64) {
        for running in self.running.iter_mut().filter(|running| running.decodes()) {
            let blocks = (running.computed + steps).div_ceil(self.block_tokens) as usize;
            while running.table.len() < blocks {
                running.table.push(self.cache.take_one().expect("the room was counted"));
            }
        }
    }
}

/// Registers the blocks that have become full.
fn register(running: &mut Running, cache: &mut BlockCache, block_tokens: u64) {
    let full = ((running.computed / block_tokens) as usize).min(running.request.chain.len());
    for at in running.registered..full {
        cache.computed(running.table[at], running.request.chain[at]);
    }
    running.registered = running.registered.max(full);
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
