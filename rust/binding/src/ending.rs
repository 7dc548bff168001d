//! How a turn ended, from Python arguments.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use turnout_core::router::types::Cause;

use crate::errors::invalid;
use crate::tokens;

/// The outputs of a turn: tokens, or a list of such for several samples.
pub(crate) fn outputs(output: Option<&Bound<'_, PyAny>>) -> PyResult<Option<Vec<Vec<u32>>>> {
    let Some(object) = output else { return Ok(None) };
    let items: Vec<Bound<'_, PyAny>> = match (object.cast::<PyList>(), object.cast::<PyTuple>()) {
        (Ok(list), _) if !list.is_empty() && has_length(&list.get_item(0)?)? => list.iter().collect(),
        (_, Ok(tuple)) if !tuple.is_empty() && has_length(&tuple.get_item(0)?)? => tuple.iter().collect(),
        _ => return Ok(Some(vec![tokens::read(object, "output")?])),
    };
    items.iter().map(|item| tokens::read(item, "output")).collect::<PyResult<_>>().map(Some)
}

/// What has a length is no token but a sequence of them.
fn has_length(item: &Bound<'_, PyAny>) -> PyResult<bool> {
    item.hasattr("__len__")
}

/// Lists as the core takes them.
pub(crate) fn views(outputs: Option<&Vec<Vec<u32>>>) -> Option<Vec<&[u32]>> {
    outputs.map(|lists| lists.iter().map(Vec::as_slice).collect())
}

/// Why a turn is aborted.
pub(crate) fn cause(name: &str) -> PyResult<Cause> {
    let found = Cause::NAMES.iter().find(|known| known.0 == name).map(|known| known.1);
    found.ok_or_else(|| invalid("reason", format!("{name:?}"), "\"cancelled\", \"timeout\", \"error\" or \"stale\""))
}
