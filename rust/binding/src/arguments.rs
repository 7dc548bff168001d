//! Plain Rust values from Python arguments, before any lock is taken.

use std::ffi::CStr;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyIterator, PyMapping};
use turnout_core::prompt::HashKey;
use turnout_core::router::types::{ReplicaConfig, RouterConfig, WorkloadConfig};
use turnout_core::units::{Nanos, nanos};

use crate::errors::invalid;

/// The caller's time, or the time now.
pub(crate) fn time(now: Option<f64>) -> PyResult<Nanos> {
    match now {
        Some(now) if (0.0..=4e9).contains(&now) => Ok(nanos(now)),
        Some(now) => Err(invalid("now", now.to_string(), "seconds from 0 to 4e9")),
        None => monotonic(),
    }
}

/// `time.monotonic`, so that calls with and without `now` share one clock.
fn monotonic() -> PyResult<Nanos> {
    static CLOCK: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    Python::attach(|py| {
        let clock = CLOCK.get_or_try_init(py, || Ok::<_, PyErr>(py.import("time")?.getattr("monotonic")?.unbind()))?;
        Ok(nanos(clock.call0(py)?.extract(py)?))
    })
}

/// The fingerprint key.
pub(crate) fn hash_key(bytes: &[u8]) -> PyResult<HashKey> {
    let key = bytes.try_into().map_err(|_| invalid("hash_key", format!("{} bytes", bytes.len()), "16 bytes"))?;
    Ok(HashKey(key))
}

/// Reads a count; a negative or fractional one is refused by name.
fn count<'py, T: FromPyObjectOwned<'py>>(object: &Bound<'py, PyAny>, argument: &'static str) -> PyResult<T> {
    match object.extract::<T>() {
        Ok(value) if !object.is_instance_of::<PyBool>() => Ok(value),
        _ => Err(invalid(argument, shown(object), "a whole number of at least 0 that fits 64 bits")),
    }
}

/// Makes the extractors that `from_py_with` wants: required counts, then optional ones.
macro_rules! counts {
    ($($name:ident: $type:ty),*; $($optional:ident: $optional_type:ty),* $(,)?) => {
        $(pub(crate) fn $name(object: &Bound<'_, PyAny>) -> PyResult<$type> {
            count(object, stringify!($name))
        })*
        $(pub(crate) fn $optional(object: &Bound<'_, PyAny>) -> PyResult<Option<$optional_type>> {
            if object.is_none() { Ok(None) } else { count(object, stringify!($optional)).map(Some) }
        })*
    };
}

counts! {
    attempt: u32, block_tokens: u32, index_bytes: u64, seed: u64, max_held: usize, concurrency: usize, version: i64, history: u64, most: usize, sequence: u64, next_sequence: u64, request: u64, kv_tokens: u64, samples: u32;
    base_tokens: u64, prompt_tokens: u64, max_new_tokens: u64, output_tokens: u64, cached_tokens: u64, sessions: u64, at_tokens: u64, running: u64, waiting: u64, preemptions_total: u64, group_size: u32, expected_tokens: u64, keep: u32,
}

/// The order of a turn among those that wait: a whole number, which may be negative.
pub(crate) fn priority(object: &Bound<'_, PyAny>) -> PyResult<i32> {
    match object.extract() {
        Ok(value) if !object.is_instance_of::<PyBool>() => Ok(value),
        _ => Err(invalid("priority", shown(object), "a whole number that fits 32 bits")),
    }
}

/// The same, or none.
pub(crate) fn optional_priority(object: &Bound<'_, PyAny>) -> PyResult<Option<i32>> {
    if object.is_none() { Ok(None) } else { priority(object).map(Some) }
}

/// Seconds by replica.
pub(crate) fn bias(object: &Bound<'_, PyAny>) -> PyResult<Vec<(String, f64)>> {
    if object.is_none() {
        return Ok(Vec::new());
    }
    let refused = || invalid("bias", shown(object), "a mapping from replica names to seconds");
    let mapping = object.cast::<PyMapping>().map_err(|_| refused())?;
    mapping.items()?.iter().map(|item| item.extract().map_err(|_| refused())).collect()
}

/// The row of a replica.
pub(crate) fn replica_row(object: &Bound<'_, PyAny>) -> PyResult<u32> {
    count(object, "replica")
}

/// The row of a replica, or none.
pub(crate) fn optional_replica_row(object: &Bound<'_, PyAny>) -> PyResult<Option<u32>> {
    if object.is_none() { Ok(None) } else { replica_row(object).map(Some) }
}

/// The output count of a progress report, which is required.
pub(crate) fn reported_tokens(object: &Bound<'_, PyAny>) -> PyResult<u64> {
    count(object, "output_tokens")
}

/// Whether a buffer's items are in the byte order of other machines, which `NumPy` marks in front of the type.
pub(crate) fn foreign_order(format: &CStr) -> bool {
    let foreign: &[u8] = if cfg!(target_endian = "little") { b">!" } else { b"<" };
    format.to_bytes().first().is_some_and(|mark| foreign.contains(mark))
}

/// A value for a message.
pub(crate) fn shown(object: &Bound<'_, PyAny>) -> String {
    object.repr().map_or_else(|_| "?".into(), |text| text.to_string().chars().take(60).collect())
}

/// Reads one attribute of a configuration object.
fn attribute<'py, T: FromPyObjectOwned<'py>>(object: &Bound<'py, PyAny>, name: &'static str, accepted: &'static str) -> PyResult<T> {
    let value =
        object.getattr(name).map_err(|_| invalid(name, shown(object), "an object with the attributes of turnout.Replica or turnout.Workload"))?;
    value.extract().map_err(|_| invalid(name, shown(&value), accepted))
}

/// Reads the attributes of a `turnout.Replica`.
pub(crate) fn replica(object: &Bound<'_, PyAny>) -> PyResult<ReplicaConfig> {
    Ok(ReplicaConfig {
        name: attribute::<String>(object, "name", "text")?.into(),
        kv_tokens: attribute(object, "kv_tokens", "a number of tokens above 0")?,
        prefill_tokens_per_s: attribute(object, "prefill_tokens_per_s", "a rate above 0")?,
        decode_s_per_kv_token: attribute(object, "decode_s_per_kv_token", "seconds of at least 0")?,
        block_tokens: attribute(object, "block_tokens", "1 to 4096, or None")?,
    })
}

/// Reads the attributes of a `turnout.Workload`.
pub(crate) fn workload(object: &Bound<'_, PyAny>) -> PyResult<WorkloadConfig> {
    Ok(WorkloadConfig {
        name: attribute::<String>(object, "name", "text")?.into(),
        target: attribute(object, "target", "a share from 0 to 1, NaN when unset")?,
        context_tokens: attribute(object, "context_tokens", "a number of at least 0")?,
        growth_tokens: attribute(object, "growth_tokens", "a number of at least 0")?,
        residency_s: attribute(object, "residency_s", "a number of at least 0")?,
        ends: attribute(object, "ends", "True or False")?,
        one_turn: match attribute::<String>(object, "turns", "\"many\" or \"one\"")?.as_str() {
            "many" => false,
            "one" => true,
            other => return Err(invalid("turns", format!("{other:?}"), "\"many\" or \"one\"")),
        },
    })
}

fn iterate<'py>(object: &Bound<'py, PyAny>, argument: &'static str) -> PyResult<Bound<'py, PyIterator>> {
    object.try_iter().map_err(|_| invalid(argument, shown(object), "an iterable of configuration objects"))
}

/// Replicas and workloads of a router, the rest at its defaults.
pub(crate) fn fleet(replicas: &Bound<'_, PyAny>, workloads: &Bound<'_, PyAny>) -> PyResult<RouterConfig> {
    Ok(RouterConfig {
        replicas: iterate(replicas, "replicas")?.map(|item| replica(&item?)).collect::<PyResult<_>>()?,
        workloads: iterate(workloads, "workloads")?.map(|item| workload(&item?)).collect::<PyResult<_>>()?,
        ..RouterConfig::default()
    })
}

/// Seconds of a duration argument.
pub(crate) fn duration(argument: &'static str, seconds: Option<f64>) -> PyResult<Option<Nanos>> {
    match seconds {
        Some(value) if value.is_nan() || value < 0.0 => Err(invalid(argument, value.to_string(), "seconds of at least 0")),
        Some(value) if value.is_infinite() => Ok(None),
        value => Ok(value.map(nanos)),
    }
}
