//! Decoder of batches of KV-cache events.

use rmp::Marker;

use crate::error::{Place, Result, WireError};
use crate::event::{Batch, Event, Hash, Medium, Removed, Stored};
use crate::extra::ExtraKeys;
use crate::fields::{self, Fields};
use crate::reader::Reader;

/// `BlockStored` by position, as vLLM sent it up to 0.23 and `SGLang` (the first six) up to 0.5.19, then what is only sent by name.
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
    "cache_salt",
];
const STORED_POSITIONS: usize = 11;

/// `BlockRemoved` by position.
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

/// Bytes of the shortest known event, `["AllBlocksCleared"]`.
const SHORTEST_EVENT_BYTES: usize = 18;

/// Decodes the payload of one KV-event message, the last of its three frames.
///
/// The cost is linear in the payload. Memory is at most 32 times the payload, whatever lengths it claims.
///
/// # Errors
///
/// Whatever is malformed, cut or out of range is refused as a whole with the place of the first fault.
pub fn decode_batch(payload: &[u8]) -> Result<Batch> {
    let mut reader = Reader::new(payload, "batch");
    let positions = reader.array()?;
    let has = |position: usize, reader: &Reader<'_>, field| if position < positions { Ok(()) } else { Err(reader.missing(field)) };

    has(0, &reader, "ts")?;
    reader.field = "ts";
    let timestamp_s = reader.f64()?;

    has(1, &reader, "events")?;
    reader.field = "events";
    let count = reader.array()?;
    let mut events = Vec::with_capacity(count.min(reader.remaining() / SHORTEST_EVENT_BYTES));
    let mut ignored = 0;
    for at in 0..count {
        reader.event = Some(at as u32);
        reader.field = "event";
        match event(&mut reader)? {
            Some(event) => events.push(event),
            None => ignored += 1,
        }
    }
    reader.event = None;

    reader.field = "data_parallel_rank";
    let rank = if positions > 2 { reader.nullable(Reader::i64)? } else { None };
    reader.field = "unknown field";
    for _ in 3..positions {
        reader.skip()?;
    }
    reader.field = "batch";
    reader.end()?;
    Ok(Batch { timestamp_s, rank, events, ignored })
}

fn event(reader: &mut Reader<'_>) -> Result<Option<Event>> {
    let (tag, fields) = fields::open(reader)?;
    match tag {
        "BlockStored" => stored(reader, fields).map(|stored| Some(Event::Stored(Box::new(stored)))),
        "BlockRemoved" => removed(reader, fields).map(|removed| Some(Event::Removed(removed))),
        "AllBlocksCleared" => fields.skip_all(reader).map(|()| Some(Event::Cleared)),
        _ => fields.skip_all(reader).map(|()| None),
    }
}

fn stored(reader: &mut Reader<'_>, mut fields: Fields) -> Result<Stored> {
    let mut stored = Stored::default();
    let (mut has_hashes, mut has_parent, mut has_tokens, mut has_size) = (false, false, false, false);
    let mut extra_entries = None;
    while let Some(field) = fields.next(reader, &STORED, STORED_POSITIONS)? {
        match field {
            "block_hashes" => {
                stored.hashes = hashes(reader)?;
                has_hashes = true;
            }
            "parent_block_hash" => {
                stored.parent = reader.nullable(hash)?;
                has_parent = true;
            }
            "token_ids" => {
                (stored.tokens, stored.bigrams) = tokens(reader)?;
                has_tokens = true;
            }
            "block_size" => {
                stored.block_tokens = reader.u32()?;
                has_size = true;
            }
            "lora_id" => stored.lora_id = reader.nullable(Reader::i64)?,
            "medium" => stored.medium = medium(reader)?,
            "lora_name" if is_map(reader)? => stored.cache_salt = metadata(reader)?,
            "lora_name" => stored.lora_name = reader.nullable(text)?,
            "extra_keys" => {
                let read = reader.nullable(extra_keys)?;
                extra_entries = read.as_ref().map(|(_, entries)| *entries);
                stored.extra_keys = read.map(|(keys, _)| keys).unwrap_or_default();
            }
            "group_idx" => stored.group = reader.nullable(Reader::u32)?,
            "kv_cache_spec_kind" => stored.spec_kind = reader.nullable(text)?,
            "kv_cache_spec_sliding_window" => stored.sliding_window_tokens = reader.nullable(Reader::u32)?,
            _ => stored.cache_salt = reader.nullable(text)?,
        }
    }
    for (has, field) in [(has_hashes, STORED[0]), (has_parent, STORED[1]), (has_tokens, STORED[2]), (has_size, STORED[3])] {
        if !has {
            return Err(reader.missing(field));
        }
    }
    check_counts(reader, &stored, extra_entries)?;
    Ok(stored)
}

/// Tokens fill the blocks exactly, with the two exceptions that [`Stored::blocks`] names.
fn check_counts(reader: &Reader<'_>, stored: &Stored, extra_entries: Option<usize>) -> Result<()> {
    let Stored { hashes, tokens, block_tokens, .. } = stored;
    let place = |field| Place { field, ..reader.place() };
    let hashes = hashes.len();
    if let Some(entries) = extra_entries
        && entries != hashes
    {
        return Err(WireError::ExtraKeyCount { place: place("extra_keys"), entries, hashes });
    }
    if tokens.is_empty() {
        return Ok(());
    }
    if *block_tokens == 0 {
        return Err(WireError::OutOfRange { place: place("block_size"), value: "0".to_owned(), accepted: "at least 1 where there are token ids" });
    }
    let (blocks, rest) = (tokens.len() / *block_tokens as usize, tokens.len() % *block_tokens as usize);
    if rest == 0 && hashes <= blocks {
        return Ok(());
    }
    Err(WireError::TokenCount { place: place("token_ids"), tokens: tokens.len(), hashes, block_tokens: *block_tokens })
}

fn removed(reader: &mut Reader<'_>, mut fields: Fields) -> Result<Removed> {
    let mut removed = Removed::default();
    let mut has_hashes = false;
    while let Some(field) = fields.next(reader, &REMOVED, REMOVED.len())? {
        match field {
            "block_hashes" => {
                removed.hashes = hashes(reader)?;
                has_hashes = true;
            }
            "medium" => removed.medium = medium(reader)?,
            _ => removed.group = reader.nullable(Reader::u32)?,
        }
    }
    if has_hashes { Ok(removed) } else { Err(reader.missing(REMOVED[0])) }
}

fn hashes(reader: &mut Reader<'_>) -> Result<Vec<Hash>> {
    let count = reader.array()?;
    let mut hashes = Vec::with_capacity(count);
    for _ in 0..count {
        hashes.push(hash(reader)?);
    }
    Ok(hashes)
}

fn hash(reader: &mut Reader<'_>) -> Result<Hash> {
    match reader.peek()? {
        Marker::FixNeg(_) | Marker::I8 | Marker::I16 | Marker::I32 | Marker::I64 => reader.i64().map(|signed| signed as u64),
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
            let place = reader.place();
            let bytes = reader.bin()?;
            bytes.last_chunk().map(|last| u64::from_be_bytes(*last)).ok_or_else(|| WireError::OutOfRange {
                place,
                value: format!("{} bytes", bytes.len()),
                accepted: "an integer or at least 8 bytes",
            })
        }
        _ => reader.u64(),
    }
}

/// Token ids, and whether they were pairs.
fn tokens(reader: &mut Reader<'_>) -> Result<(Vec<u32>, bool)> {
    let count = reader.array()?;
    let mut tokens = Vec::with_capacity(count);
    let pairs = count > 0 && matches!(reader.peek()?, Marker::FixArray(_) | Marker::Array16 | Marker::Array32);
    for _ in 0..count {
        if !pairs {
            tokens.push(reader.u32()?);
            continue;
        }
        let place = reader.place();
        let members = reader.array()?;
        if members != 2 {
            return Err(WireError::OutOfRange { place, value: format!("{members} token ids"), accepted: "a pair of token ids" });
        }
        tokens.push(reader.u32()?);
        reader.u32()?;
    }
    Ok((tokens, pairs))
}

fn medium(reader: &mut Reader<'_>) -> Result<Medium> {
    Ok(match reader.nullable(Reader::str)? {
        None | Some("GPU") => Medium::Device,
        Some(name) => Medium::Other(name.to_owned()),
    })
}

fn text(reader: &mut Reader<'_>) -> Result<String> {
    reader.str().map(str::to_owned)
}

/// Extra keys and the number of entries, present or not.
fn extra_keys(reader: &mut Reader<'_>) -> Result<(ExtraKeys, usize)> {
    let count = reader.array()?;
    let mut keys = ExtraKeys::default();
    for at in 0..count {
        if !reader.null()? {
            keys.push(at, count, reader.skip()?);
        }
    }
    keys.finish(count);
    Ok((keys, count))
}

/// `SGLang` 0.5.19 has no adapter names and sends `{"cache_salt": ...}` in their position, for salted requests only.
fn metadata(reader: &mut Reader<'_>) -> Result<Option<String>> {
    let mut fields = Fields::Map { left: reader.map()? };
    let mut salt = None;
    while fields.next(reader, &["cache_salt"], 0)?.is_some() {
        salt = reader.nullable(text)?;
    }
    Ok(salt)
}

fn is_map(reader: &Reader<'_>) -> Result<bool> {
    Ok(matches!(reader.peek()?, Marker::FixMap(_) | Marker::Map16 | Marker::Map32))
}
