//! Step times of an inference engine.
//!
//! Fitted to 100 points of a public performance estimator (vLLM kernels, bf16, single forward), within 9 % of each:
//! `prefill(n, c) = constant + per_token n + per_token_context n (n/2 + c)`,
//! `decode(B, K) = constant + per_sequence B + per_context_token K`, with n new tokens after c cached ones, B sequences and K the sum of their contexts; seconds.

use turnout_core::error::{Error, Result};

/// Times of one engine, and its scheduler's bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineModel {
    /// Constant part of a prefill step, s.
    pub prefill_base_s: f64,
    /// Per new token, s.
    pub prefill_s_per_token: f64,
    /// Per new token and token before it, s.
    pub prefill_s_per_token_pair: f64,
    /// Constant part of a decode step, s.
    pub decode_base_s: f64,
    /// Per decoding sequence, s.
    pub decode_s_per_sequence: f64,
    /// Per KV token read, s.
    pub decode_s_per_kv_token: f64,
    /// Tokens that one step may process.
    pub max_batched_tokens: u64,
    /// Sequences that may run at once.
    pub max_sequences: u64,
    /// KV capacity that the GPU leaves, tokens.
    pub kv_tokens: u64,
}

/// The engines that are built in, by name.
pub const ENGINES: [(&str, EngineModel); 5] = [
    ("qwen3-8b-h200", model([3.19, 0.019_57, 8.84e-7], [5.09, 0.009_4, 3.40e-5], 788_000)),
    ("qwen3-8b-h100", model([4.67, 0.019_16, 8.57e-7], [6.52, 0.009_2, 4.72e-5], 390_000)),
    ("qwen3-32b-h200", model([6.20, 0.087_41, 3.19e-6], [18.69, 0.036_0, 5.97e-5], 250_000)),
    ("qwen3-32b-tp2-h100", model([8.26, 0.048_83, 1.54e-6], [13.61, 0.024_6, 4.24e-5], 305_000)),
    ("qwen3-32b-tp2-h200", model([5.90, 0.048_92, 1.58e-6], [10.66, 0.025_9, 2.93e-5], 755_000)),
];

const fn model(prefill_ms: [f64; 3], decode_ms: [f64; 3], kv_tokens: u64) -> EngineModel {
    EngineModel {
        prefill_base_s: prefill_ms[0] / 1e3,
        prefill_s_per_token: prefill_ms[1] / 1e3,
        prefill_s_per_token_pair: prefill_ms[2] / 1e3,
        decode_base_s: decode_ms[0] / 1e3,
        decode_s_per_sequence: decode_ms[1] / 1e3,
        decode_s_per_kv_token: decode_ms[2] / 1e3,
        max_batched_tokens: 8_192,
        max_sequences: 256,
        kv_tokens,
    }
}

impl EngineModel {
    /// The built-in engine of this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        ENGINES.iter().find(|engine| engine.0 == name).map(|engine| engine.1)
    }

    /// Seconds of a step that computes the chunks (new tokens, tokens before them) and one token for each of
    /// `sequences` with `context_tokens` in all. The constant is paid once.
    #[must_use]
    pub fn step_s(&self, chunks: &[(u64, u64)], sequences: u64, context_tokens: u64) -> f64 {
        let decode = self.decode_s_per_sequence * sequences as f64 + self.decode_s_per_kv_token * context_tokens as f64;
        if chunks.is_empty() {
            return self.decode_base_s + decode;
        }
        let prefill: f64 = chunks
            .iter()
            .map(|&(new, before)| {
                let new = new as f64;
                self.prefill_s_per_token * new + self.prefill_s_per_token_pair * new * (new / 2.0 + before as f64)
            })
            .sum();
        self.prefill_base_s + prefill + decode
    }

    /// Seconds of `steps` decode steps in a row, each sequence growing by one token a step.
    #[must_use]
    pub fn decode_s(&self, sequences: u64, context_tokens: u64, steps: u64) -> f64 {
        let (steps, sequences_f) = (steps as f64, sequences as f64);
        steps * self.step_s(&[], sequences, context_tokens) + self.decode_s_per_kv_token * sequences_f * steps * (steps - 1.0) / 2.0
    }

    /// Least seconds of GPU that a turn takes in whatever company: constants of steps are shared by as many as may run.
    #[must_use]
    pub fn least_s(&self, new_tokens: u64, cached_tokens: u64, output_tokens: u64) -> f64 {
        let (new, cached, output) = (new_tokens as f64, cached_tokens as f64, output_tokens as f64);
        let prefill = self.prefill_s_per_token * new + self.prefill_s_per_token_pair * new * (new / 2.0 + cached);
        // The first token comes with the prefill; the others read the context as it grows.
        let steps = output - 1.0;
        let per_step = self.decode_base_s / self.max_sequences as f64 + self.decode_s_per_sequence;
        prefill + steps * (per_step + self.decode_s_per_kv_token * (new + cached + output / 2.0))
    }

    /// Checks that every time is a finite number of at least 0, a step takes time, and the bounds let something run.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] naming the field.
    pub fn check(&self) -> Result<()> {
        let times = [
            ("engine.prefill_base_s", self.prefill_base_s),
            ("engine.prefill_s_per_token", self.prefill_s_per_token),
            ("engine.prefill_s_per_token_pair", self.prefill_s_per_token_pair),
            ("engine.decode_base_s", self.decode_base_s),
            ("engine.decode_s_per_sequence", self.decode_s_per_sequence),
            ("engine.decode_s_per_kv_token", self.decode_s_per_kv_token),
        ];
        if let Some((argument, value)) = times.into_iter().find(|(_, value)| !(*value >= 0.0 && *value < 1e3)) {
            return Err(Error::InvalidArgument { argument, value: value.to_string(), accepted: "seconds from 0 to below 1000" });
        }
        if self.prefill_base_s < 1e-6 || self.decode_base_s < 1e-6 {
            let value = format!("{} and {}", self.prefill_base_s, self.decode_base_s);
            return Err(Error::InvalidArgument { argument: "engine.decode_base_s", value, accepted: "steps of at least a microsecond" });
        }
        if self.max_batched_tokens == 0 || self.max_sequences == 0 || self.max_batched_tokens < self.max_sequences {
            let value = format!("{} with {} sequences", self.max_batched_tokens, self.max_sequences);
            return Err(Error::InvalidArgument { argument: "engine.max_batched_tokens", value, accepted: "at least one token per sequence" });
        }
        Ok(())
    }

    /// Prefill rate of one whole chunk without context, tokens per second: for a placement cost.
    #[must_use]
    pub fn prefill_tokens_per_s(&self) -> f64 {
        let tokens = self.max_batched_tokens;
        tokens as f64 / self.step_s(&[(tokens, 0)], 0, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::EngineModel;

    /// Points of the estimator (Qwen3-8B and 32B on one H200): prefill ms by prompt length.
    #[test]
    fn within_a_tenth_of_the_estimator() {
        let engine = EngineModel::named("qwen3-8b-h200").unwrap();
        for (tokens, measured_ms) in [(256, 8.607), (1_024, 22.143), (4_096, 91.186)] {
            let ms = 1e3 * engine.step_s(&[(tokens, 0)], 0, 0);
            assert!((ms / measured_ms - 1.0).abs() <= 0.1, "{tokens} tokens: {ms} ms, estimator {measured_ms} ms");
        }
    }

    /// A turn alone takes at least the bound, and a full batch of equal turns is close to it.
    #[test]
    fn no_turn_is_faster_than_its_bound() {
        let engine = EngineModel::named("qwen3-8b-h200").unwrap();
        let (new, output, many) = (2_048, 400, engine.max_sequences);
        let bound = engine.least_s(new, 0, output);
        assert!(engine.step_s(&[(new, 0)], 0, 0) + engine.decode_s(1, new + 1, output - 1) > bound);
        let batch = many as f64 * engine.step_s(&[(new, 0)], 0, 0) + engine.decode_s(many, many * (new + 1), output - 1);
        let ratio = batch / (many as f64 * bound);
        assert!((1.0..1.1).contains(&ratio), "{ratio}");
    }

    #[test]
    fn many_steps_are_the_sum_of_single_ones() {
        let engine = EngineModel::named("qwen3-32b-tp2-h100").unwrap();
        let sum: f64 = (0..100).map(|step| engine.step_s(&[], 7, 10_000 + 7 * step)).sum();
        assert!((engine.decode_s(7, 10_000, 100) / sum - 1.0).abs() < 1e-12);
    }
}
