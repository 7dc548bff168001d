//! Snapshots: the whole state as bytes, between a header and a checksum.
//!
//! `magic (8) | format version (2, little-endian) | state | checksum of everything before (8, little-endian)`. A snapshot
//! holds the secret key of the fingerprints, and no token beyond the partial blocks at the ends of histories: treat it as
//! the process itself.

use super::codec::{Damaged, Reader, Record, checksum};
use crate::error::{Error, Result};
use crate::prefix_index::PrefixIndex;
use crate::router::Router;

/// Version of the formats of snapshots and journals. Whatever changes what is stored raises it.
pub const FORMAT_VERSION: u16 = 3;

const ROUTER: [u8; 8] = *b"turnoutR";
const INDEX: [u8; 8] = *b"turnoutI";
const HEADER: usize = 10;

pub(super) fn refuse<T>(problem: impl Into<String>) -> Result<T> {
    Err(Error::Record { problem: problem.into() })
}

/// Magic and version.
pub(super) fn header(magic: [u8; 8]) -> Vec<u8> {
    [&magic[..], &FORMAT_VERSION.to_le_bytes()].concat()
}

/// Checks magic and version; answers what follows.
pub(super) fn after_header<'a>(magic: [u8; 8], what: &str, bytes: &'a [u8]) -> Result<&'a [u8]> {
    if bytes.len() < HEADER || bytes[..8] != magic {
        return refuse(format!("these {} bytes are no {what}", bytes.len()));
    }
    let version = u16::from_le_bytes([bytes[8], bytes[9]]);
    if version != FORMAT_VERSION {
        return refuse(format!("{what} of format version {version}, accepted is {FORMAT_VERSION}"));
    }
    Ok(&bytes[HEADER..])
}

fn seal(magic: [u8; 8], put: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = header(magic);
    put(&mut bytes);
    let sum = checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn unseal<T: Record>(magic: [u8; 8], what: &str, bytes: &[u8]) -> Result<T> {
    after_header(magic, what, bytes)?;
    let Some((content, sum)) = bytes.split_last_chunk::<8>().filter(|(content, _)| content.len() >= HEADER) else {
        return refuse(format!("the {what} ends too early"));
    };
    if checksum(content) != u64::from_le_bytes(*sum) {
        return refuse(format!("the {what} is damaged: its checksum differs"));
    }
    let mut from = Reader::new(&content[HEADER..]);
    let state = T::take(&mut from).or_else(|Damaged(problem)| refuse(format!("the {what} is damaged: {problem}")))?;
    if from.left() > 0 { refuse(format!("the {what} is damaged: {} bytes too many", from.left())) } else { Ok(state) }
}

impl Router {
    /// The whole state as bytes. O(everything).
    ///
    /// ```
    /// use turnout_core::router::{Router, types::RouterConfig};
    ///
    /// let router = Router::new(RouterConfig::default())?;
    /// let copy = Router::restore(&router.snapshot())?;
    /// assert_eq!(copy.snapshot(), router.snapshot());
    /// # Ok::<(), turnout_core::error::Error>(())
    /// ```
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        seal(ROUTER, |bytes| self.put(bytes))
    }

    /// A router that goes on where a snapshot was taken: the same events get the same answers. Its clock goes on as well; see
    /// [`super::journal::Recorder::restore`] for a process with another one.
    ///
    /// # Errors
    /// [`Error::Record`] for what is no snapshot, is of another version, or is damaged; [`Error::Internal`] when what it holds
    /// contradicts itself.
    pub fn restore(bytes: &[u8]) -> Result<Self> {
        let router: Self = unseal(ROUTER, "snapshot of a router", bytes)?;
        router.audit()?;
        Ok(router)
    }
}

impl PrefixIndex {
    /// The whole state as bytes, handles included. O(everything). `names` are what the caller calls the replicas, by row.
    #[must_use]
    pub fn snapshot(&self, names: &Vec<String>) -> Vec<u8> {
        seal(INDEX, |bytes| {
            names.put(bytes);
            self.put(bytes);
        })
    }

    /// An index that goes on where a snapshot was taken, and the names of its replicas: the same calls get the same answers.
    ///
    /// # Errors
    /// As [`Router::restore`].
    pub fn restore(bytes: &[u8]) -> Result<(Self, Vec<String>)> {
        let (names, index): (Vec<String>, Self) = unseal(INDEX, "snapshot of a prefix index", bytes)?;
        index.audit()?;
        Ok((index, names))
    }
}
