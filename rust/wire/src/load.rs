//! The load message of `SGLang`.

use crate::error::{Error, Result};
use crate::reader::{Head, Reader};

/// What an `SGLang` scheduler says of itself, on change and every second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadStat {
    /// Requests that run.
    pub running_requests: u64,
    /// Requests that wait.
    pub waiting_requests: u64,
    /// KV tokens in use.
    pub used_tokens: u64,
    /// KV capacity in tokens.
    pub kv_tokens: u64,
    /// Data-parallel rank.
    pub rank: u64,
    /// Prompt tokens of waiting requests that are not in the cache.
    pub waiting_uncached_tokens: u64,
    /// Tokens of running and waiting requests.
    pub total_tokens: u64,
    /// Most requests that may run.
    pub max_running_requests: u64,
    /// Prompt tokens computed since the start.
    pub prefilled_tokens_total: u64,
    /// Time spent computing them, microseconds.
    pub prefill_busy_us_total: u64,
}

/// Decodes a `LoadStat` message. Positions that an older engine leaves out are 0.
///
/// # Errors
/// [`Error`] naming the byte.
pub fn decode_load(payload: &[u8]) -> Result<LoadStat> {
    const EXPECTED: &str = "an array of LoadStat and whole numbers";
    let mut reader = Reader::new(payload);
    let len = reader.array(EXPECTED)?;
    let at = reader.at();
    if len == 0 || reader.head()? != Head::Text("LoadStat") {
        return Err(Error::Malformed { at, expected: EXPECTED });
    }
    let mut fields = [0u64; 10];
    for place in 0..len - 1 {
        match fields.get_mut(place as usize) {
            Some(field) => *field = reader.number("a whole number of at least 0")?,
            None => drop(reader.skip()?),
        }
    }
    if !reader.is_empty() {
        return Err(Error::Trailing { at: reader.at() });
    }
    let [running, waiting, used, capacity, rank, uncached, total, most, prefilled, busy] = fields;
    Ok(LoadStat {
        running_requests: running,
        waiting_requests: waiting,
        used_tokens: used,
        kv_tokens: capacity,
        rank,
        waiting_uncached_tokens: uncached,
        total_tokens: total,
        max_running_requests: most,
        prefilled_tokens_total: prefilled,
        prefill_busy_us_total: busy,
    })
}
