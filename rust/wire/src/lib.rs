//! Decoder of what inference engines publish about their KV caches: the msgpack payloads (third `ZeroMQ` frame) of vLLM and
//! `SGLang`; and an encoder of the same, for engines that are built in. No I/O: bytes in, events out.
//!
//! Both forms are read, by position (vLLM up to 0.23, `SGLang` up to 0.5.19) and by name (later versions). Fields, positions and
//! kinds of event that are not known are skipped, so that a newer engine stays readable; whatever is malformed is refused.
//!
//! ```
//! use turnout_wire::{Event, decode_batch};
//!
//! // [12.5, [["BlockStored", [7, -1], null, [1, 2, 3, 4], 2, null, "GPU"]], 0]
//! let payload = b"\x93\xcb\x40\x29\0\0\0\0\0\0\x91\x97\xabBlockStored\x92\x07\xff\xc0\x94\x01\x02\x03\x04\x02\xc0\xa3GPU\x00";
//! let batch = decode_batch(payload)?;
//! assert_eq!((batch.timestamp_s, batch.rank), (12.5, Some(0)));
//! let Event::Stored(stored) = &batch.events[0] else { panic!("a store") };
//! let blocks: Vec<_> = stored.blocks().expect("tokens are told").collect();
//! assert_eq!((blocks[1].hash, blocks[1].parent, blocks[1].tokens), (u64::MAX, Some(7), &[3, 4][..]));
//!
//! let error = decode_batch(&payload[..31]).unwrap_err();
//! assert_eq!(error.to_string(), "events[0].token_ids (byte 28): the payload ends inside this value");
//! # Ok::<(), turnout_wire::WireError>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod batch;
mod cache;
mod encode;
mod error;
mod event;
mod extra;
mod fields;
mod load;
mod reader;

pub use batch::decode_batch;
pub use cache::DeviceEvents;
pub use encode::{Dialect, encode_batch, encode_load};
pub use error::{Place, Result, WireError};
pub use event::{Batch, Block, Event, Hash, Medium, Removed, Stored};
pub use extra::ExtraKeys;
pub use load::{LoadStat, decode_load};
