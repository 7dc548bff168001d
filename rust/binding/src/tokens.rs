//! The only place that reads token memory of Python.
//!
//! Accepted: 1-D C-contiguous buffers of 4- or 8-byte integers in native byte order, lists and tuples of int, and CPU tensors
//! that `numpy.from_dlpack` can view. Aligned unsigned 32-bit buffers are read in place, everything else is brought into a
//! buffer of the thread that is used again: reading a prompt takes no memory.
#![allow(unsafe_code, reason = "reading a buffer in place, and a list without counting references, has no safe form in the stable ABI")]

use std::cell::RefCell;

use pyo3::buffer::PyUntypedBuffer;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyByteArray, PyBytes, PyFloat, PyList, PyMemoryView, PyString, PyTuple};

use turnout_core::prompt::BlockHasher;

use crate::arguments::foreign_order;
use crate::errors::invalid_tokens;

/// Tokens and fingerprints that a thread keeps room for between calls.
const KEPT_TOKENS: usize = 1 << 20;

thread_local! {
    static SCRATCH: RefCell<Vec<u32>> = const { RefCell::new(Vec::new()) };
    static FINGERPRINTS: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Hands tokens to `work`, which must not call into Python.
///
/// # Errors
/// `InvalidTokens` with index and value for everything that is not a token.
pub(crate) fn with<R>(object: &Bound<'_, PyAny>, argument: &'static str, work: impl FnOnce(&[u32]) -> R) -> PyResult<R> {
    // Taken out rather than borrowed: reading an object may run Python code that comes back here.
    let mut scratch = SCRATCH.with(RefCell::take);
    scratch.clear();
    let answer = bring(object, argument, &mut scratch).map(|source| match source {
        Source::Scratch => work(&scratch),
        Source::Buffer(buffer) => work(words(&buffer)),
    });
    if scratch.capacity() <= KEPT_TOKENS {
        SCRATCH.with(|kept| kept.replace(scratch));
    }
    answer
}

/// Hands the fingerprints of the full blocks of some tokens to `work`, which must not call into Python.
///
/// # Errors
/// As [`with`].
pub(crate) fn fingerprints<R>(
    object: &Bound<'_, PyAny>,
    argument: &'static str,
    hasher: &BlockHasher,
    work: impl FnOnce(&[u64]) -> R,
) -> PyResult<R> {
    let mut fingerprints = FINGERPRINTS.with(RefCell::take);
    fingerprints.clear();
    let answer = with(object, argument, |tokens| {
        hasher.hash_into(tokens, &mut fingerprints);
        work(&fingerprints)
    });
    if fingerprints.capacity() <= KEPT_TOKENS {
        FINGERPRINTS.with(|kept| kept.replace(fingerprints));
    }
    answer
}

/// Copies tokens, for events that keep them or work on them under the router's lock.
///
/// # Errors
/// As [`with`].
pub(crate) fn read(object: &Bound<'_, PyAny>, argument: &'static str) -> PyResult<Vec<u32>> {
    with(object, argument, <[u32]>::to_vec)
}

/// Where the tokens lie after [`bring`].
enum Source {
    Scratch,
    /// In place: aligned native words.
    Buffer(PyUntypedBuffer),
}

fn words(buffer: &PyUntypedBuffer) -> &[u32] {
    // SAFETY: `from_buffer` hands out only non-empty, aligned, C-contiguous buffers of 4-byte unsigned items. The export keeps the memory
    // alive and in place as long as `buffer` lives. This extension is built for interpreters with a global lock, which is held here, and
    // `work` does not call Python, so no Python code writes to it meanwhile.
    unsafe { std::slice::from_raw_parts(buffer.buf_ptr().cast::<u32>(), buffer.item_count()) }
}

fn bring(object: &Bound<'_, PyAny>, argument: &'static str, scratch: &mut Vec<u32>) -> PyResult<Source> {
    if let Ok(list) = object.cast::<PyList>() {
        return from_list(list, argument, scratch);
    }
    if let Ok(tuple) = object.cast::<PyTuple>() {
        for (index, item) in tuple.iter().enumerate() {
            scratch.push(from_item(&item, index, argument)?);
        }
        return Ok(Source::Scratch);
    }
    // Exporters may leave out the strides of contiguous memory, as ctypes does; a memoryview fills them in.
    match PyUntypedBuffer::get(object).or_else(|_| PyUntypedBuffer::get(PyMemoryView::from(object)?.as_any())) {
        Ok(buffer) => from_buffer(object, buffer, argument, scratch),
        Err(_) if object.is_instance_of::<PyString>() => Err(packed(object, argument)),
        Err(_) if object.getattr("ndim").is_ok_and(|ndim| ndim.eq(0).unwrap_or(false)) => Err(dimensions(argument, 0)),
        Err(_) if object.hasattr("__dlpack__")? => from_dlpack(object, argument, scratch),
        Err(_) => Err(invalid_tokens(
            argument,
            format!("got {}; pass a list of int, or a 1-D buffer of 4- or 8-byte integers such as a NumPy array", type_name(object)),
        )),
    }
}

/// Reads a list. What is exactly an int is read without a reference of its own; anything else goes the long way, which may run
/// Python code: the length is asked for again each time.
fn from_list(list: &Bound<'_, PyList>, argument: &'static str, scratch: &mut Vec<u32>) -> PyResult<Source> {
    scratch.reserve(list.len());
    let mut index = 0;
    while index < list.len() {
        // SAFETY: the index is in range, so this is a borrowed reference that the list keeps alive until Python code runs, and reading an
        // exact int runs none.
        let plain = unsafe {
            let item = ffi::PyList_GetItem(list.as_ptr(), index as ffi::Py_ssize_t);
            if ffi::PyLong_CheckExact(item) == 0 { -1 } else { ffi::PyLong_AsLongLong(item) }
        };
        if let Ok(token) = u32::try_from(plain) {
            scratch.push(token);
        } else {
            // A number that is too large has left an error behind.
            drop(PyErr::take(list.py()));
            scratch.push(from_item(&list.get_item(index)?, index, argument)?);
        }
        index += 1;
    }
    Ok(Source::Scratch)
}

/// Reads one item of a sequence: an int, or what says that it is one.
fn from_item(item: &Bound<'_, PyAny>, index: usize, argument: &'static str) -> PyResult<u32> {
    if item.is_instance_of::<PyBool>() || item.is_instance_of::<PyFloat>() {
        return Err(invalid_tokens(argument, format!("index {index}: got {} {}, a token is an int", type_name(item), text(item))));
    }
    match item.extract::<i64>() {
        Ok(value) => u32::try_from(value).map_err(|_| out_of_range(argument, index, &value.to_string())),
        Err(_) if item.hasattr("__index__")? => Err(out_of_range(argument, index, &text(item))),
        Err(_) => Err(invalid_tokens(argument, format!("index {index}: got {} {}, a token is an int", type_name(item), text(item)))),
    }
}

fn from_buffer(object: &Bound<'_, PyAny>, buffer: PyUntypedBuffer, argument: &'static str, scratch: &mut Vec<u32>) -> PyResult<Source> {
    if buffer.item_size() == 1 && (object.is_instance_of::<PyBytes>() || object.is_instance_of::<PyByteArray>()) {
        return Err(packed(object, argument));
    }
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
    let signed = match letter {
        b'i' | b'l' | b'q' | b'n' => true,
        b'I' | b'L' | b'Q' | b'N' => false,
        _ => return Err(refused_format(&buffer, argument)),
    };
    let (items, at) = (buffer.item_count(), buffer.buf_ptr());
    if items == 0 {
        return Ok(Source::Scratch);
    }
    let wide = match buffer.item_size() {
        4 => false,
        8 => true,
        _ => return Err(refused_format(&buffer, argument)),
    };
    if at.align_offset(if wide { 8 } else { 4 }) != 0 {
        let bytes: Vec<u8> = PyMemoryView::from(object)?.call_method0("tobytes")?.extract()?;
        return match (wide, signed) {
            (true, true) => narrow(bytes.as_chunks().0.iter().map(|&item| i64::from_ne_bytes(item)), argument, scratch),
            (true, false) => narrow(bytes.as_chunks().0.iter().map(|&item| u64::from_ne_bytes(item)), argument, scratch),
            (false, true) => narrow(bytes.as_chunks().0.iter().map(|&item| i64::from(i32::from_ne_bytes(item))), argument, scratch),
            (false, false) => narrow(bytes.as_chunks().0.iter().map(|&item| u64::from(u32::from_ne_bytes(item))), argument, scratch),
        };
    }
    match (wide, signed) {
        (false, false) => Ok(Source::Buffer(buffer)),
        (false, true) => {
            // SAFETY: as in `words`: aligned, contiguous 4-byte items.
            let values = unsafe { std::slice::from_raw_parts(at.cast::<u32>(), items) };
            // Seen as unsigned, a negative number has the top bit. Without an early exit the loop is vectorised.
            if values.iter().fold(0, |bits, value| bits | value) >> 31 == 0 {
                return Ok(Source::Buffer(buffer));
            }
            narrow(values.iter().map(|&value| i64::from(value.cast_signed())), argument, scratch)
        }
        (true, _) => {
            // SAFETY: as in `words`, with 8-byte items.
            let values = unsafe { std::slice::from_raw_parts(at.cast::<u64>(), items) };
            // Two passes, because each of them is vectorised and both together are not.
            if values.iter().fold(0, |bits, value| bits | value) >> 32 == 0 {
                scratch.extend(values.iter().map(|&value| value as u32));
                return Ok(Source::Scratch);
            }
            if signed {
                narrow(values.iter().map(|&value| value.cast_signed()), argument, scratch)
            } else {
                narrow(values.iter().copied(), argument, scratch)
            }
        }
    }
}

/// Reads items one by one and names the first that is no token.
fn narrow<T: Copy + ToString + TryInto<u32>>(items: impl Iterator<Item = T>, argument: &'static str, scratch: &mut Vec<u32>) -> PyResult<Source> {
    for (index, value) in items.enumerate() {
        scratch.push(value.try_into().map_err(|_| out_of_range(argument, index, &value.to_string()))?);
    }
    Ok(Source::Scratch)
}

fn packed(object: &Bound<'_, PyAny>, argument: &'static str) -> PyErr {
    let kind = type_name(object);
    invalid_tokens(argument, format!("got {kind}; tokens are integers: pass a list of int or an integer array (np.frombuffer reads packed bytes)"))
}

fn refused_format(buffer: &PyUntypedBuffer, argument: &'static str) -> PyErr {
    invalid_tokens(
        argument,
        format!(
            "got items of format {:?}, 4- or 8-byte integers in native byte order are accepted (int32, uint32, int64, uint64)",
            buffer.format().to_string_lossy()
        ),
    )
}

fn from_dlpack(object: &Bound<'_, PyAny>, argument: &'static str, scratch: &mut Vec<u32>) -> PyResult<Source> {
    let numpy = object.py().import("numpy")?;
    match numpy.call_method1("from_dlpack", (object,)).and_then(|array| Ok((PyUntypedBuffer::get(&array)?, array))) {
        Ok((buffer, array)) => from_buffer(&array, buffer, argument, scratch),
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
