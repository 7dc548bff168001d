//! From an engine's events to what the index takes: only the device's cache, with namespaces and digests.

use turnout_core::index::CacheEvent;

use crate::event::{Batch, Event, Medium, Stored};
use crate::reader::Reader;

/// What a batch says about the cache of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceEvents {
    events: Vec<Owned>,
    /// Events about other media, and stored blocks whose tokens the engine does not tell.
    pub left_out: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Owned {
    Stored { stored: Box<Stored>, namespace: String, extra: Vec<u64> },
    Removed { hashes: Vec<u64>, group: u32 },
    Cleared,
}

impl From<Batch> for DeviceEvents {
    fn from(batch: Batch) -> Self {
        let mut device = Self { events: Vec::with_capacity(batch.events.len()), left_out: 0 };
        for event in batch.events {
            match event {
                Event::Cleared => device.events.push(Owned::Cleared),
                Event::Removed(removed) if removed.medium == Medium::Device => {
                    device.events.push(Owned::Removed { hashes: removed.hashes, group: removed.group.unwrap_or(0) });
                }
                // Pairs of tokens say less than what the block depends on: a prompt could match by mistake.
                Event::Stored(stored) if stored.medium == Medium::Device && !stored.bigrams && stored.blocks().is_some() => {
                    let (salt, extra) = keys(&stored);
                    let names = [stored.lora_name.as_deref(), stored.cache_salt.as_deref().or(salt.as_deref())];
                    let namespace = names.into_iter().flatten().collect::<Vec<_>>().join("/");
                    device.events.push(Owned::Stored { stored, namespace, extra });
                }
                _ => device.left_out += 1,
            }
        }
        device
    }
}

impl DeviceEvents {
    /// The events, in order. Blocks with adapter `a` or salt `s` are in namespace `a`, `s` or `a/s`.
    #[must_use]
    pub fn events(&self) -> Vec<CacheEvent<'_>> {
        let event = |owned| match owned {
            &Owned::Cleared => CacheEvent::Cleared,
            Owned::Removed { hashes, group } => CacheEvent::Removed { hashes, group: *group },
            Owned::Stored { stored, namespace, extra } => CacheEvent::Stored {
                namespace,
                hashes: &stored.hashes,
                parent: stored.parent,
                tokens: &stored.tokens,
                block_tokens: stored.block_tokens,
                group: stored.group.unwrap_or(0),
                whole_context: stored.sliding_window_tokens.is_none() && stored.spec_kind.as_deref().is_none_or(|kind| kind == "full_attention"),
                extra,
            },
        };
        self.events.iter().map(event).collect()
    }
}

/// Salt of the chain, and by block the digest of its other extra keys; empty when no block has any.
fn keys(stored: &Stored) -> (Option<String>, Vec<u64>) {
    let mut salt = None;
    let mut digests = Vec::new();
    if !stored.extra_keys.is_empty() {
        for block in 0..stored.hashes.len() {
            let starts = block == 0 && stored.parent.is_none();
            let raw = stored.extra_keys.get(block).unwrap_or_default();
            digests.push(digest(raw, stored.lora_name.as_deref(), starts.then_some(&mut salt)));
        }
        if digests.iter().all(|&digest| digest == 0) {
            digests = Vec::new();
        }
    }
    (salt, digests)
}

/// Digest of a block's extra keys, without the adapter's name, which has a field of its own. Text in the first block of a
/// sequence is its salt: engines put it there and nowhere else.
fn digest(raw: &[u8], lora: Option<&str>, mut salt: Option<&mut Option<String>>) -> u64 {
    let mut digest = 0;
    let mut reader = Reader::new(raw, "extra_keys");
    let Ok(count) = reader.array() else { return if raw.is_empty() { 0 } else { mixed(digest, raw) } };
    for _ in 0..count {
        let mut text = reader;
        let Ok(item) = reader.skip() else { break };
        match text.str() {
            Ok(name) if Some(name) == lora => {}
            Ok(name) if salt.as_ref().is_some_and(|salt| salt.is_none()) => {
                if let Some(salt) = &mut salt {
                    **salt = Some(name.into());
                }
            }
            _ if item == [0xc0] => {}
            _ => digest = mixed(digest, item),
        }
    }
    digest
}

/// FNV-1a over some bytes, never 0.
fn mixed(digest: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(digest ^ 0xCBF2_9CE4_8422_2325, |digest, &byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)).max(1)
}
