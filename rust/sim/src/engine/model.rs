//! Step times of an inference engine.
//!
//! Fitted to 100 points of a public performance estimator (vLLM kernels, bf16, single forward), within 9 % of each:
//! `prefill(n, c) = constant + per_token n + per_token_context n (n/2 + c)`,
//! `decode(B, K) = constant + per_sequence B + per_context_token K`, with n new tokens after c cached ones, B sequences and K the sum of their contexts; milliseconds.

/// Times of one engine, and its scheduler's bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineModel {
    /// Constant part of a prefill step, ms.
    pub prefill_ms: f64,
    /// Per new token, ms.
    pub prefill_ms_per_token: f64,
    /// Per new token and token before it, ms.
    pub prefill_ms_per_token_context: f64,
    /// Constant part of a decode step, ms.
    pub decode_ms: f64,
    /// Per decoding sequence, ms.
    pub decode_ms_per_sequence: f64,
    /// Per KV token read, ms.
    pub decode_ms_per_context_token: f64,
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

const fn model(prefill: [f64; 3], decode: [f64; 3], kv_tokens: u64) -> EngineModel {
    EngineModel {
        prefill_ms: prefill[0],
        prefill_ms_per_token: prefill[1],
        prefill_ms_per_token_context: prefill[2],
        decode_ms: decode[0],
        decode_ms_per_sequence: decode[1],
        decode_ms_per_context_token: decode[2],
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

    /// Milliseconds of a step that computes the chunks (new tokens, tokens before them) and one token for each of
    /// `sequences` with `context_tokens` in all. The constant is paid once.
    #[must_use]
    pub fn step_ms(&self, chunks: &[(u64, u64)], sequences: u64, context_tokens: u64) -> f64 {
        let decode = self.decode_ms_per_sequence * sequences as f64 + self.decode_ms_per_context_token * context_tokens as f64;
        if chunks.is_empty() {
            return self.decode_ms + decode;
        }
        let prefill: f64 = chunks
            .iter()
            .map(|&(new, before)| {
                let new = new as f64;
                self.prefill_ms_per_token * new + self.prefill_ms_per_token_context * new * (new / 2.0 + before as f64)
            })
            .sum();
        self.prefill_ms + prefill + decode
    }

    /// Milliseconds of `steps` decode steps in a row, each sequence growing by one token a step.
    #[must_use]
    pub fn decode_ms(&self, sequences: u64, context_tokens: u64, steps: u64) -> f64 {
        let (steps, sequences_f) = (steps as f64, sequences as f64);
        steps * self.step_ms(&[], sequences, context_tokens) + self.decode_ms_per_context_token * sequences_f * steps * (steps - 1.0) / 2.0
    }

    /// Prefill rate of one whole chunk without context, tokens per second: for a placement cost.
    #[must_use]
    pub fn prefill_tokens_per_s(&self) -> f64 {
        let tokens = self.max_batched_tokens;
        tokens as f64 * 1e3 / self.step_ms(&[(tokens, 0)], 0, 0)
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
            let ms = engine.step_ms(&[(tokens, 0)], 0, 0);
            assert!((ms / measured_ms - 1.0).abs() <= 0.1, "{tokens} tokens: {ms} ms, estimator {measured_ms} ms");
        }
    }

    #[test]
    fn many_steps_are_the_sum_of_single_ones() {
        let engine = EngineModel::named("qwen3-32b-tp2-h100").unwrap();
        let sum: f64 = (0..100).map(|step| engine.step_ms(&[], 7, 10_000 + 7 * step)).sum();
        assert!((engine.decode_ms(7, 10_000, 100) / sum - 1.0).abs() < 1e-12);
    }
}
