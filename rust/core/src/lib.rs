//! The decision core of Turnout: a deterministic state machine that decides which replica serves a turn and whether it
//! may start now. No I/O, clock, thread or unseeded randomness: every call carries its time.
#![deny(unsafe_code)]
#![warn(missing_docs)]

pub(crate) mod admission;
pub mod arch;
pub mod control;
pub mod error;
pub(crate) mod estimate;
pub mod index;
pub mod ledger;
pub(crate) mod placement;
pub mod prefix_index;
pub mod prompt;
pub mod record;
pub mod router;
pub(crate) mod sessions;
pub mod units;
