//! The Python extension `turnout._core`: arguments in, the core's answers out. No logic lives here.
#![warn(missing_docs)]

mod arguments;
mod decision;
mod ending;
mod errors;
mod input;
mod limits;
mod model_engine;
mod prefix_index;
mod prompt;
mod replay;
mod router;
mod simulation;
mod tokens;
mod view;
mod wire;

use pyo3::prelude::*;
use pyo3::types::PyDict;

/// What a bug report should say about this build: version, profile, target and fingerprint kernel.
#[pyfunction]
fn build_info(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let info = PyDict::new(py);
    info.set_item("version", env!("CARGO_PKG_VERSION"))?;
    info.set_item("profile", if cfg!(debug_assertions) { "debug" } else { "release" })?;
    info.set_item("target", format!("{}-{}", std::env::consts::ARCH, std::env::consts::OS))?;
    info.set_item("kernel", turnout_core::arch::Kernel::detect().name())?;
    Ok(info)
}

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::build_info;
    #[pymodule_export]
    use super::decision::{Decision, Outcome, Receipt};
    #[pymodule_export]
    use super::model_engine::ModelEngine;
    #[pymodule_export]
    use super::prefix_index::PrefixIndex;
    #[pymodule_export]
    use super::prompt::Prompt;
    #[pymodule_export]
    use super::replay::replay;
    #[pymodule_export]
    use super::router::Router;
    #[pymodule_export]
    use super::simulation::{Simulation, engines};
    #[pymodule_export]
    use super::wire::{describe_kv_events, load_report};
}
