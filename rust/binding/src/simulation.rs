//! The simulated fleet: arrays in, numbers out. The interpreter is detached while it runs.

use std::sync::{Arc, Mutex, MutexGuard};

use pyo3::buffer::{Element, PyBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use turnout_core::error::Error;
use turnout_core::router::types::RouterConfig;
use turnout_sim::config::{Outage, SimulationConfig};
use turnout_sim::engine::model::{ENGINES, EngineModel};
use turnout_sim::feed::Feed;
use turnout_sim::fleet::Simulation as CoreSimulation;
use turnout_sim::metrics::{Counts, Finish};
use turnout_sim::scenario::Scenario;

use crate::errors::{invalid, to_py};
use crate::{arguments, limits, view};

/// A closed loop of sessions on model engines behind the real router.
#[pyclass(frozen, module = "turnout._core")]
pub(crate) struct Simulation {
    core: Mutex<CoreSimulation>,
    workloads: Vec<String>,
}

impl Simulation {
    fn lock(&self) -> PyResult<MutexGuard<'_, CoreSimulation>> {
        self.core.lock().map_err(|_| to_py(Error::Internal { problem: "an earlier call panicked; make a new simulation".into() }))
    }
}

#[pymethods]
impl Simulation {
    #[new]
    #[pyo3(signature = (replicas, workloads, *, scenario, engine, concurrency, sessions = None, repeat = false, duration_s = f64::INFINITY, seed = 0, block_tokens = 16, control_period_s = 1.0, sample_period_s = 5.0, flush_every_sessions = None, outages = Vec::new(), feed = None))]
    #[allow(clippy::too_many_arguments, reason = "keyword arguments")]
    fn new(
        replicas: &Bound<'_, PyAny>,
        workloads: &Bound<'_, PyAny>,
        scenario: &Bound<'_, PyDict>,
        engine: &Bound<'_, PyDict>,
        #[pyo3(from_py_with = arguments::concurrency)] concurrency: usize,
        #[pyo3(from_py_with = arguments::sessions)] sessions: Option<u64>,
        repeat: bool,
        duration_s: f64,
        #[pyo3(from_py_with = arguments::seed)] seed: u64,
        #[pyo3(from_py_with = arguments::block_tokens)] block_tokens: u32,
        control_period_s: f64,
        sample_period_s: f64,
        #[pyo3(from_py_with = arguments::sessions)] flush_every_sessions: Option<u64>,
        outages: Vec<(usize, f64, f64)>,
        feed: Option<(f64, f64)>,
    ) -> PyResult<Self> {
        let fleet = arguments::fleet(replicas, workloads)?;
        let engine = read_engine(engine)?;
        let router = RouterConfig { block_tokens, seed, control_period_s, turn_ttl_s: f64::INFINITY, session_ttl_s: f64::INFINITY, ..fleet };
        let names = router.workloads.iter().map(|workload| workload.name.to_string()).collect();
        let scenario = Arc::new(read_scenario(scenario)?);
        let outages = outages.into_iter().map(|(replica, at_s, away_s)| Outage { replica, at_s, away_s }).collect();
        let config = SimulationConfig {
            router,
            engine,
            scenario,
            concurrency,
            sessions,
            repeat,
            duration_s,
            sample_period_s,
            flush_every_sessions,
            outages,
            feed: feed.map(|(lag_s, loss)| Feed { lag_s, loss }),
        };
        let core = CoreSimulation::new(config).map_err(to_py)?;
        Ok(Self { core: Mutex::new(core), workloads: names })
    }

    fn advance(&self, py: Python<'_>) -> PyResult<bool> {
        let more = py.detach(|| self.lock().map(|mut core| core.advance()))?;
        more.map_err(to_py)
    }

    fn raw_view<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let fleet = self.lock()?.view();
        view::to_dict(py, &fleet)
    }

    #[pyo3(signature = (fields, *, step, replicas, workloads))]
    fn raw_set_limits(&self, fields: &Bound<'_, PyDict>, step: i64, replicas: Vec<String>, workloads: Vec<String>) -> PyResult<()> {
        let limits = limits::read(fields, replicas, workloads)?;
        let result = self.lock()?.set_limits(&limits, step);
        result.map_err(to_py)
    }

    #[getter]
    fn now_s(&self) -> PyResult<f64> {
        Ok(self.lock()?.now_s())
    }

    #[getter]
    fn finished_fraction(&self) -> PyResult<f64> {
        Ok(self.lock()?.finished_fraction())
    }

    fn audit(&self) -> PyResult<()> {
        let result = self.lock()?.audit();
        result.map_err(to_py)
    }

    fn result<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let core = self.lock()?;
        let counts = core.counts().to_vec();
        let holds: Vec<[f64; 3]> = (0..counts.len()).map(|at| core.hold_quantiles(Some(at))).collect();
        let open: Vec<(u64, u64)> = (0..counts.len()).map(|at| core.open_turns(at)).collect();
        let interventions = core.router().interventions();
        let (all_holds, now_s, stuck, recomputed_tokens) = (core.hold_quantiles(None), core.now_s(), core.is_stuck(), core.recomputed_tokens());
        drop(core);
        let all = PyDict::new(py);
        let total = counts.iter().fold(Counts::default(), add);
        fill(&all, &total, all_holds, open.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1)))?;
        for (at, name) in ["pauses", "moves", "forced"].into_iter().enumerate() {
            all.set_item(name, interventions.iter().map(|counts| counts[at]).sum::<i64>())?;
        }
        all.set_item("recomputed_tokens", recomputed_tokens)?;
        all.set_item("now_s", now_s)?;
        all.set_item("stuck", stuck)?;
        let by_workload = PyDict::new(py);
        for (at, name) in self.workloads.iter().enumerate() {
            let one = PyDict::new(py);
            fill(&one, &counts[at], holds[at], open[at])?;
            for (kind, name) in ["pauses", "moves", "forced"].into_iter().enumerate() {
                one.set_item(name, interventions[at][kind])?;
            }
            by_workload.set_item(name, one)?;
        }
        all.set_item("workloads", by_workload)?;
        Ok(all)
    }

    fn finishes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let finishes = self.lock()?.finishes().to_vec();
        let columns = PyDict::new(py);
        let whole = |read: fn(&Finish) -> i64| finishes.iter().flat_map(|finish| read(finish).to_ne_bytes()).collect::<Vec<u8>>();
        let real = |read: fn(&Finish) -> f64| finishes.iter().flat_map(|finish| read(finish).to_ne_bytes()).collect::<Vec<u8>>();
        columns.set_item("session", PyBytes::new(py, &whole(|finish| finish.session as i64)))?;
        columns.set_item("lap", PyBytes::new(py, &whole(|finish| finish.lap as i64)))?;
        columns.set_item("started_s", PyBytes::new(py, &real(|finish| finish.started_s)))?;
        columns.set_item("finished_s", PyBytes::new(py, &real(|finish| finish.finished_s)))?;
        Ok(columns)
    }

    fn series<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let samples = self.lock()?.series().to_vec();
        let series = PyDict::new(py);
        let names = samples.first().map(|sample| sample.entries().map(|entry| entry.0));
        for (at, name) in names.into_iter().flatten().enumerate() {
            let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.entries()[at].1.to_ne_bytes()).collect();
            series.set_item(name, PyBytes::new(py, &bytes))?;
        }
        Ok(series)
    }
}

/// The built-in engines by name, each as the mapping that `Simulation` takes.
#[pyfunction]
pub(crate) fn engines(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for (name, model) in ENGINES {
        let engine = PyDict::new(py);
        engine.set_item("prefill_base_s", model.prefill_base_s)?;
        engine.set_item("prefill_s_per_token", model.prefill_s_per_token)?;
        engine.set_item("prefill_s_per_token_pair", model.prefill_s_per_token_pair)?;
        engine.set_item("decode_base_s", model.decode_base_s)?;
        engine.set_item("decode_s_per_sequence", model.decode_s_per_sequence)?;
        engine.set_item("decode_s_per_kv_token", model.decode_s_per_kv_token)?;
        engine.set_item("max_batched_tokens", model.max_batched_tokens)?;
        engine.set_item("max_sequences", model.max_sequences)?;
        engine.set_item("kv_tokens", model.kv_tokens)?;
        all.set_item(name, engine)?;
    }
    Ok(all)
}

pub(crate) fn read_engine(fields: &Bound<'_, PyDict>) -> PyResult<EngineModel> {
    let number = |name: &'static str| -> PyResult<f64> {
        let value = fields.get_item(name)?.ok_or_else(|| invalid("engine", format!("no {name:?}"), "every field of turnout.simulate.Engine"))?;
        value.extract()
    };
    let engine = EngineModel {
        prefill_base_s: number("prefill_base_s")?,
        prefill_s_per_token: number("prefill_s_per_token")?,
        prefill_s_per_token_pair: number("prefill_s_per_token_pair")?,
        decode_base_s: number("decode_base_s")?,
        decode_s_per_sequence: number("decode_s_per_sequence")?,
        decode_s_per_kv_token: number("decode_s_per_kv_token")?,
        max_batched_tokens: number("max_batched_tokens")? as u64,
        max_sequences: number("max_sequences")? as u64,
        kv_tokens: number("kv_tokens")? as u64,
    };
    engine.check().map_err(to_py)?;
    Ok(engine)
}

fn fill(dict: &Bound<'_, PyDict>, counts: &Counts, holds: [f64; 3], (held, running): (u64, u64)) -> PyResult<()> {
    let numbers = [
        ("finished_sessions", counts.finished_sessions),
        ("failed_sessions", counts.failed_sessions),
        ("submitted_turns", counts.submitted_turns),
        ("placed_turns", counts.placed_turns),
        ("turns", counts.turns),
        ("aborted_turns", counts.aborted_turns),
        ("lost_turns", counts.lost_turns),
        ("waited_turns", counts.waited_turns),
        ("held_turns_now", held),
        ("running_turns_now", running),
        ("prompt_tokens", counts.prompt_tokens),
        ("cached_tokens", counts.cached_tokens),
        ("output_tokens", counts.output_tokens),
        ("reprefill_tokens", counts.reprefill_tokens),
        ("preemptions", counts.preemptions),
    ];
    for (name, value) in numbers {
        dict.set_item(name, value)?;
    }
    dict.set_item("last_finish_s", counts.last_finish_s)?;
    dict.set_item("least_gpu_s", counts.least_gpu_s)?;
    let quantiles = PyDict::new(dict.py());
    for (name, value) in ["p50", "p99", "max"].into_iter().zip(holds) {
        quantiles.set_item(name, value)?;
    }
    dict.set_item("hold_s", quantiles)
}

fn add(mut sum: Counts, one: &Counts) -> Counts {
    sum.finished_sessions += one.finished_sessions;
    sum.failed_sessions += one.failed_sessions;
    sum.submitted_turns += one.submitted_turns;
    sum.placed_turns += one.placed_turns;
    sum.turns += one.turns;
    sum.aborted_turns += one.aborted_turns;
    sum.lost_turns += one.lost_turns;
    sum.waited_turns += one.waited_turns;
    sum.prompt_tokens += one.prompt_tokens;
    sum.cached_tokens += one.cached_tokens;
    sum.output_tokens += one.output_tokens;
    sum.reprefill_tokens += one.reprefill_tokens;
    sum.preemptions += one.preemptions;
    sum.least_gpu_s += one.least_gpu_s;
    sum.last_finish_s = sum.last_finish_s.max(one.last_finish_s);
    sum
}

fn read_scenario(arrays: &Bound<'_, PyDict>) -> PyResult<Scenario> {
    Ok(Scenario {
        block_tokens: item(arrays, "block_tokens")?.extract()?,
        session_workload: array(arrays, "session_workload")?,
        session_first_turn: array(arrays, "session_first_turn")?,
        session_parent: array(arrays, "session_parent")?,
        session_after_turn: array(arrays, "session_after_turn")?,
        turn_prompt_tokens: array(arrays, "turn_prompt_tokens")?,
        turn_output_tokens: array(arrays, "turn_output_tokens")?,
        turn_gap_s: array(arrays, "turn_gap_s")?,
        turn_first_run: array(arrays, "turn_first_run")?,
        run_first_id: array(arrays, "run_first_id")?,
        run_blocks: array(arrays, "run_blocks")?,
        run_shared: array::<u8>(&arrays.clone(), "run_shared")?.into_iter().map(|shared| shared != 0).collect(),
    })
}

fn item<'py>(arrays: &Bound<'py, PyDict>, name: &'static str) -> PyResult<Bound<'py, PyAny>> {
    arrays.get_item(name)?.ok_or_else(|| invalid("scenario", format!("no {name:?}"), "every array of turnout.simulate.Scenario"))
}

fn array<T: Element + Copy>(arrays: &Bound<'_, PyDict>, name: &'static str) -> PyResult<Vec<T>> {
    let object = item(arrays, name)?;
    let buffer =
        PyBuffer::<T>::get(&object).map_err(|error| invalid("scenario", format!("{name}: {error}"), "contiguous arrays of the documented dtype"))?;
    buffer.to_vec(object.py())
}
