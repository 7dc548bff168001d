//! The requests of an engine that decode, as sums: each step gives every one of them a token.
//!
//! A request is told apart by where the common counter of steps stood when it had no output; its output is the distance
//! from there. Blocks that so many steps fill follow from how many requests stand at each place within a block.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

#[derive(Debug)]
pub(super) struct Decoding {
    block_tokens: u64,
    /// Decode steps so far.
    steps: i64,
    sequences: u64,
    context_tokens: u64,
    /// Requests by (tokens with KV - `steps`) modulo the block.
    by_phase: Vec<u64>,
    /// (steps, admission, slot) at which a request has something to tell; those that left are among them until they come first.
    news: BinaryHeap<Reverse<(i64, u64, u32)>>,
}

impl Decoding {
    pub(super) fn new(block_tokens: u64) -> Self {
        Self { block_tokens, steps: 0, sequences: 0, context_tokens: 0, by_phase: vec![0; block_tokens as usize], news: BinaryHeap::new() }
    }

    pub(super) fn sequences(&self) -> u64 {
        self.sequences
    }

    /// Sum of prompts and outputs.
    pub(super) fn context_tokens(&self) -> u64 {
        self.context_tokens
    }

    /// Output of a request that joined at `joined`.
    pub(super) fn produced(&self, joined: i64) -> u64 {
        (self.steps - joined) as u64
    }

    /// A request with `produced` output tokens, all but the newest with KV, decodes from now on.
    pub(super) fn join(&mut self, prompt_tokens: u64, produced: u64) -> i64 {
        let joined = self.steps - produced as i64;
        self.sequences += 1;
        self.context_tokens += prompt_tokens + produced;
        let phase = self.phase(prompt_tokens, joined);
        self.by_phase[phase] += 1;
        joined
    }

    /// It does not any more; answers its output.
    pub(super) fn leave(&mut self, prompt_tokens: u64, joined: i64) -> u64 {
        let produced = self.produced(joined);
        self.sequences -= 1;
        self.context_tokens -= prompt_tokens + produced;
        let phase = self.phase(prompt_tokens, joined);
        self.by_phase[phase] -= 1;
        produced
    }

    fn phase(&self, prompt_tokens: u64, joined: i64) -> usize {
        (prompt_tokens as i64 - 1 - joined).rem_euclid(self.block_tokens as i64) as usize
    }

    /// A request has news when the counter reaches `at`.
    pub(super) fn expect_news(&mut self, at: i64, admission: u64, slot: u32) {
        self.news.push(Reverse((at, admission, slot)));
    }

    /// So many steps pass; answers (admission, slot) of those that have news.
    pub(super) fn advance(&mut self, steps: u64) -> Vec<(u64, u32)> {
        if self.sequences > 0 {
            self.steps += steps as i64;
            self.context_tokens += self.sequences * steps;
        }
        let mut due = Vec::new();
        while let Some(&Reverse((at, admission, slot))) = self.news.peek()
            && at <= self.steps
        {
            self.news.pop();
            due.push((admission, slot));
        }
        due
    }

    /// Forgets the expected news of requests that left, as far as they come first.
    pub(super) fn forget_news(&mut self, left: impl Fn(u64, u32) -> bool) {
        while let Some(&Reverse((_, admission, slot))) = self.news.peek()
            && left(admission, slot)
        {
            self.news.pop();
        }
    }

    /// Blocks that the steps after the first `from`, up to the `to`-th from now, begin.
    pub(super) fn blocks_between(&self, from: u64, to: u64) -> u64 {
        let block = self.block_tokens;
        let now = self.steps.rem_euclid(block as i64) as u64;
        let begun = |(phase, &count): (usize, &u64)| {
            let filled = (phase as u64 + now) % block;
            count * ((filled + to).div_ceil(block) - (filled + from).div_ceil(block))
        };
        self.by_phase.iter().enumerate().filter(|entry| *entry.1 > 0).map(begun).sum()
    }

    /// Steps until somebody has news or the free blocks are used up; at least 1. The first step has its blocks already.
    pub(super) fn quiet_steps(&self, free_blocks: u64) -> u64 {
        let until_news = self.news.peek().map_or(1, |Reverse((at, ..))| (at - self.steps).max(1) as u64);
        if self.blocks_between(1, until_news) <= free_blocks {
            return until_news;
        }
        // The largest number of steps that still has room; one step has.
        let (mut fits, mut lacks) = (1, until_news);
        while fits + 1 < lacks {
            let middle = fits.midpoint(lacks);
            if self.blocks_between(1, middle) <= free_blocks { fits = middle } else { lacks = middle }
        }
        fits
    }
}
