//! The engine's memory block by block: one entry per block in a linked list.

use std::collections::HashMap;

const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Block {
    /// Chain hash of the content, where it is full and computed.
    content: Option<u64>,
    users: u32,
    /// Neighbours in the free queue.
    previous: u32,
    next: u32,
}

/// The blocks of one engine.
#[derive(Debug)]
pub(super) struct BlockCache {
    blocks: Vec<Block>,
    by_content: HashMap<u64, u32>,
    /// Ends of the free queue: reused from the head, released to the tail.
    head: u32,
    tail: u32,
    free: u32,
    /// Blocks that became a second copy of something.
    pub(super) copies: u64,
}

impl BlockCache {
    /// Memory of `blocks` empty blocks.
    #[must_use]
    pub(super) fn new(blocks: u32) -> Self {
        let mut cache =
            Self { blocks: Vec::with_capacity(blocks as usize), by_content: HashMap::default(), head: NONE, tail: NONE, free: 0, copies: 0 };
        for block in 0..blocks {
            cache.blocks.push(Block { content: None, users: 0, previous: NONE, next: NONE });
            cache.push_last(block);
        }
        cache
    }

    /// Blocks that nobody uses, cached ones included.
    #[must_use]
    pub(super) fn free_blocks(&self) -> u32 {
        self.free
    }

    /// All blocks.
    #[must_use]
    pub(super) fn len(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Leading blocks of the chain that are cached.
    #[must_use]
    pub(super) fn hits(&self, chain: &[u64]) -> usize {
        chain.iter().take_while(|content| self.by_content.contains_key(content)).count()
    }

    /// Takes the cached blocks of `hits` and `new` blocks more; `None`, without a change, when they are not there.
    pub(super) fn take(&mut self, hits: &[u64], new: usize) -> Option<Vec<u32>> {
        let cached: Vec<u32> = hits.iter().map(|content| self.by_content[content]).collect();
        let unused = cached.iter().filter(|&&block| self.blocks[block as usize].users == 0).count();
        if unused + new > self.free as usize {
            return None;
        }
        for &block in &cached {
            if self.blocks[block as usize].users == 0 {
                self.unlink(block);
            }
            self.blocks[block as usize].users += 1;
        }
        let mut table = cached;
        table.extend((0..new).map(|_| self.take_free()));
        Some(table)
    }

    /// Takes one more block.
    pub(super) fn take_one(&mut self) -> Option<u32> {
        (self.free > 0).then(|| self.take_free())
    }

    /// Notes that a block is full and computed. The first block with some content is the one that is found.
    pub(super) fn computed(&mut self, block: u32, content: u64) {
        self.blocks[block as usize].content = Some(content);
        self.copies += u64::from(*self.by_content.entry(content).or_insert(block) != block);
    }

    /// Gives the blocks of a request back, the last one first.
    pub(super) fn release(&mut self, table: &[u32]) {
        for &block in table.iter().rev() {
            let state = &mut self.blocks[block as usize];
            state.users -= 1;
            if state.users == 0 {
                self.push_free(block);
            }
        }
    }

    fn take_free(&mut self) -> u32 {
        let block = self.head;
        self.unlink(block);
        let state = &mut self.blocks[block as usize];
        state.users = 1;
        if let Some(content) = state.content.take()
            && self.by_content.get(&content) == Some(&block)
        {
            self.by_content.remove(&content);
        }
        block
    }

    fn push_free(&mut self, block: u32) {
        if self.blocks[block as usize].content.is_some() { self.push_last(block) } else { self.push_first(block) }
    }

    /// What holds nothing to find is reused before all others.
    fn push_first(&mut self, block: u32) {
        let head = std::mem::replace(&mut self.head, block);
        self.blocks[block as usize].previous = NONE;
        self.blocks[block as usize].next = head;
        match head {
            NONE => self.tail = block,
            head => self.blocks[head as usize].previous = block,
        }
        self.free += 1;
    }

    fn push_last(&mut self, block: u32) {
        let tail = std::mem::replace(&mut self.tail, block);
        self.blocks[block as usize].previous = tail;
        self.blocks[block as usize].next = NONE;
        match tail {
            NONE => self.head = block,
            tail => self.blocks[tail as usize].next = block,
        }
        self.free += 1;
    }

    fn unlink(&mut self, block: u32) {
        let Block { previous, next, .. } = self.blocks[block as usize];
        match previous {
            NONE => self.head = next,
            previous => self.blocks[previous as usize].next = next,
        }
        match next {
            NONE => self.tail = previous,
            next => self.blocks[next as usize].previous = previous,
        }
        self.free -= 1;
    }
}
