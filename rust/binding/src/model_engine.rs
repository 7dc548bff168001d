//! One model engine for a server: requests in, outputs, numbers and cache events out.

use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use turnout_core::error::Error;
use turnout_core::units::seconds;
use turnout_sim::serving::Serving;
use turnout_wire::{Dialect, LoadStat, encode_batch, encode_load};

use crate::errors::{invalid, to_py};
use crate::simulation::read_engine;
use crate::{arguments, tokens};

/// Number, new tokens, cached prompt tokens, preemptions, whether that is all.
type Told = (u64, Vec<u32>, u64, u64, bool);

/// A model engine whose time the caller moves.
#[pyclass(frozen, module = "turnout._core")]
pub(crate) struct ModelEngine {
    core: Mutex<Serving>,
    dialect: Dialect,
}

impl ModelEngine {
    fn lock(&self) -> PyResult<MutexGuard<'_, Serving>> {
        self.core.lock().map_err(|_| to_py(Error::Internal { problem: "an earlier call panicked; make a new engine".into() }))
    }
}

#[pymethods]
impl ModelEngine {
    #[new]
    #[pyo3(signature = (engine, *, kv_tokens, block_tokens = 16, seed = 0, dialect = "vllm"))]
    fn new(
        engine: &Bound<'_, PyDict>,
        #[pyo3(from_py_with = arguments::kv_tokens)] kv_tokens: u64,
        #[pyo3(from_py_with = arguments::block_tokens)] block_tokens: u32,
        #[pyo3(from_py_with = arguments::seed)] seed: u64,
        dialect: &str,
    ) -> PyResult<Self> {
        let dialect = match dialect {
            "vllm" => Dialect::Vllm,
            "sglang" => Dialect::Sglang,
            other => return Err(invalid("dialect", other, "vllm or sglang")),
        };
        let core = Serving::new(read_engine(engine)?, kv_tokens, block_tokens, seed).map_err(to_py)?;
        Ok(Self { core: Mutex::new(core), dialect })
    }

    #[pyo3(signature = (request, tokens, *, now, max_new_tokens = None, seed = 0))]
    fn submit(
        &self,
        #[pyo3(from_py_with = arguments::request)] request: u64,
        tokens: &Bound<'_, PyAny>,
        now: f64,
        #[pyo3(from_py_with = arguments::max_new_tokens)] max_new_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::seed)] seed: u64,
    ) -> PyResult<u64> {
        let (now, prompt) = (arguments::time(Some(now))?, tokens::read(tokens, "tokens")?);
        let result = self.lock()?.submit(now, request, &prompt, max_new_tokens, seed);
        result.map_err(to_py)
    }

    #[pyo3(signature = (now))]
    fn advance(&self, py: Python<'_>, now: f64) -> PyResult<Vec<Told>> {
        let now = arguments::time(Some(now))?;
        let outputs = py.detach(|| self.lock().map(|mut core| core.advance(now)))?;
        let told = |output: turnout_sim::serving::Output| (output.id, output.tokens, output.cached_tokens, output.preemptions, output.finished);
        Ok(outputs.into_iter().map(told).collect())
    }

    #[getter]
    fn next_at(&self) -> PyResult<Option<f64>> {
        Ok(self.lock()?.next_at().map(seconds))
    }

    #[pyo3(signature = (request, *, now))]
    fn abort(&self, #[pyo3(from_py_with = arguments::request)] request: u64, now: f64) -> PyResult<bool> {
        let now = arguments::time(Some(now))?;
        Ok(self.lock()?.abort(now, request))
    }

    #[pyo3(signature = (*, now))]
    fn flush(&self, now: f64) -> PyResult<()> {
        let now = arguments::time(Some(now))?;
        self.lock()?.flush(now);
        Ok(())
    }

    #[pyo3(signature = (*, timestamp_s))]
    fn kv_batches<'py>(&self, py: Python<'py>, timestamp_s: f64) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let batches = self.lock()?.batches();
        let payload = |batch: &turnout_sim::serving::Batch| PyBytes::new(py, &encode_batch(timestamp_s, &batch.events(), 0, self.dialect));
        Ok(batches.iter().map(payload).collect())
    }

    fn load_stat<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let counters = self.lock()?.counters();
        let load = LoadStat {
            running_requests: counters.running,
            waiting_requests: counters.waiting,
            kv_tokens: counters.used_tokens,
            kv_capacity_tokens: counters.kv_tokens,
            rank: Some(0),
            waiting_uncached_tokens: counters.waiting_uncached_tokens,
            total_tokens: counters.used_tokens + counters.waiting_tokens,
            running_requests_limit: counters.max_running,
            prefilled_uncached_tokens: counters.prefix_queries_total - counters.prefix_hits_total,
            prefill_busy_us: (counters.prefill_busy_s_total * 1e6) as u64,
        };
        Ok(PyBytes::new(py, &encode_load(&load)))
    }

    fn counters<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let counters = self.lock()?.counters();
        let dict = PyDict::new(py);
        let numbers = [
            ("kv_tokens", counters.kv_tokens),
            ("used_tokens", counters.used_tokens),
            ("evictable_tokens", counters.evictable_tokens),
            ("running", counters.running),
            ("waiting", counters.waiting),
            ("waiting_tokens", counters.waiting_tokens),
            ("waiting_uncached_tokens", counters.waiting_uncached_tokens),
            ("max_running", counters.max_running),
            ("preemptions_total", counters.preemptions_total),
            ("prefix_queries_total", counters.prefix_queries_total),
            ("prefix_hits_total", counters.prefix_hits_total),
            ("output_tokens_total", counters.output_tokens_total),
            ("finished_total", counters.finished_total),
            ("aborted_total", counters.aborted_total),
        ];
        for (name, value) in numbers {
            dict.set_item(name, value)?;
        }
        dict.set_item("prefill_busy_s_total", counters.prefill_busy_s_total)?;
        Ok(dict)
    }
}
