//! How a simulation is set up, and what can be played.

use std::sync::Arc;

use turnout_core::error::{Error, Result};
use turnout_core::router::types::RouterConfig;

use crate::engine::model::EngineModel;
use crate::feed::Feed;
use crate::scenario::Scenario;

/// How a simulation is set up.
#[derive(Debug, Clone)]
pub struct SimulationConfig {
    /// The router; its replicas are the engines, with the KV capacity stated there.
    pub router: RouterConfig,
    /// Times of every engine.
    pub engine: EngineModel,
    /// What is played.
    pub scenario: Arc<Scenario>,
    /// Sessions outstanding at once, sub-sessions not counted.
    pub concurrency: usize,
    /// Sessions to start at most, sub-sessions not counted; `None` = as many as there are, or without end when repeating.
    pub sessions: Option<u64>,
    /// Whether the list is played again with fresh private content when it is exhausted.
    pub repeat: bool,
    /// When to stop, s.
    pub duration_s: f64,
    /// Seconds between samples of the time series.
    pub sample_period_s: f64,
    /// New weights, and empty caches, whenever so many more sessions have finished.
    pub flush_every_sessions: Option<u64>,
    /// Replicas that go and come back.
    pub outages: Vec<Outage>,
    /// How the engines' cache events reach the router; `None`: they do not, and it judges by its own decisions.
    pub feed: Option<Feed>,
}

/// A replica is away for a while and comes back with an empty cache. Away from the start: it joins later.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Outage {
    /// Index of the replica.
    pub replica: usize,
    /// When it goes, s.
    pub at_s: f64,
    /// For how long, s; infinite = for good.
    pub away_s: f64,
}

impl SimulationConfig {
    /// Checks all but what the router checks itself.
    pub(crate) fn check(&self) -> Result<()> {
        let bad = |argument: &'static str, value: String, accepted: &'static str| Err(Error::InvalidArgument { argument, value, accepted });
        if self.router.replicas.is_empty() {
            return bad("replicas", "none".into(), "at least one replica");
        }
        if let Some(replica) =
            self.router.replicas.iter().find(|replica| !(replica.kv_tokens >= f64::from(self.router.block_tokens) && replica.kv_tokens <= 1e8))
        {
            return bad("kv_tokens", replica.kv_tokens.to_string(), "one block to 1e8 tokens");
        }
        if self.concurrency == 0 {
            return bad("concurrency", "0".into(), "at least 1");
        }
        if self.duration_s.is_nan() || self.duration_s <= 0.0 {
            return bad("duration_s", self.duration_s.to_string(), "seconds above 0");
        }
        if self.sample_period_s.is_nan() || self.sample_period_s <= 0.0 {
            return bad("sample_period_s", self.sample_period_s.to_string(), "seconds above 0");
        }
        if self.repeat && self.duration_s.is_infinite() && self.sessions.is_none() {
            return bad("duration_s", "infinity".into(), "a finite time, or a number of sessions, when sessions repeat");
        }
        if self.flush_every_sessions == Some(0) {
            return bad("flush_every_sessions", "0".into(), "at least 1");
        }
        for outage in &self.outages {
            if outage.replica >= self.router.replicas.len() {
                return bad("outages", format!("replica {}", outage.replica), "an index of a replica");
            }
            if !(outage.at_s >= 0.0 && outage.at_s.is_finite() && outage.away_s > 0.0) {
                return bad("outages", format!("{} s for {} s", outage.at_s, outage.away_s), "a time of at least 0 and a duration above 0, s");
            }
        }
        if let Some(feed) = self.feed
            && !(feed.lag_s >= 0.0 && feed.lag_s.is_finite() && (0.0..1.0).contains(&feed.loss))
        {
            return bad("feed", format!("{} s late, {} lost", feed.lag_s, feed.loss), "finite seconds of at least 0, and a share from 0 to below 1");
        }
        self.engine.check()?;
        Ok(())
    }
}
