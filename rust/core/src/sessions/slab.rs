//! Records with small reusable numbers.

use crate::record::codec::{Reader, Record, Taken};

/// A vector with reusable slots. Iteration is in slot order, hence deterministic.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    slots: Vec<Option<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(value);
            return slot;
        }
        self.slots.push(Some(value));
        self.slots.len() as u32 - 1
    }

    pub(crate) fn remove(&mut self, slot: u32) -> T {
        let value = self.slots[slot as usize].take().expect("the slot is in use");
        self.free.push(slot);
        if self.free.len() == self.slots.len() {
            *self = Self::default();
        }
        value
    }

    pub(crate) fn get(&self, slot: u32) -> Option<&T> {
        self.slots.get(slot as usize).and_then(Option::as_ref)
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(slot, value)| value.as_ref().map(|value| (slot as u32, value)))
    }
}

impl<T> std::ops::Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, slot: u32) -> &T {
        self.slots[slot as usize].as_ref().expect("the slot is in use")
    }
}

impl<T> std::ops::IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, slot: u32) -> &mut T {
        self.slots[slot as usize].as_mut().expect("the slot is in use")
    }
}

impl<T: Record> Record for Slab<T> {
    fn put(&self, to: &mut Vec<u8>) {
        let Self { slots, free } = self;
        slots.put(to);
        free.put(to);
    }

    fn take(from: &mut Reader<'_>) -> Taken<Self> {
        Ok(Self { slots: Record::take(from)?, free: Record::take(from)? })
    }
}
