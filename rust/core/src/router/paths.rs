//! From what a turn asks for to a path in the index.

use std::sync::Arc;

use super::Router;
use super::types::{Submit, TurnInput};
use crate::index::Cursor;

/// Why a prompt does not continue its session's history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rewrite {
    Edited,
    Shortened,
    OtherNamespace,
}

/// The path that a request asks for. The cursor is anchored for the turn.
pub(super) struct Path {
    pub(super) root: Arc<str>,
    pub(super) cursor: Cursor,
    pub(super) tail: Vec<u32>,
    pub(super) prompt_tokens: u64,
    pub(super) known_tokens: u64,
    /// Why the prompt does not continue the history, if it does not.
    pub(super) rewrite: Option<Rewrite>,
}

impl Router {
    pub(super) fn path_for(&mut self, session: u32, submit: &Submit<'_>) -> Path {
        let state = &self.sessions[session];
        let namespace = submit.namespace.map_or_else(|| state.namespace.clone(), Into::into);
        let root = self.root_name(&namespace);
        let same_root = root == state.root;
        let (history, trunk) = (state.history_tokens, state.trunk);
        let rewrite_of = |router: &Self, cursor: Cursor, tokens: u64| {
            if history == 0 || !same_root {
                // Another root is another namespace, which is noted below, or new weights, which change no token.
                None
            } else if router.index.tree.starts_with(cursor, trunk) {
                (tokens < history).then_some(Rewrite::Shortened)
            } else if tokens < history && router.index.tree.starts_with(trunk, cursor) {
                Some(Rewrite::Shortened)
            } else {
                Some(Rewrite::Edited)
            }
        };
        let mut path = match submit.input {
            TurnInput::Prompt(prompt) => {
                let start = self.index.tree.root(&root);
                let (cursor, tail, known_tokens) = self.index_path(start, prompt.fingerprints(), prompt.tail().to_vec());
                let rewrite = rewrite_of(self, cursor, prompt.tokens());
                Path { root, cursor, tail, prompt_tokens: prompt.tokens(), known_tokens, rewrite }
            }
            TurnInput::Append { .. } | TurnInput::Grown { .. } => {
                // New weights may have changed the root since: the known history moves over with its fingerprints.
                let old_tail = state.tail.clone();
                let (base, _, moved_tokens) = if same_root {
                    (trunk, Vec::new(), history)
                } else {
                    let fingerprints = self.index.tree.fingerprints(trunk);
                    let start = self.index.tree.root(&root);
                    self.index_path(start, &fingerprints, old_tail.clone())
                };
                let new_tokens = match submit.input {
                    TurnInput::Grown { suffix, .. } => suffix.tokens() - old_tail.len() as u64,
                    TurnInput::Append { tokens, .. } => tokens.len() as u64,
                    _ => 0,
                };
                let (cursor, tail, known_tokens) = match submit.input {
                    _ if moved_tokens != history => (base, Vec::new(), moved_tokens),
                    TurnInput::Grown { suffix, .. } => self.index_path(base, suffix.fingerprints(), suffix.tail().to_vec()),
                    TurnInput::Append { tokens, .. } => self.append(base, &old_tail, tokens),
                    _ => (base, old_tail, history),
                };
                Path { root, cursor, tail, prompt_tokens: history + new_tokens, known_tokens, rewrite: None }
            }
            TurnInput::Count { prompt_tokens } => {
                let keeps = history > 0 && same_root && prompt_tokens >= history;
                let cursor = if keeps { trunk } else { self.index.tree.root(&root) };
                let (tail, known_tokens) = if keeps { (state.tail.clone(), state.known_tokens) } else { (Vec::new(), 0) };
                let rewrite = (history > 0 && !keeps).then_some(Rewrite::Shortened);
                Path { root, cursor, tail, prompt_tokens, known_tokens, rewrite }
            }
        };
        self.index.tree.anchor(path.cursor);
        if namespace != self.sessions[session].namespace {
            if history > 0 {
                path.rewrite = Some(Rewrite::OtherNamespace);
            }
            self.sessions[session].namespace = namespace;
        }
        path
    }

    /// Adds tokens after a path and its tail; answers as [`Self::index_path`].
    pub(super) fn append(&mut self, base: Cursor, tail: &[u32], tokens: &[u32]) -> (Cursor, Vec<u32>, u64) {
        let suffix = self.hasher.continued(tail, tokens);
        let tail = suffix.tail().to_vec();
        self.index_path(base, suffix.fingerprints(), tail)
    }

    /// Puts a path into the index; answers its end, the tail behind it, and how many tokens up to there are known. Where the
    /// index has no room, even after the paths of paused sessions were let go, the end comes early, without a tail: what
    /// follows is charged by count.
    pub(super) fn index_path(&mut self, from: Cursor, fingerprints: &[u64], tail: Vec<u32>) -> (Cursor, Vec<u32>, u64) {
        let depth = self.index.tree.depth(from) + fingerprints.len() as u32;
        let mut end = self.index.insert(from, fingerprints);
        if self.index.tree.depth(end) < depth {
            self.index.tree.anchor(end);
            if self.forget_paused_paths(fingerprints.len() as u64) {
                let found = std::mem::replace(&mut end, self.index.insert(from, fingerprints));
                self.index.move_anchor(found, end);
            }
            // The caller anchors the end itself; nothing is freed in between.
            self.index.tree.drop_anchor(end);
        }
        let reached = self.index.tree.depth(end);
        if reached == depth {
            let known = u64::from(depth) * self.block_tokens + tail.len() as u64;
            return (end, tail, known);
        }
        self.stats.index_full += 1;
        (end, Vec::new(), u64::from(reached) * self.block_tokens)
    }

    /// Lets go of the known histories of paused sessions, longest quiet first, until `blocks` are free: their next append has
    /// to bring the whole prompt. Answers whether any was let go.
    fn forget_paused_paths(&mut self, blocks: u64) -> bool {
        if !self.paused_paths {
            return false;
        }
        let before = self.index.tree.blocks();
        let mut any = false;
        let quiet: Vec<u32> = self.quiet.iter().map(|&(_, session)| session).collect();
        for session in quiet {
            let state = &self.sessions[session];
            if state.home.is_some() || self.index.tree.depth(state.trunk) == 0 {
                continue;
            }
            let trunk = state.trunk;
            let root = self.index.tree.ancestor(trunk, 0);
            self.wake_up(session);
            self.index.tree.anchor(root);
            self.index.unanchor(trunk);
            let state = &mut self.sessions[session];
            state.trunk = root;
            state.tail = Vec::new();
            state.known_tokens = 0;
            self.fall_quiet(session);
            self.stats.paths_dropped += 1;
            any = true;
            if before - self.index.tree.blocks() >= blocks {
                return true;
            }
        }
        self.paused_paths = false;
        any
    }
}
