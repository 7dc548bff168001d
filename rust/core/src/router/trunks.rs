//! What a session's history is charged for, and what of that charge goes when the engine has evicted it.
//!
//! A charged session claims its trunk while none of its turns does. When an idle session's blocks are judged evicted, the
//! claim shrinks to what is left: the tokens count as `lost`, the session keeps its place and its history. Its next turn
//! claims its whole prompt again.

use super::Router;
use crate::index::{Cursor, RunId};
use crate::record::codec::record;
use crate::sessions::Session;
use crate::sessions::Slab;

const NONE: u32 = u32::MAX;

/// By run: the first session whose claim ends there; the sessions of a run are linked with each other.
#[derive(Debug, Default)]
pub(super) struct ClaimEnds {
    first: Vec<u32>,
}

impl ClaimEnds {
    fn add(&mut self, sessions: &mut Slab<Session>, run: RunId, session: u32) {
        if self.first.len() <= run as usize {
            self.first.resize(run as usize + 1, NONE);
        }
        let next = std::mem::replace(&mut self.first[run as usize], session);
        sessions[session].beside = (NONE, next);
        if next != NONE {
            sessions[next].beside.0 = session;
        }
    }

    fn remove(&mut self, sessions: &mut Slab<Session>, run: RunId, session: u32) {
        let (previous, next) = sessions[session].beside;
        if previous == NONE {
            self.first[run as usize] = next;
        } else {
            sessions[previous].beside.1 = next;
        }
        if next != NONE {
            sessions[next].beside.0 = previous;
        }
    }

    /// Sessions whose claim ends in the run.
    pub(super) fn of<'a>(&self, sessions: &'a Slab<Session>, run: RunId) -> impl Iterator<Item = u32> + use<'a> {
        let first = self.first.get(run as usize).copied().filter(|&first| first != NONE);
        std::iter::successors(first, |&session| Some(sessions[session].beside.1).filter(|&next| next != NONE))
    }
}

impl Router {
    /// Blocks after the trunk: the partial tail and the tokens known by count only.
    pub(super) fn trunk_private(&self, session: u32) -> u64 {
        let session = &self.sessions[session];
        session.history_tokens.div_ceil(self.block_tokens)
            - u64::from(self.index.tree.depth(session.trunk)).min(session.history_tokens.div_ceil(self.block_tokens))
    }

    /// Blocks that the claim of the session holds: fewer than its history has when some were evicted.
    pub(super) fn claimed_blocks(&self, session: u32) -> u64 {
        let state = &self.sessions[session];
        state.claimed.map_or(0, |claimed| u64::from(self.index.tree.depth(claimed)) + self.claimed_private(session, claimed))
    }

    /// A claim that does not reach the end of the trunk has nothing behind it.
    pub(super) fn claimed_private(&self, session: u32, claimed: Cursor) -> u64 {
        if claimed == self.sessions[session].trunk { self.trunk_private(session) } else { 0 }
    }

    /// Claims the trunk on the session's home.
    pub(super) fn claim_trunk(&mut self, session: u32) {
        self.claim_history(session, self.sessions[session].trunk);
    }

    /// Claims the trunk, or what is left of it, on the session's home.
    pub(super) fn claim_history(&mut self, session: u32, claimed: Cursor) {
        debug_assert!(self.sessions[session].claimed.is_none());
        let private = self.claimed_private(session, claimed);
        let state = &mut self.sessions[session];
        let home = state.home.expect("the session is charged");
        state.claimed = Some(claimed);
        self.ledger.claim(&self.index.tree, home, state.workload, claimed, private);
        self.claim_ends.add(&mut self.sessions, claimed.run, session);
    }

    /// Drops the claim of the trunk, where there is one.
    pub(super) fn unclaim_trunk(&mut self, session: u32) {
        let Some(claimed) = self.sessions[session].claimed else { return };
        let private = self.claimed_private(session, claimed);
        let state = &mut self.sessions[session];
        state.claimed = None;
        let home = state.home.expect("the session is charged");
        self.ledger.unclaim(&self.index.tree, home, state.workload, claimed, private);
        self.claim_ends.remove(&mut self.sessions, claimed.run, session);
    }

    /// Gives the session a new trunk, which is anchored already, and claims that before the old one is let go.
    pub(super) fn replace_trunk(&mut self, session: u32, change: impl FnOnce(&mut Session)) {
        let old = self.sessions[session].trunk;
        let before = self.sessions[session].claimed.take().map(|claimed| (claimed, self.claimed_private(session, claimed)));
        if let Some((claimed, _)) = before {
            self.claim_ends.remove(&mut self.sessions, claimed.run, session);
        }
        change(&mut self.sessions[session]);
        self.claim_trunk(session);
        if let Some((claimed, private)) = before {
            let state = &self.sessions[session];
            let home = state.home.expect("the session is charged");
            self.ledger.unclaim(&self.index.tree, home, state.workload, claimed, private);
        }
        self.index.unanchor(old);
    }

    /// Takes from idle sessions the charge for what the engine no longer holds.
    pub(super) fn release_lost(&mut self) {
        for cut in self.index.residency.take_cuts() {
            let ended: Vec<u32> = self.claim_ends.of(&self.sessions, cut.run).collect();
            for session in ended {
                let state = &self.sessions[session];
                let Some(claimed) = state.claimed.filter(|claimed| claimed.offset > cut.keep && state.is_idle()) else { continue };
                if state.home != Some(cut.replica) {
                    continue;
                }
                let depth = self.index.tree.depth_before(cut.run) + cut.keep;
                let left = self.index.tree.ancestor(claimed, depth);
                let lost = self.claimed_blocks(session) - u64::from(depth);
                // A shared block stays charged for its other claimants; the session itself loses it all the same.
                self.metered(session, cut.replica, |router| {
                    router.unclaim_trunk(session);
                    router.claim_history(session, left);
                });
                self.replicas[cut.replica as usize].lost_blocks += lost;
                self.stats.lost_tokens += lost * self.block_tokens;
            }
        }
    }
}

record!(ClaimEnds { first });
