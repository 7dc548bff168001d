//! The one error type of the decoder. Every variant names the place: event, field and byte offset.

use std::fmt;

/// Where in a payload the decoder stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// Index of the event in its batch; `None` outside the list of events.
    pub event: Option<u32>,
    /// Field by its name on the wire.
    pub field: &'static str,
    /// Offset in the payload of the value that was refused.
    pub byte: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { event, field, byte } = self;
        match event {
            Some(event) => write!(f, "events[{event}].{field} (byte {byte})"),
            None => write!(f, "{field} (byte {byte})"),
        }
    }
}

/// Why a payload was refused. No part of a refused payload is returned.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum WireError {
    /// The payload ends before the value does, or a length claims more values than bytes are left.
    Truncated {
        /// The value that is cut.
        place: Place,
    },
    /// A value has another type than the field takes.
    WrongType {
        /// The value.
        place: Place,
        /// Its type.
        found: &'static str,
        /// What is accepted instead.
        accepted: &'static str,
    },
    /// A number or length is outside the range of its field.
    OutOfRange {
        /// The value.
        place: Place,
        /// The refused number, as text.
        value: String,
        /// What is accepted instead.
        accepted: &'static str,
    },
    /// A string is not UTF-8.
    NotUtf8 {
        /// The string.
        place: Place,
    },
    /// A field that every engine sends is absent.
    MissingField {
        /// The field, at the end of the value that lacks it.
        place: Place,
    },
    /// The message is of another kind than asked for.
    UnknownTag {
        /// The tag.
        place: Place,
        /// The refused tag (shortened).
        tag: String,
        /// What is accepted instead.
        accepted: &'static str,
    },
    /// The token ids cannot belong to the blocks of their event.
    TokenCount {
        /// The field of the token ids, at the end of their event.
        place: Place,
        /// Number of token ids.
        tokens: usize,
        /// Number of block hashes.
        hashes: usize,
        /// Tokens per block.
        block_tokens: u32,
    },
    /// There is not one entry of extra keys per block hash.
    ExtraKeyCount {
        /// The field of the extra keys, at the end of their event.
        place: Place,
        /// Number of entries.
        entries: usize,
        /// Number of block hashes.
        hashes: usize,
    },
    /// The payload goes on after its value.
    TrailingBytes {
        /// Offset of the first byte too many.
        place: Place,
        /// Number of bytes too many.
        count: usize,
    },
}

impl WireError {
    /// Where the decoder stopped.
    #[must_use]
    pub fn place(&self) -> Place {
        match *self {
            Self::Truncated { place }
            | Self::WrongType { place, .. }
            | Self::OutOfRange { place, .. }
            | Self::NotUtf8 { place }
            | Self::MissingField { place }
            | Self::UnknownTag { place, .. }
            | Self::TokenCount { place, .. }
            | Self::ExtraKeyCount { place, .. }
            | Self::TrailingBytes { place, .. } => place,
        }
    }
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { place } => write!(f, "{place}: the payload ends inside this value"),
            Self::WrongType { place, found, accepted } => write!(f, "{place}: got {found}, accepted is {accepted}"),
            Self::OutOfRange { place, value, accepted } => write!(f, "{place}: got {value}, accepted is {accepted}"),
            Self::NotUtf8 { place } => write!(f, "{place}: the string is not UTF-8"),
            Self::MissingField { place } => write!(f, "{place}: the field is missing"),
            Self::UnknownTag { place, tag, accepted } => write!(f, "{place}: got {tag:?}, accepted is {accepted}"),
            Self::TokenCount { place, tokens, hashes, block_tokens } => {
                write!(f, "{place}: {tokens} token ids cannot fill {hashes} blocks of {block_tokens} tokens")
            }
            Self::ExtraKeyCount { place, entries, hashes } => {
                write!(f, "{place}: got {entries} entries for {hashes} block hashes, accepted is one entry per hash")
            }
            Self::TrailingBytes { place, count } => write!(f, "{place}: {count} bytes follow the message"),
        }
    }
}

impl std::error::Error for WireError {}

/// Shorthand for results of the decoder.
pub type Result<T> = std::result::Result<T, WireError>;
