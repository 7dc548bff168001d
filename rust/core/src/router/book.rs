//! Sessions and ledger in step: every change of what is charged goes through here.

use super::{Router, placed};
use crate::admission::enforced::Enforced;
use crate::index::Cursor;
use crate::ledger::headroom;
use crate::sessions::{Placement, TurnState};

impl Router {
    /// Blocks after the prompt's path.
    pub(super) fn turn_private(&self, turn: u32) -> u64 {
        let turn = &self.turns[turn];
        turn.prompt_tokens.div_ceil(self.block_tokens) - u64::from(self.index.tree.depth(turn.cursor))
    }

    /// Runs `change`, an event of the session itself, and books by how much it changed the charge of the session's home.
    pub(super) fn metered<T>(&mut self, session: u32, home: u32, change: impl FnOnce(&mut Self) -> T) -> T {
        let now = self.now;
        self.sessions[session].run_meter(now);
        let before = self.ledger.charge(home);
        let result = change(self);
        let after = self.ledger.charge(home);
        let added = &mut self.sessions[session].meter.added_blocks;
        *added = (*added + after).saturating_sub(before);
        result
    }

    /// Tokens by which the session has grown since its first prompt, the open outputs included. With several open turns
    /// the longest prompt counts, and all outputs.
    pub(super) fn grown_tokens(&self, session: u32) -> u64 {
        let state = &self.sessions[session];
        let (mut path, mut output) = (0, 0);
        for &turn in &state.open {
            if let Some(placement) = placed(&self.turns[turn]) {
                path = path.max(self.turns[turn].prompt_tokens);
                output += placement.output_tokens;
            }
        }
        if path == 0 {
            path = state.history_tokens;
        }
        path.saturating_sub(state.base_tokens) + output
    }

    /// Brings the commit up to date after the session grew, under the growth limit of now: its own event.
    pub(super) fn refresh_headroom(&mut self, session: u32) {
        let limit = self.limits.workloads[self.sessions[session].workload as usize].growth_tokens;
        self.set_headroom(session, limit);
    }

    fn set_headroom(&mut self, session: u32, limit: u64) {
        let state = &self.sessions[session];
        let (workload, home, before) = (state.workload, state.home, state.headroom);
        let after = if home.is_some() { headroom(self.grown_tokens(session), limit, self.block_tokens) } else { 0 };
        if let Some(home) = home {
            self.ledger.update(home, workload, |sums| sums.headroom = sums.headroom + after - before);
        }
        let state = &mut self.sessions[session];
        state.growth_limit = limit;
        state.headroom = after;
    }

    /// Charges the session on a replica, with no turn placed there yet.
    pub(super) fn charge_session(&mut self, session: u32, home: u32) {
        self.sessions[session].member = self.has_live_parent(session);
        self.charge_again(session, home);
    }

    fn charge_again(&mut self, session: u32, home: u32) {
        let now = self.now;
        let state = &mut self.sessions[session];
        debug_assert!(state.home.is_none());
        state.run_meter(now);
        state.home = Some(home);
        // What was flushed before it came is no reason to move.
        state.weights_epoch = self.replicas[home as usize].weights_epoch;
        state.meter.added_blocks = 0;
        state.idle_since = now;
        let (workload, counted) = (state.workload, u64::from(!state.member));
        self.ledger.update(home, workload, |sums| sums.idle += counted);
        self.rest(session);
    }

    /// Takes every charge of the session away. Its placed turns must have been taken off before.
    pub(super) fn uncharge_session(&mut self, session: u32) {
        let now = self.now;
        self.sessions[session].run_meter(now);
        self.unclaim_trunk(session);
        let state = &mut self.sessions[session];
        debug_assert_eq!(state.running, 0);
        let Some(home) = state.home.take() else { return };
        let headroom = std::mem::take(&mut state.headroom);
        state.meter.added_blocks = 0;
        let (workload, counted) = (state.workload, u64::from(!state.member));
        self.ledger.update(home, workload, |sums| {
            sums.idle -= counted;
            sums.headroom -= headroom;
        });
        self.stir(session, home);
    }

    /// Lists an idle session, and the end of its lease where that is still to come.
    pub(super) fn rest(&mut self, session: u32) {
        let state = &self.sessions[session];
        let (home, workload, entry) = (state.home.expect("an idle session is charged"), state.workload, (state.idle_since, session));
        let (end, hinted) = (self.lease_end(&self.limits, session, home), state.gap.is_some());
        self.replicas[home as usize].idle[workload as usize].insert(entry);
        if end > self.now {
            self.leases.insert((end, session));
        } else if hinted {
            self.replicas[home as usize].released[workload as usize].insert(entry);
        }
    }

    /// Takes a session that is no longer idle on `home` off every list.
    pub(super) fn stir(&mut self, session: u32, home: u32) {
        let (workload, since) = (self.sessions[session].workload, self.sessions[session].idle_since);
        self.replicas[home as usize].idle[workload as usize].remove(&(since, session));
        self.replicas[home as usize].released[workload as usize].remove(&(since, session));
        self.leases.remove(&(self.lease_end(&self.limits, session, home), session));
    }

    /// Lists the ends of leases anew where limits changed them.
    pub(super) fn renew_leases(&mut self, before: &Enforced) {
        for slot in self.live().collect::<Vec<_>>() {
            let idle = std::mem::take(&mut self.replicas[slot as usize].idle);
            for (workload, sessions) in idle.iter().enumerate() {
                let (old, new) = (before.replicas[slot as usize].lease[workload], self.limits.replicas[slot as usize].lease[workload]);
                if old == new {
                    continue;
                }
                for &(since, session) in sessions {
                    self.leases.remove(&(self.lease_end(before, session, slot), session));
                    self.replicas[slot as usize].released[workload].remove(&(since, session));
                    let end = self.lease_end(&self.limits, session, slot);
                    if end > self.now {
                        self.leases.insert((end, session));
                    } else if self.sessions[session].gap.is_some() {
                        self.replicas[slot as usize].released[workload].insert((since, session));
                    }
                }
            }
            self.replicas[slot as usize].idle = idle;
        }
    }

    /// Charges a turn on the session's home and marks its path as expected there.
    pub(super) fn charge_turn(&mut self, turn: u32) {
        let session = self.turns[turn].session;
        let home = self.sessions[session].home.expect("the session is charged");
        self.metered(session, home, |router| router.charge_turn_unmetered(turn, session, home));
        self.refresh_headroom(session);
        self.enforce_residency(home);
    }

    fn charge_turn_unmetered(&mut self, turn: u32, session: u32, home: u32) {
        let private = self.turn_private(turn);
        let state = &mut self.turns[turn];
        let (workload, cursor) = (state.workload, state.cursor);
        let limit = self.limits.workloads[workload as usize].output_tokens;
        let output_tokens = state.reserved_tokens(limit);
        let output_blocks = state.output_blocks(output_tokens, self.block_tokens);
        let marked = self.index.expect(home, cursor).then(|| self.index.residency.epoch(home));
        let state = &mut self.turns[turn];
        state.state =
            TurnState::Placed(Placement { replica: home, residency_epoch: marked, started: false, output_tokens, output_blocks, reported: false });
        state.last_event = self.now;
        self.silence.insert((self.now, turn));
        self.groups.placed(self.turns[turn].group, home);
        self.ledger.claim(&self.index.tree, home, workload, cursor, private);
        self.ledger.update(home, workload, |sums| {
            sums.output += output_blocks;
            sums.turns += 1;
        });
        let state = &mut self.sessions[session];
        state.running += 1;
        if state.running == 1 {
            let counted = u64::from(!state.member);
            self.ledger.update(home, workload, |sums| {
                sums.idle -= counted;
                sums.running += counted;
            });
            self.stir(session, home);
            // While one turn is open it stands for the whole session, so that a rewritten prompt frees the old path at once.
            self.unclaim_trunk(session);
        }
    }

    /// Takes a placed turn off the books. Claim what it leaves behind first, so that shared ancestors never flicker.
    pub(super) fn uncharge_turn(&mut self, turn: u32, placement: &Placement) {
        let private = self.turn_private(turn);
        let state = &self.turns[turn];
        let (session, workload, cursor, last_event) = (state.session, state.workload, state.cursor, state.last_event);
        let home = placement.replica;
        self.silence.remove(&(last_event, turn));
        self.groups.unplaced(self.turns[turn].group, home);
        self.ledger.unclaim(&self.index.tree, home, workload, cursor, private);
        let output_blocks = placement.output_blocks;
        self.ledger.update(home, workload, |sums| {
            sums.output -= output_blocks;
            sums.turns -= 1;
        });
        let now = self.now;
        let state = &mut self.sessions[session];
        state.running -= 1;
        if state.running == 0 {
            state.idle_since = now;
            let counted = u64::from(!state.member);
            self.ledger.update(home, workload, |sums| {
                sums.idle += counted;
                sums.running -= counted;
            });
            self.rest(session);
        }
    }

    /// Sets the output of a placed turn to a reported count.
    pub(super) fn report_output(&mut self, turn: u32, output_tokens: u64) {
        let state = &mut self.turns[turn];
        let (session, workload, after) = (state.session, state.workload, state.output_blocks(output_tokens, self.block_tokens));
        let TurnState::Placed(placement) = &mut state.state else { return };
        let (home, before) = (placement.replica, placement.output_blocks);
        placement.output_tokens = output_tokens;
        placement.output_blocks = after;
        placement.reported = true;
        self.metered(session, home, |router| router.ledger.update(home, workload, |sums| sums.output = sums.output + after - before));
        self.refresh_headroom(session);
    }

    /// Releases an idle session's charge: it keeps its history and its place.
    pub(super) fn pause(&mut self, session: u32) {
        debug_assert!(self.sessions[session].is_idle());
        self.uncharge_session(session);
        self.paused_paths = true;
        self.stats.pauses += 1;
        self.workloads[self.sessions[session].workload as usize].pauses += 1;
    }

    /// Takes back a pause of the same event.
    pub(super) fn unpause(&mut self, session: u32, home: u32, idle_since: u64, claimed: Cursor) {
        let before = self.ledger.charge(home);
        let weights_epoch = self.sessions[session].weights_epoch;
        self.charge_again(session, home);
        self.sessions[session].weights_epoch = weights_epoch;
        let workload = self.sessions[session].workload;
        self.stir(session, home);
        self.sessions[session].idle_since = idle_since;
        self.rest(session);
        self.claim_history(session, claimed);
        self.sessions[session].meter.added_blocks = self.ledger.charge(home) - before;
        let limit = self.sessions[session].growth_limit;
        self.set_headroom(session, limit);
        self.stats.pauses -= 1;
        self.workloads[workload as usize].pauses -= 1;
    }
}
