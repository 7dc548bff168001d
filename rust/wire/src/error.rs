//! Why a payload was refused.

use std::fmt;

/// Why a payload was refused. Nothing of it was applied.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// It ends in the middle of a value.
    Truncated {
        /// Byte at which more was needed.
        at: usize,
    },
    /// A value is not what stands in this place.
    Malformed {
        /// Byte at which the value begins.
        at: usize,
        /// What stands there.
        expected: &'static str,
    },
    /// Bytes follow the message.
    Trailing {
        /// Byte at which they begin.
        at: usize,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { at } => write!(f, "payload: ends at byte {at} in the middle of a value"),
            Self::Malformed { at, expected } => write!(f, "payload: at byte {at}, accepted is {expected}"),
            Self::Trailing { at } => write!(f, "payload: a message ends at byte {at} and more follows; send one message at a time"),
        }
    }
}

impl std::error::Error for Error {}

/// Shorthand for results of the decoder.
pub type Result<T> = std::result::Result<T, Error>;
