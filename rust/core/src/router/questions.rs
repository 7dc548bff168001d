//! Questions that change nothing: who holds what, names, counters, and what a journal has to know.

use std::sync::Arc;

use super::Router;
use super::types::Stats;
use crate::error::{Error, Result};
use crate::index::{Cursor, Depths, FeedStats};
use crate::prompt::{BlockHasher, Prompt};
use crate::units::Nanos;

impl Router {
    /// The hasher of this router's prompts. Clone it to hash outside a lock.
    #[must_use]
    pub fn hasher(&self) -> &BlockHasher {
        &self.hasher
    }

    /// Names of the replicas, in row order.
    #[must_use]
    pub fn replicas(&self) -> Vec<Arc<str>> {
        self.live().map(|slot| self.replicas[slot as usize].config.name.clone()).collect()
    }

    /// Names of the workloads, in row order.
    #[must_use]
    pub fn workloads(&self) -> Vec<Arc<str>> {
        self.workloads.iter().map(|workload| workload.config.name.clone()).collect()
    }

    /// Which replicas hold a prefix of the prompt, with the tokens of it that a turn would find cached; best first.
    #[must_use]
    pub fn peek(&self, namespace: &str, prompt: &Prompt) -> Vec<(Arc<str>, u64)> {
        let Some(root) = self.index.tree.existing_root(&self.root_name(namespace)) else { return Vec::new() };
        let (cursor, _) = self.index.tree.locate(root, prompt.fingerprints());
        self.holders(cursor, prompt.tokens())
    }

    /// Which replicas hold a prefix of the session's history; best first.
    ///
    /// # Errors
    /// [`Error::UnknownSession`].
    pub fn peek_session(&self, session: &str) -> Result<Vec<(Arc<str>, u64)>> {
        let slot = self.session_slots.get(session).ok_or_else(|| Error::UnknownSession { session: session.into() })?;
        let session = &self.sessions[*slot];
        // The next turn is at least one token longer than the history, so every full block of it may hit.
        Ok(self.holders(session.trunk, session.history_tokens + 1))
    }

    fn holders(&self, cursor: Cursor, prompt_tokens: u64) -> Vec<(Arc<str>, u64)> {
        let mut depths = Depths::default();
        self.index.residency.matches(&self.index.tree, cursor, &mut depths);
        let mut holders: Vec<(Arc<str>, u64)> = self
            .live()
            .map(|slot| (self.replicas[slot as usize].config.name.clone(), self.cached_tokens(slot, depths.blocks[slot as usize], prompt_tokens)))
            .filter(|holder| holder.1 > 0)
            .collect();
        holders.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        holders
    }

    /// Tokens that hit when `depth` blocks are resident: whole blocks of the engine, and the last prompt token is always computed.
    pub(super) fn cached_tokens(&self, replica: u32, depth: u32, prompt_tokens: u64) -> u64 {
        let engine_block = self.engine_block(replica);
        (u64::from(depth) * self.block_tokens).min(prompt_tokens.saturating_sub(1)) / engine_block * engine_block
    }

    /// Tokens per KV block of the replica's engine.
    pub(super) fn engine_block(&self, replica: u32) -> u64 {
        self.replicas[replica as usize].config.block_tokens.map_or(self.block_tokens, u64::from)
    }

    /// Tokens charged on all replicas.
    #[must_use]
    pub fn charge_tokens(&self) -> u64 {
        self.live().map(|slot| self.ledger.charge(slot) * self.block_tokens).sum()
    }

    /// Pauses, moves and forced placements since the start, by workload in row order.
    #[must_use]
    pub fn interventions(&self) -> Vec<[i64; 3]> {
        self.workloads.iter().map(|workload| [workload.pauses, workload.moves, workload.forced]).collect()
    }

    /// Counters of the engines' cache events since the start.
    #[must_use]
    pub fn feed_stats(&self) -> FeedStats {
        self.index.feed_stats()
    }

    /// Counters since the start, and sizes now.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            open_turns: self.turns.len() as u64,
            held_turns: self.line.len() as u64,
            live_sessions: self.sessions.len() as u64,
            index_runs: self.index.tree.run_count(),
            index_blocks: self.index.tree.blocks(),
            index_bytes: self.index.bytes(),
            ..self.stats
        }
    }

    /// Moves with every event that changed anything: its number, and the refusals that are counted.
    pub(crate) fn changes(&self) -> (u64, u64) {
        (self.seq, self.stats.mismatches)
    }

    /// Whether a turn without a session continues another one.
    #[must_use]
    pub fn infers_sessions(&self) -> bool {
        self.infer_sessions
    }

    /// Number of the last event.
    #[must_use]
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The time of the last event.
    #[must_use]
    pub fn now(&self) -> Nanos {
        self.now
    }

    /// Whether the outbox holds anything.
    #[must_use]
    pub fn has_words(&self) -> bool {
        !self.outbox.is_empty()
    }

    /// Fingerprints of the known history of a session; none for one that is not known.
    pub(crate) fn history_fingerprints(&self, session: &str) -> Vec<u64> {
        let slot = self.session_slots.get(session);
        slot.map(|&slot| self.index.tree.fingerprints(self.sessions[slot].trunk)).unwrap_or_default()
    }

    /// The partial block at the end of a session's known history.
    pub(crate) fn history_tail(&self, session: &str) -> Option<&[u32]> {
        self.session_slots.get(session).map(|&slot| &self.sessions[slot].tail[..])
    }

    /// The partial block at the end of a turn's prompt, where that is known to its end.
    pub(crate) fn prompt_tail(&self, turn: &str) -> Option<&[u32]> {
        let turn = &self.turns[*self.turn_slots.get(turn)?];
        (turn.known_tokens == turn.prompt_tokens).then_some(&turn.tail[..])
    }

    /// Whether a control step is due.
    #[must_use]
    pub fn policy_due(&self) -> bool {
        self.policy_due
    }
}
