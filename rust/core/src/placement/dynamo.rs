//! The cost of Dynamo's KV router: `overlap_weight * prefill blocks + decode blocks`, least first, or drawn by softmax.
//!
//! Prefill blocks are what the replica would have to prefill with the turn (its queue and what of the prompt is not cached there),
//! decode blocks what would be held there with it. A draw uses the logit divided by its range over the candidates, as the original
//! does, so a temperature means the same at every scale.

use super::Ties;
use super::rule::{Parameter, weight};

/// Parameters, with the defaults of the original.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Dynamo {
    pub(crate) overlap_weight: f64,
    /// 0: the least cost wins.
    pub(crate) temperature: f64,
}

impl Dynamo {
    pub(super) const PARAMETERS: [Parameter; 2] = [weight("overlap_weight", 1.0), weight("temperature", 0.0)];

    /// The logit of a replica; less is better.
    pub(crate) fn score(self, prefill_blocks: f64, decode_blocks: u64) -> f64 {
        self.overlap_weight * prefill_blocks + decode_blocks as f64
    }

    /// Sorts candidates (logit, replica) and puts the one that is drawn first.
    pub(crate) fn rank(self, ties: &mut Ties, candidates: &mut [(f64, u32)]) {
        let range = |sorted: &[(f64, u32)]| sorted.last().map_or(0.0, |last| last.0 - sorted[0].0);
        candidates.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let range = range(candidates);
        if self.temperature <= 0.0 || range <= 0.0 {
            return ties.rank(candidates);
        }
        let least = candidates[0].0;
        let chance = |candidate: &(f64, u32)| decay((candidate.0 - least) / range / self.temperature);
        let mut left = ties.unit() * candidates.iter().map(chance).sum::<f64>();
        let drawn = candidates.iter().position(|candidate| {
            left -= chance(candidate);
            left < 0.0
        });
        candidates[..=drawn.unwrap_or(0)].rotate_right(1);
    }
}

/// exp(-x) for x >= 0 by additions and multiplications alone, so that every platform draws alike. Relative error below 1e-14.
fn decay(x: f64) -> f64 {
    const LN_2: f64 = std::f64::consts::LN_2;
    let halvings = (x / LN_2).floor();
    if halvings > 1_000.0 {
        return 0.0;
    }
    let rest = x - halvings * LN_2;
    // Taylor's series of exp(-rest), 0 <= rest < ln 2, by Horner.
    let series = (1..=16).rev().fold(1.0, |sum, n| 1.0 - rest / f64::from(n) * sum);
    // 2^-halvings, written as its bits: the exponent alone.
    series * f64::from_bits((1023 - halvings as u64) << 52)
}

#[cfg(test)]
mod tests {
    use super::{Dynamo, decay};
    use crate::placement::Ties;

    #[test]
    fn decay_is_the_exponential() {
        for (x, expected) in [(0.0, 1.0), (0.5, 0.606_530_659_712_633_4), (1.0, 0.367_879_441_171_442_33), (20.0, 2.061_153_622_438_558e-9)] {
            assert!((decay(x) / expected - 1.0).abs() < 1e-14, "{x}: {}", decay(x));
        }
        assert_eq!(decay(1e9).to_bits(), 0);
    }

    /// Logits 0, 5, 10 at temperature 0.5: odds 1 : e^-1 : e^-2, so 66.5 %, 24.5 % and 9.0 %.
    #[test]
    fn draws_follow_the_softmax() {
        let rule = Dynamo { overlap_weight: 1.0, temperature: 0.5 };
        let (mut ties, mut drawn) = (Ties(7), [0u32; 3]);
        for _ in 0..10_000 {
            let mut candidates = vec![(10.0, 2), (0.0, 0), (5.0, 1)];
            rule.rank(&mut ties, &mut candidates);
            drawn[candidates[0].1 as usize] += 1;
            assert!(candidates[1].0 <= candidates[2].0, "the rest by cost");
        }
        for (count, share) in drawn.into_iter().zip([0.665, 0.245, 0.090]) {
            assert!((f64::from(count) / 10_000.0 - share).abs() < 0.015, "{drawn:?}");
        }
    }

    #[test]
    fn without_a_temperature_the_least_wins_and_ties_are_drawn() {
        let rule = Dynamo { overlap_weight: 1.0, temperature: 0.0 };
        let (mut ties, mut first) = (Ties(1), [0u32; 3]);
        for _ in 0..1_000 {
            let mut candidates = vec![(3.0, 0), (1.0, 1), (1.0, 2)];
            rule.rank(&mut ties, &mut candidates);
            first[candidates[0].1 as usize] += 1;
        }
        assert_eq!(first[0], 0);
        assert!(first[1].abs_diff(first[2]) < 150, "{first:?}");
    }
}
