//! The pump: after every event the line is scanned in order until nothing more fits.

use super::Router;
use super::fit::Fit;
use super::types::{Reason, Status};
use crate::placement::{cost, expected_output};
use crate::sessions::{TurnState, Verdict};

/// Outcome of trying one held turn.
enum Attempt {
    /// It runs; blocks it added.
    Placed(u64),
    Blocked(Reason),
}

/// Where a turn would go and at which cost.
struct Choice {
    replica: u32,
    fit: Fit,
    cost_s: f64,
    runner_up_cost_s: f64,
    alternatives: [Option<u32>; 3],
}

impl Router {
    /// Places what fits. Decisions leave by the outbox, except that about `submitting`, which its submit answers.
    pub(super) fn pump(&mut self, submitting: Option<u32>) {
        self.timers_made_room = false;
        while self.line.len() > 0 && self.scan(submitting) {}
    }

    /// One scan in order; `true` after a placement, because that changes the order.
    fn scan(&mut self, submitting: Option<u32>) -> bool {
        // By workload scanned so far: the oldest turn that was passed over for room. It owns the workload's credit.
        let mut skipped: Vec<u32> = Vec::new();
        for workload in self.line.order() {
            let head: Vec<u32> = self.line.head(workload, self.limits.lookahead).collect();
            let (mut oldest, mut capped): (Option<u32>, bool) = (None, true);
            let closed = self.closed_by_caps(workload);
            for turn in head {
                if let Some(reason) = closed.filter(|_| submitting != Some(turn) && self.was_tried_anywhere(turn)) {
                    // It would meet the same again; its numbers stay those of when it was tried last.
                    self.turns[turn].verdict.reason = reason;
                    capped &= reason == Reason::WorkloadCap;
                    continue;
                }
                match self.try_place(turn, submitting) {
                    Attempt::Placed(need) => {
                        for other in skipped.into_iter().chain(oldest) {
                            self.debit(other, need);
                        }
                        return true;
                    }
                    Attempt::Blocked(reason) => {
                        capped &= reason == Reason::WorkloadCap;
                        if !matches!(reason, Reason::Ceiling | Reason::Overcommitted) {
                            self.unreserve(turn);
                        } else if oldest.is_none_or(|other| self.turns[turn].seq < self.turns[other].seq) {
                            oldest = Some(turn);
                        }
                    }
                }
            }
            if let Some(oldest) = oldest {
                skipped.push(oldest);
                self.debit(oldest, 0);
            }
            if capped {
                self.line.stopped(workload);
            }
        }
        false
    }

    /// The cap that stops every turn of a workload on every replica, whatever it needs, while no idle session can be reclaimed:
    /// trying the turns one by one would find the same. `None` when a turn's own need decides somewhere.
    fn closed_by_caps(&self, workload: u32) -> Option<Reason> {
        let mut reason: Option<Reason> = None;
        for replica in self.live() {
            let limits = &self.limits.replicas[replica as usize];
            let sums = self.ledger.replica(replica);
            if self.has_reclaimable(replica) || self.ledger.charge(replica) > limits.overflow || self.replicas[replica as usize].reserved_for.is_some() {
                return None;
            }
            let binding = if sums.turns >= limits.turn_cap {
                Reason::TurnCap
            } else if sums.sessions() >= limits.session_cap {
                Reason::SessionCap
            } else if self.ledger.workload(replica, workload).sessions() >= limits.workload_cap[workload as usize] {
                Reason::WorkloadCap
            } else {
                return None;
            };
            if reason.is_none_or(|other| rank(Some(binding)) > rank(Some(other))) {
                reason = Some(binding);
            }
        }
        reason
    }

    /// Whether the turn was tried before, and may go to every replica.
    fn was_tried_anywhere(&self, turn: u32) -> bool {
        let state = &self.turns[turn];
        state.verdict.reason != Reason::Behind && state.candidates.is_none() && state.avoid.is_none()
    }

    fn try_place(&mut self, turn: u32, submitting: Option<u32>) -> Attempt {
        let candidates = self.candidates(turn);
        let mut depths = std::mem::take(&mut self.depths);
        self.index.residency.matches(&self.index.tree, self.turns[turn].cursor, &mut depths);
        self.depths = depths;
        let mut closest: Option<(u32, Fit)> = None;
        let mut possible: Vec<(f64, u32)> = Vec::new();
        for &replica in &candidates {
            let fit = self.fit(turn, replica);
            let reclaimed = match fit.blocked {
                None => Some(0),
                Some(Reason::SessionCap | Reason::WorkloadCap | Reason::Ceiling) => self.reclaim_estimate(turn, replica, &fit),
                Some(_) => None,
            };
            if let Some(reclaimed) = reclaimed {
                possible.push((self.cost_of(turn, replica, reclaimed), replica));
            }
            if closest
                .as_ref()
                .is_none_or(|(_, best)| (rank(fit.blocked), std::cmp::Reverse(fit.short.blocks)) > (rank(best.blocked), std::cmp::Reverse(best.short.blocks)))
            {
                closest = Some((replica, fit));
            }
        }
        self.ties.rank(&mut possible);
        for at in 0..possible.len() {
            let (cost_s, replica) = possible[at];
            // The estimate may have been too high where victims share their prefix: ask the ledger itself.
            if self.fit(turn, replica).blocked.is_none() || self.reclaim_for(turn, replica) {
                let fit = self.fit(turn, replica);
                possible.remove(at);
                let mut alternatives = [None; 3];
                for (alternative, &(_, slot)) in alternatives.iter_mut().zip(&possible) {
                    *alternative = Some(slot);
                }
                let runner_up_cost_s = possible.first().map_or(f64::NAN, |other| other.0);
                self.admit(turn, &Choice { replica, fit, cost_s, runner_up_cost_s, alternatives }, submitting);
                return Attempt::Placed(fit.need);
            }
        }
        let reason = closest.as_ref().and_then(|(_, fit)| fit.blocked).unwrap_or(Reason::NoReplica);
        let (replica, need, limit) = closest.map_or((None, 0, 0.0), |(replica, fit)| (Some(replica), fit.need, fit.limit));
        let mut receipt = self.receipt(turn, replica, need, limit);
        receipt.reclaimable_tokens = replica.map_or(0, |slot| self.reclaimable(slot).iter().map(|victim| victim.2).sum::<u64>() * self.block_tokens);
        self.turns[turn].verdict = Verdict { status: Status::Held, replica, cached_tokens: 0, alternatives: [None; 3], reason, receipt };
        Attempt::Blocked(reason)
    }

    /// Tokens that reclaim would free at most, when that could make the turn fit.
    fn reclaim_estimate(&self, turn: u32, replica: u32, fit: &Fit) -> Option<u64> {
        let workload = self.turns[turn].workload;
        let (mut blocks, mut sessions, mut own) = (0u64, 0u64, 0u64);
        for (_, session, freed) in self.reclaimable(replica) {
            if blocks >= fit.short.blocks && sessions >= fit.short.sessions && own >= fit.short.workload_sessions {
                break;
            }
            blocks += freed;
            sessions += 1;
            own += u64::from(self.sessions[session].workload == workload);
        }
        let enough = blocks >= fit.short.blocks && sessions >= fit.short.sessions && own >= fit.short.workload_sessions;
        enough.then_some(blocks * self.block_tokens)
    }

    /// Placement cost of a turn, with `self.depths` filled for it.
    pub(super) fn cost_of(&self, turn: u32, replica: u32, reclaimed_tokens: u64) -> f64 {
        let cached = self.cached_tokens(replica, self.depths.blocks[replica as usize], self.turns[turn].prompt_tokens);
        self.cost_with(turn, replica, cached, reclaimed_tokens)
    }

    fn cost_with(&self, turn: u32, replica: u32, cached: u64, reclaimed_tokens: u64) -> f64 {
        let state = &self.turns[turn];
        let output = expected_output(self.limits.workloads[state.workload as usize].output_tokens, state.max_new_tokens);
        cost(&self.load(replica), &self.limits.replicas[replica as usize], state.prompt_tokens - cached, reclaimed_tokens, output)
    }

    /// Takes a turn out of the line, charges its session on the replica and starts it.
    fn admit(&mut self, turn: u32, choice: &Choice, submitting: Option<u32>) {
        self.leave_line(turn);
        let state = &self.turns[turn];
        let (session, workload, prompt_tokens) = (state.session, state.workload, state.prompt_tokens);
        let resumed = self.sessions[session].admitted.is_some();
        if resumed {
            let base = &mut self.sessions[session].base_tokens;
            *base = (*base).min(prompt_tokens);
        } else {
            self.admissions += 1;
            self.sessions[session].admitted = Some(self.admissions);
            self.sessions[session].base_tokens = prompt_tokens;
            self.line.admitted(workload, self.limits.workloads[workload as usize].toll);
        }
        let reason = if resumed { Reason::Resumed } else { Reason::Admitted };
        let mut receipt = self.receipt(turn, Some(choice.replica), choice.fit.need, choice.fit.limit);
        (receipt.cost_s, receipt.runner_up_cost_s) = (choice.cost_s, choice.runner_up_cost_s);
        let cached_tokens = self.cached_tokens(choice.replica, self.depths.blocks[choice.replica as usize], prompt_tokens);
        let status = Status::Placed;
        let verdict = Verdict { status, replica: Some(choice.replica), cached_tokens, alternatives: choice.alternatives, reason, receipt };
        self.charge_session(session, choice.replica);
        self.start(turn, verdict);
        self.announce(turn, submitting);
        // Turns of the same session that waited with it are continuations now.
        for other in self.sessions[session].open.clone() {
            if matches!(self.turns[other].state, TurnState::Held { .. }) {
                self.leave_line(other);
                self.continue_at_home(other, Reason::Continuation);
                self.announce(other, submitting);
            }
        }
        self.relieve(choice.replica);
    }

    /// Places a turn against the limits because its caller cannot wait; `false` when there is no replica at all.
    pub(super) fn force(&mut self, turn: u32) -> bool {
        let mut possible: Vec<(f64, u32)> = self.candidates(turn).into_iter().map(|replica| (self.cost_of(turn, replica, 0), replica)).collect();
        self.ties.rank(&mut possible);
        let Some(&(cost_s, replica)) = possible.first() else { return false };
        let fit = self.fit(turn, replica);
        self.admit(turn, &Choice { replica, fit, cost_s, runner_up_cost_s: f64::NAN, alternatives: [None; 3] }, Some(turn));
        self.turns[turn].verdict.reason = Reason::Forced;
        self.stats.forced += 1;
        self.workloads[self.turns[turn].workload as usize].forced += 1;
        true
    }

    /// Places a turn on the replica where its session is charged.
    pub(super) fn continue_at_home(&mut self, turn: u32, reason: Reason) {
        let session = self.turns[turn].session;
        let home = self.sessions[session].home.expect("the session is charged");
        let state = &self.turns[turn];
        let history = &self.sessions[session];
        // History known by count only lies in the cache of its replica as far as the known part does.
        let mut depth = self.index.residency.depth(&self.index.tree, home, state.cursor);
        if history.history_tokens > history.known_tokens && depth >= self.index.tree.depth(history.trunk) {
            depth = depth.max((history.history_tokens.saturating_sub(1) / self.block_tokens) as u32);
        }
        let cached_tokens = self.cached_tokens(home, depth, state.prompt_tokens);
        let base = self.sessions[session].base_tokens.min(state.prompt_tokens);
        self.sessions[session].base_tokens = base;
        let commit = self.ledger.commit(home);
        let ceiling = self.tokens(self.limits.replicas[home as usize].ceiling);
        let mut receipt = self.receipt(turn, Some(home), 0, ceiling);
        receipt.cost_s = self.cost_with(turn, home, cached_tokens, 0);
        let verdict = Verdict { status: Status::Placed, replica: Some(home), cached_tokens, alternatives: [None; 3], reason, receipt };
        self.start(turn, verdict);
        self.turns[turn].verdict.receipt.need_tokens = self.ledger.commit(home).saturating_sub(commit) * self.block_tokens;
        self.relieve(home);
    }

    /// Charges the turn and counts its prefill.
    fn start(&mut self, turn: u32, verdict: Verdict) {
        self.turns[turn].verdict = verdict;
        self.charge_turn(turn);
        self.stats.placed += 1;
        let uncached = self.turns[turn].prompt_tokens - verdict.cached_tokens;
        let replica = &mut self.replicas[verdict.replica.expect("a placed turn has a replica") as usize];
        replica.prefilling += 1;
        replica.prefill_until =
            replica.prefill_until.max(self.now).saturating_add((uncached as f64 * 1e9 / replica.config.prefill_tokens_per_s) as u64);
    }

    /// Sends the decision about a turn to the outbox, unless its own submit answers it.
    fn announce(&mut self, turn: u32, submitting: Option<u32>) {
        if submitting != Some(turn) {
            let decision = self.decision(&self.turns[turn], &self.turns[turn].verdict);
            self.outbox.push_back(decision);
        }
    }

    /// Takes a turn out of the line; its reservation ends.
    pub(super) fn leave_line(&mut self, turn: u32) {
        let state = &self.turns[turn];
        let TurnState::Held { place, .. } = state.state else { return };
        self.line.remove(state.workload, place);
        if let Some(deadline) = state.deadline {
            self.deadlines.remove(&(deadline, turn));
        }
        self.unreserve(turn);
    }

    fn unreserve(&mut self, turn: u32) {
        for replica in &mut self.replicas {
            if replica.reserved_for == Some(turn) {
                replica.reserved_for = None;
            }
        }
    }

    /// Counts blocks admitted past a turn that blocks for room. When its credit is spent, the replica closest to fitting
    /// it is reserved: one per workload, and at most a quarter of the fleet.
    fn debit(&mut self, turn: u32, need: u64) {
        let Some(bypassed) = self.bypassed(turn) else { return };
        *bypassed += need;
        let bypassed = *bypassed;
        let reserved: Vec<u32> = self.replicas.iter().filter_map(|replica| replica.reserved_for).collect();
        let workload = self.turns[turn].workload;
        let most = (self.live().count() / 4).max(1);
        if reserved.len() >= most || reserved.iter().any(|&other| self.turns[other].workload == workload) {
            return;
        }
        let closest = self
            .candidates(turn)
            .into_iter()
            .filter(|&slot| {
                self.replicas[slot as usize].reserved_for.is_none() && self.limits.replicas[slot as usize].ceiling >= self.prompt_blocks(turn)
            })
            .map(|slot| (self.fit(turn, slot), slot))
            .min_by_key(|(fit, slot)| (fit.short.blocks, *slot));
        let Some((fit, slot)) = closest else { return };
        if bypassed as f64 >= self.limits.bypass * fit.need as f64 {
            self.replicas[slot as usize].reserved_for = Some(turn);
        }
    }

    pub(super) fn prompt_blocks(&self, turn: u32) -> u64 {
        self.turns[turn].prompt_tokens.div_ceil(self.block_tokens)
    }
}

/// How far a turn got through the rules: the binding rule that is named is the last one of the replica that got furthest.
fn rank(blocked: Option<Reason>) -> u8 {
    match blocked {
        Some(Reason::Overcommitted) => 0,
        Some(Reason::Reserved) => 1,
        Some(Reason::TurnCap) => 2,
        Some(Reason::SessionCap) => 3,
        Some(Reason::WorkloadCap) => 4,
        Some(_) => 5,
        None => 6,
    }
}
