//! The prefix index: which replicas hold the longest prefix of a token sequence, and where a session's history ends.
//!
//! A *run* is a maximal chain of blocks without a fork; its fingerprints lie contiguously in one arena. A fork makes a
//! child run that branches off at a block offset; existing runs are never split. A *cursor* is the end of a path: a run
//! and how many of its blocks belong to the path. `tree` stores the paths, `residency` who holds them in cache.
//!
//! Cursors that must stay valid are *anchored*. A run lives while something anchored, held or branching needs it: what
//! lies beyond the last such offset is trimmed at once, so memory is bounded by live histories and replica capacity.

mod arena;
pub(crate) mod ends;
pub(crate) mod hasher;
mod residency;
mod tree;

pub use residency::Residency;
pub use tree::{Cursor, RunId, Tree};

/// The tree of paths with the residency marks on it.
#[derive(Debug)]
pub struct Index {
    /// Paths.
    pub tree: Tree,
    /// Who holds them.
    pub residency: Residency,
}

impl Index {
    /// An empty index; `seed` keys its hash tables.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { tree: Tree::new(seed), residency: Residency::default() }
    }

    /// Drops an anchor and frees what nobody needs any more.
    ///
    /// # Panics
    /// When the cursor is not anchored: a defect of the caller.
    pub fn unanchor(&mut self, cursor: Cursor) {
        self.tree.drop_anchor(cursor);
        self.residency.shrink(&mut self.tree, cursor.run);
    }

    /// Frees least recently used blocks of `replica` until at most `blocks` are resident, or everything left is in use.
    pub fn enforce(&mut self, replica: u32, blocks: u64) {
        self.residency.enforce(&mut self.tree, replica, blocks);
    }

    /// Forgets everything that `replica` holds.
    pub fn flush(&mut self, replica: u32) {
        self.residency.flush(&mut self.tree, replica);
    }

    /// Bytes held by the index, hash tables estimated from their capacity.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tree.bytes() + self.residency.bytes()
    }

    /// Recomputes every count of the index from scratch.
    ///
    /// # Errors
    /// What differs.
    pub fn audit(&self) -> Result<(), String> {
        self.tree.audit(&self.residency)?;
        self.residency.audit(&self.tree)
    }
}
