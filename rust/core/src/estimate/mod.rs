//! What is learned about workloads. Estimates feed the fleet view only; decisions depend on limits, never on these.

mod gaps;

pub(crate) use gaps::Gaps;

use crate::record::codec::record;
use crate::router::types::WorkloadConfig;
use crate::sessions::Meter;
use crate::units::{Nanos, seconds};

/// Weight by which older completions fade at each completion.
pub(crate) const FADE: f64 = 1.0 - 1.0 / 32.0;
/// Completions that a declared prior stands for.
const PRIOR_WEIGHT: f64 = 4.0;
/// Time constant of event rates, s.
const RATE_SECONDS: f64 = 86.56;

/// A rate of events per second. Fades as 1 / (1 + dt/tau) rather than exponentially: no libm, equal bits everywhere.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Rate {
    per_second: f64,
    at: Nanos,
}

impl Rate {
    pub(crate) fn count(&mut self, now: Nanos) {
        self.add(now, 1.0);
    }

    pub(crate) fn add(&mut self, now: Nanos, events: f64) {
        self.per_second = self.read(now) + events / RATE_SECONDS;
        self.at = now;
    }

    pub(crate) fn read(&self, now: Nanos) -> f64 {
        self.per_second / (1.0 + seconds(now.saturating_sub(self.at)) / RATE_SECONDS)
    }
}

/// Faded sums over ended sessions and turns of one workload.
#[derive(Debug, Clone, Default)]
pub(crate) struct Estimator {
    prior: Prior,
    sessions: f64,
    growth: f64,
    length: f64,
    block_seconds: f64,
    residency: f64,
    active: f64,
    turns: f64,
    output: f64,
    output_squares: f64,
    pub(crate) gaps: Gaps,
    /// Finished sessions, not faded.
    pub(crate) samples: u64,
}

#[derive(Debug, Clone, Copy, Default)]
struct Prior {
    context_tokens: f64,
    growth_tokens: f64,
    residency_s: f64,
}

/// Estimates of one workload; 0 = unknown.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Estimates {
    /// Mean tokens that a charged session holds (k).
    pub(crate) context_tokens: f64,
    /// Mean final growth since the first prompt (L).
    pub(crate) growth_tokens: f64,
    /// Mean length at the end of finished sessions.
    pub(crate) final_tokens: f64,
    /// Mean output a running turn has produced: E[O^2] / (2 E[O]).
    pub(crate) output_tokens: f64,
    /// Mean time charged (T).
    pub(crate) residency_s: f64,
    /// Mean of tokens times seconds of a session (Z = k T).
    pub(crate) token_seconds: f64,
    /// Mean time with a turn that runs.
    pub(crate) active_s: f64,
    /// Mean time between two turns, and the 0.95 quantile of it.
    pub(crate) gap_s: f64,
    pub(crate) gap_p95_s: f64,
    /// Share of turns that were followed by another.
    pub(crate) continue_fraction: f64,
}

/// A session that has not ended, as the estimators see it.
pub(crate) struct Live {
    pub(crate) residency_s: f64,
    pub(crate) block_seconds: f64,
    pub(crate) growth_tokens: f64,
    pub(crate) active_s: f64,
    /// How long it has been between two turns, where it is.
    pub(crate) gap: Option<Nanos>,
}

impl Estimator {
    pub(crate) fn new(config: &WorkloadConfig) -> Self {
        let prior = Prior { context_tokens: config.context_tokens, growth_tokens: config.growth_tokens, residency_s: config.residency_s };
        Self { prior, ..Self::default() }
    }

    /// Notes a finished session.
    pub(crate) fn session(&mut self, meter: &Meter, grown_tokens: u64, final_tokens: u64) {
        for sum in [&mut self.sessions, &mut self.growth, &mut self.length, &mut self.block_seconds, &mut self.residency, &mut self.active] {
            *sum *= FADE;
        }
        self.sessions += 1.0;
        self.growth += grown_tokens as f64;
        self.length += final_tokens as f64;
        self.block_seconds += meter.block_ns_completed as f64 / 1e9;
        self.residency += seconds(meter.charged_ns_completed);
        self.active += seconds(meter.active_ns_completed);
        self.samples += 1;
    }

    /// Notes the output of a completed turn.
    pub(crate) fn turn(&mut self, output_tokens: u64) {
        for sum in [&mut self.turns, &mut self.output, &mut self.output_squares] {
            *sum *= FADE;
        }
        self.turns += 1.0;
        self.output += output_tokens as f64;
        self.output_squares += (output_tokens as f64) * (output_tokens as f64);
    }

    /// Halves the weight of what was learned: other weights behave otherwise.
    pub(crate) fn weights_updated(&mut self) {
        for sum in [&mut self.sessions, &mut self.growth, &mut self.length, &mut self.block_seconds, &mut self.residency, &mut self.active] {
            *sum *= 0.5;
        }
    }

    /// Estimates from ended and live sessions. A live session that has already exceeded the mean counts as one more
    /// observation of at least that much: otherwise a long decode would be invisible until it ends.
    pub(crate) fn read(&self, block_tokens: u32, live: &[Live]) -> Estimates {
        let block_tokens = f64::from(block_tokens);
        let live_seconds: f64 = live.iter().map(|session| session.residency_s).sum();
        let live_block_seconds: f64 = live.iter().map(|session| session.block_seconds).sum();
        let prior_seconds = if self.prior.context_tokens > 0.0 { PRIOR_WEIGHT * self.prior.residency_s.max(1.0) } else { 0.0 };
        let context = ratio(
            prior_seconds * self.prior.context_tokens + (self.block_seconds + live_block_seconds) * block_tokens,
            prior_seconds + self.residency + live_seconds,
        );
        let residency = self.censored(self.prior.residency_s, self.residency, live.iter().map(|session| session.residency_s));
        let active = self.censored(0.0, self.active, live.iter().map(|session| session.active_s));
        let (gap_s, gap_p95_s) = self.gaps.read(live.iter().filter_map(|session| session.gap));
        let growth = self.censored(self.prior.growth_tokens, self.growth, live.iter().map(|session| session.growth_tokens));
        Estimates {
            context_tokens: context,
            growth_tokens: growth,
            final_tokens: ratio(self.length, self.sessions),
            output_tokens: ratio(self.output_squares, 2.0 * self.output),
            residency_s: residency,
            token_seconds: context * residency,
            active_s: active,
            gap_s,
            gap_p95_s,
            continue_fraction: self.gaps.continue_fraction(),
        }
    }

    fn censored(&self, prior: f64, sum: f64, live: impl Iterator<Item = f64>) -> f64 {
        let weight = if prior > 0.0 { PRIOR_WEIGHT } else { 0.0 };
        let (sum, count) = (prior * weight + sum, self.sessions + weight);
        let mean = ratio(sum, count);
        let (sum, count) = live.filter(|&value| value > mean).fold((sum, count), |(sum, count), value| (sum + value, count + 1.0));
        ratio(sum, count)
    }
}

fn ratio(numerator: f64, denominator: f64) -> f64 {
    if denominator > 0.0 { numerator / denominator } else { 0.0 }
}

record!(Rate { per_second, at });
record!(Estimator { prior, sessions, length, growth, block_seconds, residency, active, turns, output, output_squares, gaps, samples });
record!(Prior { context_tokens, growth_tokens, residency_s });
