//! A prompt that is hashed once and used often.

use pyo3::prelude::*;
use turnout_core::prompt::{BlockHasher, HashKey, Prompt as CorePrompt};

use crate::arguments;
use crate::errors::{invalid_tokens, to_py};
use crate::tokens;

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
