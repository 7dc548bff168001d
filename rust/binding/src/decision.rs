//! Answers of the core as frozen Python objects.

use pyo3::prelude::*;
use pyo3::types::PyTuple;
use turnout_core::router::types::{self as core, Status};

/// What was decided about a turn.
#[pyclass(frozen, module = "turnout._core")]
pub(crate) struct Decision(pub(crate) core::Decision);

#[pymethods]
impl Decision {
    #[getter]
    fn turn(&self) -> &str {
        &self.0.turn
    }

    #[getter]
    fn attempt(&self) -> u32 {
        self.0.attempt
    }

    #[getter]
    fn status(&self) -> &'static str {
        self.0.status.as_str()
    }

    #[getter]
    fn placed(&self) -> bool {
        self.0.status == Status::Placed
    }

    #[getter]
    fn held(&self) -> bool {
        self.0.status == Status::Held
    }

    #[getter]
    fn rejected(&self) -> bool {
        self.0.status == Status::Rejected
    }

    #[getter]
    fn replica(&self) -> Option<&str> {
        self.0.replica.as_deref()
    }

    #[getter]
    fn cached_tokens(&self) -> u64 {
        self.0.cached_tokens
    }

    #[getter]
    fn alternatives<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let names: Vec<&str> = self.0.alternatives.iter().filter_map(Option::as_deref).collect();
        PyTuple::new(py, names)
    }

    #[getter]
    fn reason(&self) -> &'static str {
        self.0.reason.as_str()
    }

    #[getter]
    fn receipt(&self) -> Receipt {
        Receipt(self.0.receipt)
    }

    #[getter]
    fn seq(&self) -> u64 {
        self.0.seq
    }

    fn __repr__(&self) -> String {
        let replica = self.0.replica.as_deref().map_or_else(String::new, |name| format!(", replica={name:?}"));
        let (turn, cached) = (&self.0.turn, self.0.cached_tokens);
        format!("Decision({turn:?}, {}, reason={}{replica}, cached_tokens={cached})", self.status(), self.reason())
    }
}

/// The numbers behind a decision.
#[pyclass(frozen, module = "turnout._core")]
pub(crate) struct Receipt(core::Receipt);

macro_rules! receipt_getters {
    ($($name:ident: $type:ty),* $(,)?) => {
        #[pymethods]
        impl Receipt {
            $(#[getter] fn $name(&self) -> $type { self.0.$name })*

            fn __repr__(&self) -> String {
                let fields = [$(format!("{}={:?}", stringify!($name), self.0.$name)),*];
                format!("Receipt({})", fields.join(", "))
            }
        }
    };
}

receipt_getters! {
    prompt_tokens: u64,
    matched_tokens: u64,
    indexed: bool,
    need_tokens: u64,
    charge_tokens: u64,
    commit_tokens: u64,
    limit: f64,
    reclaimable_tokens: u64,
    cost_s: f64,
    runner_up_cost_s: f64,
    limits_step: i64,
}

/// What became of an event.
#[pyclass(frozen, module = "turnout._core")]
pub(crate) struct Outcome(pub(crate) core::Outcome);

#[pymethods]
impl Outcome {
    #[getter]
    fn seq(&self) -> u64 {
        self.0.seq
    }

    #[getter]
    fn status(&self) -> &'static str {
        self.0.effect.as_str()
    }

    #[getter]
    fn replay_from(&self) -> Option<u64> {
        if let core::Effect::Gap { expected } = self.0.effect { Some(expected) } else { None }
    }

    fn __repr__(&self) -> String {
        format!("Outcome({}, seq={})", self.status(), self.seq())
    }
}
