//! The waiting line: one queue per workload, and virtual time between workloads.

use std::collections::BTreeSet;

use crate::record::codec::record;

/// Order inside a workload: paused sessions first, then new ones (`true`); among them the highest priority (negated here), then
/// by expected length where the policy wants that, by first admission or submit, and by slot.
pub(crate) type Place = (bool, i64, u64, u64, u32);

/// What decides between turns of one priority, before the order in which they came.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Order {
    #[default]
    Fifo,
    LongestFirst,
    ShortestFirst,
}

impl Order {
    pub(crate) const NAMES: [(&'static str, Self); 3] =
        [("fifo", Self::Fifo), ("longest_first", Self::LongestFirst), ("shortest_first", Self::ShortestFirst)];
}

record!(Order as order: Fifo = 0, LongestFirst = 1, ShortestFirst = 2);

#[derive(Debug, Default)]
struct Queue {
    turns: BTreeSet<Place>,
    /// V: grows by price / weight at each first admission.
    virtual_time: f64,
    /// It waited, and was not stopped by its own caps, when the line was last scanned.
    eligible: bool,
    /// Blocks of the prompts that wait.
    blocks: u64,
}

/// Held turns by workload.
#[derive(Debug)]
pub(crate) struct Line {
    queues: Vec<Queue>,
    /// Largest virtual time at which anyone was admitted: who comes back from idleness starts here.
    clock: f64,
    len: usize,
}

impl Line {
    pub(crate) fn new(workloads: usize) -> Self {
        Self { queues: (0..workloads).map(|_| Queue::default()).collect(), clock: 0.0, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Adds a turn whose prompt has `blocks`.
    pub(crate) fn insert(&mut self, workload: u32, place: Place, blocks: u64) {
        let queue = &mut self.queues[workload as usize];
        if queue.turns.insert(place) {
            queue.blocks += blocks;
            self.len += 1;
        }
    }

    pub(crate) fn remove(&mut self, workload: u32, place: Place, blocks: u64) {
        let queue = &mut self.queues[workload as usize];
        if queue.turns.remove(&place) {
            queue.blocks -= blocks;
            self.len -= 1;
        }
    }

    /// Blocks of the prompts of a workload that wait.
    pub(crate) fn blocks(&self, workload: u32) -> u64 {
        self.queues[workload as usize].blocks
    }

    /// The first turns of a workload.
    pub(crate) fn head(&self, workload: u32, turns: usize) -> impl Iterator<Item = u32> + '_ {
        self.queues[workload as usize].turns.iter().take(turns).map(|place| place.4)
    }

    /// Every held turn.
    pub(crate) fn all(&self) -> Vec<u32> {
        self.queues.iter().flat_map(|queue| queue.turns.iter().map(|place| place.4)).collect()
    }

    pub(crate) fn virtual_time(&self, workload: u32) -> f64 {
        self.queues[workload as usize].virtual_time
    }

    /// Workloads that wait, least virtual time first, ties by number. A workload that has just become eligible is lifted to the clock.
    pub(crate) fn order(&mut self) -> Vec<u32> {
        let clock = self.clock;
        for queue in &mut self.queues {
            if queue.turns.is_empty() {
                queue.eligible = false;
            } else if !queue.eligible {
                queue.eligible = true;
                queue.virtual_time = queue.virtual_time.max(clock);
            }
        }
        let mut order: Vec<u32> = (0..self.queues.len() as u32).filter(|&workload| !self.queues[workload as usize].turns.is_empty()).collect();
        order.sort_by(|&a, &b| self.virtual_time(a).total_cmp(&self.virtual_time(b)).then(a.cmp(&b)));
        order
    }

    /// The workload is stopped by its own caps: its virtual time stands still, and it is lifted when it comes back.
    pub(crate) fn stopped(&mut self, workload: u32) {
        self.queues[workload as usize].eligible = false;
    }

    /// Charges a first admission.
    pub(crate) fn admitted(&mut self, workload: u32, toll: f64) {
        let queue = &mut self.queues[workload as usize];
        // A turn that is admitted without having waited counts as eligible at this moment.
        if !queue.eligible {
            queue.virtual_time = queue.virtual_time.max(self.clock);
        }
        self.clock = self.clock.max(queue.virtual_time);
        queue.virtual_time += toll;
    }
}

record!(Queue { turns, virtual_time, eligible, blocks });
record!(Line { queues, clock, len });
