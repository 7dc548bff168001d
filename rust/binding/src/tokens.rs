//! The only place that reads token memory of Python.
//!
//! Accepted: 1-D C-contiguous buffers of 4- or 8-byte integers in native byte order, lists and tuples of int, and CPU tensors
//! that `numpy.from_dlpack` can view. What is read is copied first: on a free-threaded build another thread may write it.

use pyo3::buffer::{ElementType, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyList, PyString, PyTuple};

use crate::errors::invalid_tokens;

/// Reads tokens.
///
/// # Errors
/// `InvalidTokens` with index and value for everything that is not a token.
pub(crate) fn read(object: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Vec<u32>> {
    if let Ok(list) = object.cast::<PyList>() {
        return from_items(list.iter(), list.len(), argument);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        return from_items(tuple.iter(), tuple.len(), argument);
    }
    if object.is_instance_of::<PyBytes>() || object.is_instance_of::<PyByteArray>() || object.is_instance_of::<PyString>() {
        let kind = type_name(object);
        return Err(invalid_tokens(
            argument,
            format!("got {kind}; tokens are integers: pass a list of int or an integer array (np.frombuffer reads packed bytes)"),
        ));
    }
    match PyUntypedBuffer::get(object) {
        Ok(buffer) => from_buffer(object.py(), &buffer, argument),
        Err(_) if object.getattr("ndim").is_ok_and(|ndim| ndim.eq(0).unwrap_or(false)) => Err(dimensions(argument, 0)),
        Err(_) if object.hasattr("__dlpack__")? => from_dlpack(object, argument),
        Err(_) => Err(invalid_tokens(
            argument,
            format!("got {}; pass a list of int, or a 1-D buffer of 4- or 8-byte integers such as a NumPy array", type_name(object)),
        )),
    }
}

fn from_items<'py>(items: impl Iterator<Item = Bound<'py, PyAny>>, len: usize, argument: &'static str) -> PyResult<Vec<u32>> {
    let mut tokens = Vec::with_capacity(len);
    for (index, item) in items.enumerate() {
        // The plain case first; bool is a subclass of int and not meant by "exact".
        if let Some(token) = item.cast_exact::<PyInt>().ok().and_then(|int| int.extract::<i64>().ok()).and_then(|value| u32::try_from(value).ok()) {
            tokens.push(token);
            continue;
        }
        if item.is_instance_of::<PyBool>() || item.is_instance_of::<PyFloat>() {
            return Err(invalid_tokens(argument, format!("index {index}: got {} {}, a token is an int", type_name(&item), text(&item))));
        }
        match item.extract::<i64>() {
            Ok(value) => tokens.push(u32::try_from(value).map_err(|_| out_of_range(argument, index, &value.to_string()))?),
            Err(_) if item.hasattr("__index__")? => return Err(out_of_range(argument, index, &text(&item))),
            Err(_) => return Err(invalid_tokens(argument, format!("index {index}: got {} {}, a token is an int", type_name(&item), text(&item)))),
        }
    }
    Ok(tokens)
}

fn from_buffer(py: Python<'_>, buffer: &PyUntypedBuffer, argument: &'static str) -> PyResult<Vec<u32>> {
    let format = buffer.format().to_string_lossy().into_owned();
    if buffer.dimensions() != 1 {
        return Err(dimensions(argument, buffer.dimensions()));
    }
    if !buffer.is_c_contiguous() {
        return Err(invalid_tokens(argument, "the buffer has gaps between its items; pass a contiguous one (np.ascontiguousarray)"));
    }
    // NumPy marks foreign byte order in front of the type.
    let foreign = if cfg!(target_endian = "little") { ['>', '!'] } else { ['<', '<'] };
    let kind = if format.starts_with(foreign) { ElementType::Unknown } else { ElementType::from_format(buffer.format()) };
    match kind {
        ElementType::SignedInteger { bytes: 4 } => typed::<i32>(py, buffer, argument, |value| u32::try_from(value).ok()),
        ElementType::UnsignedInteger { bytes: 4 } => buffer.as_typed::<u32>()?.to_vec(py),
        ElementType::SignedInteger { bytes: 8 } => typed::<i64>(py, buffer, argument, |value| u32::try_from(value).ok()),
        ElementType::UnsignedInteger { bytes: 8 } => typed::<u64>(py, buffer, argument, |value| u32::try_from(value).ok()),
        _ => Err(invalid_tokens(
            argument,
            format!("got items of format {format:?}, 4- or 8-byte integers in native byte order are accepted (int32, uint32, int64, uint64)"),
        )),
    }
}

fn typed<T: pyo3::buffer::Element + Copy + ToString>(
    py: Python<'_>,
    buffer: &PyUntypedBuffer,
    argument: &'static str,
    token: impl Fn(T) -> Option<u32>,
) -> PyResult<Vec<u32>> {
    let copy = buffer.as_typed::<T>()?.to_vec(py)?;
    // Without an early exit the loop is vectorised; the rare bad token is looked for afterwards.
    let mut good = true;
    let tokens = copy
        .iter()
        .map(|&value| {
            let token = token(value);
            good &= token.is_some();
            token.unwrap_or(0)
        })
        .collect();
    match copy.iter().enumerate().find(|(_, value)| !good && token(**value).is_none()) {
        Some((index, value)) => Err(out_of_range(argument, index, &value.to_string())),
        None => Ok(tokens),
    }
}

fn from_dlpack(object: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Vec<u32>> {
    let numpy = object.py().import("numpy")?;
    match numpy.call_method1("from_dlpack", (object,)).and_then(|array| PyUntypedBuffer::get(&array)) {
        Ok(buffer) => from_buffer(object.py(), &buffer, argument),
        Err(error) => Err(invalid_tokens(
            argument,
            format!("got {} that NumPy cannot view ({error}); a tensor on a GPU has to come over with .cpu() first", type_name(object)),
        )),
    }
}

fn dimensions(argument: &'static str, dimensions: usize) -> PyErr {
    invalid_tokens(argument, format!("got {dimensions} dimensions, one is accepted: pass one prompt at a time"))
}

fn out_of_range(argument: &'static str, index: usize, value: &str) -> PyErr {
    let hint = if value.starts_with('-') { " (negative ids are padding or masks: cut them off)" } else { "" };
    invalid_tokens(argument, format!("index {index}: got {value}, a token is an integer from 0 to 4294967295{hint}"))
}

fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().name().map_or_else(|_| "an object".into(), |name| name.to_string())
}

fn text(object: &Bound<'_, PyAny>) -> String {
    let text = object.repr().map_or_else(|_| "?".into(), |text| text.to_string());
    text.chars().take(40).collect()
}
