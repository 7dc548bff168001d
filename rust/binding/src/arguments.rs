//! Plain Rust values from Python arguments, before any lock is taken.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
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

/// Reads the attributes of a `turnout.Replica`.
pub(crate) fn replica(object: &Bound<'_, PyAny>) -> PyResult<ReplicaConfig> {
    Ok(ReplicaConfig {
        name: object.getattr("name")?.extract::<String>()?.into(),
        kv_tokens: object.getattr("kv_tokens")?.extract()?,
        prefill_tokens_per_s: object.getattr("prefill_tokens_per_s")?.extract()?,
        decode_s_per_kv_token: object.getattr("decode_s_per_kv_token")?.extract()?,
    })
}

/// Reads the attributes of a `turnout.Workload`.
pub(crate) fn workload(object: &Bound<'_, PyAny>) -> PyResult<WorkloadConfig> {
    Ok(WorkloadConfig {
        name: object.getattr("name")?.extract::<String>()?.into(),
        target: object.getattr("target")?.extract()?,
        context_tokens: object.getattr("context_tokens")?.extract()?,
        growth_tokens: object.getattr("growth_tokens")?.extract()?,
        residency_s: object.getattr("residency_s")?.extract()?,
    })
}

/// Replicas and workloads of a router, the rest at its defaults.
pub(crate) fn fleet(replicas: &Bound<'_, PyAny>, workloads: &Bound<'_, PyAny>) -> PyResult<RouterConfig> {
    Ok(RouterConfig {
        replicas: replicas.try_iter()?.map(|item| replica(&item?)).collect::<PyResult<_>>()?,
        workloads: workloads.try_iter()?.map(|item| workload(&item?)).collect::<PyResult<_>>()?,
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
