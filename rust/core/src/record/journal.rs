//! Journals: a snapshot and every event since, each with a digest of its answer.
//!
//! `magic (8) | format version (2) | length of the snapshot (8) | snapshot | records`. A record is `length | checksum (4) |
//! content`, its content `time since the record before, in ns | event | digest of the answer (4)`. No record is larger than
//! its event: an append of n tokens takes some 40 bytes and n/2.

use std::collections::BTreeMap;

use super::codec::{Damaged, Reader, Record, checksum};
use super::events::Event;
use super::recorder::Recorder;
use super::snapshot::{after_header, header, refuse};
use crate::error::{Error, Result};
use crate::router::Router;
use crate::units::Nanos;

const JOURNAL: [u8; 8] = *b"turnoutJ";

/// What a journal did when it was done again.
#[derive(Debug)]
pub struct Replayed {
    /// The router after the last event.
    pub router: Router,
    /// Events, by name.
    pub events: BTreeMap<&'static str, u64>,
    /// Decisions that left by the outbox or answered a submit, by reason.
    pub decisions: BTreeMap<&'static str, u64>,
    /// Bytes of the records.
    pub record_bytes: u64,
    /// Bytes at the end that belong to a record which a crash tore: they were left out.
    pub torn_bytes: u64,
}

/// Whether bytes begin like a journal.
pub(super) fn is_journal(bytes: &[u8]) -> bool {
    bytes.starts_with(&JOURNAL)
}

/// A journal's beginning.
pub(super) fn begin(snapshot: &[u8]) -> Vec<u8> {
    let mut bytes = header(JOURNAL);
    bytes.extend((snapshot.len() as u64).to_le_bytes());
    bytes.extend(snapshot);
    bytes
}

/// Appends a record.
pub(super) fn append(bytes: &mut Vec<u8>, elapsed: i64, event: &Event, digest: u32) {
    let mut content = Vec::with_capacity(64);
    elapsed.put(&mut content);
    event.put(&mut content);
    content.extend(digest.to_le_bytes());
    content.len().put(bytes);
    bytes.extend((checksum(&content) as u32).to_le_bytes());
    bytes.extend(content);
}

/// The next record, if a whole one is there.
enum Next<'a> {
    Content(&'a [u8]),
    Torn,
    Damaged,
}

fn next<'a>(from: &mut Reader<'a>) -> Next<'a> {
    let mut rest = from.clone();
    let Ok(length) = usize::take(&mut rest) else { return if from.left() < 10 { Next::Torn } else { Next::Damaged } };
    let (Ok(sum), Ok(content)) = (rest.bytes(4), rest.bytes(length)) else { return Next::Torn };
    if sum == (checksum(content) as u32).to_le_bytes() {
        *from = rest;
        Next::Content(content)
    } else {
        // It is all there, so no crash cut it short: the last one as well.
        Next::Damaged
    }
}

/// Does every event of a journal again and compares the answers.
///
/// # Errors
/// [`Error::Record`] for what is no journal, is of another version or is damaged, naming the byte; for the first event that
/// is answered otherwise than it was, [`Error::Differs`].
#[allow(clippy::missing_panics_doc, reason = "8 bytes are 8 bytes")]
pub fn replay(bytes: &[u8]) -> Result<Replayed> {
    let rest = after_header(JOURNAL, "journal", bytes)?;
    let Some((length, rest)) = rest.split_first_chunk::<8>() else { return refuse("the journal ends before its snapshot") };
    let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
    let Some((snapshot, records)) = rest.split_at_checked(length) else { return refuse("the journal ends inside its snapshot") };
    let mut recorder = Recorder::new(Router::restore(snapshot)?);
    let mut now = recorder.now();
    let (mut events, mut decisions) = (BTreeMap::new(), BTreeMap::new());
    let (mut from, mut number, mut torn_bytes) = (Reader::new(records), 0u64, 0);
    while from.left() > 0 {
        let at = bytes.len() - from.left();
        let content = match next(&mut from) {
            Next::Content(content) => content,
            Next::Torn => {
                torn_bytes = from.left() as u64;
                break;
            }
            Next::Damaged => return refuse(format!("the journal is damaged at byte {at}")),
        };
        number += 1;
        let (elapsed, event, digest) = read(content).or_else(|Damaged(problem)| refuse(format!("the journal is damaged at byte {at}: {problem}")))?;
        now = now.wrapping_add_signed(elapsed);
        let found = recorder.redo(now, &event, &mut decisions)?;
        *events.entry(event.name()).or_insert(0) += 1;
        if found != digest {
            return Err(Error::Differs { number, event: event.name(), byte: at });
        }
    }
    let record_bytes = (records.len() as u64) - torn_bytes;
    Ok(Replayed { router: recorder.into_router(), events, decisions, record_bytes, torn_bytes })
}

fn read(content: &[u8]) -> std::result::Result<(i64, Event, u32), Damaged> {
    let mut from = Reader::new(content);
    let (elapsed, event) = (Record::take(&mut from)?, Record::take(&mut from)?);
    let digest = u32::from_le_bytes(from.bytes(4)?.try_into().expect("4 bytes"));
    if from.left() > 0 { Err(Damaged("a record has bytes too many")) } else { Ok((elapsed, event, digest)) }
}

/// Digest of an answer: of its bytes, or of the error's text.
pub(super) fn digest<T: Record>(answer: &Result<T>) -> u32 {
    let mut bytes = Vec::new();
    match answer {
        Ok(answer) => answer.put(&mut bytes),
        Err(error) => error.to_string().put(&mut bytes),
    }
    checksum(&bytes) as u32
}

/// Time since the last record: the caller's clock may go back, and its readings stay below 2^63 ns.
pub(super) fn elapsed(from: Nanos, to: Nanos) -> i64 {
    to.wrapping_sub(from).cast_signed()
}

/// That an error of a replayed event is one that the recorded event had is for the digest to say.
pub(super) fn answered<T>(answer: Result<T>) -> Result<Option<T>> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(error @ Error::Internal { .. }) => Err(error),
        Err(_) => Ok(None),
    }
}
