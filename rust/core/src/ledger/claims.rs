//! Whose paths are charged to which replica: the union of claimed paths, kept incrementally.
//!
//! Per claim domain (replica, workload) and run a multiset holds the offsets where a claimed path ends in the run or
//! branches off to a claimed child run; the run's share of the union is its largest offset. A claim reaches the parent
//! run only when the multiset of the run becomes non-empty, and leaves it when it becomes empty, so one operation touches
//! 1 + a runs, `a` being the runs whose state flips: none for an append, one for a first fork.

use crate::index::ends::Ends;
use crate::index::{Cursor, RunId, Tree};
use crate::record::codec::record;

#[derive(Debug)]
struct Node {
    replica: u32,
    workload: u32,
    ends: Ends,
}

/// All claims, with the size of their union per replica and per (replica, workload).
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// By run: the domains that claim it, ascending by (replica, workload).
    nodes: Vec<Vec<Node>>,
    workloads: usize,
    /// By replica: blocks in the union of all claims.
    union: Vec<u64>,
    /// By replica and workload, row-major: blocks in the union of the workload's claims.
    workload_union: Vec<u64>,
}

impl Claims {
    pub(crate) fn new(workloads: usize) -> Self {
        Self { workloads, ..Self::default() }
    }

    pub(crate) fn add_replica(&mut self, replica: u32) {
        if self.union.len() <= replica as usize {
            self.union.resize(replica as usize + 1, 0);
            self.workload_union.resize((replica as usize + 1) * self.workloads, 0);
        }
    }

    /// Blocks in the union of all paths claimed on the replica.
    pub(crate) fn union_blocks(&self, replica: u32) -> u64 {
        self.union[replica as usize]
    }

    /// Blocks in the union of the paths that one workload claims on the replica.
    pub(crate) fn workload_blocks(&self, replica: u32, workload: u32) -> u64 {
        self.workload_union[replica as usize * self.workloads + workload as usize]
    }

    /// Depth in blocks of the longest prefix of the path that is claimed on the replica, by anybody or by one workload.
    pub(crate) fn covered_depth(&self, tree: &Tree, replica: u32, cursor: Cursor, workload: Option<u32>) -> u32 {
        for (run, offset) in tree.path(cursor) {
            let top = workload.map_or_else(|| self.top(run, replica), |workload| self.own_top(run, replica, workload));
            if top > 0 {
                return tree.depth_before(run) + top.min(offset);
            }
        }
        0
    }

    /// Claims the path. The cursor must be anchored by the claimant for as long as the claim lasts.
    pub(crate) fn add(&mut self, tree: &Tree, replica: u32, workload: u32, cursor: Cursor) {
        for (run, offset) in tree.path(cursor) {
            let before = self.top(run, replica);
            let node = self.node_or_new(run, replica, workload);
            let first = node.ends.is_empty();
            let workload_before = node.ends.max();
            node.ends.insert(offset);
            let workload_after = node.ends.max();
            self.union[replica as usize] += u64::from(workload_after.max(before) - before);
            self.workload_union[replica as usize * self.workloads + workload as usize] += u64::from(workload_after - workload_before);
            if !first {
                break;
            }
        }
    }

    /// Drops one claim of the path.
    ///
    /// # Panics
    /// When the path is not claimed: a defect of the caller.
    pub(crate) fn remove(&mut self, tree: &Tree, replica: u32, workload: u32, cursor: Cursor) {
        for (run, offset) in tree.path(cursor) {
            let before = self.top(run, replica);
            let nodes = &mut self.nodes[run as usize];
            let at = nodes.binary_search_by_key(&(replica, workload), |node| (node.replica, node.workload)).expect("the path is claimed");
            let ends = &mut nodes[at].ends;
            let workload_before = ends.max();
            assert!(ends.remove(offset), "the path is claimed at this offset");
            let workload_after = ends.max();
            let emptied = ends.is_empty();
            if emptied {
                nodes.remove(at);
                if nodes.is_empty() {
                    *nodes = Vec::new();
                }
            }
            self.union[replica as usize] -= u64::from(before - self.top(run, replica));
            self.workload_union[replica as usize * self.workloads + workload as usize] -= u64::from(workload_before - workload_after);
            if !emptied {
                break;
            }
        }
    }

    /// Largest claimed offset of the run on the replica. O(workloads that claim it there).
    fn top(&self, run: RunId, replica: u32) -> u32 {
        let Some(nodes) = self.nodes.get(run as usize) else { return 0 };
        let from = nodes.partition_point(|node| node.replica < replica);
        nodes[from..].iter().take_while(|node| node.replica == replica).map(|node| node.ends.max()).max().unwrap_or(0)
    }

    /// The same of one workload.
    fn own_top(&self, run: RunId, replica: u32, workload: u32) -> u32 {
        let Some(nodes) = self.nodes.get(run as usize) else { return 0 };
        let found = nodes.binary_search_by_key(&(replica, workload), |node| (node.replica, node.workload));
        found.map_or(0, |at| nodes[at].ends.max())
    }

    fn node_or_new(&mut self, run: RunId, replica: u32, workload: u32) -> &mut Node {
        if self.nodes.len() <= run as usize {
            self.nodes.resize_with(run as usize + 1, Vec::new);
        }
        let nodes = &mut self.nodes[run as usize];
        let at = match nodes.binary_search_by_key(&(replica, workload), |node| (node.replica, node.workload)) {
            Ok(at) => at,
            Err(at) => {
                nodes.insert(at, Node { replica, workload, ends: Ends::default() });
                at
            }
        };
        &mut nodes[at]
    }
}

record!(Node { replica, workload, ends });
record!(Claims { nodes, workloads, union, workload_union });
