//! The decision core of Turnout: a deterministic state machine that decides which replica serves a turn and whether it
//! may start now. No I/O, clock, thread or unseeded randomness: every call carries its time.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod arch;
pub mod control;
pub mod error;
pub mod index;
pub mod prompt;
pub mod router;
pub mod units;
