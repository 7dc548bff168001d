//! What engines publish, as plain values: for those who watch engines. Routers and indexes take the messages as they came.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use turnout_wire::{DeviceEvents, Event};

use crate::errors::{load_error, payload_error};

/// Reads a load report of `SGLang`.
#[pyfunction]
pub(crate) fn load_report<'py>(py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let load = turnout_wire::decode_load(payload).map_err(load_error)?;
    let report = PyDict::new(py);
    report.set_item("running", load.running_requests)?;
    report.set_item("waiting", load.waiting_requests)?;
    report.set_item("used_tokens", load.kv_tokens)?;
    report.set_item("kv_tokens", load.kv_capacity_tokens)?;
    report.set_item("rank", load.rank)?;
    Ok(report)
}

/// Says what is in a batch of cache events, without its tokens and hashes.
#[pyfunction]
pub(crate) fn describe_kv_events<'py>(py: Python<'py>, payload: &[u8]) -> PyResult<Bound<'py, PyDict>> {
    let batch = turnout_wire::decode_batch(payload).map_err(payload_error)?;
    let (mut stored, mut removed, mut cleared, mut block_tokens) = (0, 0, 0, None);
    for event in &batch.events {
        match event {
            Event::Stored(blocks) => {
                stored += blocks.hashes.len();
                block_tokens = Some(blocks.block_tokens);
            }
            Event::Removed(blocks) => removed += blocks.hashes.len(),
            Event::Cleared => cleared += 1,
        }
    }
    let about = PyDict::new(py);
    about.set_item("timestamp_s", batch.timestamp_s)?;
    about.set_item("rank", batch.rank)?;
    about.set_item("stored_blocks", stored)?;
    about.set_item("removed_blocks", removed)?;
    about.set_item("cleared", cleared)?;
    about.set_item("unknown_events", batch.ignored)?;
    about.set_item("block_tokens", block_tokens)?;
    about.set_item("left_out_events", DeviceEvents::from(batch).left_out)?;
    Ok(about)
}
