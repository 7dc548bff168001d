//! The only place that reads token memory of Python.
//!
//! Accepted: 1-D C-contiguous buffers of 4- or 8-byte integers in native byte order, lists and tuples of int, and CPU tensors
//! that `numpy.from_dlpack` can view. What is read is copied first: on a free-threaded build another thread may write it.

use std::ops::BitOr;

use pyo3::buffer::{Element, PyUntypedBuffer};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyInt, PyList, PyMemoryView, PyString, PyTuple};

use crate::arguments::foreign_order;
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
    // Exporters may leave out the strides of contiguous memory, as ctypes does; a memoryview fills them in.
    match PyUntypedBuffer::get(object).or_else(|_| PyUntypedBuffer::get(PyMemoryView::from(object)?.as_any())) {
        Ok(buffer) => from_buffer(object, &buffer, argument),
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

fn from_buffer(object: &Bound<'_, PyAny>, buffer: &PyUntypedBuffer, argument: &'static str) -> PyResult<Vec<u32>> {
    if buffer.dimensions() != 1 {
        return Err(dimensions(argument, buffer.dimensions()));
    }
    if !buffer.is_c_contiguous() {
        return Err(invalid_tokens(argument, "the buffer has gaps between its items; pass a contiguous one (np.ascontiguousarray)"));
    }
    // The letter says signed or not; the size comes from the buffer, because `l` has two and ctypes marks it as the wrong one.
    let letter = match buffer.format().to_bytes() {
        [letter] | [b'@' | b'=', letter] => *letter,
        [_, letter] if !foreign_order(buffer.format()) => *letter,
        _ => b'?',
    };
    match (letter, buffer.item_size()) {
        (b'i' | b'l' | b'q' | b'n', 4) => typed(object, buffer, argument, i32::from_ne_bytes, |value| value >= 0, |value| value as u32),
        (b'I' | b'L' | b'Q' | b'N', 4) => items(object, buffer, u32::from_ne_bytes),
        (b'i' | b'l' | b'q' | b'n', 8) => typed(object, buffer, argument, i64::from_ne_bytes, |value| value >> 32 == 0, |value| value as u32),
        (b'I' | b'L' | b'Q' | b'N', 8) => typed(object, buffer, argument, u64::from_ne_bytes, |value| value >> 32 == 0, |value| value as u32),
        _ => Err(invalid_tokens(
            argument,
            format!(
                "got items of format {:?}, 4- or 8-byte integers in native byte order are accepted (int32, uint32, int64, uint64)",
                buffer.format().to_string_lossy()
            ),
        )),
    }
}

/// Copies the items. What a typed view refuses (memory that is not aligned, a mark for the native byte order) is copied as bytes first.
fn items<T: Element, const SIZE: usize>(object: &Bound<'_, PyAny>, buffer: &PyUntypedBuffer, decode: fn([u8; SIZE]) -> T) -> PyResult<Vec<T>> {
    if let Ok(view) = buffer.as_typed::<T>() {
        return view.to_vec(object.py());
    }
    let bytes: Vec<u8> = PyMemoryView::from(object)?.call_method0("tobytes")?.extract()?;
    Ok(bytes.as_chunks::<SIZE>().0.iter().map(|&item| decode(item)).collect())
}

fn typed<T: Element + ToString + Default + BitOr<Output = T>, const SIZE: usize>(
    object: &Bound<'_, PyAny>,
    buffer: &PyUntypedBuffer,
    argument: &'static str,
    decode: fn([u8; SIZE]) -> T,
    fits: impl Fn(T) -> bool,
    narrow: impl Fn(T) -> u32,
) -> PyResult<Vec<u32>> {
    let copy = items(object, buffer, decode)?;
    // The bits of all items together fit when every item does; without an early exit the loop is vectorised.
    let mut bits = T::default();
    let tokens = copy
        .iter()
        .map(|&value| {
            bits = bits | value;
            narrow(value)
        })
        .collect();
    if fits(bits) {
        return Ok(tokens);
    }
    let bad = copy.iter().enumerate().find(|(_, value)| !fits(**value));
    bad.map_or(Ok(tokens), |(index, value)| Err(out_of_range(argument, index, &value.to_string())))
}

fn from_dlpack(object: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Vec<u32>> {
    let numpy = object.py().import("numpy")?;
    match numpy.call_method1("from_dlpack", (object,)).and_then(|array| Ok((PyUntypedBuffer::get(&array)?, array))) {
        Ok((buffer, array)) => from_buffer(&array, &buffer, argument),
        Err(_) if on_device(object) => Err(invalid_tokens(argument, format!("got {} in device memory; call .cpu() first", type_name(object)))),
        Err(error) => Err(invalid_tokens(argument, format!("got {} that NumPy cannot view ({error})", type_name(object)))),
    }
}

/// Whether a tensor is outside host memory: `DLPack` counts 1 = CPU, 3 and 11 = pinned by CUDA and `ROCm`.
fn on_device(object: &Bound<'_, PyAny>) -> bool {
    let device = object.call_method0("__dlpack_device__").and_then(|pair| pair.get_item(0)?.extract::<i32>());
    device.is_ok_and(|device| !matches!(device, 1 | 3 | 11))
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
