//! State and events as bytes: snapshots, journals, replay. Files belong to the shells.
//!
//! A [`snapshot`] holds everything that decisions depend on, slot numbers and free lists included, so that what is restored
//! goes on exactly as the original would. A [`journal`] is a snapshot and every event since. Both carry a format version
//! and checksums: what is damaged or of another version is refused whole, except that the last record of a journal may be
//! torn by a crash and is left out then.

pub(crate) mod codec;
mod events;
pub mod journal;
pub mod recorder;
mod redo;
pub mod snapshot;
