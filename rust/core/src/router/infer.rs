//! Which session a prompt goes on with, where its caller names none.
//!
//! A table of the sessions without an open turn whose history is known to its end, by where that ends: run, offset, and
//! the partial block behind it. The path of a prompt passes the ends of all histories that it begins with, so the longest
//! is found from its deepest run upwards, without looking at any other session.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::Arc;

use super::Router;
use super::types::{Submit, TurnInput};
use crate::index::{Cursor, RunId};
use crate::record::codec::record;
use crate::units::Nanos;

/// Ends of histories that one question looks at: where more of them differ from the prompt in their last partial block
/// alone, the prompt begins a session of its own.
const LOOKED_AT: usize = 64;
/// Sessions with one and the same history that one question looks at.
const TWINS: usize = 64;

/// Where the known history of a session ends. In this order the last one of a run is the deepest.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct HistoryEnd {
    run: RunId,
    offset: u32,
    tail: Vec<u32>,
    since: Nanos,
    session: u32,
}

record!(HistoryEnd { run, offset, tail, since, session });

impl HistoryEnd {
    /// The first of those that end there.
    fn at(run: RunId, offset: u32, tail: &[u32]) -> Self {
        Self { run, offset, tail: tail.to_vec(), since: 0, session: 0 }
    }
}

impl Router {
    /// The session that a prompt without one continues: it has no open turn, its whole history is known and is a proper prefix
    /// of the prompt, and nothing else was asked for. The longest history wins, then the latest. Never a session with an open
    /// turn, so that siblings stay apart. `None` = a new one.
    ///
    /// `tokens` are those of the prompt: the partial block at the end of a history is compared token by token. A turn that is
    /// open already belongs to its session. O(runs on the path + 64 x tokens per block) searches.
    #[must_use]
    pub fn continued_session(&self, submit: &Submit<'_>, tokens: &[u32]) -> Option<Arc<str>> {
        let TurnInput::Prompt(prompt) = submit.input else { return None };
        if !self.infer_sessions || submit.session.is_some() {
            return None;
        }
        if let Some(&turn) = submit.turn.and_then(|id| self.turn_slots.get(id)) {
            return Some(self.sessions[self.turns[turn].session].id.clone());
        }
        if submit.parent.is_some() || prompt.tokens() != tokens.len() as u64 {
            return None;
        }
        let root = self.index.tree.existing_root(&self.root_name(submit.namespace.unwrap_or_default()))?;
        let (end, _) = self.index.tree.locate(root, prompt.fingerprints());
        let session = self.deepest_end(end, submit.workload, tokens)?;
        Some(self.sessions[session].id.clone())
    }

    fn deepest_end(&self, end: Cursor, workload: Option<&str>, tokens: &[u32]) -> Option<u32> {
        let block = self.block_tokens as usize;
        let mut looked_at = 0;
        for (run, mut most) in self.index.tree.path(end) {
            loop {
                let below = (Bound::Included(HistoryEnd::at(run, 0, &[])), Bound::Excluded(HistoryEnd::at(run, most + 1, &[])));
                let Some(offset) = self.history_ends.range(below).next_back().map(|last| last.offset) else { break };
                let from = (self.index.tree.depth_before(run) + offset) as usize * block;
                // A history is shorter than the prompt that continues it, and its tail than a block.
                let behind = &tokens[from..tokens.len().min(from + block)];
                let longest = (block - 1).min((tokens.len() - from).saturating_sub(1));
                for length in (0..=longest.min(behind.len())).rev() {
                    if from + length == tokens.len() || from + length == 0 {
                        continue;
                    }
                    let first = HistoryEnd::at(run, offset, &behind[..length]);
                    let last = HistoryEnd { since: Nanos::MAX, session: u32::MAX, ..first.clone() };
                    let twins = self.history_ends.range(first..=last).rev().take(TWINS);
                    let suits = |session: u32| {
                        let of = self.sessions[session].workload;
                        workload.is_none_or(|name| *self.workloads[of as usize].config.name == *name)
                    };
                    if let Some(found) = twins.map(|twin| twin.session).find(|&session| suits(session)) {
                        return Some(found);
                    }
                }
                looked_at += 1;
                if looked_at == LOOKED_AT {
                    return None;
                }
                let Some(next) = offset.checked_sub(1) else { break };
                most = next;
            }
        }
        None
    }

    /// Notes that the session has no open turn any more.
    pub(super) fn fall_quiet(&mut self, session: u32) {
        self.quiet.insert((self.sessions[session].last_activity, session));
        self.wait_for_end(session);
        self.history_ends.extend(self.history_end(session));
    }

    /// Notes that the session gets an open turn, another history, or goes.
    pub(super) fn wake_up(&mut self, session: u32) {
        self.quiet.remove(&(self.sessions[session].last_activity, session));
        self.stop_waiting_for_end(session);
        if let Some(end) = self.history_end(session) {
            self.history_ends.remove(&end);
        }
    }

    /// The entry of a session without an open turn, where it can be continued by what follows its history.
    pub(super) fn history_end(&self, session: u32) -> Option<HistoryEnd> {
        let state = &self.sessions[session];
        let continuable = self.infer_sessions && state.history_tokens > 0 && state.known_tokens == state.history_tokens;
        let Cursor { run, offset, .. } = state.trunk;
        continuable.then(|| HistoryEnd { run, offset, tail: state.tail.clone(), since: state.last_activity, session })
    }

    /// What the table must hold.
    pub(super) fn expected_history_ends(&self) -> BTreeSet<HistoryEnd> {
        self.sessions.iter().filter(|(_, state)| state.open.is_empty()).filter_map(|(session, _)| self.history_end(session)).collect()
    }
}
