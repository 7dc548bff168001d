//! Groups: turns of one prompt that are wanted together, as the samples of one question.
//!
//! A turn of a group queues where its first one began, so that the last of a group does not wait behind groups that came
//! later: a step of training needs all of them. How many of a group run on a replica is weighed by `cost_spread`. A
//! group with a size is remembered until all its turns have come, or until nothing was heard of it for `session_ttl_s`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::{Router, placed};
use crate::index::hasher::TextState;
use crate::record::codec::record;
use crate::sessions::Slab;
use crate::units::Nanos;

#[derive(Debug)]
struct Group {
    name: Arc<str>,
    size: Option<u32>,
    /// Turns that came, each counted once however often it was tried.
    arrived: u32,
    /// Those that have not ended.
    open: u32,
    /// Submit order of the first.
    since: u64,
    /// Those that run, by replica.
    running: BTreeMap<u32, u32>,
    /// When the last of the open ones ended.
    quiet_since: Nanos,
}

/// The groups of which some turn is open or still to come.
#[derive(Debug)]
pub(super) struct Groups {
    by_name: HashMap<Arc<str>, u32, TextState>,
    all: Slab<Group>,
    /// Groups without an open turn that are not complete.
    quiet: BTreeSet<(Nanos, u32)>,
}

record!(Group { name, size, arrived, open, since, running, quiet_since });
record!(Groups { by_name, all, quiet });

impl Groups {
    pub(super) fn new(seed: u64) -> Self {
        Self { by_name: HashMap::with_hasher(TextState(seed)), all: Slab::default(), quiet: BTreeSet::new() }
    }

    /// Adds a turn; answers the group and since when that waits.
    fn join(&mut self, name: &str, size: Option<u32>, since: u64) -> (u32, u64) {
        let slot = self.by_name.get(name).copied().unwrap_or_else(|| {
            let name: Arc<str> = name.into();
            let group = Group { name: name.clone(), size, arrived: 0, open: 0, since, running: BTreeMap::new(), quiet_since: 0 };
            let slot = self.all.insert(group);
            self.by_name.insert(name, slot);
            slot
        });
        let group = &mut self.all[slot];
        self.quiet.remove(&(group.quiet_since, slot));
        group.size = group.size.max(size);
        group.arrived += 1;
        group.open += 1;
        (slot, group.since)
    }

    /// A turn of the group has ended, for good or to come back.
    pub(super) fn leave(&mut self, group: Option<u32>, now: Nanos, comes_back: bool) {
        let Some(slot) = group else { return };
        let group = &mut self.all[slot];
        group.open -= 1;
        group.arrived -= u32::from(comes_back);
        if group.open > 0 {
            return;
        }
        if group.arrived < group.size.unwrap_or(0) {
            group.quiet_since = now;
            self.quiet.insert((now, slot));
        } else {
            self.forget(slot);
        }
    }

    fn forget(&mut self, slot: u32) {
        let group = self.all.remove(slot);
        self.by_name.remove(&group.name);
        self.quiet.remove(&(group.quiet_since, slot));
    }

    /// Lets go of groups of which nothing was heard for `after`.
    pub(super) fn expire(&mut self, now: Nanos, after: Nanos) {
        while let Some(&(_, slot)) = self.quiet.first().filter(|first| first.0.saturating_add(after) <= now) {
            self.forget(slot);
        }
    }

    pub(super) fn placed(&mut self, group: Option<u32>, replica: u32) {
        if let Some(slot) = group {
            *self.all[slot].running.entry(replica).or_insert(0) += 1;
        }
    }

    pub(super) fn unplaced(&mut self, group: Option<u32>, replica: u32) {
        let Some(slot) = group else { return };
        let running = &mut self.all[slot].running;
        let left = running.get(&replica).map_or(0, |count| count - 1);
        if left == 0 {
            running.remove(&replica);
        } else {
            running.insert(replica, left);
        }
    }

    /// Turns of the group that run on a replica.
    pub(super) fn running(&self, group: Option<u32>, replica: u32) -> u32 {
        group.and_then(|slot| self.all[slot].running.get(&replica).copied()).unwrap_or(0)
    }
}

impl Router {
    /// Makes a new turn a member of the group that its submit names.
    pub(super) fn join_group(&mut self, turn: u32, name: Option<&str>, size: Option<u32>) {
        let Some(name) = name else { return };
        let since = self.turns[turn].since;
        let (group, first) = self.groups.join(name, size, since);
        let state = &mut self.turns[turn];
        (state.group, state.since) = (Some(group), since.min(first));
    }

    /// The members of every group, counted anew.
    pub(super) fn audit_groups(&self) -> std::result::Result<(), String> {
        let mut open: BTreeMap<u32, (u32, BTreeMap<u32, u32>)> = BTreeMap::new();
        for (_, turn) in self.turns.iter() {
            let Some(group) = turn.group else { continue };
            let (count, running) = open.entry(group).or_default();
            *count += 1;
            if let Some(placement) = placed(turn) {
                *running.entry(placement.replica).or_insert(0) += 1;
            }
        }
        for (slot, group) in self.groups.all.iter() {
            let (count, running) = open.remove(&slot).unwrap_or_default();
            let quiet = self.groups.quiet.contains(&(group.quiet_since, slot));
            if group.open != count || group.running != running || quiet != (count == 0) || group.arrived < count {
                return Err(format!("group {:?}: {group:?} kept, {count} open and {running:?} running", group.name));
            }
            if self.groups.by_name.get(&group.name) != Some(&slot) {
                return Err(format!("group {:?} is not found by its name", group.name));
            }
        }
        if !open.is_empty() || self.groups.by_name.len() != self.groups.all.len() {
            return Err("a turn is of a group that is not there".into());
        }
        Ok(())
    }
}
