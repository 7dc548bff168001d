//! Hints: what a caller knows of a session before its next turn comes.

use super::Router;
use super::types::{Effect, Hint, Outcome};
use crate::admission::enforced::Enforced;
use crate::admission::line::{Order, Place};
use crate::error::{Error, Result};
use crate::sessions::TurnState;
use crate::units::{MAX_SEQUENCE_TOKENS, Nanos};

impl Router {
    /// Notes what is expected of a session: how long it stays idle, the output of its next turn, and its priority. What is left out
    /// stays as it was; the first two are forgotten when the next turn comes. Never fails for a session that is not known.
    ///
    /// A gap that is longer than the lease frees the session at once: it would be reclaimed before it comes back. A shorter one ends
    /// its lease. A hint protects nobody for longer than the limits do.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an `expected_tokens` beyond 2^40.
    pub fn hint(&mut self, now: u64, session: &str, hint: &Hint) -> Result<Outcome> {
        if let Some(tokens) = hint.expected_tokens.filter(|&tokens| tokens > MAX_SEQUENCE_TOKENS) {
            return Err(Error::InvalidArgument { argument: "expected_tokens", value: tokens.to_string(), accepted: "0 to 2^40" });
        }
        let seq = self.begin(now);
        let Some(&slot) = self.session_slots.get(session) else {
            self.stats.unknown += 1;
            self.pump(None);
            return Ok(Outcome { seq, effect: Effect::Unknown });
        };
        if let Some(gap) = hint.idle {
            let state = &self.sessions[slot];
            let since = if state.is_idle() { self.now - state.idle_since } else { 0 };
            self.expect_gap(slot, Some(since.saturating_add(gap)));
        }
        let state = &mut self.sessions[slot];
        state.expected_tokens = hint.expected_tokens.or(state.expected_tokens);
        if let Some(priority) = hint.priority {
            state.priority = priority;
            for turn in state.open.clone() {
                self.turns[turn].priority = priority;
                self.line_up(turn);
            }
        }
        self.pump(None);
        Ok(Outcome { seq, effect: Effect::Done })
    }

    /// Notes how long the session is expected to be idle from the end of its last turn on, or that nothing is known.
    pub(super) fn expect_gap(&mut self, session: u32, gap: Option<Nanos>) {
        if self.sessions[session].gap == gap {
            return;
        }
        self.stop_waiting_for_end(session);
        match self.sessions[session].home.filter(|_| self.sessions[session].is_idle()) {
            Some(home) => {
                self.stir(session, home);
                self.sessions[session].gap = gap;
                self.rest(session);
                self.ledger.touch(home);
            }
            None => self.sessions[session].gap = gap,
        }
        self.wait_for_end(session);
    }

    /// When the lease of a session that is idle on `home` ends under some limits.
    pub(super) fn lease_end(&self, limits: &Enforced, session: u32, home: u32) -> Nanos {
        let state = &self.sessions[session];
        let lease = limits.replicas[home as usize].lease[state.workload as usize];
        let lease = state.gap.map_or(lease, |gap| if gap <= lease { gap } else { 0 });
        state.idle_since.saturating_add(lease)
    }

    /// Where a turn stands in the line of its workload.
    pub(super) fn place_of(&self, turn: u32) -> Place {
        let state = &self.turns[turn];
        let expected = state.expected_tokens.or(state.max_new_tokens).unwrap_or(0);
        let length = match self.limits.workloads[state.workload as usize].order {
            Order::Fifo => 0,
            Order::ShortestFirst => expected,
            Order::LongestFirst => u64::MAX - expected,
        };
        let urgency = -i64::from(state.priority);
        match self.sessions[state.session].admitted.or_else(|| self.family_admission(state.session)) {
            Some(admitted) => (false, urgency, length, admitted, turn),
            None => (true, urgency, length, state.since, turn),
        }
    }

    /// Puts a held turn where it stands now.
    pub(super) fn line_up(&mut self, turn: u32) {
        let (workload, blocks, to) = (self.turns[turn].workload, self.prompt_blocks(turn), self.place_of(turn));
        if let TurnState::Held { place, .. } = &mut self.turns[turn].state {
            let from = std::mem::replace(place, to);
            self.line.remove(workload, from, blocks);
            self.line.insert(workload, to, blocks);
        }
    }
}
