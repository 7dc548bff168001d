//! Limits from a mapping of field names to numbers or buffers of `float64`.

use std::sync::Arc;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyMapping;
use turnout_core::control::limits::Limits;
use turnout_core::error::Error;

use crate::arguments::{foreign_order, shown};
use crate::errors::to_py;

/// Assigns the field that a name stands for, or says that there is none.
macro_rules! assign {
    ($limits:ident, $name:ident, $value:ident; columns: $($column:ident),*; numbers: $($number:ident),*) => {
        match $name.as_str() {
            "placement" => $limits.placement = Some(text("placement", &$value)?.into()),
            "placement_args" => $limits.placement_args = table("placement_args", &$value)?,
            "order" => $limits.order = Some(names("order", &$value)?),
            "shed" => $limits.shed = Some(flag("shed", &$value)?),
            $(stringify!($column) => $limits.$column = Some(column(stringify!($column), &$value)?),)*
            $(stringify!($number) => $limits.$number = Some(number(stringify!($number), &$value)?),)*
            _ => {
                let accepted = "the fields of turnout.policies.Limits";
                return Err(to_py(Error::Policy { field: "limits", index: $name.clone(), value: $name, accepted }));
            }
        }
    };
}

/// Reads the fields. Rows are named, so that they can be applied to a fleet that changed meanwhile.
///
/// # Errors
/// `PolicyError` with the field's name for what is no number or no buffer of `float64`, and for unknown fields.
pub(crate) fn read(fields: &Bound<'_, PyAny>, replicas: Vec<String>, workloads: Vec<String>) -> PyResult<Limits> {
    let names = |names: Vec<String>| names.into_iter().map(Arc::from).collect();
    let mut limits = Limits { replicas: names(replicas), workloads: names(workloads), ..Limits::default() };
    let Ok(fields) = fields.cast::<PyMapping>() else {
        return Err(refused("limits", fields, "a mapping of field names"));
    };
    for item in fields.items()? {
        let (name, value): (Bound<'_, PyAny>, Bound<'_, PyAny>) = item.extract()?;
        let name = name.to_string();
        assign! {
            limits, name, value;
            columns: session_cap, workload_cap, turn_cap, ceiling_tokens, overflow_tokens, growth_tokens, output_tokens, weight, price, share,
                guarantee_tokens, limit_tokens, lease_s,
                cost_prefill, cost_backlog, cost_decode, cost_spread;
            numbers: bypass, lookahead
        }
    }
    Ok(limits)
}

fn column(field: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Vec<f64>> {
    match PyBuffer::<f64>::get(value) {
        // The typed view takes big-endian items for native ones.
        Ok(buffer) if !foreign_order(buffer.format()) => buffer.to_vec(value.py()),
        _ => Err(refused(field, value, "a buffer of float64 in native byte order")),
    }
}

fn number(field: &'static str, value: &Bound<'_, PyAny>) -> PyResult<f64> {
    value.extract().map_err(|_| refused(field, value, "one number"))
}

fn text(field: &'static str, value: &Bound<'_, PyAny>) -> PyResult<String> {
    value.extract().map_err(|_| refused(field, value, "a name"))
}

fn names(field: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Vec<Arc<str>>> {
    let names: Vec<String> = value.extract().map_err(|_| refused(field, value, "one name per workload"))?;
    Ok(names.into_iter().map(Into::into).collect())
}

fn flag(field: &'static str, value: &Bound<'_, PyAny>) -> PyResult<bool> {
    value.extract().map_err(|_| refused(field, value, "True or False"))
}

fn table(field: &'static str, value: &Bound<'_, PyAny>) -> PyResult<Vec<(Arc<str>, f64)>> {
    let entries = || value.cast::<PyMapping>().ok()?.items().ok()?.extract::<Vec<(String, f64)>>().ok();
    let entries = entries().ok_or_else(|| refused(field, value, "a mapping from names to numbers"))?;
    Ok(entries.into_iter().map(|(name, number)| (name.into(), number)).collect())
}

fn refused(field: &'static str, value: &Bound<'_, PyAny>, accepted: &'static str) -> PyErr {
    to_py(Error::Policy { field, index: String::new(), value: shown(value), accepted })
}
