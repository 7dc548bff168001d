//! Journals that are done again.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::errors::to_py;

/// Does the events of a journal again and compares the answers.
#[pyfunction]
pub(crate) fn replay<'py>(py: Python<'py>, journal: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let done = turnout_core::record::journal::replay(journal).map_err(to_py)?;
    let dict = PyDict::new(py);
    dict.set_item("events", done.events)?;
    dict.set_item("decisions", done.decisions)?;
    dict.set_item("record_bytes", done.record_bytes)?;
    dict.set_item("torn_bytes", done.torn_bytes)?;
    Ok(dict)
}
