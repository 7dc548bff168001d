//! What the model engines publish of their caches, on its way to the router: late, and with lost batches that are replayed.

use std::collections::VecDeque;

use turnout_core::error::Result;
use turnout_core::index::CacheEvent as Told;
use turnout_core::router::Router;
use turnout_core::router::types::Effect;
use turnout_core::units::Nanos;

use crate::engine::cache::CacheEvent;
use crate::scenario::mix;

/// How cache events travel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Feed {
    /// From the end of a step to the router, s.
    pub lag_s: f64,
    /// Share of the batches that are lost and come by replay, once a later one shows the gap.
    pub loss: f64,
}

/// One cache event with what it names.
#[derive(Debug)]
pub(crate) enum Item {
    Stored { hashes: Vec<u64>, parent: Option<u64>, tokens: Vec<u32> },
    Removed(Vec<u64>),
    Cleared,
}

impl Item {
    /// `tokens` finds those of the chain at an address.
    pub(crate) fn new<'a>(event: CacheEvent, block_tokens: usize, tokens: impl Fn(usize) -> &'a [u32]) -> Self {
        match event {
            CacheEvent::Stored { chain, from, to } => Self::Stored {
                hashes: chain[from as usize..to as usize].to_vec(),
                parent: from.checked_sub(1).map(|before| chain[before as usize]),
                tokens: tokens(chain.as_ptr().addr())[from as usize * block_tokens..to as usize * block_tokens].to_vec(),
            },
            CacheEvent::Removed { chain, from, to } => Self::Removed(chain[from as usize..to as usize].iter().rev().copied().collect()),
            CacheEvent::Cleared => Self::Cleared,
        }
    }

    /// As the router takes it.
    pub(crate) fn told(&self, block_tokens: u32) -> Told<'_> {
        match self {
            Self::Stored { hashes, parent, tokens } => {
                Told::Stored { namespace: "", hashes, parent: *parent, tokens, block_tokens, group: 0, whole_context: true, extra: &[] }
            }
            Self::Removed(hashes) => Told::Removed { hashes, group: 0 },
            Self::Cleared => Told::Cleared,
        }
    }
}

/// The events of one step.
#[derive(Debug)]
struct Batch {
    at: Nanos,
    sequence: u64,
    items: Vec<Item>,
}

/// The publisher of one engine.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    next: u64,
    under_way: VecDeque<Batch>,
    lost: VecDeque<Batch>,
}

impl Publisher {
    /// Publishes what a step did, to arrive at `at`; `tokens` finds those of the chain at an address. Nothing is sent of a step without news.
    pub(crate) fn publish<'a>(&mut self, at: Nanos, events: Vec<CacheEvent>, block_tokens: usize, tokens: impl Fn(usize) -> &'a [u32]) -> bool {
        if events.is_empty() {
            return false;
        }
        let item = |event| Item::new(event, block_tokens, &tokens);
        self.under_way.push_back(Batch { at, sequence: self.next, items: events.into_iter().map(item).collect() });
        self.next += 1;
        true
    }

    /// Hands over what has arrived.
    pub(crate) fn deliver(&mut self, now: Nanos, router: &mut Router, replica: &str, block_tokens: u32, loss: f64) -> Result<()> {
        while self.under_way.front().is_some_and(|batch| batch.at <= now) {
            let Some(batch) = self.under_way.pop_front() else { break };
            // The first batch always arrives: there is no gap before it.
            if batch.sequence > 0 && (mix(batch.sequence ^ 0x5EED) >> 11) as f64 / (1u64 << 53) as f64 <= loss {
                self.lost.push_back(batch);
                continue;
            }
            if hand_over(now, router, replica, block_tokens, &batch)? {
                continue;
            }
            for missed in self.lost.drain(..) {
                hand_over(now, router, replica, block_tokens, &missed)?;
            }
            hand_over(now, router, replica, block_tokens, &batch)?;
        }
        Ok(())
    }
}

/// Gives a batch to the router; `false` when others before it are missing.
fn hand_over(now: Nanos, router: &mut Router, replica: &str, block_tokens: u32, batch: &Batch) -> Result<bool> {
    let told: Vec<Told<'_>> = batch.items.iter().map(|item| item.told(block_tokens)).collect();
    let outcome = router.cache_events(now, replica, 0, batch.sequence, &told)?;
    Ok(!matches!(outcome.effect, Effect::Gap { .. }))
}
