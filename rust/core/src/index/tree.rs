//! Runs, children and cursors: the paths themselves.

use std::collections::HashMap;

use super::arena::{Arena, Slice};
use super::ends::Ends;
use super::hasher::{MixState, TextState};
use super::residency::Residency;

/// Number of a run; reused after the run is freed, told apart by the generation.
pub type RunId = u32;

/// No run.
pub(super) const NONE: RunId = RunId::MAX;

/// End of a path: the first `offset` blocks of `run`, after everything before the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cursor {
    /// The run.
    pub run: RunId,
    /// Blocks of the run that belong to the path; 0 only at a root.
    pub offset: u32,
    /// Generation of the run when the cursor was made.
    pub generation: u32,
}

#[derive(Debug)]
pub(super) struct Run {
    pub(super) parent: RunId,
    /// Blocks of the parent that precede this run.
    pub(super) parent_offset: u32,
    /// Blocks from the root that precede this run.
    pub(super) depth: u32,
    slice: Slice,
    pub(super) len: u32,
    generation: u32,
    /// A trimmed run never grows again, so "generation equal and offset <= length" proves a cursor current.
    sealed: bool,
    pub(super) alive: bool,
    /// Offsets where anchored cursors end and where child runs branch off.
    anchors: Ends,
    /// Holdings on this run: (replica, id), ascending by replica.
    pub(super) holders: Vec<(u32, u32)>,
}

/// All paths.
#[derive(Debug)]
pub struct Tree {
    pub(super) runs: Vec<Run>,
    free: Vec<RunId>,
    arena: Arena,
    /// (run, offset, fingerprint of the first block) -> child run.
    children: HashMap<(u32, u32, u64), RunId, MixState>,
    /// Namespace -> root, an empty run. Dropped with its last path.
    roots: HashMap<Box<str>, RunId, TextState>,
    root_names: HashMap<RunId, Box<str>, MixState>,
    blocks: u64,
    /// Generation of runs that are made anew: above every one given out before the memory went back.
    first_generation: u32,
}

impl Tree {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            runs: Vec::new(),
            free: Vec::new(),
            arena: Arena::default(),
            children: HashMap::with_hasher(MixState(seed)),
            roots: HashMap::with_hasher(TextState(seed)),
            root_names: HashMap::with_hasher(MixState(seed)),
            blocks: 0,
            first_generation: 0,
        }
    }

    /// The end of the empty path of a namespace, which is made when it does not exist. Anchor it before anything is freed.
    pub fn root(&mut self, namespace: &str) -> Cursor {
        if let Some(&run) = self.roots.get(namespace) {
            return self.cursor(run, 0);
        }
        let run = self.new_run(NONE, 0, 0, &[]);
        self.roots.insert(namespace.into(), run);
        self.root_names.insert(run, namespace.into());
        self.cursor(run, 0)
    }

    /// The end of the empty path of a namespace that has paths.
    #[must_use]
    pub fn existing_root(&self, namespace: &str) -> Option<Cursor> {
        self.roots.get(namespace).map(|&run| self.cursor(run, 0))
    }

    pub(super) fn cursor(&self, run: RunId, offset: u32) -> Cursor {
        Cursor { run, offset, generation: self.runs[run as usize].generation }
    }

    /// Whether the cursor still names the path it was made for.
    #[must_use]
    pub fn is_current(&self, cursor: Cursor) -> bool {
        self.runs.get(cursor.run as usize).is_some_and(|run| run.alive && run.generation == cursor.generation && cursor.offset <= run.len)
    }

    /// Blocks from the root to the cursor.
    #[must_use]
    pub fn depth(&self, cursor: Cursor) -> u32 {
        self.runs[cursor.run as usize].depth + cursor.offset
    }

    /// Blocks from the root that precede the run.
    #[must_use]
    pub fn depth_before(&self, run: RunId) -> u32 {
        self.runs[run as usize].depth
    }

    /// The run before `run` on every path through it, and where it branches off; `None` at a root.
    #[must_use]
    pub fn parent(&self, run: RunId) -> Option<(RunId, u32)> {
        let run = &self.runs[run as usize];
        (run.parent != NONE).then_some((run.parent, run.parent_offset))
    }

    /// The path's runs with the number of their blocks on it, deepest first; the root comes last. O(forks on the path).
    pub fn path(&self, cursor: Cursor) -> impl Iterator<Item = (RunId, u32)> + '_ {
        std::iter::successors(Some((cursor.run, cursor.offset)), |&(run, _)| self.parent(run))
    }

    /// The cursor after the first `depth` blocks of the path; the cursor itself when it is not deeper.
    #[must_use]
    pub fn ancestor(&self, cursor: Cursor, depth: u32) -> Cursor {
        let (run, offset) = self
            .path(cursor)
            .find(|&(run, _)| self.runs[run as usize].depth < depth || self.runs[run as usize].parent == NONE)
            .unwrap_or((cursor.run, cursor.offset));
        self.cursor(run, offset.min(depth - self.runs[run as usize].depth.min(depth)))
    }

    /// Whether the path of `cursor` starts with the whole path of `prefix`.
    #[must_use]
    pub fn starts_with(&self, cursor: Cursor, prefix: Cursor) -> bool {
        self.path(cursor).any(|(run, offset)| run == prefix.run && offset >= prefix.offset)
    }

    /// Follows `fingerprints` from a cursor; answers where the longest common path ends and how many were followed.
    #[must_use]
    pub fn locate(&self, from: Cursor, fingerprints: &[u64]) -> (Cursor, usize) {
        let (mut run, mut offset, mut done) = (from.run, from.offset, 0);
        loop {
            let stored = &self.runs[run as usize];
            let common = common_prefix(self.arena.get(stored.slice, offset, stored.len), &fingerprints[done..]);
            done += common;
            offset += common as u32;
            let Some(&next) = fingerprints.get(done) else { break };
            let Some(&child) = self.children.get(&(run, offset, next)) else { break };
            (run, offset) = (child, 0);
        }
        (self.cursor(run, offset), done)
    }

    /// Follows `fingerprints` from a cursor and adds what is missing. Anchor the answer before anything is freed.
    pub fn insert(&mut self, from: Cursor, fingerprints: &[u64]) -> Cursor {
        let (end, done) = self.locate(from, fingerprints);
        let new = &fingerprints[done..];
        if new.is_empty() {
            return end;
        }
        let run = &self.runs[end.run as usize];
        if end.offset == run.len && !run.sealed && run.parent != NONE {
            self.extend(end.run, new);
            return self.cursor(end.run, end.offset + new.len() as u32);
        }
        let child = self.new_run(end.run, end.offset, self.depth(end), new);
        self.runs[end.run as usize].anchors.insert(end.offset);
        self.children.insert((end.run, end.offset, new[0]), child);
        self.cursor(child, new.len() as u32)
    }

    /// Copies the fingerprints of a path, first block first.
    #[must_use]
    pub fn fingerprints(&self, cursor: Cursor) -> Vec<u64> {
        let mut all = vec![0; self.depth(cursor) as usize];
        for (id, offset) in self.path(cursor) {
            let run = &self.runs[id as usize];
            let from = run.depth as usize;
            all[from..from + offset as usize].copy_from_slice(self.arena.get(run.slice, 0, offset));
        }
        all
    }

    /// Keeps the path of the cursor in memory until [`super::Index::unanchor`].
    pub fn anchor(&mut self, cursor: Cursor) {
        debug_assert!(self.is_current(cursor));
        self.runs[cursor.run as usize].anchors.insert(cursor.offset);
    }

    pub(super) fn drop_anchor(&mut self, cursor: Cursor) {
        let removed = self.runs[cursor.run as usize].anchors.remove(cursor.offset);
        assert!(removed, "cursor {cursor:?} is not anchored");
    }

    fn new_run(&mut self, parent: RunId, parent_offset: u32, depth: u32, fingerprints: &[u64]) -> RunId {
        let len = fingerprints.len() as u32;
        let slice = if len == 0 { Slice { start: 0, capacity: 0 } } else { self.arena.allocate(len) };
        if len > 0 {
            self.arena.write(slice, 0, fingerprints);
        }
        self.blocks += u64::from(len);
        let fresh = Run {
            parent,
            parent_offset,
            depth,
            slice,
            len,
            generation: self.first_generation,
            sealed: false,
            alive: true,
            anchors: Ends::default(),
            holders: Vec::new(),
        };
        if let Some(id) = self.free.pop() {
            let run = &mut self.runs[id as usize];
            let generation = run.generation;
            *run = Run { generation, ..fresh };
            return id;
        }
        self.runs.push(fresh);
        self.runs.len() as RunId - 1
    }

    fn extend(&mut self, id: RunId, fingerprints: &[u64]) {
        let run = &mut self.runs[id as usize];
        let len = run.len + fingerprints.len() as u32;
        if len > run.slice.capacity {
            run.slice = self.arena.resize(run.slice, run.len, len);
        }
        self.arena.write(run.slice, run.len, fingerprints);
        run.len = len;
        self.blocks += fingerprints.len() as u64;
    }

    /// Cuts the run to what anchors and `held` blocks need. Frees it when that is nothing, and answers its parent then.
    pub(super) fn trim(&mut self, id: RunId, held: u32) -> Option<RunId> {
        let run = &mut self.runs[id as usize];
        let keep = run.anchors.max().max(held);
        let is_root = run.parent == NONE;
        if run.anchors.is_empty() && held == 0 {
            let parent = run.parent;
            self.free_run(id);
            return (!is_root).then_some(parent);
        }
        if keep < run.len {
            self.blocks -= u64::from(run.len - keep);
            run.len = keep;
            run.sealed = true;
            if keep > 0 && run.slice.capacity > 2 * keep.max(8) {
                run.slice = self.arena.resize(run.slice, keep, keep);
            }
        }
        None
    }

    fn free_run(&mut self, id: RunId) {
        let run = &mut self.runs[id as usize];
        run.alive = false;
        run.generation = run.generation.wrapping_add(1);
        let (parent, parent_offset, slice, len) = (run.parent, run.parent_offset, run.slice, run.len);
        self.blocks -= u64::from(len);
        if parent == NONE {
            if let Some(name) = self.root_names.remove(&id) {
                self.roots.remove(&name);
            }
        } else {
            // A trimmed run keeps at least its first block until it is freed, so the key is still there to read.
            let first = self.arena.get(slice, 0, 1)[0];
            self.children.remove(&(parent, parent_offset, first));
            let removed = self.runs[parent as usize].anchors.remove(parent_offset);
            assert!(removed, "a child run anchors its parent");
        }
        self.arena.release(slice);
        self.runs[id as usize].slice = Slice { start: 0, capacity: 0 };
        self.runs[id as usize].len = 0;
        self.free.push(id);
        if self.free.len() == self.runs.len() {
            self.give_back();
        }
    }

    /// Nothing is stored any more: the memory goes back. Old cursors stay stale.
    fn give_back(&mut self) {
        self.first_generation = self.runs.iter().map(|run| run.generation).max().unwrap_or(0).wrapping_add(1);
        self.runs = Vec::new();
        self.free = Vec::new();
        self.children.shrink_to_fit();
        self.roots.shrink_to_fit();
        self.root_names.shrink_to_fit();
    }

    /// Blocks stored.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Runs in use, roots included.
    #[must_use]
    pub fn run_count(&self) -> u64 {
        (self.runs.len() - self.free.len()) as u64
    }

    pub(super) fn bytes(&self) -> u64 {
        let runs = self.runs.capacity() * size_of::<Run>() + self.free.capacity() * 4;
        // A hash table slot carries its entry and one control byte.
        let table = self.children.capacity() * (size_of::<((u32, u32, u64), RunId)>() + 1);
        let holders: usize = self.runs.iter().map(|run| run.holders.capacity() * 8).sum();
        self.arena.bytes() + (runs + table + holders) as u64
    }

    pub(super) fn audit(&self, residency: &Residency) -> Result<(), String> {
        let mut blocks = 0;
        let mut child_anchors: HashMap<RunId, u32> = HashMap::new();
        for (id, run) in self.runs.iter().enumerate().filter(|(_, run)| run.alive) {
            blocks += u64::from(run.len);
            if run.len > run.slice.capacity {
                return Err(format!("run {id} is longer than its slice"));
            }
            if run.parent != NONE {
                let parent = &self.runs[run.parent as usize];
                if !parent.alive || run.parent_offset > parent.len || run.depth != parent.depth + run.parent_offset {
                    return Err(format!("run {id} does not fit its parent"));
                }
                let first = self.arena.get(run.slice, 0, 1)[0];
                if self.children.get(&(run.parent, run.parent_offset, first)) != Some(&(id as RunId)) {
                    return Err(format!("run {id} is not in the children table"));
                }
                *child_anchors.entry(run.parent).or_default() += 1;
            }
            if run.anchors.is_empty() && residency.held_blocks(self, id as RunId) == 0 {
                return Err(format!("run {id} is needed by nobody"));
            }
            if run.len > run.anchors.max().max(residency.held_blocks(self, id as RunId)) {
                return Err(format!("run {id} is longer than anybody needs"));
            }
        }
        if blocks != self.blocks {
            return Err(format!("{} blocks counted, {blocks} stored", self.blocks));
        }
        if self.children.len() != child_anchors.values().map(|&count| count as usize).sum::<usize>() {
            return Err("the children table has entries without a run".into());
        }
        Ok(())
    }
}

/// Length of the common prefix. Whole chunks are compared first, so that the compiler can use vector compares.
fn common_prefix(a: &[u64], b: &[u64]) -> usize {
    const CHUNK: usize = 8;
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    let whole = a.chunks_exact(CHUNK).zip(b.chunks_exact(CHUNK)).take_while(|(x, y)| x == y).count() * CHUNK;
    whole + a[whole..].iter().zip(&b[whole..]).take_while(|(x, y)| x == y).count()
}
