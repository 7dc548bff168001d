//! Replicas come, go and get new weights.

use std::collections::BTreeSet;

use super::types::{Effect, Outcome, Reason, ReplicaConfig, Status, WeightsMode};
use super::{Closing, Replica, Router, observe, placed};
use crate::error::{Error, Result};
use crate::estimate::Rate;
use crate::sessions::{Ending, TurnState};
use crate::units::capacity_blocks;

impl Router {
    /// Adds a replica. The same configuration again changes nothing.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for a value out of range, or a name in use with another configuration.
    pub fn add_replica(&mut self, now: u64, replica: ReplicaConfig) -> Result<Outcome> {
        replica.check()?;
        let known = self.replica_slots.get(&replica.name).map(|&slot| self.replicas[slot as usize].config == replica);
        if known == Some(false) {
            let value = format!("{:?} with another configuration", replica.name);
            return Err(Error::InvalidArgument {
                argument: "replica",
                value,
                accepted: "a name that is not in use, or the same configuration again",
            });
        }
        let seq = self.begin(now);
        if known.is_none() {
            self.add_slot(replica);
            self.policy_due = true;
        }
        self.pump(None);
        Ok(Outcome { seq, effect: if known.is_none() { Effect::Done } else { Effect::Duplicate } })
    }

    /// Gives a replica a new configuration, and opens it again when it was being drained. What is charged there stays; idle sessions
    /// above a smaller capacity are paused. The same configuration again, while it is open, changes nothing.
    ///
    /// # Errors
    /// [`Error::UnknownReplica`]; [`Error::InvalidArgument`] for a value out of range.
    pub fn set_replica(&mut self, now: u64, replica: ReplicaConfig) -> Result<Outcome> {
        replica.check()?;
        let slot = self.replica_slot(&replica.name)?;
        let seq = self.begin(now);
        let state = &mut self.replicas[slot as usize];
        let news = state.config != replica || state.closing.is_some();
        if news {
            state.closing = None;
            state.config = replica;
            self.removing.retain(|&other| other != slot);
            self.resize(slot);
            self.scale_guarantees();
            self.policy_due = true;
        }
        self.pump(None);
        Ok(Outcome { seq, effect: if news { Effect::Done } else { Effect::Duplicate } })
    }

    /// Brings blocks, limits and residency of a replica up to its configuration.
    pub(super) fn resize(&mut self, slot: u32) {
        let state = &mut self.replicas[slot as usize];
        let blocks = capacity_blocks(state.config.kv_tokens, self.hasher.block_tokens());
        if std::mem::replace(&mut state.blocks, blocks) != blocks {
            self.limits.resize_replica(slot, blocks);
            self.scale_guarantees();
            self.enforce_residency(slot);
            self.relieve(slot);
            self.policy_due = true;
        }
    }

    /// Lets a replica run dry: it admits nobody, its running turns go on, and its idle sessions move with their next turn.
    /// [`Self::set_replica`] opens it again.
    ///
    /// # Errors
    /// [`Error::UnknownReplica`].
    pub fn drain_replica(&mut self, now: u64, name: &str) -> Result<Outcome> {
        self.close_replica(now, name, Closing::Drain)
    }

    /// Drains a replica and lets it go once nothing runs there; at once when nothing does.
    ///
    /// # Errors
    /// [`Error::UnknownReplica`].
    pub fn remove_replica(&mut self, now: u64, name: &str) -> Result<Outcome> {
        self.close_replica(now, name, Closing::Remove)
    }

    fn close_replica(&mut self, now: u64, name: &str, closing: Closing) -> Result<Outcome> {
        let slot = self.replica_slot(name)?;
        let seq = self.begin(now);
        let state = &mut self.replicas[slot as usize];
        // Who removes a replica that is being drained means more; who drains one that is being removed, nothing new.
        let news = state.closing.is_none() || (closing == Closing::Remove && state.closing == Some(Closing::Drain));
        if news {
            state.closing = Some(closing);
            state.reserved_for = None;
            if closing == Closing::Remove {
                self.removing.push(slot);
            }
            self.scale_guarantees();
            self.policy_due = true;
        }
        self.pump(None);
        Ok(Outcome { seq, effect: if news { Effect::Done } else { Effect::Duplicate } })
    }

    /// Lets go of the replicas that were to be removed and have run dry.
    pub(super) fn retire_drained(&mut self) {
        for slot in std::mem::take(&mut self.removing) {
            if self.ledger.replica(slot).turns == 0 {
                self.retire(slot);
            } else {
                self.removing.push(slot);
            }
        }
    }

    /// Removes a replica that is gone. Its turns leave by the outbox as lost, in submit order; its sessions are paused and keep their place.
    ///
    /// # Errors
    /// [`Error::UnknownReplica`].
    pub fn lose_replica(&mut self, now: u64, name: &str) -> Result<Outcome> {
        let slot = self.replica_slot(name)?;
        let seq = self.begin(now);
        let mut running: Vec<(u64, u32)> = self
            .turns
            .iter()
            .filter(|(_, turn)| placed(turn).is_some_and(|placement| placement.replica == slot))
            .map(|(turn, state)| (state.seq, turn))
            .collect();
        running.sort_unstable();
        for (_, turn) in running {
            self.drop_turn(turn, Ending::Lost, Status::Lost, Reason::ReplicaLost);
        }
        self.retire(slot);
        self.pump(None);
        Ok(Outcome { seq, effect: Effect::Done })
    }

    /// Adds a replica unless its name is taken.
    pub(super) fn add_slot(&mut self, config: ReplicaConfig) -> bool {
        if self.replica_slots.contains_key(&config.name) {
            return false;
        }
        let others: Vec<u32> = self.live().collect();
        let blocks = capacity_blocks(config.kv_tokens, self.hasher.block_tokens());
        let slot = self.replicas.iter().position(|replica| !replica.alive).unwrap_or(self.replicas.len()) as u32;
        let weights_epoch = self.replicas.get(slot as usize).map_or(0, |old| old.weights_epoch + 1);
        self.replica_slots.insert(config.name.clone(), slot);
        let replica = Replica {
            config,
            alive: true,
            closing: None,
            blocks,
            weight_version: -1,
            weights_epoch,
            prefill_until: 0,
            prefilling: 0,
            shortfall: [0; 3],
            lost_blocks: 0,
            observed: observe::Observed::default(),
            hits: [0.0; 2],
            decoded: Rate::default(),
            dead: Rate::default(),
            reserved_for: None,
            idle: vec![BTreeSet::new(); self.workloads.len()],
            released: vec![BTreeSet::new(); self.workloads.len()],
        };
        if slot as usize == self.replicas.len() {
            self.replicas.push(replica);
        } else {
            self.replicas[slot as usize] = replica;
        }
        self.index.residency.add_replica(slot);
        self.ledger.add_replica(slot);
        self.limits.add_replica(slot, blocks, &others, self.workloads.len());
        self.all_changed = true;
        self.scale_guarantees();
        true
    }

    /// Takes a replica on which nothing runs out of the fleet. Its sessions are paused and keep their place.
    fn retire(&mut self, slot: u32) {
        let charged: Vec<u32> = self.sessions.iter().filter(|(_, state)| state.home == Some(slot)).map(|(session, _)| session).collect();
        for session in charged {
            self.uncharge_session(session);
        }
        self.paused_paths = true;
        self.index.lose(slot);
        let replica = &mut self.replicas[slot as usize];
        replica.alive = false;
        replica.reserved_for = None;
        self.replica_slots.remove(&replica.config.name);
        self.removing.retain(|&other| other != slot);
        self.all_changed = true;
        self.forget_slot(slot);
        self.scale_guarantees();
        self.policy_due = true;
    }

    /// Slots are reused: no open turn may go on referring to this one. A held turn that may go nowhere else leaves as lost.
    fn forget_slot(&mut self, slot: u32) {
        let other = |name: &u32| *name != slot;
        for session in self.retries.values() {
            if let Some(kept) = &mut self.sessions[*session].kept {
                kept.avoid = kept.avoid.filter(other);
            }
        }
        let open: Vec<u32> = self.turns.iter().map(|(turn, _)| turn).collect();
        for turn in open {
            let state = &mut self.turns[turn];
            state.avoid.retain(other);
            state.bias.retain(|bias| other(&bias.0));
            state.verdict.replica = state.verdict.replica.filter(other);
            state.verdict.alternatives = state.verdict.alternatives.map(|alternative| alternative.filter(other));
            if let Some(listed) = &mut state.candidates {
                listed.retain(other);
                if listed.is_empty() && matches!(state.state, TurnState::Held { .. }) {
                    self.drop_turn(turn, Ending::Lost, Status::Lost, Reason::NoReplica);
                }
            }
        }
    }

    /// Notes new weights on one replica, or on all.
    ///
    /// `Flush`: what the replicas held is gone, charges stay (the sessions will be there again after re-prefill) and their next
    /// move is free. `Salt`: new turns use a new root everywhere; open turns keep theirs. `Keep`: only the version changes.
    ///
    /// # Errors
    /// [`Error::UnknownReplica`]; [`Error::InvalidArgument`] for a negative version.
    pub fn weights_updated(&mut self, now: u64, version: i64, mode: WeightsMode, replica: Option<&str>) -> Result<Outcome> {
        if version < 0 {
            return Err(Error::InvalidArgument { argument: "version", value: version.to_string(), accepted: "at least 0" });
        }
        let slot = replica.map(|name| self.replica_slot(name)).transpose()?;
        let seq = self.begin(now);
        let slots: Vec<u32> = slot.map_or_else(|| self.live().collect(), |slot| vec![slot]);
        let mut news = false;
        for slot in slots {
            if self.replicas[slot as usize].weight_version == version {
                continue;
            }
            news = true;
            self.replicas[slot as usize].weight_version = version;
            if mode == WeightsMode::Flush {
                self.replicas[slot as usize].weights_epoch += 1;
                self.index.flush(slot);
            }
        }
        if mode == WeightsMode::Salt && version.saturating_add(1) > self.salt {
            // 0 stands for "never salted", so that the first version is told from none.
            self.salt = version.saturating_add(1);
            news = true;
        }
        if news {
            for workload in &mut self.workloads {
                workload.estimator.weights_updated();
            }
            self.policy_due = true;
        }
        self.pump(None);
        Ok(Outcome { seq, effect: if news { Effect::Done } else { Effect::Duplicate } })
    }
}
