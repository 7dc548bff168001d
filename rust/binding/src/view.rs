//! The fleet view as a dictionary of byte columns, which NumPy reads without a copy.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};
use turnout_core::control::view::{FleetView, Shape, Values};

/// `{"step", "now_s", "elapsed_s", "replicas", "workloads", "columns": {name: (shape, dtype, bytes)}}`.
pub(crate) fn to_dict<'py>(py: Python<'py>, view: &FleetView) -> PyResult<Bound<'py, PyDict>> {
    let columns = PyDict::new(py);
    for column in &view.columns {
        let shape = match column.shape {
            Shape::Replicas => "R",
            Shape::Workloads => "W",
            Shape::Matrix => "RW",
        };
        let (dtype, bytes) = match &column.values {
            Values::F64(values) => ("f8", PyBytes::new(py, &values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>())),
            Values::I64(values) => ("i8", PyBytes::new(py, &values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>())),
            Values::Bool(values) => ("?", PyBytes::new(py, &values.iter().map(|&value| u8::from(value)).collect::<Vec<u8>>())),
        };
        columns.set_item(column.name, (shape, dtype, bytes))?;
    }
    let dict = PyDict::new(py);
    dict.set_item("step", view.step)?;
    dict.set_item("now_s", view.now_s)?;
    dict.set_item("elapsed_s", view.elapsed_s)?;
    dict.set_item("replicas", PyTuple::new(py, view.replicas.iter().map(|name| &**name))?)?;
    dict.set_item("workloads", PyTuple::new(py, view.workloads.iter().map(|name| &**name))?)?;
    dict.set_item("columns", columns)?;
    Ok(dict)
}
