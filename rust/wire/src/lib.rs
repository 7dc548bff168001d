//! Cache events of inference engines, decoded: the third frame of the ZMQ messages of vLLM and `SGLang`.
//!
//! Both forms in use are read: positional arrays (vLLM up to 0.23, `SGLang` up to 0.5.19) and maps (later ones). Unknown keys,
//! extra positions and unknown events are passed over. A payload that cannot be read is refused whole.
//!
//! ```
//! let payload = [0x93, 0xcb, 0x3f, 0xf0, 0, 0, 0, 0, 0, 0, 0x91, 0x91, 0xb0,
//!     b'A', b'l', b'l', b'B', b'l', b'o', b'c', b'k', b's', b'C', b'l', b'e', b'a', b'r', b'e', b'd', 0];
//! let batch = turnout_wire::decode_batch(&payload)?;
//! assert_eq!((batch.timestamp_s, batch.rank, batch.events), (1.0, Some(0), vec![turnout_wire::Event::Cleared]));
//! # Ok::<(), turnout_wire::Error>(())
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod error;
mod events;
mod load;
mod reader;

pub use error::{Error, Result};
pub use events::{Batch, Event, Removed, Stored, decode_batch};
pub use load::{LoadStat, decode_load};
