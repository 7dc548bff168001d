//! A cursor over a msgpack payload. Nothing is allocated on the word of a length field, and nothing recurses.

use rmp::Marker;
use rmp::decode::RmpRead;

use crate::error::{Error, Result};

/// The head of a value: scalars whole, containers as their length.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Head<'a> {
    Nil,
    Bool(bool),
    /// Any integer, 64-bit pattern and whether it is negative.
    Integer(u64, bool),
    Float(f64),
    Text(&'a str),
    Binary(&'a [u8]),
    Array(u32),
    Map(u32),
    /// An extension, whose bytes are of no use here.
    Extension,
}

/// What is left of a payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reader<'a> {
    rest: &'a [u8],
    len: usize,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self { rest: payload, len: payload.len() }
    }

    /// Bytes read so far: the place that errors name.
    pub(crate) fn at(&self) -> usize {
        self.len - self.rest.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    fn truncated(&self) -> Error {
        Error::Truncated { at: self.at() }
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        if len > self.rest.len() {
            return Err(self.truncated());
        }
        let (taken, rest) = self.rest.split_at(len);
        self.rest = rest;
        Ok(taken)
    }

    /// Reads the head of the next value.
    pub(crate) fn head(&mut self) -> Result<Head<'a>> {
        let end = self.truncated();
        let rest = &mut self.rest;
        let marker = rmp::decode::read_marker(rest).map_err(|_| end.clone())?;
        macro_rules! read {
            ($method:ident) => {
                rest.$method().map_err(|_| end.clone())?
            };
        }
        let signed = |value: i64| Head::Integer(value.cast_unsigned(), value < 0);
        let head = match marker {
            Marker::Null => Head::Nil,
            Marker::True => Head::Bool(true),
            Marker::False => Head::Bool(false),
            Marker::FixPos(value) => Head::Integer(u64::from(value), false),
            Marker::FixNeg(value) => signed(i64::from(value)),
            Marker::U8 => Head::Integer(u64::from(read!(read_data_u8)), false),
            Marker::U16 => Head::Integer(u64::from(read!(read_data_u16)), false),
            Marker::U32 => Head::Integer(u64::from(read!(read_data_u32)), false),
            Marker::U64 => Head::Integer(read!(read_data_u64), false),
            Marker::I8 => signed(i64::from(read!(read_data_i8))),
            Marker::I16 => signed(i64::from(read!(read_data_i16))),
            Marker::I32 => signed(i64::from(read!(read_data_i32))),
            Marker::I64 => signed(read!(read_data_i64)),
            Marker::F32 => Head::Float(f64::from(read!(read_data_f32))),
            Marker::F64 => Head::Float(read!(read_data_f64)),
            Marker::FixArray(len) => Head::Array(u32::from(len)),
            Marker::Array16 => Head::Array(u32::from(read!(read_data_u16))),
            Marker::Array32 => Head::Array(read!(read_data_u32)),
            Marker::FixMap(len) => Head::Map(u32::from(len)),
            Marker::Map16 => Head::Map(u32::from(read!(read_data_u16))),
            Marker::Map32 => Head::Map(read!(read_data_u32)),
            Marker::FixStr(len) => return self.text(usize::from(len)),
            Marker::Str8 => {
                return {
                    let len = usize::from(read!(read_data_u8));
                    self.text(len)
                };
            }
            Marker::Str16 => {
                return {
                    let len = usize::from(read!(read_data_u16));
                    self.text(len)
                };
            }
            Marker::Str32 => {
                return {
                    let len = read!(read_data_u32) as usize;
                    self.text(len)
                };
            }
            Marker::Bin8 => {
                return {
                    let len = usize::from(read!(read_data_u8));
                    self.take(len).map(Head::Binary)
                };
            }
            Marker::Bin16 => {
                return {
                    let len = usize::from(read!(read_data_u16));
                    self.take(len).map(Head::Binary)
                };
            }
            Marker::Bin32 => {
                return {
                    let len = read!(read_data_u32) as usize;
                    self.take(len).map(Head::Binary)
                };
            }
            Marker::FixExt1 => return self.extension(1),
            Marker::FixExt2 => return self.extension(2),
            Marker::FixExt4 => return self.extension(4),
            Marker::FixExt8 => return self.extension(8),
            Marker::FixExt16 => return self.extension(16),
            Marker::Ext8 => {
                return {
                    let len = usize::from(read!(read_data_u8));
                    self.extension(len)
                };
            }
            Marker::Ext16 => {
                return {
                    let len = usize::from(read!(read_data_u16));
                    self.extension(len)
                };
            }
            Marker::Ext32 => {
                return {
                    let len = read!(read_data_u32) as usize;
                    self.extension(len)
                };
            }
            Marker::Reserved => return Err(Error::Malformed { at: self.at(), expected: "a msgpack value" }),
        };
        Ok(head)
    }

    fn text(&mut self, len: usize) -> Result<Head<'a>> {
        let at = self.at();
        let bytes = self.take(len)?;
        std::str::from_utf8(bytes).map(Head::Text).map_err(|_| Error::Malformed { at, expected: "text in UTF-8" })
    }

    fn extension(&mut self, len: usize) -> Result<Head<'a>> {
        self.take(len.saturating_add(1))?;
        Ok(Head::Extension)
    }

    /// Passes over the next value, however deep it is, and answers its bytes.
    pub(crate) fn skip(&mut self) -> Result<&'a [u8]> {
        let before = self.rest;
        let mut values = 1u64;
        while values > 0 {
            values -= 1;
            match self.head()? {
                Head::Array(len) => values += u64::from(len),
                Head::Map(len) => values += 2 * u64::from(len),
                _ => {}
            }
        }
        Ok(&before[..before.len() - self.rest.len()])
    }

    pub(crate) fn array(&mut self, expected: &'static str) -> Result<u32> {
        let at = self.at();
        match self.head()? {
            Head::Array(len) => Ok(len),
            _ => Err(Error::Malformed { at, expected }),
        }
    }

    /// A whole number that fits the type.
    pub(crate) fn number<T: TryFrom<u64>>(&mut self, expected: &'static str) -> Result<T> {
        let at = self.at();
        match self.head()? {
            Head::Integer(value, false) => T::try_from(value).map_err(|_| Error::Malformed { at, expected }),
            _ => Err(Error::Malformed { at, expected }),
        }
    }
}
