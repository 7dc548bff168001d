//! Every count of the index recomputed from scratch: for tests, and for whoever suspects a defect.

use super::records::List;
use super::residency::{Knowledge, Residency};
use super::tree::{NAMESPACE_BYTES, NONE, RunId, Tree};

impl Tree {
    /// Recomputes what the tree counts. `held` = blocks of a run that somebody holds.
    pub(super) fn audit(&self, held: impl Fn(RunId) -> u32) -> Result<(), String> {
        let (mut blocks, mut side, mut children) = (0, 0, 0);
        for (id, run) in self.runs.iter().enumerate().filter(|(_, run)| run.alive) {
            blocks += u64::from(run.len);
            side += run.anchors.heap_bytes() + run.holders.heap_bytes();
            if run.len > run.slice.capacity {
                return Err(format!("run {id} is longer than its slice"));
            }
            if run.parent != NONE {
                let parent = &self.runs[run.parent as usize];
                if !parent.alive || run.parent_offset > parent.len || run.depth != parent.depth + run.parent_offset || run.root != parent.root {
                    return Err(format!("run {id} does not fit its parent"));
                }
                if self.children.get(self.child_key(id as RunId), |child| self.child_key(child)) != Some(id as RunId) {
                    return Err(format!("run {id} is not in the children table"));
                }
                children += 1;
            }
            let held = held(id as RunId);
            if run.anchors.is_empty() && held == 0 {
                return Err(format!("run {id} is needed by nobody"));
            }
            if run.len > run.anchors.max().max(held) {
                return Err(format!("run {id} is longer than anybody needs"));
            }
        }
        side += self.roots.keys().map(|name| (NAMESPACE_BYTES + 2 * name.len()) as u64).sum::<u64>();
        if (blocks, side, children) != (self.blocks, self.side_bytes, self.children.len()) {
            let counted = (self.blocks, self.side_bytes, self.children.len());
            return Err(format!("blocks, side bytes and children {counted:?} counted, {:?} stored", (blocks, side, children)));
        }
        Ok(())
    }
}

impl Residency {
    pub(super) fn audit(&self, tree: &Tree) -> Result<(), String> {
        let mut blocks = vec![0u64; self.replicas.len()];
        let mut segments = vec![0usize; self.replicas.len()];
        for (run_id, run) in tree.runs.iter().enumerate().filter(|(_, run)| run.alive) {
            for holder in run.holders.as_slice() {
                let (id, replica) = (holder.id, holder.replica);
                let head = self.records.get(id);
                let fail = |what: &str| Err(format!("holding {id} of run {run_id} on replica {replica}: {what}"));
                if (head.run, head.replica, head.newer) != (run_id as RunId, replica, NONE) || self.records.span(id) > run.len {
                    return fail("does not fit the run");
                }
                if !run.holders.notes_right(replica, head.blocks) {
                    return fail("is noted at the wrong level");
                }
                let knowledge = self.knowledge(replica);
                let (extra, pinned) = (self.records.extra(id), self.records.pinned(id));
                let own = if knowledge == Knowledge::Whole { 0 } else { self.records.confirmed(id) };
                let exact = extra.and_then(|extra| extra.exact.as_ref());
                if exact.is_some_and(|exact| exact.cutoff() != exact.audited_cutoff()) {
                    return fail("has a wrong first hole");
                }
                let expected = own.max(extra.map_or(0, |extra| extra.pending.max()));
                let expected = exact.map_or(expected, |exact| exact.reach(expected));
                if head.blocks != expected {
                    return fail(&format!("{} blocks held, {expected} accounted for", head.blocks));
                }
                blocks[replica as usize] += u64::from(head.blocks);
                let (mut at, mut end) = (id, 0);
                while at != NONE {
                    let segment = self.records.get(at);
                    segments[replica as usize] += 1;
                    if segment.end < end || at != id && segment.end == end {
                        return fail("segments out of order");
                    }
                    end = segment.end;
                    let kept = knowledge != Knowledge::Own || end <= pinned;
                    if (self.records.list_of(at) == List::Kept) != kept {
                        return fail("stands in the wrong list");
                    }
                    at = segment.older;
                }
                if end != head.blocks {
                    return fail("its segments end elsewhere");
                }
                if knowledge == Knowledge::Own
                    && head.blocks > 0
                    && !tree.is_dropped(run_id as RunId)
                    && let Some((parent, offset)) = tree.parent(run_id as RunId)
                    && self.held(tree, parent, replica) < offset
                {
                    return fail("what precedes it is not held");
                }
            }
        }
        for (replica, state) in self.replicas.iter().enumerate() {
            let listed: usize = [List::Cached, List::Kept].iter().map(|&list| self.records.iter(replica as u32, list).count()).sum();
            if (state.blocks, listed) != (blocks[replica], segments[replica]) {
                let found = (blocks[replica], segments[replica]);
                return Err(format!("replica {replica}: blocks and segments {:?} counted, {found:?} held", (state.blocks, listed)));
            }
        }
        if self.records.audited_side_bytes() != self.records.side_bytes {
            return Err("the bytes of the holdings are counted wrong".into());
        }
        Ok(())
    }
}
