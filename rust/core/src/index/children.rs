//! The table of forks: (parent run, offset, fingerprint of the first block) to the child run.
//!
//! Open addressing with linear probing and one u32 per slot: the key of a child is read from the run itself. Deletion
//! shifts later entries back, so there are no tombstones and a long churn does not slow the table down.

use crate::prompt::mix64;
use crate::record::codec::record;

use super::tree::RunId;

const VACANT: RunId = RunId::MAX;
/// Slots of the first table.
const FIRST: usize = 16;

/// What tells the children of all runs apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChildKey {
    pub(super) parent: RunId,
    pub(super) offset: u32,
    pub(super) fingerprint: u64,
}

/// The table. Whoever calls it says how to read the key of a run.
#[derive(Debug)]
pub(super) struct Children {
    slots: Vec<RunId>,
    len: usize,
    seed: u64,
}

impl Children {
    pub(super) fn new(seed: u64) -> Self {
        Self { slots: Vec::new(), len: 0, seed }
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The slot where the probe for a key starts. Fingerprints are keyed, so nobody can choose keys that collide.
    fn home(&self, key: ChildKey) -> usize {
        let place = u64::from(key.parent) << 32 | u64::from(key.offset);
        mix64(self.seed ^ key.fingerprint ^ mix64(place)) as usize & (self.slots.len() - 1)
    }

    /// The child of this key.
    pub(super) fn get(&self, key: ChildKey, key_of: impl Fn(RunId) -> ChildKey) -> Option<RunId> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.home(key);
        loop {
            match self.slots[at] {
                VACANT => return None,
                run if key_of(run) == key => return Some(run),
                _ => at = (at + 1) & (self.slots.len() - 1),
            }
        }
    }

    /// Slots that the table has once it holds one more entry.
    fn grown(&self) -> usize {
        // At most three quarters full.
        if (self.len + 1) * 4 > self.slots.len() * 3 { (self.slots.len() * 2).max(FIRST) } else { self.slots.len() }
    }

    /// Bytes by which [`Self::insert`] would grow the table.
    pub(super) fn growth(&self) -> u64 {
        ((self.grown() - self.slots.len()) * size_of::<RunId>()) as u64
    }

    /// Adds a run whose key is not in the table.
    pub(super) fn insert(&mut self, run: RunId, key_of: impl Fn(RunId) -> ChildKey) {
        let slots = self.grown();
        if slots > self.slots.len() {
            let old = std::mem::replace(&mut self.slots, vec![VACANT; slots]);
            for entry in old.into_iter().filter(|&entry| entry != VACANT) {
                self.put(entry, &key_of);
            }
        }
        self.put(run, &key_of);
        self.len += 1;
    }

    fn put(&mut self, run: RunId, key_of: impl Fn(RunId) -> ChildKey) {
        let mut at = self.home(key_of(run));
        while self.slots[at] != VACANT {
            at = (at + 1) & (self.slots.len() - 1);
        }
        self.slots[at] = run;
    }

    /// Removes a run while its key can still be read. The table shrinks when most of it is empty.
    pub(super) fn remove(&mut self, run: RunId, key_of: impl Fn(RunId) -> ChildKey) {
        let mask = self.slots.len() - 1;
        let mut hole = self.home(key_of(run));
        while self.slots[hole] != run {
            assert!(self.slots[hole] != VACANT, "the run is in the table");
            hole = (hole + 1) & mask;
        }
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let entry = self.slots[at];
            if entry == VACANT {
                break;
            }
            // An entry may fill the hole when its probe passes there: the hole lies between its home and its slot.
            let start = self.home(key_of(entry));
            if at.wrapping_sub(start) & mask >= at.wrapping_sub(hole) & mask {
                self.slots[hole] = entry;
                hole = at;
            }
        }
        self.slots[hole] = VACANT;
        self.len -= 1;
        if self.len == 0 {
            self.slots = Vec::new();
        } else if self.slots.len() > FIRST && self.len * 8 < self.slots.len() {
            let old = std::mem::take(&mut self.slots);
            self.slots = vec![VACANT; old.len() / 4];
            for entry in old.into_iter().filter(|&entry| entry != VACANT) {
                self.put(entry, &key_of);
            }
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        (self.slots.capacity() * size_of::<RunId>()) as u64
    }
}

record!(Children { slots, len, seed });
