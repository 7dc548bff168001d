//! The router: arguments to plain values, lock, call, unlock, answer. No Python object is touched under the lock.

use std::sync::{Mutex, MutexGuard};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use turnout_core::error::{Error, Result};
use turnout_core::prompt::{BlockHasher, HashKey};
use turnout_core::record::recorder::Recorder;
use turnout_core::router::Router as CoreRouter;
use turnout_core::router::types::{Completion, Hint, Metrics, Outcome as CoreOutcome, RouterConfig, Submit, WeightsMode};
use turnout_core::units::{Nanos, seconds};

use crate::arguments::{self, duration, time};
use crate::decision::{Decision, Outcome};
use crate::errors::{invalid, payload_error, to_py};
use crate::input::{self, Input};
use crate::prompt::Prompt;
use crate::{ending, limits, tokens, view};

/// The decision core behind one lock.
#[pyclass(frozen, subclass, module = "turnout._core")]
pub(crate) struct Router {
    core: Mutex<Recorder>,
    hasher: BlockHasher,
    key: HashKey,
    infer_sessions: bool,
}

impl Router {
    /// A panic under the lock leaves the state in doubt: every later call fails.
    fn lock(&self) -> PyResult<MutexGuard<'_, Recorder>> {
        self.core.lock().map_err(|_| to_py(Error::Internal { problem: "an earlier call panicked; make a new router".into() }))
    }

    /// One event under the lock.
    fn event(&self, now: Option<f64>, call: impl FnOnce(&mut Recorder, Nanos) -> Result<CoreOutcome>) -> PyResult<Outcome> {
        let now = time(now)?;
        let outcome = call(&mut *self.lock()?, now);
        outcome.map(Outcome).map_err(to_py)
    }
}

#[pymethods]
impl Router {
    #[new]
    #[pyo3(signature = (replicas, workloads = None, *, hash_key, block_tokens = 16, index_bytes = 4_294_967_296, seed = 0, max_held = 1_000_000, control_period_s = 1.0, turn_ttl_s = 7200.0, session_ttl_s = 3600.0, infer_sessions = false, record = None, now = None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        replicas: &Bound<'_, PyAny>,
        workloads: Option<&Bound<'_, PyAny>>,
        hash_key: &[u8],
        #[pyo3(from_py_with = arguments::block_tokens)] block_tokens: u32,
        #[pyo3(from_py_with = arguments::index_bytes)] index_bytes: u64,
        #[pyo3(from_py_with = arguments::seed)] seed: u64,
        #[pyo3(from_py_with = arguments::max_held)] max_held: usize,
        control_period_s: f64,
        turn_ttl_s: f64,
        session_ttl_s: f64,
        infer_sessions: bool,
        record: Option<&[u8]>,
        now: Option<f64>,
    ) -> PyResult<Self> {
        if let Some(record) = record {
            let core = Recorder::restore(record, time(now)?).map_err(to_py)?;
            return Ok(Self {
                hasher: core.hasher().clone(),
                key: *core.hasher().key(),
                infer_sessions: core.infers_sessions(),
                core: Mutex::new(core),
            });
        }
        let none = PyTuple::empty(replicas.py());
        let fleet = arguments::fleet(replicas, workloads.unwrap_or(none.as_any()))?;
        let key = arguments::hash_key(hash_key)?;
        let config = RouterConfig {
            block_tokens,
            index_bytes,
            seed,
            hash_key: key,
            max_held,
            control_period_s,
            turn_ttl_s,
            session_ttl_s,
            infer_sessions,
            ..fleet
        };
        let core = CoreRouter::new(config).map_err(to_py)?;
        Ok(Self { hasher: core.hasher().clone(), core: Mutex::new(Recorder::new(core)), key, infer_sessions })
    }

    #[pyo3(signature = (prompt = None, *, append = None, base_tokens = None, prompt_tokens = None, turn = None, attempt = 0, session = None, parent = None, workload = None, namespace = None, max_new_tokens = None, samples = 1, group = None, group_size = None, expected_tokens = None, priority = 0, candidates = None, avoid = None, at = None, bias = None, owner = None, hold = true, deadline_s = None, now = None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value, reason = "keyword arguments, extracted by value")]
    fn submit(
        &self,
        prompt: Option<&Bound<'_, PyAny>>,
        append: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::base_tokens)] base_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::prompt_tokens)] prompt_tokens: Option<u64>,
        turn: Option<&str>,
        #[pyo3(from_py_with = arguments::attempt)] attempt: u32,
        session: Option<&str>,
        parent: Option<&str>,
        workload: Option<&str>,
        namespace: Option<&str>,
        #[pyo3(from_py_with = arguments::max_new_tokens)] max_new_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::samples)] samples: u32,
        group: Option<&str>,
        #[pyo3(from_py_with = arguments::group_size)] group_size: Option<u32>,
        #[pyo3(from_py_with = arguments::expected_tokens)] expected_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::priority)] priority: i32,
        candidates: Option<Vec<String>>,
        avoid: Option<Vec<String>>,
        at: Option<&str>,
        bias: Option<&Bound<'_, PyAny>>,
        owner: Option<&str>,
        hold: bool,
        deadline_s: Option<f64>,
        now: Option<f64>,
    ) -> PyResult<Decision> {
        let mut input = Input::read(prompt, append, base_tokens, prompt_tokens, &self.hasher, &self.key)?;
        if self.infer_sessions && session.is_none() {
            input = input.keep_tokens(prompt)?;
        }
        let names: Option<Vec<&str>> = candidates.as_ref().map(|names| names.iter().map(String::as_str).collect());
        let avoid: Vec<&str> = avoid.iter().flatten().map(String::as_str).collect();
        let bias = bias.map(arguments::bias).transpose()?.unwrap_or_default();
        let bias: Vec<(&str, f64)> = bias.iter().map(|(name, seconds)| (name.as_str(), *seconds)).collect();
        let deadline = duration("deadline_s", deadline_s)?;
        let submit = Submit {
            turn,
            attempt,
            session,
            parent,
            workload,
            namespace,
            input: input.get(),
            max_new_tokens,
            samples,
            group,
            group_size,
            expected_tokens,
            priority,
            candidates: names.as_deref(),
            avoid: &avoid,
            at,
            bias: &bias,
            owner,
            hold,
            deadline,
        };
        let now = time(now)?;
        let mut core = self.lock()?;
        let found = input.tokens().and_then(|tokens| core.continued_session(&submit, tokens));
        let decision = core.submit(now, &Submit { session: found.as_deref().or(session), ..submit });
        drop(core);
        decision.map(Decision).map_err(to_py)
    }

    #[pyo3(signature = (prompt = None, *, append = None, base_tokens = None, prompt_tokens = None, session = None, workload = None, namespace = None, max_new_tokens = None, expected_tokens = None, candidates = None, avoid = None, bias = None, now = None))]
    #[allow(clippy::too_many_arguments, clippy::needless_pass_by_value, reason = "keyword arguments, extracted by value")]
    fn choose(
        &self,
        prompt: Option<&Bound<'_, PyAny>>,
        append: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::base_tokens)] base_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::prompt_tokens)] prompt_tokens: Option<u64>,
        session: Option<&str>,
        workload: Option<&str>,
        namespace: Option<&str>,
        #[pyo3(from_py_with = arguments::max_new_tokens)] max_new_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::expected_tokens)] expected_tokens: Option<u64>,
        candidates: Option<Vec<String>>,
        avoid: Option<Vec<String>>,
        bias: Option<&Bound<'_, PyAny>>,
        now: Option<f64>,
    ) -> PyResult<Decision> {
        let input = Input::read(prompt, append, base_tokens, prompt_tokens, &self.hasher, &self.key)?;
        let names: Option<Vec<&str>> = candidates.as_ref().map(|names| names.iter().map(String::as_str).collect());
        let bias = bias.map(arguments::bias).transpose()?.unwrap_or_default();
        let bias: Vec<(&str, f64)> = bias.iter().map(|(name, seconds)| (name.as_str(), *seconds)).collect();
        let avoid: Vec<&str> = avoid.iter().flatten().map(String::as_str).collect();
        let (candidates, avoid, bias) = (names.as_deref(), &avoid[..], &bias[..]);
        let submit = Submit { session, workload, namespace, max_new_tokens, expected_tokens, candidates, avoid, bias, ..Submit::new(input.get()) };
        let now = time(now)?;
        let decision = self.lock()?.choose(now, &submit);
        decision.map(Decision).map_err(to_py)
    }

    #[pyo3(signature = (prompt = None, *, session = None, namespace = ""))]
    fn peek(&self, prompt: Option<&Bound<'_, PyAny>>, session: Option<&str>, namespace: &str) -> PyResult<Vec<(String, u64)>> {
        let holders = match (prompt, session) {
            (Some(object), None) => {
                let hashed = input::hashed(object, "prompt", &self.hasher, &self.key)?;
                self.lock()?.peek(namespace, hashed.get())
            }
            (None, Some(session)) => {
                let holders = self.lock()?.peek_session(session);
                holders.map_err(to_py)?
            }
            _ => return Err(invalid("prompt", "both or neither of prompt and session", "exactly one of them")),
        };
        Ok(holders.into_iter().map(|(name, tokens)| (name.to_string(), tokens)).collect())
    }

    /// Hashes a prompt with this router's key and block size.
    fn prompt(&self, tokens: &Bound<'_, PyAny>) -> PyResult<Prompt> {
        Ok(Prompt { core: tokens::with(tokens, "tokens", |tokens| self.hasher.prompt(tokens))?, key: self.key })
    }

    #[pyo3(signature = (turn, output_tokens, *, served_by = None, now = None))]
    fn progress(
        &self,
        turn: &str,
        #[pyo3(from_py_with = arguments::reported_tokens)] output_tokens: u64,
        served_by: Option<&str>,
        now: Option<f64>,
    ) -> PyResult<Outcome> {
        self.event(now, |core, now| core.progress(now, turn, output_tokens, served_by))
    }

    #[pyo3(signature = (turn, output = None, *, output_tokens = None, prompt_tokens = None, cached_tokens = None, served_by = None, keep = None, now = None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn complete(
        &self,
        turn: &str,
        output: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::output_tokens)] output_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::prompt_tokens)] prompt_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::cached_tokens)] cached_tokens: Option<u64>,
        served_by: Option<&str>,
        #[pyo3(from_py_with = arguments::keep)] keep: Option<u32>,
        now: Option<f64>,
    ) -> PyResult<Outcome> {
        let outputs = ending::outputs(output)?;
        let output = ending::views(outputs.as_ref());
        let completion =
            Completion { output: output.as_deref(), output_tokens, prompt_tokens, cached_tokens, served_by, keep, ..Completion::default() };
        self.event(now, |core, now| core.complete(now, turn, &completion))
    }

    #[pyo3(signature = (turn, output = None, *, output_tokens = None, prompt_tokens = None, cached_tokens = None, served_by = None, keep = None, reason = "cancelled", retry = false, now = None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn abort(
        &self,
        turn: &str,
        output: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = arguments::output_tokens)] output_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::prompt_tokens)] prompt_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::cached_tokens)] cached_tokens: Option<u64>,
        served_by: Option<&str>,
        #[pyo3(from_py_with = arguments::keep)] keep: Option<u32>,
        reason: &str,
        retry: bool,
        now: Option<f64>,
    ) -> PyResult<Outcome> {
        let (outputs, cause) = (ending::outputs(output)?, ending::cause(reason)?);
        let output = ending::views(outputs.as_ref());
        let completion =
            Completion { output: output.as_deref(), grown: None, output_tokens, prompt_tokens, cached_tokens, served_by, keep, cause, retry };
        self.event(now, |core, now| core.abort(now, turn, &completion))
    }

    #[pyo3(signature = (session, child, *, now = None))]
    fn fork(&self, session: &str, child: &str, now: Option<f64>) -> PyResult<Outcome> {
        self.event(now, |core, now| core.fork(now, session, child))
    }

    #[pyo3(signature = (session, *, idle_s = None, expected_tokens = None, priority = None, now = None))]
    fn hint(
        &self,
        session: &str,
        idle_s: Option<f64>,
        #[pyo3(from_py_with = arguments::expected_tokens)] expected_tokens: Option<u64>,
        #[pyo3(from_py_with = arguments::optional_priority)] priority: Option<i32>,
        now: Option<f64>,
    ) -> PyResult<Outcome> {
        let idle = idle_s.map(|seconds| duration("idle_s", Some(seconds)).map(|gap| gap.unwrap_or(Nanos::MAX))).transpose()?;
        self.event(now, |core, now| core.hint(now, session, &Hint { idle, expected_tokens, priority }))
    }

    #[pyo3(signature = (session, *, completed = true, now = None))]
    fn end_session(&self, session: &str, completed: bool, now: Option<f64>) -> PyResult<Outcome> {
        self.event(now, |core, now| core.end_session(now, session, completed))
    }

    #[pyo3(signature = (replica, *, now = None))]
    fn add_replica(&self, replica: &Bound<'_, PyAny>, now: Option<f64>) -> PyResult<Outcome> {
        let replica = arguments::replica(replica)?;
        self.event(now, |core, now| core.add_replica(now, &replica))
    }

    #[pyo3(signature = (replica, *, now = None))]
    fn set_replica(&self, replica: &Bound<'_, PyAny>, now: Option<f64>) -> PyResult<Outcome> {
        let replica = arguments::replica(replica)?;
        self.event(now, |core, now| core.set_replica(now, &replica))
    }

    #[pyo3(signature = (name, *, now = None))]
    fn drain_replica(&self, name: &str, now: Option<f64>) -> PyResult<Outcome> {
        self.event(now, |core, now| core.drain_replica(now, name))
    }

    #[pyo3(signature = (name, *, now = None))]
    fn remove_replica(&self, name: &str, now: Option<f64>) -> PyResult<Outcome> {
        self.event(now, |core, now| core.remove_replica(now, name))
    }

    #[pyo3(signature = (replica, *, kv_fraction = None, running = None, waiting = None, preemptions_total = None, kv_tokens = None, now = None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn observe(
        &self,
        replica: &str,
        kv_fraction: Option<f64>,
        #[pyo3(from_py_with = arguments::running)] running: Option<u64>,
        #[pyo3(from_py_with = arguments::waiting)] waiting: Option<u64>,
        #[pyo3(from_py_with = arguments::preemptions_total)] preemptions_total: Option<u64>,
        kv_tokens: Option<f64>,
        now: Option<f64>,
    ) -> PyResult<Outcome> {
        self.event(now, |core, now| core.observe(now, replica, &Metrics { kv_fraction, running, waiting, preemptions_total, kv_tokens }))
    }

    #[pyo3(signature = (owner, *, now = None))]
    fn owner_lost(&self, owner: &str, now: Option<f64>) -> PyResult<Outcome> {
        self.event(now, |core, now| core.owner_lost(now, owner))
    }

    #[pyo3(signature = (name, *, now = None))]
    fn lose_replica(&self, name: &str, now: Option<f64>) -> PyResult<Outcome> {
        self.event(now, |core, now| core.lose_replica(now, name))
    }

    #[pyo3(signature = (version, *, mode = "flush", replica = None, now = None))]
    fn weights_updated(
        &self,
        #[pyo3(from_py_with = arguments::version)] version: i64,
        mode: &str,
        replica: Option<&str>,
        now: Option<f64>,
    ) -> PyResult<Outcome> {
        let mode = match mode {
            "flush" => WeightsMode::Flush,
            "keep" => WeightsMode::Keep,
            "salt" => WeightsMode::Salt,
            other => return Err(invalid("mode", format!("{other:?}"), "\"flush\", \"keep\" or \"salt\"")),
        };
        self.event(now, |core, now| core.weights_updated(now, version, mode, replica))
    }

    #[pyo3(signature = (replica, payload, *, sequence, rank = None, now = None))]
    fn kv_events(
        &self,
        replica: &str,
        payload: &[u8],
        #[pyo3(from_py_with = arguments::sequence)] sequence: u64,
        rank: Option<i64>,
        now: Option<f64>,
    ) -> PyResult<Outcome> {
        let batch = turnout_wire::decode_batch(payload).map_err(payload_error)?;
        let rank = rank.or(batch.rank).unwrap_or(0);
        let device = turnout_wire::DeviceEvents::from(batch);
        self.event(now, |core, now| core.cache_events(now, replica, rank, sequence, &device.events()))
    }

    #[pyo3(signature = (replica, *, rank = 0, next_sequence = 0, now = None))]
    fn reset_feed(
        &self,
        replica: &str,
        rank: i64,
        #[pyo3(from_py_with = arguments::next_sequence)] next_sequence: u64,
        now: Option<f64>,
    ) -> PyResult<Outcome> {
        self.event(now, |core, now| core.reset_feed(now, replica, rank, next_sequence))
    }

    #[pyo3(signature = (replica, *, now = None))]
    fn end_feeds(&self, replica: &str, now: Option<f64>) -> PyResult<Outcome> {
        self.event(now, |core, now| core.end_feeds(now, replica))
    }

    #[pyo3(signature = (*, now = None))]
    fn tick(&self, now: Option<f64>) -> PyResult<Outcome> {
        self.event(now, Recorder::tick)
    }

    fn drain(&self) -> PyResult<Vec<Decision>> {
        let decisions = self.lock()?.drain();
        Ok(decisions.into_iter().map(Decision).collect())
    }

    #[pyo3(signature = (*, now = None))]
    fn raw_view<'py>(&self, py: Python<'py>, now: Option<f64>) -> PyResult<Bound<'py, PyDict>> {
        let now = time(now)?;
        let fleet = self.lock()?.view(now);
        view::to_dict(py, &fleet)
    }

    #[pyo3(signature = (fields, *, step, replicas, workloads, now = None))]
    fn raw_set_limits(
        &self,
        fields: &Bound<'_, PyAny>,
        step: i64,
        replicas: Vec<String>,
        workloads: Vec<String>,
        now: Option<f64>,
    ) -> PyResult<Outcome> {
        let limits = limits::read(fields, replicas, workloads)?;
        self.event(now, |core, now| core.set_limits(now, &limits, step))
    }

    #[pyo3(signature = (after_s, *, now = None))]
    fn expect_callers(&self, after_s: f64, now: Option<f64>) -> PyResult<Outcome> {
        let after = duration("after_s", Some(after_s))?.unwrap_or(u64::MAX);
        self.event(now, |core, now| core.expect_callers(now, after))
    }

    fn snapshot<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.lock()?.snapshot();
        Ok(PyBytes::new(py, &bytes))
    }

    fn start_journal(&self) -> PyResult<()> {
        self.lock()?.start_journal();
        Ok(())
    }

    fn stop_journal(&self) -> PyResult<()> {
        self.lock()?.stop_journal();
        Ok(())
    }

    fn take_journal<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = self.lock()?.take_journal();
        Ok(PyBytes::new(py, &bytes))
    }

    /// Counters since the start, and sizes now.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = self.lock()?;
        let (stats, feeds) = (core.stats(), core.feed_stats());
        drop(core);
        let dict = PyDict::new(py);
        for (name, value) in stats.entries().into_iter().chain(feeds.entries()) {
            dict.set_item(name, value)?;
        }
        Ok(dict)
    }

    fn audit(&self) -> PyResult<()> {
        let result = self.lock()?.audit();
        result.map_err(to_py)
    }

    #[getter]
    fn wake_at(&self) -> PyResult<Option<f64>> {
        let at = self.lock()?.wake_at();
        Ok(at.map(seconds))
    }

    #[getter]
    fn policy_due(&self) -> PyResult<bool> {
        Ok(self.lock()?.policy_due())
    }

    #[getter]
    fn hash_key<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.key.0)
    }

    #[getter]
    fn block_tokens(&self) -> u32 {
        self.hasher.block_tokens()
    }

    #[getter]
    fn replicas<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let names = self.lock()?.replicas();
        PyTuple::new(py, names.iter().map(|name| &**name))
    }

    #[getter]
    fn workloads<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let names = self.lock()?.workloads();
        PyTuple::new(py, names.iter().map(|name| &**name))
    }
}
