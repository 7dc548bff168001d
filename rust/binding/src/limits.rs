//! Limits from a mapping of field names to numbers or buffers of `float64`.

use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use turnout_core::control::limits::Limits;
use turnout_core::error::Error;

use crate::errors::to_py;

/// Reads the fields. Rows are named, so that they can be applied to a fleet that changed meanwhile.
pub(crate) fn read(fields: &Bound<'_, PyDict>, replicas: Vec<String>, workloads: Vec<String>) -> PyResult<Limits> {
    let names = |names: Vec<String>| names.into_iter().map(Arc::from).collect();
    let mut limits = Limits { replicas: names(replicas), workloads: names(workloads), ..Limits::default() };
    for (name, value) in fields {
        let name: String = name.extract()?;
        let slot = match name.as_str() {
            "session_cap" => &mut limits.session_cap,
            "workload_cap" => &mut limits.workload_cap,
            "turn_cap" => &mut limits.turn_cap,
            "ceiling_tokens" => &mut limits.ceiling_tokens,
            "overflow_tokens" => &mut limits.overflow_tokens,
            "growth_tokens" => &mut limits.growth_tokens,
            "output_tokens" => &mut limits.output_tokens,
            "weight" => &mut limits.weight,
            "price" => &mut limits.price,
            "lease_s" => &mut limits.lease_s,
            "cost_prefill" => &mut limits.cost_prefill,
            "cost_backlog" => &mut limits.cost_backlog,
            "cost_decode" => &mut limits.cost_decode,
            "bypass" => {
                limits.bypass = Some(value.extract()?);
                continue;
            }
            "lookahead" => {
                limits.lookahead = Some(value.extract()?);
                continue;
            }
            _ => {
                return Err(to_py(Error::Policy {
                    field: "limits",
                    index: name.clone(),
                    value: name,
                    accepted: "the fields of turnout.policies.Limits",
                }));
            }
        };
        *slot = Some(PyBuffer::<f64>::get(&value)?.to_vec(value.py())?);
    }
    Ok(limits)
}
