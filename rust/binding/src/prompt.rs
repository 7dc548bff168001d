//! A prompt that is hashed once and used often.

use pyo3::prelude::*;
use turnout_core::prompt::{BlockHasher, HashKey, Prompt as CorePrompt};

use crate::arguments::hash_key;
use crate::errors::to_py;
use crate::tokens;

/// Fingerprints of a prompt's full blocks and the ids of its partial last block.
#[pyclass(frozen, module = "turnout._core")]
pub(crate) struct Prompt(pub(crate) CorePrompt);

#[pymethods]
impl Prompt {
    #[new]
    #[pyo3(signature = (tokens, *, hash_key, block_tokens = 16))]
    fn new(py: Python<'_>, tokens: &Bound<'_, PyAny>, hash_key: &[u8], block_tokens: u32) -> PyResult<Self> {
        let key: HashKey = self::hash_key(hash_key)?;
        let hasher = BlockHasher::new(&key, block_tokens).map_err(to_py)?;
        let tokens = tokens::read(tokens, "tokens")?;
        Ok(Self(py.detach(|| hasher.prompt(&tokens))))
    }

    fn __len__(&self) -> usize {
        self.0.tokens() as usize
    }

    fn __repr__(&self) -> String {
        format!("Prompt({} tokens, blocks of {})", self.0.tokens(), self.0.block_tokens())
    }

    #[getter]
    fn block_tokens(&self) -> u32 {
        self.0.block_tokens()
    }
}
