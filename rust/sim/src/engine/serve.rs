//! What a server asks of an engine beside what the simulation does: looks in between, aborts, sizes of the queue.

use turnout_core::units::Nanos;

use super::{Engine, Event};

impl Engine {
    /// From now on the cache tells what can be found in it, and nothing else.
    pub fn publish_found(&mut self) {
        self.publish();
        self.cache.tells_copies = false;
    }

    /// Makes the present plan end with the step in flight, so that somebody may look.
    pub fn look(&mut self, now: Nanos) {
        self.shorten(now);
    }

    /// A request leaves: at once while it waits (`true`), else with [`Event::Finished`] at the end of the step in flight.
    pub fn abort(&mut self, now: Nanos, id: u64) -> bool {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.request.id == id) {
            self.waiting.remove(at);
            return true;
        }
        self.aborted.push(id);
        self.shorten(now);
        false
    }

    /// Ends what was aborted during the step.
    pub(super) fn drop_aborted(&mut self, events: &mut Vec<Event>) {
        for id in std::mem::take(&mut self.aborted) {
            let slot = self.order.iter().copied().find(|&slot| self.slots[slot as usize].as_ref().is_some_and(|running| running.request.id == id));
            if let Some(slot) = slot {
                self.prefilling.retain(|&other| other != slot);
                self.finish(slot);
                events.push(Event::Finished { id, cached_tokens: 0 });
            }
        }
    }

    /// Calls `visit` with number and output tokens of every decoding request, in the order of their admission.
    pub fn outputs(&self, mut visit: impl FnMut(u64, u64)) {
        for &slot in &self.order {
            if let Some(running) = &self.slots[slot as usize]
                && let Some(joined) = running.joined
            {
                visit(running.request.id, self.decoding.produced(joined));
            }
        }
    }

    /// Requests that run, and that wait.
    #[must_use]
    pub fn requests(&self) -> (usize, usize) {
        (self.order.len(), self.waiting.len())
    }

    /// Tokens of the waiting requests, and those of them that are not cached.
    #[must_use]
    pub fn waiting_tokens(&self) -> (u64, u64) {
        self.waiting.iter().fold((0, 0), |(all, uncached), waiting| {
            let context = waiting.context();
            let cached = u64::from(self.cache.hits(&waiting.request.chain)) * self.block_tokens;
            (all + context, uncached + context.saturating_sub(cached))
        })
    }

    /// KV capacity in whole blocks, tokens.
    #[must_use]
    pub fn kv_tokens(&self) -> u64 {
        u64::from(self.cache.len()) * self.block_tokens
    }

    /// KV tokens that nobody uses and that are still cached.
    #[must_use]
    pub fn evictable_tokens(&self) -> u64 {
        u64::from(self.cache.evictable_blocks()) * self.block_tokens
    }
}
