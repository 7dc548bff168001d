//! What a turn asks: a prompt, an append or a count, hashed or read before the lock is taken.

use pyo3::prelude::*;
use turnout_core::prompt::{BlockHasher, HashKey, Prompt as CorePrompt};
use turnout_core::router::types::TurnInput;

use crate::errors::invalid;
use crate::prompt::Prompt;
use crate::tokens;

/// A prompt from tokens, or one that was hashed before.
pub(crate) fn hashed<'a>(object: &'a Bound<'_, PyAny>, argument: &'static str, hasher: &BlockHasher, key: &HashKey) -> PyResult<Hashed<'a>> {
    match object.cast::<Prompt>() {
        Ok(prompt) => Ok(Hashed::Shared(prompt.get().under(key, hasher.block_tokens(), argument)?)),
        Err(_) => Ok(Hashed::Own(tokens::with(object, argument, |tokens| hasher.prompt(tokens))?)),
    }
}

/// What a turn asks, hashed or read before the lock.
pub(crate) enum Input<'a> {
    Prompt(Hashed<'a>),
    /// With its tokens: the session that it continues is looked for.
    Raw(CorePrompt, Vec<u32>),
    Append {
        base_tokens: u64,
        tokens: Vec<u32>,
    },
    Count {
        prompt_tokens: u64,
    },
}

impl<'a> Input<'a> {
    /// Exactly one of prompt, append and count.
    pub(crate) fn read(
        prompt: Option<&'a Bound<'_, PyAny>>,
        append: Option<&Bound<'_, PyAny>>,
        base_tokens: Option<u64>,
        prompt_tokens: Option<u64>,
        hasher: &BlockHasher,
        key: &HashKey,
    ) -> PyResult<Self> {
        if append.is_some() != base_tokens.is_some() {
            return Err(invalid("base_tokens", format!("{base_tokens:?}"), "the history length together with append, and only then"));
        }
        match (prompt, append, prompt_tokens) {
            (Some(object), None, None) => Ok(Self::Prompt(hashed(object, "prompt", hasher, key)?)),
            (None, Some(object), None) => Ok(Self::Append { base_tokens: base_tokens.unwrap_or_default(), tokens: tokens::read(object, "append")? }),
            (None, None, Some(prompt_tokens)) => Ok(Self::Count { prompt_tokens }),
            _ => {
                let given = usize::from(prompt.is_some()) + usize::from(append.is_some()) + usize::from(prompt_tokens.is_some());
                Err(invalid("prompt", format!("{given} of prompt, append, prompt_tokens"), "exactly one of them"))
            }
        }
    }

    /// Reads a prompt whose tokens are needed beside its fingerprints; everything else as it is.
    pub(crate) fn keep_tokens(self, prompt: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        match (self, prompt) {
            (Self::Prompt(Hashed::Own(core)), Some(object)) => Ok(Self::Raw(core, tokens::read(object, "prompt")?)),
            (input, _) => Ok(input),
        }
    }

    /// The tokens that [`Self::keep_tokens`] kept.
    pub(crate) fn tokens(&self) -> Option<&[u32]> {
        match self {
            Self::Raw(_, tokens) => Some(tokens),
            _ => None,
        }
    }

    pub(crate) fn get(&self) -> TurnInput<'_> {
        match self {
            Self::Prompt(hashed) => TurnInput::Prompt(hashed.get()),
            Self::Raw(prompt, _) => TurnInput::Prompt(prompt),
            Self::Append { base_tokens, tokens } => TurnInput::Append { base_tokens: *base_tokens, tokens },
            Self::Count { prompt_tokens } => TurnInput::Count { prompt_tokens: *prompt_tokens },
        }
    }
}

pub(crate) enum Hashed<'a> {
    Shared(&'a CorePrompt),
    Own(CorePrompt),
}

impl Hashed<'_> {
    pub(crate) fn get(&self) -> &CorePrompt {
        match self {
            Self::Shared(prompt) => prompt,
            Self::Own(prompt) => prompt,
        }
    }
}
