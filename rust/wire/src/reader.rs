//! A cursor over one payload: reads single values, names the place of every failure and trusts no length.

use rmp::Marker;
use rmp::decode::bytes::{Bytes, BytesReadError};
use rmp::decode::{self, NumValueReadError, ValueReadError};

use crate::error::{Place, Result, WireError};

/// The cursor. It is `Copy`, so that looking ahead is working on a copy.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: Bytes<'a>,
    payload_bytes: usize,
    /// The event that is being read, for errors.
    pub(crate) event: Option<u32>,
    /// The field that is being read, for errors.
    pub(crate) field: &'static str,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(payload: &'a [u8], field: &'static str) -> Self {
        Self { rest: Bytes::new(payload), payload_bytes: payload.len(), event: None, field }
    }

    pub(crate) fn remaining(&self) -> usize {
        self.rest.remaining_slice().len()
    }

    /// The place of the next value.
    pub(crate) fn place(&self) -> Place {
        Place { event: self.event, field: self.field, byte: self.payload_bytes - self.remaining() }
    }

    pub(crate) fn truncated(&self) -> WireError {
        WireError::Truncated { place: self.place() }
    }

    pub(crate) fn missing(&self, field: &'static str) -> WireError {
        WireError::MissingField { place: Place { field, ..self.place() } }
    }

    /// Type of the next value, which stays unread.
    pub(crate) fn peek(&self) -> Result<Marker> {
        self.rest.remaining_slice().first().map(|&byte| Marker::from_u8(byte)).ok_or_else(|| self.truncated())
    }

    pub(crate) fn wrong_type(&self, marker: Marker, accepted: &'static str) -> WireError {
        WireError::WrongType { place: self.place(), found: type_name(marker), accepted }
    }

    /// Reads a null if the next value is one.
    pub(crate) fn null(&mut self) -> Result<bool> {
        let null = self.peek()? == Marker::Null;
        if null {
            self.take(1)?;
        }
        Ok(null)
    }

    /// `None` for null, else what `read` makes of the value.
    pub(crate) fn nullable<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<Option<T>> {
        if self.null()? { Ok(None) } else { read(self).map(Some) }
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        let before = *self;
        decode::read_int(&mut self.rest).map_err(|error| before.number_error(&error, "an integer from 0 to 2^32 - 1"))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        let before = *self;
        decode::read_int(&mut self.rest).map_err(|error| before.number_error(&error, "an integer from 0 to 2^64 - 1"))
    }

    pub(crate) fn i64(&mut self) -> Result<i64> {
        let before = *self;
        decode::read_int(&mut self.rest).map_err(|error| before.number_error(&error, "an integer from -2^63 to 2^63 - 1"))
    }

    /// A finite float. An integer is taken as well: an encoder may write 3.0 as 3.
    pub(crate) fn f64(&mut self) -> Result<f64> {
        let before = *self;
        let accepted = "a finite number";
        let value = match self.peek()? {
            Marker::F64 => decode::read_f64(&mut self.rest).map_err(|error| before.value_error(&error, accepted))?,
            Marker::F32 => decode::read_f32(&mut self.rest).map_err(|error| before.value_error(&error, accepted))?.into(),
            _ => decode::read_int::<i128, _>(&mut self.rest).map_err(|error| before.number_error(&error, accepted))? as f64,
        };
        if value.is_finite() { Ok(value) } else { Err(WireError::OutOfRange { place: before.place(), value: value.to_string(), accepted }) }
    }

    /// Length of an array whose values are still unread. Never more than the bytes that are left: the length may be trusted for
    /// an allocation of a few bytes per value.
    pub(crate) fn array(&mut self) -> Result<usize> {
        let before = *self;
        let count = decode::read_array_len(&mut self.rest).map_err(|error| before.value_error(&error, "an array"))?;
        before.check_claim(count, self.remaining())
    }

    /// Number of pairs of a map whose keys and values are still unread, with the promise of [`Self::array`].
    pub(crate) fn map(&mut self) -> Result<usize> {
        let before = *self;
        let count = decode::read_map_len(&mut self.rest).map_err(|error| before.value_error(&error, "a map"))?;
        before.check_claim(count, self.remaining() / 2)
    }

    pub(crate) fn str(&mut self) -> Result<&'a str> {
        let before = *self;
        let bytes = decode::read_str_len(&mut self.rest).map_err(|error| before.value_error(&error, "a string"))?;
        let text = self.take(bytes as usize).map_err(|_| before.truncated())?;
        std::str::from_utf8(text).map_err(|_| WireError::NotUtf8 { place: before.place() })
    }

    pub(crate) fn bin(&mut self) -> Result<&'a [u8]> {
        let before = *self;
        let bytes = decode::read_bin_len(&mut self.rest).map_err(|error| before.value_error(&error, "bytes"))?;
        self.take(bytes as usize).map_err(|_| before.truncated())
    }

    /// Skips one value with all that is in it and returns its bytes. Depth is counted, not recursed into: the cost is linear in
    /// the bytes skipped, and the stack stays flat.
    pub(crate) fn skip(&mut self) -> Result<&'a [u8]> {
        let before = *self;
        let accepted = "a msgpack value";
        let mut pending: u64 = 1;
        while pending > 0 {
            pending -= 1;
            let at = *self;
            let rest = &mut self.rest;
            let value_error = |error| at.value_error(&error, accepted);
            let body_bytes = match at.peek()? {
                Marker::Null | Marker::False | Marker::True | Marker::FixPos(_) | Marker::FixNeg(_) => 1,
                Marker::U8 | Marker::I8 => 2,
                Marker::U16 | Marker::I16 => 3,
                Marker::U32 | Marker::I32 | Marker::F32 => 5,
                Marker::U64 | Marker::I64 | Marker::F64 => 9,
                Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => decode::read_str_len(rest).map_err(value_error)? as usize,
                Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => decode::read_bin_len(rest).map_err(value_error)? as usize,
                Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => {
                    pending += u64::from(decode::read_array_len(rest).map_err(value_error)?);
                    0
                }
                Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => {
                    pending += 2 * u64::from(decode::read_map_len(rest).map_err(value_error)?);
                    0
                }
                marker @ Marker::Reserved => return Err(at.wrong_type(marker, accepted)),
                // The only family left: extensions.
                _ => decode::read_ext_meta(rest).map_err(value_error)?.size as usize,
            };
            self.take(body_bytes).map_err(|_| at.truncated())?;
            if pending > self.remaining() as u64 {
                return Err(at.truncated());
            }
        }
        Ok(&before.rest.remaining_slice()[..before.remaining() - self.remaining()])
    }

    /// Refuses what follows the message.
    pub(crate) fn end(&self) -> Result<()> {
        match self.remaining() {
            0 => Ok(()),
            count => Err(WireError::TrailingBytes { place: self.place(), count }),
        }
    }

    fn take(&mut self, bytes: usize) -> Result<&'a [u8]> {
        let (taken, rest) = self.rest.remaining_slice().split_at_checked(bytes).ok_or_else(|| self.truncated())?;
        self.rest = Bytes::new(rest);
        Ok(taken)
    }

    /// Every value takes a byte at least.
    fn check_claim(&self, count: u32, most: usize) -> Result<usize> {
        if count as usize > most { Err(self.truncated()) } else { Ok(count as usize) }
    }

    fn value_error(&self, error: &ValueReadError<BytesReadError>, accepted: &'static str) -> WireError {
        match error {
            ValueReadError::TypeMismatch(marker) => self.wrong_type(*marker, accepted),
            ValueReadError::InvalidMarkerRead(_) | ValueReadError::InvalidDataRead(_) => self.truncated(),
        }
    }

    fn number_error(mut self, error: &NumValueReadError<BytesReadError>, accepted: &'static str) -> WireError {
        match error {
            NumValueReadError::TypeMismatch(marker) => self.wrong_type(*marker, accepted),
            NumValueReadError::InvalidMarkerRead(_) | NumValueReadError::InvalidDataRead(_) => self.truncated(),
            NumValueReadError::OutOfRange => {
                let place = self.place();
                let value = decode::read_int::<i128, _>(&mut self.rest).map_or_else(|_| "a number".to_owned(), |value| value.to_string());
                WireError::OutOfRange { place, value, accepted }
            }
        }
    }
}

fn type_name(marker: Marker) -> &'static str {
    match marker {
        Marker::Null => "null",
        Marker::False | Marker::True => "a boolean",
        Marker::F32 | Marker::F64 => "a float",
        Marker::FixStr(_) | Marker::Str8 | Marker::Str16 | Marker::Str32 => "a string",
        Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => "bytes",
        Marker::FixArray(_) | Marker::Array16 | Marker::Array32 => "an array",
        Marker::FixMap(_) | Marker::Map16 | Marker::Map32 => "a map",
        Marker::Reserved => "the reserved byte 0xc1",
        // One byte of the format per extension: 0xc7 to 0xc9 and 0xd4 to 0xd8.
        extension if matches!(extension.to_u8(), 0xc7..=0xc9 | 0xd4..=0xd8) => "an extension",
        _ => "an integer",
    }
}
