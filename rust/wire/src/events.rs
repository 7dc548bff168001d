//! Batches of cache events.

use turnout_core::index::CacheEvent;

use crate::error::{Error, Result};
use crate::reader::{Head, Reader};

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Batch {
    /// When the engine sent it, seconds since 1970.
    pub timestamp_s: f64,
    /// Data-parallel rank, where the engine says so.
    pub rank: Option<i64>,
    /// The events, in order.
    pub events: Vec<Event>,
    /// Events of kinds that are not known here, which were passed over.
    pub ignored: u32,
}

/// One change of a cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Blocks came in.
    Stored(Stored),
    /// Blocks are gone.
    Removed(Removed),
    /// Everything is gone.
    Cleared,
}

/// A chain of blocks that came in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stored {
    /// The engine's hashes of the blocks, in order: the bit pattern of an integer, or the last 8 bytes of a digest, big-endian.
    pub hashes: Vec<u64>,
    /// Hash of the block before the first; none at the start of a sequence.
    pub parent: Option<u64>,
    /// Ids of their tokens.
    pub tokens: Vec<u32>,
    /// Tokens per block.
    pub block_tokens: u32,
    /// Name of the memory when it is not that of the device (`CPU`, `STORAGE`, ...).
    pub other_medium: Option<String>,
    /// Cache group of a hybrid model.
    pub group: Option<u32>,
    /// Kind of that group's cache, for example `full_attention`.
    pub kind: Option<String>,
    /// `LoRA` adapter.
    pub lora: Option<String>,
    /// Salt of the cache, where the chain starts with one.
    pub salt: Option<String>,
    /// What makes equal tokens unequal here: adapter and salt, `adapter/salt` where there are both, empty where there is none.
    pub namespace: String,
    /// By block: digest of what else tells it from others with the same tokens; 0 = nothing. Empty when no block has any.
    pub extra: Vec<u64>,
}

/// Blocks that are gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Removed {
    /// Their hashes, as in [`Stored::hashes`].
    pub hashes: Vec<u64>,
    /// As in [`Stored::other_medium`].
    pub other_medium: Option<String>,
    /// Cache group of a hybrid model.
    pub group: Option<u32>,
}

impl Batch {
    /// What the batch says about the cache of the device, for the index. Other media hold nothing that a turn could use at once.
    #[must_use]
    pub fn cache_events(&self) -> Vec<CacheEvent<'_>> {
        let event = |event| match event {
            &Event::Cleared => Some(CacheEvent::Cleared),
            Event::Removed(removed) if removed.other_medium.is_none() => {
                Some(CacheEvent::Removed { hashes: &removed.hashes, group: removed.group.unwrap_or(0) })
            }
            Event::Stored(stored) if stored.other_medium.is_none() => Some(CacheEvent::Stored {
                namespace: &stored.namespace,
                hashes: &stored.hashes,
                parent: stored.parent,
                tokens: &stored.tokens,
                block_tokens: stored.block_tokens,
                group: stored.group.unwrap_or(0),
                whole_context: stored.kind.as_deref().is_none_or(|kind| kind == "full_attention"),
                extra: &stored.extra,
            }),
            _ => None,
        };
        self.events.iter().filter_map(event).collect()
    }
}

/// Fields of the positional form, in order behind the tag.
const STORED: [&str; 12] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
    "kv_cache_spec_sliding_window",
    "",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

/// Decodes a message.
///
/// # Errors
/// [`Error`] naming the byte; nothing is decoded in part.
pub fn decode_batch(payload: &[u8]) -> Result<Batch> {
    let mut reader = Reader::new(payload);
    let at = reader.at();
    let parts = reader.array("an array of time, events and rank")?;
    if parts < 2 {
        return Err(Error::Malformed { at, expected: "an array of time, events and rank" });
    }
    let at = reader.at();
    let timestamp_s = match reader.head()? {
        Head::Float(seconds) => seconds,
        Head::Integer(seconds, false) => seconds as f64,
        _ => return Err(Error::Malformed { at, expected: "a time in seconds" }),
    };
    let count = reader.array("an array of events")?;
    let mut batch = Batch { timestamp_s, rank: None, events: Vec::new(), ignored: 0 };
    for _ in 0..count {
        match event(&mut reader)? {
            Some(event) => batch.events.push(event),
            None => batch.ignored += 1,
        }
    }
    for place in 2..parts {
        if place > 2 {
            reader.skip()?;
            continue;
        }
        let at = reader.at();
        batch.rank = match reader.head()? {
            Head::Nil => None,
            Head::Integer(value, _) => Some(value.cast_signed()),
            _ => return Err(Error::Malformed { at, expected: "a rank" }),
        };
    }
    if reader.is_empty() { Ok(batch) } else { Err(Error::Trailing { at: reader.at() }) }
}

/// Reads one event; `None` for a kind that is not known.
fn event(reader: &mut Reader<'_>) -> Result<Option<Event>> {
    const EXPECTED: &str = "an event: an array that starts with its kind, or a map with a `type`";
    let at = reader.at();
    let start = *reader;
    match reader.head()? {
        Head::Array(0) | Head::Map(0) => Err(Error::Malformed { at, expected: EXPECTED }),
        Head::Array(len) => {
            let Head::Text(kind) = reader.head()? else { return Err(Error::Malformed { at, expected: EXPECTED }) };
            let names: &[&str] = match kind {
                "BlockStored" => &STORED,
                "BlockRemoved" => &REMOVED,
                _ => &[],
            };
            let mut fields = Fields::default();
            for place in 0..len - 1 {
                fields.read(names.get(place as usize).copied().unwrap_or_default(), reader)?;
            }
            fields.event(kind, at)
        }
        Head::Map(len) => {
            // The kind may stand behind the fields: look for it first.
            let mut kind = None;
            for _ in 0..len {
                match reader.head()? {
                    Head::Text("type") => match reader.head()? {
                        Head::Text(text) => kind = Some(text),
                        _ => return Err(Error::Malformed { at, expected: EXPECTED }),
                    },
                    Head::Array(_) | Head::Map(_) => return Err(Error::Malformed { at, expected: "text as the key of a field" }),
                    _ => drop(reader.skip()?),
                }
            }
            let Some(kind) = kind else { return Err(Error::Malformed { at, expected: EXPECTED }) };
            let known = matches!(kind, "BlockStored" | "BlockRemoved");
            if known {
                *reader = start;
                reader.head()?;
                let mut fields = Fields::default();
                for _ in 0..len {
                    let key = match reader.head()? {
                        Head::Text(key) => key,
                        _ => "",
                    };
                    fields.read(key, reader)?;
                }
                return fields.event(kind, at);
            }
            Fields::default().event(kind, at)
        }
        _ => Err(Error::Malformed { at, expected: EXPECTED }),
    }
}

/// Everything that an event may carry.
#[derive(Debug, Default)]
struct Fields<'a> {
    hashes: Option<Vec<u64>>,
    parent: Option<u64>,
    tokens: Option<Vec<u32>>,
    block_tokens: Option<u32>,
    medium: Option<&'a str>,
    group: Option<u32>,
    kind: Option<&'a str>,
    lora: Option<&'a str>,
    salt: Option<&'a str>,
    /// Raw values of `extra_keys`, by block.
    extra: Vec<&'a [u8]>,
}

impl<'a> Fields<'a> {
    fn read(&mut self, name: &str, reader: &mut Reader<'a>) -> Result<()> {
        let at = reader.at();
        match name {
            "block_hashes" => {
                let count = reader.array("an array of hashes")?;
                let mut hashes = Vec::new();
                for _ in 0..count {
                    hashes.push(hash(reader)?.ok_or(Error::Malformed { at, expected: "hashes, integers or bytes" })?);
                }
                self.hashes = Some(hashes);
            }
            "parent_block_hash" => self.parent = hash(reader)?,
            "token_ids" => {
                let count = reader.array("an array of token ids")?;
                let mut tokens = Vec::new();
                for _ in 0..count {
                    tokens.push(reader.number("a token id from 0 to 4294967295")?);
                }
                self.tokens = Some(tokens);
            }
            "block_size" => self.block_tokens = Some(reader.number("a block size")?),
            "medium" => self.medium = text(reader, "the name of a medium")?,
            "lora_name" => self.lora = text(reader, "the name of an adapter")?,
            "cache_salt" => self.salt = text(reader, "a salt")?,
            "kv_cache_spec_kind" => self.kind = text(reader, "a kind of cache")?,
            "group_idx" => {
                self.group = match reader.head()? {
                    Head::Nil => None,
                    Head::Integer(group, false) => {
                        Some(u32::try_from(group).map_err(|_| Error::Malformed { at, expected: "the number of a cache group" })?)
                    }
                    _ => return Err(Error::Malformed { at, expected: "the number of a cache group" }),
                }
            }
            "extra_keys" => match reader.head()? {
                Head::Nil => {}
                Head::Array(count) => {
                    for _ in 0..count {
                        self.extra.push(reader.skip()?);
                    }
                }
                _ => return Err(Error::Malformed { at, expected: "an array of extra keys by block" }),
            },
            _ => drop(reader.skip()?),
        }
        Ok(())
    }

    fn event(self, kind: &str, at: usize) -> Result<Option<Event>> {
        let other_medium = self.medium.filter(|&medium| medium != "GPU").map(Into::into);
        let missing = |expected| Error::Malformed { at, expected };
        match kind {
            "AllBlocksCleared" => Ok(Some(Event::Cleared)),
            "BlockRemoved" => {
                let hashes = self.hashes.ok_or_else(|| missing("a BlockRemoved with block_hashes"))?;
                Ok(Some(Event::Removed(Removed { hashes, other_medium, group: self.group })))
            }
            "BlockStored" => {
                let (Some(hashes), Some(tokens), Some(block_tokens)) = (self.hashes, self.tokens, self.block_tokens) else {
                    return Err(missing("a BlockStored with block_hashes, token_ids and block_size"));
                };
                if block_tokens == 0 || tokens.len() as u64 != hashes.len() as u64 * u64::from(block_tokens) {
                    return Err(missing("as many token ids as blocks of the block size have"));
                }
                let mut salt = self.salt;
                let mut extra = Vec::with_capacity(self.extra.len());
                for (block, raw) in self.extra.iter().enumerate() {
                    let starts = block == 0 && self.parent.is_none();
                    extra.push(digest(raw, self.lora, starts.then_some(&mut salt))?);
                }
                if extra.iter().all(|&digest| digest == 0) {
                    extra = Vec::new();
                }
                let namespace = [self.lora, salt].into_iter().flatten().collect::<Vec<_>>().join("/");
                let (lora, kind) = (self.lora.map(Into::into), self.kind.map(Into::into));
                let (parent, group, salt) = (self.parent, self.group, salt.map(Into::into));
                Ok(Some(Event::Stored(Stored { hashes, parent, tokens, block_tokens, other_medium, group, kind, lora, salt, namespace, extra })))
            }
            _ => Ok(None),
        }
    }
}

/// A hash, or nothing.
fn hash(reader: &mut Reader<'_>) -> Result<Option<u64>> {
    let at = reader.at();
    match reader.head()? {
        Head::Nil => Ok(None),
        Head::Integer(bits, _) => Ok(Some(bits)),
        Head::Binary(bytes) => match bytes.last_chunk::<8>() {
            Some(last) => Ok(Some(u64::from_be_bytes(*last))),
            None => Err(Error::Malformed { at, expected: "a hash of at least 8 bytes" }),
        },
        _ => Err(Error::Malformed { at, expected: "a hash, an integer or bytes" }),
    }
}

fn text<'a>(reader: &mut Reader<'a>, expected: &'static str) -> Result<Option<&'a str>> {
    let at = reader.at();
    match reader.head()? {
        Head::Nil => Ok(None),
        Head::Text(text) => Ok(Some(text)),
        _ => Err(Error::Malformed { at, expected }),
    }
}

/// Digest of a block's extra keys, without the adapter's name, which has a field of its own. Text in the first block of a
/// sequence is its cache salt: engines put it there and nowhere else.
fn digest<'a>(raw: &'a [u8], lora: Option<&str>, mut salt: Option<&mut Option<&'a str>>) -> Result<u64> {
    let mut reader = Reader::new(raw);
    let Head::Array(count) = reader.head()? else { return Ok(0) };
    let mut digest = 0;
    for _ in 0..count {
        let item = reader.skip()?;
        match Reader::new(item).head()? {
            Head::Text(text) if Some(text) == lora => {}
            Head::Text(text) if salt.as_ref().is_some_and(|salt| salt.is_none() || **salt == Some(text)) => {
                if let Some(salt) = &mut salt {
                    **salt = Some(text);
                }
            }
            Head::Nil => {}
            _ => digest = item.iter().fold(digest ^ 0xCBF2_9CE4_8422_2325, |digest, &byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)),
        }
    }
    Ok(digest)
}
