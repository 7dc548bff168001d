//! The one error type of the core. Every variant names the argument, the value and what is accepted; a call that
//! returns an error has left the state as it was.

use std::fmt;

/// Why the core refused a call.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A plain argument is out of range.
    InvalidArgument {
        /// Name of the argument.
        argument: &'static str,
        /// The refused value, as text.
        value: String,
        /// What is accepted instead.
        accepted: &'static str,
    },
    /// A token sequence cannot be used.
    InvalidTokens {
        /// Name of the argument.
        argument: &'static str,
        /// What was wrong, with index and value where there is one.
        problem: String,
    },
    /// No replica of this name exists.
    UnknownReplica {
        /// The name that was given.
        name: String,
        /// Names that exist (shortened).
        known: String,
    },
    /// No workload of this name exists.
    UnknownWorkload {
        /// The name that was given.
        name: String,
        /// Names that exist (shortened).
        known: String,
    },
    /// No session of this name is known.
    UnknownSession {
        /// The name that was given.
        session: String,
    },
    /// No turn of this name was ever submitted.
    UnknownTurn {
        /// The name that was given.
        turn: String,
    },
    /// A continuation by append does not fit the history that the core knows: send the whole prompt.
    HistoryMismatch {
        /// The session.
        session: String,
        /// Tokens of history (H).
        history_tokens: u64,
        /// Tokens of history whose ids are known (K).
        known_tokens: u64,
        /// What the caller assumed, or `None` when the caller assumed right but the history cannot be extended now.
        base_tokens: Option<u64>,
    },
    /// A turn id was used again, with other content.
    TurnConflict {
        /// The turn.
        turn: String,
        /// What differs.
        difference: String,
    },
    /// A policy returned limits that cannot be enforced. The last good limits stay.
    Policy {
        /// Field of the limits.
        field: &'static str,
        /// Row (and column) of the bad value, by name; empty for the field as a whole.
        index: String,
        /// The refused value, as text.
        value: String,
        /// What is accepted instead.
        accepted: &'static str,
    },
    /// An event of a journal is answered otherwise than it was.
    Differs {
        /// Which of its events, from 1.
        number: u64,
        /// The event's name.
        event: &'static str,
        /// Where its record begins.
        byte: usize,
    },
    /// A snapshot or a journal cannot be used: another version, damaged, or it does not do again what it says.
    Record {
        /// What was found.
        problem: String,
    },
    /// The core found its own state inconsistent: a defect of this library.
    Internal {
        /// What was found.
        problem: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidArgument { argument, value, accepted } => write!(f, "{argument}: got {value}, accepted is {accepted}"),
            Self::InvalidTokens { argument, problem } => write!(f, "{argument}: {problem}"),
            Self::UnknownReplica { name, known } => write!(f, "replica: no replica is called {name:?}; known are {known}"),
            Self::UnknownWorkload { name, known } => write!(f, "workload: no workload is called {name:?}; known are {known}"),
            Self::UnknownSession { session } => write!(f, "session: {session:?} is not known; submit its first turn with the whole prompt"),
            Self::UnknownTurn { turn } => write!(f, "turn: {turn:?} was never submitted, or ended too long ago to be remembered"),
            Self::HistoryMismatch { session, history_tokens, known_tokens, base_tokens } => {
                write!(f, "session {session:?} has {history_tokens} tokens of history, {known_tokens} of them with known ids")?;
                match base_tokens {
                    Some(base) => write!(f, "; append with base_tokens={base} does not continue it: send the whole prompt"),
                    None => write!(f, "; it cannot be appended to while a turn is open or ids are unknown: send the whole prompt"),
                }
            }
            Self::Record { problem } => write!(f, "record: {problem}"),
            Self::Differs { number, event, byte } => {
                write!(f, "record: event {number} ({event}, byte {byte}) is answered otherwise than it was")
            }
            Self::TurnConflict { turn, difference } => {
                write!(f, "turn {turn:?} was submitted before with other content: {difference}; use a new turn id or a higher attempt")
            }
            Self::Policy { field, index, value, accepted } => {
                if index.is_empty() {
                    write!(f, "limits.{field}: got {value}, accepted is {accepted}")
                } else {
                    write!(f, "limits.{field}[{index}]: got {value}, accepted is {accepted}")
                }
            }
            Self::Internal { problem } => write!(f, "internal error: {problem}; please report it"),
        }
    }
}

impl std::error::Error for Error {}

/// Shorthand for results of the core.
pub type Result<T> = std::result::Result<T, Error>;
