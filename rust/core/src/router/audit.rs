//! The audit: everything that is kept incrementally, recomputed from scratch and compared.

use std::collections::{BTreeSet, HashMap};

use super::pump::closeness;
use super::{Closing, Router, placed};
use crate::error::{Error, Result};
use crate::index::{Cursor, RunId};
use crate::ledger::{Sums, headroom};
use crate::sessions::TurnState;

/// Largest claimed offset by run.
type Union = HashMap<RunId, u32>;

impl Router {
    /// Recomputes every sum, set and index of the core from its sessions and turns. O(everything): for tests and for doubts.
    ///
    /// # Errors
    /// [`Error::Internal`] naming the first difference.
    pub fn audit(&self) -> Result<()> {
        self.index
            .audit()
            .and_then(|()| self.audit_ledger())
            .and_then(|()| self.audit_states())
            .and_then(|()| self.audit_history_ends())
            .and_then(|()| self.audit_counters())
            .and_then(|()| self.audit_groups())
            .and_then(|()| self.audit_unended())
            .and_then(|()| self.audit_line())
            .map_err(|problem| Error::Internal { problem })
    }

    fn audit_history_ends(&self) -> std::result::Result<(), String> {
        let expected = self.expected_history_ends();
        if expected == self.history_ends {
            Ok(())
        } else {
            Err(format!("{} ends of histories, expected {}", self.history_ends.len(), expected.len()))
        }
    }

    fn audit_ledger(&self) -> std::result::Result<(), String> {
        let (replicas, workloads) = (self.replicas.len(), self.workloads.len());
        let mut unions: Vec<Union> = vec![Union::new(); replicas];
        let mut workload_unions: Vec<Union> = vec![Union::new(); replicas * workloads];
        let mut sums: Vec<Sums> = vec![Sums::default(); replicas * workloads];
        let mut claim = |replica: u32, workload: u32, cursor: Cursor| {
            for (run, offset) in self.index.tree.path(cursor) {
                let cell = replica as usize * workloads + workload as usize;
                for union in [&mut unions[replica as usize], &mut workload_unions[cell]] {
                    let top = union.entry(run).or_default();
                    *top = (*top).max(offset);
                }
            }
        };
        for (slot, session) in self.sessions.iter() {
            let Some(home) = session.home else {
                if session.claimed.is_some() || session.headroom > 0 || session.running > 0 {
                    return Err(format!("session {:?} is charged nowhere and still has a charge", session.id));
                }
                continue;
            };
            let cell = &mut sums[home as usize * workloads + session.workload as usize];
            cell.headroom += headroom(self.grown_tokens(slot), session.growth_limit, self.block_tokens);
            *(if session.running > 0 { &mut cell.running } else { &mut cell.idle }) += u64::from(!session.member);
            if let Some(claimed) = session.claimed {
                cell.private += self.claimed_private(slot, claimed);
                claim(home, session.workload, claimed);
                if !self.index.tree.starts_with(session.trunk, claimed) || !self.claim_ends.of(&self.sessions, claimed.run).any(|other| other == slot)
                {
                    return Err(format!("session {:?} claims what is not its history, or is not listed there", session.id));
                }
            } else if session.running == 0 {
                return Err(format!("idle session {:?} claims nothing", session.id));
            }
        }
        for (slot, turn) in self.turns.iter() {
            let Some(placement) = placed(turn) else { continue };
            let cell = &mut sums[placement.replica as usize * workloads + turn.workload as usize];
            cell.private += self.turn_private(slot);
            cell.output += turn.output_blocks(placement.output_tokens, self.block_tokens);
            cell.turns += 1;
            claim(placement.replica, turn.workload, turn.cursor);
        }
        for workload in 0..workloads as u32 {
            let total = (0..replicas as u32).map(|slot| self.ledger.workload_commit(slot, workload)).sum::<u64>();
            if self.ledger.total(workload) != total {
                return Err(format!("commit of workload {workload}: {} blocks kept, {total} on its replicas", self.ledger.total(workload)));
            }
        }
        let size = |union: &Union| union.values().map(|&top| u64::from(top)).sum::<u64>();
        for replica in 0..replicas as u32 {
            let name = &self.replicas[replica as usize].config.name;
            if self.ledger.union_blocks(replica) != size(&unions[replica as usize]) {
                let (kept, found) = (self.ledger.union_blocks(replica), size(&unions[replica as usize]));
                return Err(format!("claims of {name:?}: {kept} blocks kept, {found} recomputed"));
            }
            for workload in 0..workloads as u32 {
                let cell = replica as usize * workloads + workload as usize;
                if self.ledger.workload_union_blocks(replica, workload) != size(&workload_unions[cell]) {
                    return Err(format!("claims of workload {workload} on {name:?} differ"));
                }
                if *self.ledger.workload(replica, workload) != sums[cell] {
                    return Err(format!(
                        "sums of workload {workload} on {name:?}: {:?} kept, {:?} recomputed",
                        self.ledger.workload(replica, workload),
                        sums[cell]
                    ));
                }
            }
            let row = &sums[replica as usize * workloads..(replica as usize + 1) * workloads];
            let total = |read: fn(&Sums) -> u64| row.iter().map(read).sum::<u64>();
            let kept = self.ledger.replica(replica);
            let recomputed = Sums {
                private: total(|sums| sums.private),
                output: total(|sums| sums.output),
                headroom: total(|sums| sums.headroom),
                turns: total(|sums| sums.turns),
                running: total(|sums| sums.running),
                idle: total(|sums| sums.idle),
            };
            if *kept != recomputed {
                return Err(format!("sums of {name:?}: {kept:?} kept, {recomputed:?} recomputed"));
            }
        }
        Ok(())
    }

    fn audit_states(&self) -> std::result::Result<(), String> {
        for (slot, session) in self.sessions.iter() {
            let running = session.open.iter().filter(|&&turn| placed(&self.turns[turn]).is_some()).count();
            if running != session.running as usize || self.session_slots.get(&session.id) != Some(&slot) {
                return Err(format!("session {:?}: {running} of its turns run, {} counted", session.id, session.running));
            }
            let listed =
                session.home.is_some_and(|home| self.replicas[home as usize].idle[session.workload as usize].contains(&(session.idle_since, slot)));
            if listed != session.is_idle() {
                return Err(format!("session {:?}: the idle list is wrong", session.id));
            }
            if session.owner.as_ref().is_some_and(|owner| !self.owners.get(owner).is_some_and(|owned| owned.contains(&slot))) {
                return Err(format!("session {:?} is not listed with its owner", session.id));
            }
            if self.quiet.contains(&(session.last_activity, slot)) != session.open.is_empty() {
                return Err(format!("session {:?}: the quiet list is wrong", session.id));
            }
            if !self.index.tree.is_current(session.trunk) || session.known_tokens > session.history_tokens {
                return Err(format!("session {:?}: the trunk is stale", session.id));
            }
            let depth = u64::from(self.index.tree.depth(session.trunk));
            if depth != session.known_tokens / self.block_tokens || session.tail.len() as u64 != session.known_tokens % self.block_tokens {
                return Err(format!("session {:?}: trunk and tail do not make up {} known tokens", session.id, session.known_tokens));
            }
        }
        let ends = |(slot, replica): (usize, &super::Replica)| {
            let idle = replica.idle.iter().flatten();
            idle.map(|&(_, session)| (self.lease_end(&self.limits, session, slot as u32), session)).collect::<Vec<_>>()
        };
        for (slot, replica) in self.replicas.iter().enumerate() {
            for (workload, idle) in replica.idle.iter().enumerate() {
                let free = |&&(_, session): &&(u64, u32)| {
                    self.sessions[session].gap.is_some() && self.lease_end(&self.limits, session, slot as u32) <= self.now
                };
                if !idle.iter().filter(free).eq(&replica.released[workload]) {
                    return Err(format!("{:?}: not those of workload {workload} are released whom hints free", replica.config.name));
                }
            }
        }
        let leases: BTreeSet<(u64, u32)> = self.replicas.iter().enumerate().flat_map(ends).filter(|end| end.0 > self.now).collect();
        if leases != self.leases {
            return Err(format!("{} leases run, {} are listed", leases.len(), self.leases.len()));
        }
        let listed = self.owners.values().map(BTreeSet::len).sum::<usize>();
        if listed != self.sessions.iter().filter(|(_, session)| session.owner.is_some()).count() {
            return Err(format!("owners: {listed} sessions listed, and not as many owned"));
        }
        let line: BTreeSet<u32> = self.line.all().into_iter().collect();
        for (slot, turn) in self.turns.iter() {
            if !self.sessions[turn.session].open.contains(&slot) || self.turn_slots.get(&turn.id) != Some(&slot) {
                return Err(format!("turn {:?} is not open in its session", turn.id));
            }
            if self.unconfirmed.iter().any(|&other| self.turns.get(other).is_none()) {
                return Err("a turn that has ended is still to be confirmed".into());
            }
            let held = matches!(turn.state, TurnState::Held { .. });
            if let TurnState::Held { place, .. } = turn.state
                && (place.1, place.2) != (self.place_of(slot).1, self.place_of(slot).2)
            {
                return Err(format!("turn {:?} stands at {place:?}, it belongs at {:?}", turn.id, self.place_of(slot)));
            }
            if line.contains(&slot) != held || self.silence.contains(&(turn.last_event, slot)) == held {
                return Err(format!("turn {:?} is in the wrong list", turn.id));
            }
            if placed(turn).is_some_and(|placement| self.sessions[turn.session].home != Some(placement.replica)) {
                return Err(format!("turn {:?} runs where its session is not charged", turn.id));
            }
        }
        for workload in 0..self.workloads.len() as u32 {
            let waiting = line.iter().filter(|&&turn| self.turns[turn].workload == workload).map(|&turn| self.prompt_blocks(turn)).sum::<u64>();
            if self.line.blocks(workload) != waiting {
                return Err(format!("line of workload {workload}: {} blocks counted, {waiting} wait", self.line.blocks(workload)));
            }
        }
        if line.len() != self.line.len() {
            return Err("the line counts turns that are not there".into());
        }
        for (slot, replica) in self.replicas.iter().enumerate() {
            let removed = replica.alive && replica.closing == Some(Closing::Remove);
            if self.removing.contains(&(slot as u32)) != removed || (removed && self.ledger.replica(slot as u32).turns == 0) {
                return Err(format!("{:?} should have gone, or should not go", replica.config.name));
            }
            if replica.reserved_for.is_some_and(|turn| !line.contains(&turn)) {
                return Err(format!("{:?} is reserved for nobody", replica.config.name));
            }
            let prefilling = self.turns.iter().filter(|(_, turn)| placed(turn).is_some_and(|p| p.replica as usize == slot && !p.started)).count();
            if prefilling as u64 != replica.prefilling {
                return Err(format!("{:?}: {} prefills counted, {prefilling} open", replica.config.name, replica.prefilling));
            }
        }
        Ok(())
    }

    /// Nothing is lost: every submitted turn is accounted for.
    fn audit_counters(&self) -> std::result::Result<(), String> {
        let stats = self.stats();
        let ended = stats.completed + stats.aborted + stats.expired + stats.lost + stats.rejected;
        if stats.submitted != ended + stats.open_turns {
            return Err(format!("{} turns submitted, {ended} ended and {} open", stats.submitted, stats.open_turns));
        }
        if self.sessions.len() != self.session_slots.len() || self.turns.len() != self.turn_slots.len() {
            return Err("a name table and its records differ in number".into());
        }
        let kept = self.sessions.iter().filter(|(_, session)| session.kept.is_some()).count();
        if kept != self.retries.len()
            || self.retries.iter().any(|(id, &slot)| self.sessions.get(slot).is_none_or(|s| s.kept.as_ref().is_none_or(|kept| kept.turn != *id)))
        {
            return Err(format!("{kept} places are kept, {} are found by their turns", self.retries.len()));
        }
        if self.sessions.len() == 0 && (self.ledger_total() > 0 || self.quiet.len() + self.silence.len() + self.deadlines.len() > 0) {
            return Err("everything has ended and something is left".into());
        }
        Ok(())
    }

    /// No turn that fits waits: those that no scan asks about, behind the lookahead, excepted.
    fn audit_line(&self) -> std::result::Result<(), String> {
        for workload in 0..self.workloads.len() as u32 {
            for turn in self.asked(workload) {
                let TurnState::Held { tried, .. } = self.turns[turn].state else { continue };
                let candidates = self.candidates(turn);
                let closest = candidates.iter().map(|&replica| closeness(replica, &self.fit(turn, replica))).max();
                let unheard = self.ledger.touched().iter().any(|slot| candidates.contains(slot));
                if tried.pump != self.pumps || (tried.closest != closest && !unheard) {
                    let id = &self.turns[turn].id;
                    return Err(format!(
                        "turn {id:?}, tried in pump {} of {}: {:?} kept as the closest, it is {closest:?}",
                        tried.pump, self.pumps, tried.closest
                    ));
                }
                for replica in candidates {
                    if self.fit(turn, replica).blocked.is_none() {
                        return Err(format!("turn {:?} waits and fits on {:?}", self.turns[turn].id, self.replicas[replica as usize].config.name));
                    }
                }
            }
        }
        Ok(())
    }

    fn ledger_total(&self) -> u64 {
        (0..self.replicas.len() as u32).map(|slot| self.ledger.commit(slot)).sum()
    }
}
