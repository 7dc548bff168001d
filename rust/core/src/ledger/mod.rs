//! The ledger: which KV tokens are held against which replica, exactly. Whole blocks inside, no floating-point sum.
//!
//! `charge` = union of claimed paths + private blocks (partial tails, tokens known by count only) + outputs of open turns;
//! `commit` = charge + every charged session's expected further growth (its headroom).

mod claims;
mod growth;

pub use growth::phi;

use crate::index::{Cursor, Tree};
use crate::record::codec::record;
use claims::Claims;

/// Sums of one (replica, workload), or of one replica.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    /// Blocks of partial tails and of tokens known by count only.
    pub(crate) private: u64,
    /// Blocks of open output.
    pub(crate) output: u64,
    /// Blocks of expected further growth.
    pub(crate) headroom: u64,
    /// Placed turns.
    pub(crate) turns: u64,
    /// Sessions with a placed turn.
    pub(crate) running: u64,
    /// Charged sessions without one.
    pub(crate) idle: u64,
}

impl Sums {
    pub(crate) fn sessions(&self) -> u64 {
        self.running + self.idle
    }

    /// Blocks that count in the commit beside the claimed paths.
    fn blocks(&self) -> u64 {
        self.private + self.output + self.headroom
    }
}

/// All charges.
#[derive(Debug)]
pub(crate) struct Ledger {
    claims: Claims,
    workloads: usize,
    by_replica: Vec<Sums>,
    by_workload: Vec<Sums>,
    /// By workload: its commit on all replicas.
    totals: Vec<u64>,
    touched: Touched,
}

/// Replicas whose books changed since somebody last looked: nobody who waits fits anywhere else now.
#[derive(Debug, Default)]
struct Touched {
    list: Vec<u32>,
    /// By replica: whether it is listed.
    listed: Vec<bool>,
}

impl Touched {
    fn note(&mut self, replica: u32) {
        if !std::mem::replace(&mut self.listed[replica as usize], true) {
            self.list.push(replica);
        }
    }
}

impl Ledger {
    pub(crate) fn new(workloads: usize) -> Self {
        Self {
            claims: Claims::new(workloads),
            workloads,
            by_replica: Vec::new(),
            by_workload: Vec::new(),
            totals: vec![0; workloads],
            touched: Touched::default(),
        }
    }

    pub(crate) fn add_replica(&mut self, replica: u32) {
        self.claims.add_replica(replica);
        if self.by_replica.len() <= replica as usize {
            self.by_replica.resize(replica as usize + 1, Sums::default());
            self.by_workload.resize((replica as usize + 1) * self.workloads, Sums::default());
            self.touched.listed.resize(replica as usize + 1, false);
        }
    }

    /// Notes that somebody who waits may fit on the replica for a reason that is not in its books.
    pub(crate) fn touch(&mut self, replica: u32) {
        self.touched.note(replica);
    }

    /// Replicas that changed since [`Self::forget_touched`].
    pub(crate) fn touched(&self) -> &[u32] {
        &self.touched.list
    }

    pub(crate) fn forget_touched(&mut self) {
        for replica in self.touched.list.drain(..) {
            self.touched.listed[replica as usize] = false;
        }
    }

    /// Blocks that are there.
    pub(crate) fn charge(&self, replica: u32) -> u64 {
        let sums = &self.by_replica[replica as usize];
        self.claims.union_blocks(replica) + sums.private + sums.output
    }

    /// Blocks that will be there.
    pub(crate) fn commit(&self, replica: u32) -> u64 {
        self.charge(replica) + self.by_replica[replica as usize].headroom
    }

    /// Charge of one workload: what others share with it counts in full.
    pub(crate) fn workload_charge(&self, replica: u32, workload: u32) -> u64 {
        let sums = self.workload(replica, workload);
        self.claims.workload_blocks(replica, workload) + sums.private + sums.output
    }

    /// Commit of one workload on a replica; as with its charge, what others share with it counts in full.
    pub(crate) fn workload_commit(&self, replica: u32, workload: u32) -> u64 {
        self.workload_charge(replica, workload) + self.workload(replica, workload).headroom
    }

    /// Commit of one workload on all replicas.
    pub(crate) fn total(&self, workload: u32) -> u64 {
        self.totals[workload as usize]
    }

    pub(crate) fn replica(&self, replica: u32) -> &Sums {
        &self.by_replica[replica as usize]
    }

    pub(crate) fn workload(&self, replica: u32, workload: u32) -> &Sums {
        &self.by_workload[replica as usize * self.workloads + workload as usize]
    }

    /// Changes the sums of a replica and of a workload on it alike.
    pub(crate) fn update(&mut self, replica: u32, workload: u32, change: impl Fn(&mut Sums)) {
        self.touched.note(replica);
        change(&mut self.by_replica[replica as usize]);
        let cell = &mut self.by_workload[replica as usize * self.workloads + workload as usize];
        let before = cell.blocks();
        change(cell);
        let total = &mut self.totals[workload as usize];
        *total = *total + cell.blocks() - before;
    }

    /// Charges a path and the private blocks after it.
    pub(crate) fn claim(&mut self, tree: &Tree, replica: u32, workload: u32, path: Cursor, private: u64) {
        let before = self.claims.workload_blocks(replica, workload);
        self.claims.add(tree, replica, workload, path);
        self.totals[workload as usize] += self.claims.workload_blocks(replica, workload) - before;
        self.update(replica, workload, |sums| sums.private += private);
    }

    /// The mirror image of [`Self::claim`].
    pub(crate) fn unclaim(&mut self, tree: &Tree, replica: u32, workload: u32, path: Cursor, private: u64) {
        let before = self.claims.workload_blocks(replica, workload);
        self.claims.remove(tree, replica, workload, path);
        self.totals[workload as usize] -= before - self.claims.workload_blocks(replica, workload);
        self.update(replica, workload, |sums| sums.private -= private);
    }

    /// Blocks of the path that are not claimed on the replica yet.
    pub(crate) fn unclaimed(&self, tree: &Tree, replica: u32, path: Cursor) -> u64 {
        u64::from(tree.depth(path) - self.claims.covered_depth(tree, replica, path, None))
    }

    /// Blocks of the path that the workload has not claimed on the replica yet, whatever others have.
    pub(crate) fn unclaimed_by(&self, tree: &Tree, replica: u32, workload: u32, path: Cursor) -> u64 {
        u64::from(tree.depth(path) - self.claims.covered_depth(tree, replica, path, Some(workload)))
    }

    /// Blocks in the union of the claimed paths: for the audit.
    pub(crate) fn union_blocks(&self, replica: u32) -> u64 {
        self.claims.union_blocks(replica)
    }

    /// The same for one workload: for the audit.
    pub(crate) fn workload_union_blocks(&self, replica: u32, workload: u32) -> u64 {
        self.claims.workload_blocks(replica, workload)
    }
}

/// Blocks by which the expected peak of a session exceeds what it has grown to.
pub(crate) fn headroom(grown_tokens: u64, growth_tokens: u64, block_tokens: u64) -> u64 {
    phi(grown_tokens, growth_tokens).div_ceil(block_tokens) - grown_tokens.div_ceil(block_tokens)
}

record!(Sums { private, output, headroom, turns, running, idle });
record!(Ledger { claims, workloads, by_replica, by_workload, totals, touched });
record!(Touched { list, listed });
