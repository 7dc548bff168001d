//! The state machine: events with a time stamp in, decisions out.

pub mod types;
