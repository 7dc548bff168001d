//! Encoder of what the decoder reads, by name, as vLLM 0.33 and `SGLang` 0.5.23 send it: for engines that are built in.

use rmp::encode;
use turnout_core::index::CacheEvent;

use crate::load::LoadStat;

/// Whose form a payload has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Hashes are unsigned, optional fields are null where they have no value, cache groups are told.
    Vllm,
    /// Hashes are signed, optional fields are left out.
    Sglang,
}

/// Encodes the cache events of one step. Namespaces and extra keys are not sent.
#[must_use]
pub fn encode_batch(timestamp_s: f64, events: &[CacheEvent<'_>], rank: i64, dialect: Dialect) -> Vec<u8> {
    let mut to = Writer(Vec::new());
    to.array(3);
    to.f64(timestamp_s);
    to.array(events.len());
    for event in events {
        to.event(event, dialect);
    }
    to.i64(rank);
    to.0
}

/// Encodes a load report.
#[must_use]
pub fn encode_load(load: &LoadStat) -> Vec<u8> {
    let mut to = Writer(Vec::new());
    to.array(11);
    to.str("LoadStat");
    for value in [load.running_requests, load.waiting_requests, load.kv_tokens, load.kv_capacity_tokens] {
        to.u64(value);
    }
    to.i64(load.rank.unwrap_or(0));
    for value in [load.waiting_uncached_tokens, load.total_tokens, load.running_requests_limit, load.prefilled_uncached_tokens, load.prefill_busy_us]
    {
        to.u64(value);
    }
    to.0
}

/// Writing to memory cannot fail.
struct Writer(Vec<u8>);

impl Writer {
    fn array(&mut self, items: usize) {
        encode::write_array_len(&mut self.0, items as u32).expect("memory");
    }

    fn map(&mut self, pairs: u32, tag: &str) {
        encode::write_map_len(&mut self.0, pairs).expect("memory");
        self.str("type");
        self.str(tag);
    }

    /// vLLM's encoder reserves a wide head where fields may be left out.
    fn wide_map(&mut self, pairs: u16, tag: &str) {
        self.0.push(0xde);
        self.0.extend(pairs.to_be_bytes());
        self.str("type");
        self.str(tag);
    }

    fn str(&mut self, text: &str) {
        encode::write_str(&mut self.0, text).expect("memory");
    }

    fn f64(&mut self, value: f64) {
        encode::write_f64(&mut self.0, value).expect("memory");
    }

    fn u64(&mut self, value: u64) {
        encode::write_uint(&mut self.0, value).expect("memory");
    }

    fn i64(&mut self, value: i64) {
        encode::write_sint(&mut self.0, value).expect("memory");
    }

    fn null(&mut self) {
        encode::write_nil(&mut self.0).expect("memory");
    }

    fn hash(&mut self, hash: u64, dialect: Dialect) {
        match dialect {
            Dialect::Vllm => self.u64(hash),
            Dialect::Sglang => self.i64(hash.cast_signed()),
        }
    }

    fn hashes(&mut self, hashes: &[u64], dialect: Dialect) {
        self.str("block_hashes");
        self.array(hashes.len());
        for &hash in hashes {
            self.hash(hash, dialect);
        }
    }

    fn medium(&mut self) {
        self.str("medium");
        self.str("GPU");
    }

    fn group(&mut self, group: u32) {
        self.str("group_idx");
        self.u64(group.into());
    }

    fn event(&mut self, event: &CacheEvent<'_>, dialect: Dialect) {
        match *event {
            CacheEvent::Cleared => self.map(1, "AllBlocksCleared"),
            CacheEvent::Removed { hashes, group } => {
                self.map(if dialect == Dialect::Vllm { 4 } else { 3 }, "BlockRemoved");
                self.hashes(hashes, dialect);
                self.medium();
                if dialect == Dialect::Vllm {
                    self.group(group);
                }
            }
            CacheEvent::Stored { hashes, parent, tokens, block_tokens, group, .. } => {
                match dialect {
                    Dialect::Vllm => self.wide_map(11, "BlockStored"),
                    Dialect::Sglang => self.map(7, "BlockStored"),
                }
                self.hashes(hashes, dialect);
                self.str("parent_block_hash");
                match parent {
                    Some(parent) => self.hash(parent, dialect),
                    None => self.null(),
                }
                self.str("token_ids");
                self.array(tokens.len());
                for &token in tokens {
                    self.u64(token.into());
                }
                self.str("block_size");
                self.u64(block_tokens.into());
                self.str("lora_id");
                self.null();
                self.medium();
                if dialect == Dialect::Vllm {
                    self.str("lora_name");
                    self.null();
                    self.str("extra_keys");
                    self.array(hashes.len());
                    for _ in hashes {
                        self.null();
                    }
                    self.group(group);
                    self.str("kv_cache_spec_kind");
                    self.str("full_attention");
                }
            }
        }
    }
}
