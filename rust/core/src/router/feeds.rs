//! What engines say about their own caches.

use std::sync::Arc;

use super::Router;
use super::types::{Effect, Outcome};
use crate::error::Result;
use crate::index::{Applied, CacheEvent};

impl Router {
    /// Applies a batch of cache events that an engine published. From then on those say what the replica holds.
    ///
    /// Batches of one rank come in the order of their numbers. Where some are missing the batch is not applied and the answer is
    /// [`Effect::Gap`]: replay from the number given there, or [`Self::reset_feed`]. What idle sessions lose by the events is no
    /// longer charged.
    ///
    /// # Errors
    /// [`crate::error::Error::UnknownReplica`].
    pub fn cache_events(&mut self, now: u64, replica: &str, rank: i64, sequence: u64, events: &[CacheEvent<'_>]) -> Result<Outcome> {
        let slot = self.replica_slot(replica)?;
        let seq = self.begin(now);
        // Roots carry the salt of the weights; the engine knows nothing of that.
        let roots: Vec<Option<Arc<str>>> = events
            .iter()
            .map(|event| if let CacheEvent::Stored { namespace, parent: None, .. } = event { Some(self.root_name(namespace)) } else { None })
            .collect();
        let events: Vec<CacheEvent<'_>> = events
            .iter()
            .zip(&roots)
            .map(|(event, root)| match (*event, root) {
                (CacheEvent::Stored { hashes, parent, tokens, block_tokens, group, whole_context, extra, .. }, Some(namespace)) => {
                    CacheEvent::Stored { namespace, hashes, parent, tokens, block_tokens, group, whole_context, extra }
                }
                (event, _) => event,
            })
            .collect();
        let applied = self.index.apply_reporting(&self.hasher, slot, rank, sequence, &events);
        self.release_lost();
        self.pump(None);
        let effect = match applied {
            Applied::Done => Effect::Done,
            Applied::Duplicate => Effect::Duplicate,
            Applied::Gap { expected } => Effect::Gap { expected },
        };
        Ok(Outcome { seq, effect })
    }

    /// Starts the feed of one rank anew: nothing is known of its cache, and the next batch has the number `next`.
    ///
    /// # Errors
    /// [`crate::error::Error::UnknownReplica`].
    pub fn reset_feed(&mut self, now: u64, replica: &str, rank: i64, next: u64) -> Result<Outcome> {
        let slot = self.replica_slot(replica)?;
        let seq = self.begin(now);
        self.index.reset_feed(slot, rank, next);
        self.pump(None);
        Ok(Outcome { seq, effect: Effect::Done })
    }

    /// Ends the feeds of a replica: own decisions say what it holds again, starting from what the feeds said.
    ///
    /// # Errors
    /// [`crate::error::Error::UnknownReplica`].
    pub fn end_feeds(&mut self, now: u64, replica: &str) -> Result<Outcome> {
        let slot = self.replica_slot(replica)?;
        let seq = self.begin(now);
        self.index.end_feeds(slot);
        self.enforce_residency(slot);
        self.pump(None);
        Ok(Outcome { seq, effect: Effect::Done })
    }
}
