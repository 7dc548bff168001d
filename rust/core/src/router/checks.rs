//! What is accepted of a configuration.

use super::types::{ReplicaConfig, WorkloadConfig};
use crate::error::{Error, Result};
use crate::prompt::MAX_BLOCK_TOKENS;

impl ReplicaConfig {
    pub(super) fn check(&self) -> Result<()> {
        let positive = |argument: &'static str, value: f64, accepted: &'static str, ok: bool| {
            if ok { Ok(()) } else { Err(Error::InvalidArgument { argument, value: value.to_string(), accepted }) }
        };
        if self.name.is_empty() {
            return Err(Error::InvalidArgument { argument: "name", value: "\"\"".into(), accepted: "a name of at least one character" });
        }
        positive("kv_tokens", self.kv_tokens, "tokens above 0, infinity when unknown", self.kv_tokens >= 1.0)?;
        let rate = self.prefill_tokens_per_s;
        positive("prefill_tokens_per_s", rate, "a finite rate above 0", rate > 0.0 && rate.is_finite())?;
        let block = self.block_tokens.unwrap_or(1);
        positive("block_tokens", f64::from(block), "1 to 4096", (1..=MAX_BLOCK_TOKENS).contains(&block))?;
        let slope = self.decode_s_per_kv_token;
        positive("decode_s_per_kv_token", slope, "finite seconds of at least 0", slope >= 0.0 && slope.is_finite())
    }
}

impl WorkloadConfig {
    pub(super) fn check(&self) -> Result<()> {
        if self.name.is_empty() {
            return Err(Error::InvalidArgument { argument: "name", value: "\"\"".into(), accepted: "a name of at least one character" });
        }
        if !(self.target.is_nan() || (0.0..=1.0).contains(&self.target)) {
            return Err(Error::InvalidArgument {
                argument: "target",
                value: self.target.to_string(),
                accepted: "a share from 0 to 1, NaN when unset",
            });
        }
        let priors = [("context_tokens", self.context_tokens), ("growth_tokens", self.growth_tokens), ("residency_s", self.residency_s)];
        match priors.into_iter().find(|(_, value)| !(*value >= 0.0 && value.is_finite())) {
            Some((argument, value)) => {
                Err(Error::InvalidArgument { argument, value: value.to_string(), accepted: "a finite number of at least 0; 0 = unknown" })
            }
            None => Ok(()),
        }
    }
}
