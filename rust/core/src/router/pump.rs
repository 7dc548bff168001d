//! The pump: after every event the line is scanned in order until nothing more fits.

use super::Router;
use super::fit::Fit;
use super::reclaim::{Claimant, reclaimable};
use super::types::{Effect, Outcome, Reason, Status};
use crate::placement::{Placement, Regime, cost, expected_output};
use crate::sessions::{Closest, Tried, TurnState, Verdict};
use crate::units::UNBOUNDED_BLOCKS;

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
    ///
    /// A turn that was tried in the pump before is tried on the replicas that changed since: on the others nothing is new to it. So
    /// an event costs what it touched, not the size of the fleet.
    pub(super) fn pump(&mut self, submitting: Option<u32>) {
        // A submit has looked up its replicas already: they stay until it has been answered.
        if submitting.is_none() {
            self.retire_drained();
        }
        self.pumps += 1;
        while self.line.len() > 0 && self.scan(submitting) {}
        self.ledger.forget_touched();
        self.all_changed = false;
        // Those that were tried before a replica was reserved in the last scan have yet to hear of it.
        for slot in std::mem::take(&mut self.just_reserved) {
            self.ledger.touch(slot);
        }
    }

    /// Tries every held turn on every replica, whatever changed: for tests and for doubts. Nothing comes of it.
    pub fn rescan(&mut self, now: u64) -> Outcome {
        let seq = self.begin(now);
        self.all_changed = true;
        self.pump(None);
        Outcome { seq, effect: Effect::Done }
    }

    /// One scan in order; `true` after a placement, because that changes the order, and after the end of a reservation, because it
    /// may have kept out those that were tried before.
    fn scan(&mut self, submitting: Option<u32>) -> bool {
        let mut unreserved = false;
        // By workload scanned so far: the oldest turn that was passed over for room. It owns the workload's credit.
        let mut skipped: Vec<u32> = Vec::new();
        for workload in self.scan_order() {
            let (mut oldest, mut capped): (Option<u32>, bool) = (None, true);
            for turn in self.asked(workload) {
                match self.try_place(turn, submitting) {
                    Attempt::Placed(need) => {
                        for other in skipped.into_iter().chain(oldest) {
                            self.debit(other, need);
                        }
                        return true;
                    }
                    Attempt::Blocked(reason) => {
                        capped &= matches!(reason, Reason::WorkloadCap | Reason::Limit);
                        if !matches!(reason, Reason::Ceiling | Reason::Overcommitted) {
                            unreserved |= self.unreserve(turn);
                        } else if oldest.is_none_or(|other| self.turns[turn].since < self.turns[other].since) {
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
        unreserved
    }

    /// Turns of a workload that every scan asks about: the first of its queue, and the one for which a replica is reserved, however
    /// many paused sessions came before it since. Nobody else may have that replica: it would stand empty.
    pub(super) fn asked(&self, workload: u32) -> Vec<u32> {
        let mut asked: Vec<u32> = self.line.head(workload, self.limits.lookahead).collect();
        let mut reserved = self.replicas.iter().filter_map(|replica| replica.reserved_for);
        if let Some(turn) = reserved.find(|&turn| self.turns[turn].workload == workload)
            && !asked.contains(&turn)
        {
            asked.push(turn);
        }
        asked
    }

    /// Workloads that wait: those below their guarantee first, the emptiest of them before the others; then by virtual time.
    fn scan_order(&mut self) -> Vec<u32> {
        let mut order = self.line.order();
        let filled = |workload: &u32| {
            let guarantee = self.limits.workloads[*workload as usize].guarantee;
            let commit = self.ledger.total(*workload);
            if commit < guarantee { commit as f64 / guarantee as f64 } else { 1.0 }
        };
        order.sort_by(|a, b| filled(a).total_cmp(&filled(b)));
        order
    }

    /// Replicas on which the turn may fit now, and what came closest among all others.
    fn worth_trying(&self, turn: u32) -> (Vec<u32>, Option<Closest>) {
        let TurnState::Held { tried, .. } = self.turns[turn].state else { return (Vec::new(), None) };
        let limits = &self.limits.workloads;
        // What a limit, a guarantee or a family allows depends on more than one replica.
        let wide = limits[self.turns[turn].workload as usize].limit < UNBOUNDED_BLOCKS
            || limits.iter().any(|row| row.guarantee > 0)
            || self.sessions[self.turns[turn].session].parent.is_some();
        if self.all_changed || wide || tried.pump + 1 < self.pumps {
            return (self.candidates(turn), None);
        }
        let touched: Vec<u32> = self.ledger.touched().iter().copied().filter(|&slot| self.is_candidate(turn, slot)).collect();
        match tried.closest {
            // It was the closest: if it came closer it still is, else the others have to be asked again.
            Some(closest) if touched.contains(&closest.replica()) => {
                let kept = closeness(closest.replica(), &self.fit(turn, closest.replica())) >= closest;
                (if kept { touched } else { self.candidates(turn) }, None)
            }
            closest => (touched, closest),
        }
    }

    fn try_place(&mut self, turn: u32, submitting: Option<u32>) -> Attempt {
        let (candidates, mut closest) = self.worth_trying(turn);
        let mut possible: Vec<(f64, u32)> = Vec::new();
        let mut claimant: Option<Claimant> = None;
        let (mut known, mut regime) = (false, Regime::Load);
        for &replica in &candidates {
            let fit = self.fit(turn, replica);
            let reclaimed = if fit.blocked.is_none() {
                Some(0)
            } else if reclaimable(fit.blocked) && self.may_reclaim(turn, replica, &fit) {
                self.reclaim_estimate(claimant.get_or_insert_with(|| self.claimant(turn)), replica, &fit)
            } else {
                None
            };
            if let Some(reclaimed) = reclaimed {
                if !std::mem::replace(&mut known, true) {
                    self.find_depths(turn);
                    regime = self.regime(turn);
                }
                possible.push((self.score(turn, replica, reclaimed, regime), replica));
            }
            closest = closest.max(Some(closeness(replica, &fit)));
        }
        self.rank(&mut possible);
        for at in 0..possible.len() {
            let (score, replica) = possible[at];
            // The estimate may have been too high where victims share their prefix: ask the ledger itself.
            let fits = self.fit(turn, replica).blocked.is_none() || claimant.as_ref().is_some_and(|claimant| self.reclaim_for(claimant, replica));
            if fits {
                let fit = self.fit(turn, replica);
                possible.remove(at);
                let mut alternatives = [None; 3];
                for (alternative, &(_, slot)) in alternatives.iter_mut().zip(&possible) {
                    *alternative = Some(slot);
                }
                let runner_up = possible.first().copied();
                let (cost_s, runner_up_cost_s) = match self.limits.placement {
                    Placement::Cost => (score, runner_up.map_or(f64::NAN, |other| other.0)),
                    // Receipts are in seconds, whatever ranks.
                    _ => (self.cost_of(turn, replica, 0), runner_up.map_or(f64::NAN, |other| self.cost_of(turn, other.1, 0))),
                };
                self.admit(turn, &Choice { replica, fit, cost_s, runner_up_cost_s, alternatives }, submitting);
                return Attempt::Placed(fit.need);
            }
        }
        let pump = self.pumps;
        if let TurnState::Held { tried, .. } = &mut self.turns[turn].state {
            *tried = Tried { pump, closest };
        }
        Attempt::Blocked(closest.and_then(|closest| self.fit(turn, closest.replica()).blocked).unwrap_or(Reason::NoReplica))
    }

    /// Writes down why a turn is held, with the numbers of the moment.
    pub(super) fn explain(&mut self, turn: u32) {
        let TurnState::Held { tried, .. } = self.turns[turn].state else { return };
        let replica = tried.closest.map(Closest::replica);
        let fit = replica.map(|replica| self.fit(turn, replica));
        // A turn that nobody has tried yet waits behind others of its workload.
        let unasked = if tried.pump == 0 { Reason::Behind } else { Reason::NoReplica };
        let reason = fit.as_ref().and_then(|fit| fit.blocked).unwrap_or(unasked);
        let mut receipt = self.receipt(turn, replica, fit.as_ref().map_or(0, |fit| fit.need), fit.as_ref().map_or(0.0, |fit| fit.limit));
        receipt.reclaimable_tokens = replica.map_or(0, |slot| self.reclaimable_tokens(turn, slot));
        self.turns[turn].verdict = Verdict { status: Status::Held, replica, cached_tokens: 0, alternatives: [None; 3], reason, receipt };
    }

    /// Fills `self.depths` with how much of the turn's path each replica holds.
    pub(super) fn find_depths(&mut self, turn: u32) {
        let mut depths = std::mem::take(&mut self.depths);
        self.index.residency.matches(&self.index.tree, self.turns[turn].cursor, &mut depths);
        self.depths = depths;
    }

    /// Placement cost of a turn, with `self.depths` filled for it.
    pub(super) fn cost_of(&self, turn: u32, replica: u32, reclaimed_tokens: u64) -> f64 {
        let cached = self.cached_tokens(replica, self.depths.blocks[replica as usize], self.turns[turn].prompt_tokens);
        self.cost_with(turn, replica, cached, reclaimed_tokens)
    }

    fn cost_with(&self, turn: u32, replica: u32, cached: u64, reclaimed_tokens: u64) -> f64 {
        let state = &self.turns[turn];
        let limit = self.limits.workloads[state.workload as usize].output_tokens;
        let output = expected_output(state.expected_tokens.unwrap_or(limit), state.max_new_tokens);
        let bias: f64 = state.bias.iter().filter(|bias| bias.0 == replica).map(|bias| bias.1).sum();
        let (load, limits) = (self.load(replica), &self.limits.replicas[replica as usize]);
        let siblings = self.groups.running(state.group, replica);
        // What siblings share is charged once and read by each of them.
        let spread = if siblings == 0 { 0.0 } else { limits.cost_spread * load.decode_s(f64::from(siblings) * state.prompt_tokens as f64, output) };
        bias + cost(&load, limits, state.prompt_tokens - cached, reclaimed_tokens, output) + spread
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
        self.next_in_turn = choice.replica + 1;
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
        self.find_depths(turn);
        let regime = self.regime(turn);
        let mut possible: Vec<(f64, u32)> =
            self.candidates(turn).into_iter().map(|replica| (self.score(turn, replica, 0, regime), replica)).collect();
        self.rank(&mut possible);
        let Some(&(_, replica)) = possible.first() else { return false };
        let (fit, cost_s) = (self.fit(turn, replica), self.cost_of(turn, replica, 0));
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
        let replica = verdict.replica.expect("a placed turn has a replica");
        self.replicas[replica as usize].prefilling += 1;
        self.queue_prefill(replica, uncached);
    }

    /// Adds the prefill of a turn to what is queued on the replica.
    pub(super) fn queue_prefill(&mut self, replica: u32, uncached_tokens: u64) {
        let replica = &mut self.replicas[replica as usize];
        let takes = (uncached_tokens as f64 * 1e9 / replica.config.prefill_tokens_per_s) as u64;
        replica.prefill_until = replica.prefill_until.max(self.now).saturating_add(takes);
    }

    /// Sends the decision about a turn to the outbox, unless its own submit answers it.
    pub(super) fn announce(&mut self, turn: u32, submitting: Option<u32>) {
        if submitting != Some(turn) {
            let decision = self.decision(&self.turns[turn], &self.turns[turn].verdict);
            self.outbox.push_back(decision);
        }
    }

    /// Takes a turn out of the line; its reservation ends.
    pub(super) fn leave_line(&mut self, turn: u32) {
        let state = &self.turns[turn];
        let TurnState::Held { place, .. } = state.state else { return };
        self.line.remove(state.workload, place, self.prompt_blocks(turn));
        if let Some(deadline) = state.deadline {
            self.deadlines.remove(&(deadline, turn));
        }
        self.unreserve(turn);
    }

    /// Ends the reservation of a turn, where it has one.
    fn unreserve(&mut self, turn: u32) -> bool {
        let Some(at) = self.replicas.iter().position(|replica| replica.reserved_for == Some(turn)) else { return false };
        self.replicas[at].reserved_for = None;
        self.ledger.touch(at as u32);
        true
    }

    /// Counts blocks admitted past a turn that blocks for room. When its credit, a multiple of its need where it came closest, is
    /// spent, the replica that misses least is reserved: one per workload, and at most a quarter of the fleet.
    fn debit(&mut self, turn: u32, need: u64) {
        let TurnState::Held { bypassed, tried, .. } = &mut self.turns[turn].state else { return };
        *bypassed += need;
        let (bypassed, closest) = (*bypassed, tried.closest);
        let Some(closest) = closest else { return };
        if (bypassed as f64) < self.limits.bypass * self.fit(turn, closest.replica()).need as f64 {
            return;
        }
        let reserved: Vec<u32> = self.replicas.iter().filter_map(|replica| replica.reserved_for).collect();
        let workload = self.turns[turn].workload;
        let most = (self.accepting().count() / 4).max(1);
        if reserved.len() >= most || reserved.iter().any(|&other| self.turns[other].workload == workload) {
            return;
        }
        let open = |&slot: &u32| {
            self.replicas[slot as usize].reserved_for.is_none() && self.limits.replicas[slot as usize].ceiling >= self.prompt_blocks(turn)
        };
        let candidates = self.candidates(turn).into_iter().filter(open);
        if let Some(slot) = candidates.min_by_key(|&slot| (self.fit(turn, slot).short.blocks, slot)) {
            self.replicas[slot as usize].reserved_for = Some(turn);
            self.ledger.touch(slot);
            self.just_reserved.push(slot);
        }
    }

    pub(super) fn prompt_blocks(&self, turn: u32) -> u64 {
        self.turns[turn].prompt_tokens.div_ceil(self.block_tokens)
    }
}

/// How far a turn got through the rules: the binding rule that is named is the last one of the replica that got furthest.
fn rank(fit: &Fit) -> u8 {
    match fit.blocked {
        Some(Reason::Overcommitted) => 0,
        Some(Reason::Reserved) => 1,
        Some(Reason::TurnCap) => 2,
        Some(Reason::SessionCap) => 3,
        Some(Reason::WorkloadCap) => 4,
        Some(Reason::Limit) => 5,
        Some(_) => 6,
        None => 7,
    }
}

pub(super) fn closeness(replica: u32, fit: &Fit) -> Closest {
    Closest { passed: rank(fit), missing: std::cmp::Reverse((fit.short.blocks, replica)) }
}
