//! Runs, children and cursors: the paths themselves.

use std::collections::HashMap;

use super::arena::{Arena, EMPTY, Slice};
use super::children::{ChildKey, Children};
use super::ends::Ends;
use super::hasher::{MixState, TextState};
use super::holders::Holders;
use super::records::grown;

use crate::record::codec::record;

/// Number of a run; reused after the run is freed, told apart by the generation.
pub type RunId = u32;

/// No run.
pub(super) const NONE: RunId = RunId::MAX;
/// Estimated bytes of a namespace beside its name: its entries in two tables, and its root.
pub(super) const NAMESPACE_BYTES: usize = 2 * 48;

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

/// One run: 72 bytes, and what its sets keep on the heap when they hold more than one entry.
#[derive(Debug)]
pub(super) struct Run {
    /// The run that this one branches off from; of a free run, the next free one.
    pub(super) parent: RunId,
    /// Blocks of the parent that precede this run.
    pub(super) parent_offset: u32,
    /// Blocks from the root that precede this run.
    pub(super) depth: u32,
    pub(super) slice: Slice,
    pub(super) len: u32,
    generation: u32,
    /// Root of the namespace.
    pub(super) root: RunId,
    /// A trimmed run never grows again, so "generation equal and offset <= length" proves a cursor current.
    sealed: bool,
    pub(super) alive: bool,
    /// Of a root: its namespace was dropped.
    pub(super) dropped: bool,
    /// Offsets where anchored cursors end and where child runs branch off.
    pub(super) anchors: Ends,
    /// Who holds part of it.
    pub(super) holders: Holders,
}

/// All paths.
#[derive(Debug)]
pub struct Tree {
    pub(super) runs: Vec<Run>,
    first_free: RunId,
    free_runs: u32,
    pub(super) arena: Arena,
    pub(super) children: Children,
    /// Namespace -> root, an empty run. Dropped with its last path.
    pub(super) roots: HashMap<Box<str>, RunId, TextState>,
    root_names: HashMap<RunId, Box<str>, MixState>,
    /// The root of the namespace without a name, which most use: found without hashing.
    unnamed: Option<RunId>,
    pub(super) blocks: u64,
    /// Heap bytes of anchors, holders and namespaces.
    pub(super) side_bytes: u64,
    /// Generation of runs that are made anew: above every one given out before the memory went back.
    first_generation: u32,
}

impl Tree {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            runs: Vec::new(),
            first_free: NONE,
            free_runs: 0,
            arena: Arena::default(),
            children: Children::new(seed),
            roots: HashMap::with_hasher(TextState(seed)),
            root_names: HashMap::with_hasher(MixState(seed)),
            unnamed: None,
            blocks: 0,
            side_bytes: 0,
            first_generation: 0,
        }
    }

    /// The end of the empty path of a namespace, which is made when it does not exist. Anchor it before anything is freed.
    pub fn root(&mut self, namespace: &str) -> Cursor {
        if let Some(root) = self.existing_root(namespace) {
            return root;
        }
        let run = self.new_run(NONE, 0, 0, &[]);
        self.runs[run as usize].root = run;
        self.roots.insert(namespace.into(), run);
        self.unnamed = self.unnamed.or(namespace.is_empty().then_some(run));
        self.root_names.insert(run, namespace.into());
        self.side_bytes += (NAMESPACE_BYTES + 2 * namespace.len()) as u64;
        self.cursor(run, 0)
    }

    /// The end of the empty path of a namespace that has paths.
    #[must_use]
    pub fn existing_root(&self, namespace: &str) -> Option<Cursor> {
        let run = if namespace.is_empty() { self.unnamed } else { self.roots.get(namespace).copied() };
        run.map(|run| self.cursor(run, 0))
    }

    /// Takes the name away from a namespace: nothing that is looked up under it finds its paths any more, and nobody is
    /// judged to hold them. What is anchored stays in memory until it is let go. Answers whether there was one. O(1).
    pub(super) fn drop_root(&mut self, namespace: &str) -> bool {
        let Some(run) = self.roots.remove(namespace) else { return false };
        self.unnamed = self.unnamed.filter(|&unnamed| unnamed != run);
        self.root_names.remove(&run);
        self.side_bytes -= (NAMESPACE_BYTES + 2 * namespace.len()) as u64;
        self.runs[run as usize].dropped = true;
        true
    }

    /// Whether the namespace of the run was dropped.
    pub(super) fn is_dropped(&self, run: RunId) -> bool {
        self.runs[self.runs[run as usize].root as usize].dropped
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
            let Some(&fingerprint) = fingerprints.get(done) else { break };
            let key = ChildKey { parent: run, offset, fingerprint };
            let Some(child) = self.children.get(key, |child| self.child_key(child)) else { break };
            (run, offset) = (child, 0);
        }
        (self.cursor(run, offset), done)
    }

    pub(super) fn child_key(&self, child: RunId) -> ChildKey {
        child_key(&self.runs, &self.arena, child)
    }

    /// Adds blocks that do not follow `end` yet, as [`Self::locate`] found. Anchor the answer before anything is freed.
    pub(super) fn grow(&mut self, end: Cursor, new: &[u64]) -> Cursor {
        if new.is_empty() {
            return end;
        }
        if self.extends(end) {
            self.extend(end.run, new);
            return self.cursor(end.run, end.offset + new.len() as u32);
        }
        let child = self.new_run(end.run, end.offset, self.depth(end), new);
        self.anchors(end.run, |anchors| anchors.insert(end.offset));
        let Self { children, runs, arena, .. } = self;
        children.insert(child, |child| child_key(runs, arena, child));
        self.cursor(child, new.len() as u32)
    }

    /// Whether what follows the cursor is added to its run, and not to a child.
    fn extends(&self, end: Cursor) -> bool {
        let run = &self.runs[end.run as usize];
        end.offset == run.len && !run.sealed && run.parent != NONE
    }

    /// Bytes by which [`Self::grow`] with `blocks` new blocks would grow the memory; `None` when they cannot be addressed.
    pub(super) fn growth(&mut self, end: Cursor, blocks: u32) -> Option<u64> {
        if blocks == 0 {
            return Some(0);
        }
        if self.extends(end) {
            let run = &self.runs[end.run as usize];
            let len = run.len.checked_add(blocks)?;
            return if len <= run.slice.capacity { Some(0) } else { self.arena.growth(len) };
        }
        let runs = if self.free_runs > 0 { 0 } else { (grown(self.runs.len(), self.runs.capacity(), 1) - self.runs.capacity()) * size_of::<Run>() };
        Some(self.arena.growth(blocks)? + self.children.growth() + runs as u64)
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
        self.anchors(cursor.run, |anchors| anchors.insert(cursor.offset));
    }

    /// Moves an anchor towards the end of its run: nothing before it becomes free.
    pub(super) fn raise_anchor(&mut self, cursor: Cursor, offset: u32) {
        let removed = self.anchors(cursor.run, |anchors| anchors.raise(cursor.offset, offset));
        assert!(removed, "cursor {cursor:?} is not anchored");
    }

    /// Takes an anchor away without freeing anything: whoever calls it frees what nobody needs, or anchors the cursor again.
    pub(crate) fn drop_anchor(&mut self, cursor: Cursor) {
        let removed = self.anchors(cursor.run, |anchors| anchors.remove(cursor.offset));
        assert!(removed, "cursor {cursor:?} is not anchored");
    }

    /// Changes the anchors of a run and counts the bytes they take.
    fn anchors<T>(&mut self, run: RunId, change: impl FnOnce(&mut Ends) -> T) -> T {
        let anchors = &mut self.runs[run as usize].anchors;
        let before = anchors.heap_bytes();
        let answer = change(anchors);
        self.side_bytes = self.side_bytes + anchors.heap_bytes() - before;
        answer
    }

    /// Changes the holders of a run and counts the bytes they take.
    pub(super) fn holders<T>(&mut self, run: RunId, change: impl FnOnce(&mut Holders) -> T) -> T {
        let holders = &mut self.runs[run as usize].holders;
        let before = holders.heap_bytes();
        let answer = change(holders);
        self.side_bytes = self.side_bytes + holders.heap_bytes() - before;
        answer
    }

    fn new_run(&mut self, parent: RunId, parent_offset: u32, depth: u32, fingerprints: &[u64]) -> RunId {
        let len = fingerprints.len() as u32;
        let slice = if len == 0 { EMPTY } else { self.arena.allocate(len) };
        if len > 0 {
            self.arena.write(slice, 0, fingerprints);
        }
        self.blocks += u64::from(len);
        let root = if parent == NONE { NONE } else { self.runs[parent as usize].root };
        let mut fresh = Run {
            parent,
            parent_offset,
            depth,
            slice,
            len,
            generation: self.first_generation,
            root,
            sealed: false,
            alive: true,
            dropped: false,
            anchors: Ends::default(),
            holders: Holders::default(),
        };
        if self.first_free != NONE {
            let id = self.first_free;
            let run = &mut self.runs[id as usize];
            self.first_free = run.parent;
            self.free_runs -= 1;
            fresh.generation = run.generation;
            *run = fresh;
            return id;
        }
        let grown = grown(self.runs.len(), self.runs.capacity(), 1);
        self.runs.reserve_exact(grown - self.runs.len());
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
            // A smaller slice only where there is one to be had without growing: a cut must not take memory.
            if keep > 0 && run.slice.capacity > 2 * keep.max(8) && self.arena.growth(keep) == Some(0) {
                run.slice = self.arena.resize(run.slice, keep, keep);
            }
        }
        None
    }

    fn free_run(&mut self, id: RunId) {
        let (parent, parent_offset, slice, len) = {
            let run = &self.runs[id as usize];
            (run.parent, run.parent_offset, run.slice, run.len)
        };
        self.blocks -= u64::from(len);
        if parent == NONE {
            if let Some(name) = self.root_names.remove(&id) {
                self.side_bytes -= (NAMESPACE_BYTES + 2 * name.len()) as u64;
                self.roots.remove(&name);
                self.unnamed = self.unnamed.filter(|&unnamed| unnamed != id);
            }
        } else {
            let Self { children, runs, arena, .. } = self;
            children.remove(id, |child| child_key(runs, arena, child));
            let removed = self.anchors(parent, |anchors| anchors.remove(parent_offset));
            assert!(removed, "a child run anchors its parent");
        }
        self.arena.release(slice);
        let run = &mut self.runs[id as usize];
        run.alive = false;
        run.generation = run.generation.wrapping_add(1);
        (run.slice, run.len) = (EMPTY, 0);
        run.parent = self.first_free;
        self.first_free = id;
        self.free_runs += 1;
        if self.free_runs as usize == self.runs.len() {
            self.give_back();
        }
    }

    /// Nothing is stored any more: the memory goes back. Old cursors stay stale.
    fn give_back(&mut self) {
        self.first_generation = self.runs.iter().map(|run| run.generation).max().unwrap_or(0).wrapping_add(1);
        self.runs = Vec::new();
        (self.first_free, self.free_runs) = (NONE, 0);
        self.roots.shrink_to_fit();
        self.root_names.shrink_to_fit();
    }

    /// Packs the fingerprints together. O(blocks).
    pub(super) fn compact(&mut self) {
        self.arena.compact(self.runs.iter_mut().map(|run| (&mut run.slice, run.len)));
    }

    /// Words of the arena that no run uses, and all of them.
    pub(super) fn arena_words(&self) -> (u64, u64) {
        (self.arena.free_words(), self.arena.words())
    }

    /// Blocks stored.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Runs in use, roots included.
    #[must_use]
    pub fn run_count(&self) -> u64 {
        self.runs.len() as u64 - u64::from(self.free_runs)
    }

    pub(super) fn bytes(&self) -> u64 {
        self.arena.bytes() + (self.runs.capacity() * size_of::<Run>()) as u64 + self.children.bytes() + self.side_bytes
    }
}

/// How the children table knows a run. A trimmed run keeps its first block until it is freed, so the key can be read.
fn child_key(runs: &[Run], arena: &Arena, child: RunId) -> ChildKey {
    let run = &runs[child as usize];
    ChildKey { parent: run.parent, offset: run.parent_offset, fingerprint: arena.get(run.slice, 0, 1)[0] }
}

/// Length of the common prefix: long pieces by the library's compare, then chunks whose differences are or-ed together, so that
/// there is no branch within a chunk. Measured: a third of the time of comparing word by word.
fn common_prefix(a: &[u64], b: &[u64]) -> usize {
    const LONG: usize = 64;
    const CHUNK: usize = 8;
    let n = a.len().min(b.len());
    let (a, b) = (&a[..n], &b[..n]);
    // The usual case at once: one call into the library's compare.
    if a == b {
        return n;
    }
    let pieces = a.as_chunks::<LONG>().0.iter().zip(b.as_chunks::<LONG>().0);
    let long = pieces.take_while(|(x, y)| x.as_slice() == y.as_slice()).count() * LONG;
    let (a, b) = (&a[long..], &b[long..]);
    let equal = |x: &[u64; CHUNK], y: &[u64; CHUNK]| x.iter().zip(y).fold(0, |difference, (x, y)| difference | (x ^ y)) == 0;
    let whole = a.as_chunks::<CHUNK>().0.iter().zip(b.as_chunks::<CHUNK>().0).take_while(|(x, y)| equal(x, y)).count() * CHUNK;
    long + whole + a[whole..].iter().zip(&b[whole..]).take_while(|(x, y)| x == y).count()
}

record!(Cursor { run, offset, generation });
record!(Run { parent, parent_offset, depth, slice, len, generation, root, sealed, alive, dropped, anchors, holders });
record!(Tree { runs, first_free, free_runs, arena, children, roots, root_names, unnamed, blocks, side_bytes, first_generation });
