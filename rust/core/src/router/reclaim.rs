//! Reclaim: idle sessions give their charge back, for a turn that waits or because a replica overflows.
//!
//! Who gives way: first the workload furthest above its entitlement, relative to its share; inside it the session that has
//! been idle longest. A workload at or below its guarantee gives nothing to others. What runs is never cut.

use std::collections::BTreeSet;

use super::Router;
use super::fit::Fit;
use super::types::Reason;
use crate::admission::entitlement::{Claim, entitlements};
use crate::units::Nanos;

/// On whose behalf idle sessions may be paused.
pub(super) struct Claimant {
    turn: u32,
    workload: u32,
    /// Its workload has less than its guarantee.
    below: bool,
    /// Sessions that wait for it.
    ancestors: Vec<u32>,
    /// Blocks that each workload is entitled to.
    entitled: Vec<f64>,
}

/// The first in an order of giving way, and its place in that order: the largest goes first.
type Ranked = (f64, std::cmp::Reverse<(Nanos, u32)>);

impl Router {
    /// A turn that would take room from idle sessions.
    pub(super) fn claimant(&self, turn: u32) -> Claimant {
        let workload = self.turns[turn].workload;
        let below = self.ledger.total(workload) < self.limits.workloads[workload as usize].guarantee;
        Claimant { turn, workload, below, ancestors: self.ancestors(self.turns[turn].session), entitled: self.entitled() }
    }

    /// Whether any idle session could be taken for the turn: mostly none can, and then entitlements need not be worked out.
    pub(super) fn may_reclaim(&self, turn: u32, replica: u32, fit: &Fit) -> bool {
        let (state, limits) = (&self.replicas[replica as usize], &self.limits.replicas[replica as usize]);
        fit.short.workload_blocks > 0
            || self.limits.workloads[self.turns[turn].workload as usize].guarantee > 0
            || self.sessions[self.turns[turn].session].parent.is_some()
            || state
                .idle
                .iter()
                .zip(&limits.lease)
                .any(|(idle, &lease)| idle.first().is_some_and(|(since, _)| since.saturating_add(lease) <= self.now))
            || state.released.iter().any(|released| !released.is_empty())
    }

    /// Blocks that each workload is entitled to. O(W log W).
    pub(super) fn entitled(&self) -> Vec<f64> {
        let claims: Vec<Claim> = (0..self.workloads.len() as u32)
            .map(|workload| {
                let limits = &self.limits.workloads[workload as usize];
                let demand = (self.ledger.total(workload) + self.line.blocks(workload)) as f64;
                Claim { share: limits.share, demand, guarantee: limits.guarantee as f64, limit: limits.limit as f64 }
            })
            .collect();
        let room = self.accepting().map(|slot| self.limits.replicas[slot as usize].ceiling as f64).sum();
        entitlements(&claims, room)
    }

    /// How far a workload with `commit` blocks is above its entitlement, in units of its share.
    fn excess(&self, entitled: &[f64], workload: usize, commit: u64) -> f64 {
        (commit as f64 - entitled[workload]) / self.limits.workloads[workload].share
    }

    /// Whether a workload with `commit` blocks keeps what it has.
    fn protected(&self, workload: usize, commit: u64) -> bool {
        let guarantee = self.limits.workloads[workload].guarantee;
        guarantee > 0 && commit <= guarantee
    }

    /// Whether the claimant may pause a session that has been idle since then: its lease is over, or the claimant's workload has less
    /// than it was guaranteed and this one more than it is entitled to, or the session waits for the claimant or is free by a hint.
    fn may_take(&self, claimant: &Claimant, replica: u32, workload: usize, commit: u64, (since, session): (Nanos, u32)) -> bool {
        let lease = self.limits.replicas[replica as usize].lease[workload];
        since.saturating_add(lease) <= self.now
            || (claimant.below && commit as f64 > claimant.entitled[workload])
            || claimant.ancestors.contains(&session)
            || self.replicas[replica as usize].released[workload].contains(&(since, session))
    }

    /// The session of one workload that gives way next.
    fn first_of(&self, claimant: &Claimant, replica: u32, workload: usize, commit: u64) -> Option<(Nanos, u32)> {
        if workload != claimant.workload as usize && self.protected(workload, commit) {
            return None;
        }
        let idle = &self.replicas[replica as usize].idle[workload];
        let may = |entry: &(Nanos, u32)| self.may_take(claimant, replica, workload, commit, *entry);
        // Whoever has been idle for less time has more of its lease left, so the first alone can be free to take; or an ancestor, or
        // who is free by a hint.
        idle.first().copied().filter(may).or_else(|| {
            let waiting = claimant.ancestors.iter().map(|&session| (self.sessions[session].idle_since, session));
            let released = self.replicas[replica as usize].released[workload].first().copied();
            waiting.filter(|entry| idle.contains(entry)).chain(released).min()
        })
    }

    /// The session that gives way next on a replica, of one workload or of any.
    fn next_victim(&self, claimant: &Claimant, replica: u32, own: bool) -> Option<u32> {
        let ranked = (0..self.workloads.len()).filter(|&workload| !own || workload == claimant.workload as usize).filter_map(|workload| {
            let commit = self.ledger.total(workload as u32);
            let first = self.first_of(claimant, replica, workload, commit)?;
            Some((self.excess(&claimant.entitled, workload, commit), std::cmp::Reverse(first)))
        });
        ranked.max_by(order).map(|(_, std::cmp::Reverse((_, session)))| session)
    }

    /// Blocks that the session's pause would free at most: what it shares stays charged for the others.
    fn freed_blocks(&self, session: u32) -> u64 {
        self.claimed_blocks(session) + self.sessions[session].headroom
    }

    /// Tokens that reclaim would free at most on the replica, when that could make the turn fit; `None` when it could not.
    pub(super) fn reclaim_estimate(&self, claimant: &Claimant, replica: u32, fit: &Fit) -> Option<u64> {
        let workloads = self.workloads.len();
        let (mut short, mut freed) = (fit.short, 0u64);
        let mut commits: Vec<u64> = (0..workloads as u32).map(|workload| self.ledger.total(workload)).collect();
        let mut queues: Vec<_> = (0..workloads).map(|workload| self.replicas[replica as usize].idle[workload].iter().copied().peekable()).collect();
        let released = self.replicas[replica as usize].released.iter().flatten().copied();
        let mut ancestors: BTreeSet<(Nanos, u32)> = claimant
            .ancestors
            .iter()
            .map(|&session| (self.sessions[session].idle_since, session))
            .filter(|entry| self.replicas[replica as usize].idle[self.sessions[entry.1].workload as usize].contains(entry))
            .chain(released)
            .collect();
        while short.blocks > 0 || short.sessions > 0 || short.workload_sessions > 0 || short.workload_blocks > 0 {
            let own = short.workload_sessions > 0 || short.workload_blocks > 0;
            let mut best: Option<(Ranked, usize)> = None;
            for workload in 0..workloads {
                let foreign = workload != claimant.workload as usize;
                if foreign && (own || self.protected(workload, commits[workload])) {
                    continue;
                }
                let first = queues[workload].peek().copied().filter(|&entry| self.may_take(claimant, replica, workload, commits[workload], entry));
                let first = first.or_else(|| ancestors.iter().copied().find(|entry| self.sessions[entry.1].workload as usize == workload));
                let Some(first) = first else { continue };
                let ranked = (self.excess(&claimant.entitled, workload, commits[workload]), std::cmp::Reverse(first));
                if best.as_ref().is_none_or(|(other, _)| order(&ranked, other).is_gt()) {
                    best = Some((ranked, workload));
                }
            }
            let Some(((_, std::cmp::Reverse(entry)), workload)) = best else {
                // The limit of a workload counts everywhere: its idle sessions elsewhere help too.
                let elsewhere = short.blocks == 0 && short.sessions == 0 && short.workload_sessions == 0;
                return (elsewhere && self.own_elsewhere(claimant, replica) >= short.workload_blocks).then_some(freed * self.block_tokens);
            };
            if queues[workload].peek() == Some(&entry) {
                queues[workload].next();
            }
            ancestors.remove(&entry);
            let blocks = self.freed_blocks(entry.1);
            freed += blocks;
            commits[workload] = commits[workload].saturating_sub(blocks);
            short.blocks = short.blocks.saturating_sub(blocks);
            let counted = u64::from(!self.sessions[entry.1].member);
            short.sessions = short.sessions.saturating_sub(counted);
            if workload == claimant.workload as usize {
                short.workload_sessions = short.workload_sessions.saturating_sub(counted);
                short.workload_blocks = short.workload_blocks.saturating_sub(blocks);
            }
        }
        Some(freed * self.block_tokens)
    }

    /// Blocks that the claimant's workload could give back on other replicas.
    fn own_elsewhere(&self, claimant: &Claimant, replica: u32) -> u64 {
        let workload = claimant.workload as usize;
        let commit = self.ledger.total(claimant.workload);
        let others = self.live().filter(|&slot| slot != replica);
        let idle = others.flat_map(|slot| {
            let idle = self.replicas[slot as usize].idle[workload].iter().copied();
            idle.take_while(move |&entry| self.may_take(claimant, slot, workload, commit, entry))
        });
        idle.map(|(_, session)| self.freed_blocks(session)).sum()
    }

    /// Pauses just enough idle sessions for the turn to fit, or none at all.
    pub(super) fn reclaim_for(&mut self, claimant: &Claimant, replica: u32) -> bool {
        let mut paused = Vec::new();
        loop {
            let fit = self.fit(claimant.turn, replica);
            if fit.blocked.is_none() {
                return true;
            }
            if !reclaimable(fit.blocked) {
                break;
            }
            let own = fit.short.workload_sessions > 0 || fit.short.workload_blocks > 0;
            let mut next = self.next_victim(claimant, replica, own);
            if next.is_none() && fit.short.workload_sessions == 0 && fit.short.workload_blocks > 0 {
                next = self.live().filter(|&slot| slot != replica).find_map(|slot| self.next_victim(claimant, slot, true));
            }
            let Some(session) = next else { break };
            let state = &self.sessions[session];
            let claimed = state.claimed.expect("an idle session claims its history");
            paused.push((session, state.home.expect("an idle session is charged"), state.idle_since, claimed));
            self.pause(session);
        }
        for (session, home, since, claimed) in paused.into_iter().rev() {
            self.unpause(session, home, since, claimed);
        }
        false
    }

    /// Tokens of idle sessions on the replica that could make room for the turn now.
    pub(super) fn reclaimable_tokens(&self, turn: u32, replica: u32) -> u64 {
        let claimant = self.claimant(turn);
        let mut blocks = 0;
        for workload in 0..self.workloads.len() {
            let commit = self.ledger.total(workload as u32);
            if workload != claimant.workload as usize && self.protected(workload, commit) {
                continue;
            }
            let idle = self.replicas[replica as usize].idle[workload].iter();
            blocks += idle
                .filter(|&&entry| self.may_take(&claimant, replica, workload, commit, entry))
                .map(|&(_, session)| self.freed_blocks(session))
                .sum::<u64>();
        }
        blocks * self.block_tokens
    }

    /// Where sessions are shed, idle ones above a cap go; where none is to stick, all of them.
    fn shed(&mut self, replica: u32) {
        if !self.limits.sticky {
            self.pause_newest(replica, None, u64::MAX);
        } else if self.limits.shed {
            for workload in 0..self.workloads.len() as u32 {
                let cap = self.limits.replicas[replica as usize].workload_cap[workload as usize];
                let above = self.ledger.workload(replica, workload).sessions().saturating_sub(cap);
                self.pause_newest(replica, Some(workload), above);
            }
            let above = self.ledger.replica(replica).sessions().saturating_sub(self.limits.replicas[replica as usize].session_cap);
            self.pause_newest(replica, None, above);
        }
    }

    /// Pauses up to `most` idle sessions of a replica, of one workload or of all, those that were admitted last first. Members of
    /// families count in no cap, so they go only where everybody does.
    fn pause_newest(&mut self, replica: u32, workload: Option<u32>, most: u64) {
        if most == 0 {
            return;
        }
        let idle = &self.replicas[replica as usize].idle;
        let of = workload.map_or(&idle[..], |workload| std::slice::from_ref(&idle[workload as usize]));
        let counted = of.iter().flatten().filter(|(_, session)| most == u64::MAX || !self.sessions[*session].member);
        let mut idle: Vec<(Option<u64>, u32)> = counted.map(|&(_, session)| (self.sessions[session].admitted, session)).collect();
        idle.sort_unstable_by(|a, b| b.cmp(a));
        for (_, session) in idle.into_iter().take(usize::try_from(most).unwrap_or(usize::MAX)) {
            self.pause(session);
        }
    }

    /// Above the overflow, idle sessions go whatever their lease. Those of a workload below its guarantee go last, and only while the
    /// replica holds more than it can.
    pub(super) fn relieve(&mut self, replica: u32) {
        self.shed(replica);
        let overflow = self.limits.replicas[replica as usize].overflow;
        if self.ledger.charge(replica) <= overflow {
            return;
        }
        let entitled = self.entitled();
        while self.ledger.charge(replica) > overflow {
            let bursting = self.ledger.charge(replica) > self.replicas[replica as usize].blocks;
            let ranked = (0..self.workloads.len()).filter_map(|workload| {
                let commit = self.ledger.total(workload as u32);
                let first = self.replicas[replica as usize].idle[workload].first().copied()?;
                let protected = self.protected(workload, commit);
                (!protected || bursting).then(|| (!protected, (self.excess(&entitled, workload, commit), std::cmp::Reverse(first))))
            });
            let next = ranked.max_by(|one, other| one.0.cmp(&other.0).then_with(|| order(&one.1, &other.1)));
            let Some((_, (_, std::cmp::Reverse((_, session))))) = next else { return };
            self.pause(session);
        }
    }
}

/// Limits that a pause of somebody else can satisfy.
pub(super) fn reclaimable(blocked: Option<Reason>) -> bool {
    matches!(blocked, Some(Reason::SessionCap | Reason::WorkloadCap | Reason::Limit | Reason::Ceiling))
}

fn order(one: &Ranked, other: &Ranked) -> std::cmp::Ordering {
    one.0.total_cmp(&other.0).then_with(|| one.1.cmp(&other.1))
}
