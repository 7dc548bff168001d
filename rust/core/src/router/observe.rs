//! Observe: what engines report about their own load.

use super::Router;
use super::types::{Effect, Metrics, Outcome};
use crate::error::{Error, Result};
use crate::estimate::Rate;
use crate::record::codec::record;
use crate::units::Nanos;

/// The last reports of a replica's engine.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Observed {
    /// When it last reported anything.
    pub(super) at: Option<Nanos>,
    pub(super) kv_fraction: Option<f64>,
    pub(super) running: Option<u64>,
    pub(super) waiting: Option<u64>,
    preemptions_total: Option<u64>,
    preemptions: Rate,
}

impl Observed {
    /// Preemptions per second; NaN until the engine reports them.
    pub(super) fn preemptions_per_s(&self, now: Nanos) -> f64 {
        if self.preemptions_total.is_some() { self.preemptions.read(now) } else { f64::NAN }
    }
}

impl Router {
    /// Notes what an engine reports about itself. It feeds the view; a capacity that differs from the configured one replaces it.
    ///
    /// # Errors
    /// [`Error::UnknownReplica`]; [`Error::InvalidArgument`] for a value out of range.
    pub fn observe(&mut self, now: u64, replica: &str, metrics: &Metrics) -> Result<Outcome> {
        if let Some(fraction) = metrics.kv_fraction.filter(|fraction| !(0.0..=1.0).contains(fraction)) {
            return Err(Error::InvalidArgument { argument: "kv_fraction", value: fraction.to_string(), accepted: "a share from 0 to 1" });
        }
        if let Some(tokens) = metrics.kv_tokens.filter(|tokens| tokens.is_nan() || *tokens < 1.0) {
            return Err(Error::InvalidArgument {
                argument: "kv_tokens",
                value: tokens.to_string(),
                accepted: "tokens above 0, infinity when unknown",
            });
        }
        let slot = self.replica_slot(replica)?;
        let seq = self.begin(now);
        let now = self.now;
        let seen = &mut self.replicas[slot as usize].observed;
        seen.at = Some(now);
        seen.kv_fraction = metrics.kv_fraction.or(seen.kv_fraction);
        seen.running = metrics.running.or(seen.running);
        seen.waiting = metrics.waiting.or(seen.waiting);
        if let Some(total) = metrics.preemptions_total {
            // A counter that went back belongs to an engine that was restarted: it counts from 0.
            let news = seen.preemptions_total.map_or(0, |before| if total >= before { total - before } else { total });
            seen.preemptions.add(now, news as f64);
            seen.preemptions_total = Some(total);
        }
        if let Some(kv_tokens) = metrics.kv_tokens {
            self.replicas[slot as usize].config.kv_tokens = kv_tokens;
            self.resize(slot);
        }
        self.pump(None);
        Ok(Outcome { seq, effect: Effect::Done })
    }
}

record!(Observed { at, kv_fraction, running, waiting, preemptions_total, preemptions });
