//! A prompt that is hashed once and used often.

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use turnout_core::prompt::{BlockHasher, HashKey, Prompt as CorePrompt};

use crate::arguments;
use crate::errors::{invalid, invalid_tokens, to_py};
use crate::tokens;

/// First bytes of a packed prompt: its form and version.
const MARK: [u8; 4] = *b"tpr1";

/// Mark, block size, check of the key, tokens of the tail.
const HEADER_BYTES: usize = 20;

/// Tells two keys apart without telling either: the fingerprint of a block of zeros.
fn key_check(hasher: &BlockHasher) -> u64 {
    hasher.fingerprint(&vec![0; hasher.block_tokens() as usize])
}

/// A little-endian number at a place that is known to be there.
fn u32_at(packed: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(packed[at..at + 4].try_into().expect("4 bytes"))
}

fn u64_at(packed: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(packed[at..at + 8].try_into().expect("8 bytes"))
}

/// Fingerprints of a prompt's full blocks and the ids of its partial last block.
#[pyclass(frozen, module = "turnout._core")]
pub(crate) struct Prompt {
    pub(crate) core: CorePrompt,
    pub(crate) key: HashKey,
}

impl Prompt {
    /// The fingerprints, for a router with this key: under another one they would match nothing and charge what is shared twice.
    pub(crate) fn under(&self, key: &HashKey, block_tokens: u32, argument: &'static str) -> PyResult<&CorePrompt> {
        if self.core.block_tokens() != block_tokens {
            let made = self.core.block_tokens();
            Err(invalid_tokens(argument, format!("made with blocks of {made} tokens, here blocks have {block_tokens}")))
        } else if self.key == *key {
            Ok(&self.core)
        } else {
            Err(invalid_tokens(argument, "the prompt was hashed with another key; make it with this router's `prompt`, or with its `hash_key`"))
        }
    }
}

#[pymethods]
impl Prompt {
    #[new]
    #[pyo3(signature = (tokens, *, hash_key, block_tokens = 16))]
    fn new(tokens: &Bound<'_, PyAny>, hash_key: &[u8], #[pyo3(from_py_with = arguments::block_tokens)] block_tokens: u32) -> PyResult<Self> {
        let key = arguments::hash_key(hash_key)?;
        let hasher = BlockHasher::new(&key, block_tokens).map_err(to_py)?;
        Ok(Self { core: tokens::with(tokens, "tokens", |tokens| hasher.prompt(tokens))?, key })
    }

    fn pack<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let core = &self.core;
        let hasher = BlockHasher::new(&self.key, core.block_tokens()).map_err(to_py)?;
        let mut packed = Vec::with_capacity(HEADER_BYTES + core.fingerprints().len() * 8 + core.tail().len() * 4);
        packed.extend_from_slice(&MARK);
        packed.extend_from_slice(&core.block_tokens().to_le_bytes());
        packed.extend_from_slice(&key_check(&hasher).to_le_bytes());
        packed.extend_from_slice(&(core.tail().len() as u32).to_le_bytes());
        packed.extend(core.fingerprints().iter().flat_map(|fingerprint| fingerprint.to_le_bytes()));
        packed.extend(core.tail().iter().flat_map(|token| token.to_le_bytes()));
        Ok(PyBytes::new(py, &packed))
    }

    #[staticmethod]
    #[pyo3(signature = (packed, *, hash_key))]
    fn unpack(packed: &[u8], hash_key: &[u8]) -> PyResult<Self> {
        let key = arguments::hash_key(hash_key)?;
        let refuse = || invalid("packed", format!("{} bytes", packed.len()), "what Prompt.pack returned");
        if packed.len() < HEADER_BYTES || packed[..4] != MARK {
            return Err(refuse());
        }
        let (block_tokens, check, tail) = (u32_at(packed, 4), u64_at(packed, 8), u32_at(packed, 16) as usize);
        let hasher = BlockHasher::new(&key, block_tokens).map_err(|_| refuse())?;
        if check != key_check(&hasher) {
            return Err(invalid_tokens("packed", "the prompt was hashed with another key; ask the router for its `hash_key` again"));
        }
        let rest = &packed[HEADER_BYTES..];
        let blocks = rest.len().checked_sub(tail * 4).filter(|bytes| bytes % 8 == 0).ok_or_else(refuse)?;
        let fingerprints = rest[..blocks].chunks_exact(8).map(|bytes| u64_at(bytes, 0)).collect();
        let tail = rest[blocks..].chunks_exact(4).map(|bytes| u32_at(bytes, 0)).collect();
        Ok(Self { core: CorePrompt::from_parts(block_tokens, fingerprints, tail).map_err(to_py)?, key })
    }

    fn __len__(&self) -> usize {
        self.core.tokens() as usize
    }

    fn __repr__(&self) -> String {
        format!("Prompt({} tokens, blocks of {})", self.core.tokens(), self.core.block_tokens())
    }

    #[getter]
    fn block_tokens(&self) -> u32 {
        self.core.block_tokens()
    }
}
