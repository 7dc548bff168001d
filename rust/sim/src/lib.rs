//! Model inference engines on a discrete-event clock, driving the same router as a live fleet.
#![forbid(unsafe_code)]

pub mod config;
mod disruptions;
pub mod engine;
pub mod feed;
pub mod fleet;
mod hash;
pub mod metrics;
mod results;
pub mod scenario;
pub mod serving;
