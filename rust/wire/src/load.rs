//! Decoder of the load reports of `SGLang`.

use crate::error::{Result, WireError};
use crate::fields;
use crate::reader::Reader;

const TAG: &str = "LoadStat";

/// Fields by position; the first four are always sent.
const FIELDS: [&str; 10] = [
    "num_running_reqs",
    "num_waiting_reqs",
    "num_tokens",
    "max_total_num_tokens",
    "attn_dp_rank",
    "num_waiting_uncached_tokens",
    "num_total_tokens",
    "max_running_requests",
    "total_prefill_uncached_tokens",
    "total_prefill_busy_us",
];
const REQUIRED: usize = 4;

/// How busy one `SGLang` scheduler is. Fields that an older version does not send are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LoadStat {
    /// Requests that run (`num_running_reqs`).
    pub running_requests: u64,
    /// Requests that wait (`num_waiting_reqs`).
    pub waiting_requests: u64,
    /// Tokens of KV cache in use (`num_tokens`).
    pub kv_tokens: u64,
    /// Tokens of KV cache there are, 0 when unknown (`max_total_num_tokens`).
    pub kv_capacity_tokens: u64,
    /// Data-parallel rank of the scheduler (`attn_dp_rank`).
    pub rank: Option<i64>,
    /// Prompt tokens that wait for prefill and are not cached (`num_waiting_uncached_tokens`).
    pub waiting_uncached_tokens: u64,
    /// Tokens of KV cache in use and tokens of waiting requests (`num_total_tokens`).
    pub total_tokens: u64,
    /// Requests that may run at once (`max_running_requests`).
    pub running_requests_limit: u64,
    /// Uncached tokens prefilled since the start (`total_prefill_uncached_tokens`).
    pub prefilled_uncached_tokens: u64,
    /// Time spent in prefill since the start, in microseconds (`total_prefill_busy_us`).
    pub prefill_busy_us: u64,
}

/// Decodes the payload of one load message, the last of its three frames.
///
/// # Errors
///
/// Whatever is malformed, cut or out of range is refused as a whole with the place of the first fault.
pub fn decode_load(payload: &[u8]) -> Result<LoadStat> {
    let mut reader = Reader::new(payload, TAG);
    let (tag, mut fields) = fields::open(&mut reader)?;
    if tag != TAG {
        let tag = tag.chars().take(32).collect();
        return Err(WireError::UnknownTag { place: Reader::new(payload, "type").place(), tag, accepted: "\"LoadStat\"" });
    }
    let mut load = LoadStat::default();
    let mut seen = [false; FIELDS.len()];
    while let Some(field) = fields.next(&mut reader, &FIELDS, FIELDS.len())? {
        if field == "attn_dp_rank" {
            load.rank = reader.nullable(Reader::i64)?;
            continue;
        }
        let value = reader.u64()?;
        let (at, slot) = match field {
            "num_running_reqs" => (0, &mut load.running_requests),
            "num_waiting_reqs" => (1, &mut load.waiting_requests),
            "num_tokens" => (2, &mut load.kv_tokens),
            "max_total_num_tokens" => (3, &mut load.kv_capacity_tokens),
            "num_waiting_uncached_tokens" => (5, &mut load.waiting_uncached_tokens),
            "num_total_tokens" => (6, &mut load.total_tokens),
            "max_running_requests" => (7, &mut load.running_requests_limit),
            "total_prefill_uncached_tokens" => (8, &mut load.prefilled_uncached_tokens),
            _ => (9, &mut load.prefill_busy_us),
        };
        *slot = value;
        seen[at] = true;
    }
    if let Some(at) = seen[..REQUIRED].iter().position(|seen| !seen) {
        return Err(reader.missing(FIELDS[at]));
    }
    reader.field = TAG;
    reader.end()?;
    Ok(load)
}
