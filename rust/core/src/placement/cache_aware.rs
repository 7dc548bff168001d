//! Cache-aware placement in two regimes, the rule of `SGLang`'s router and its forks (`policies/cache_aware.rs` there).
//!
//! While the fleet is out of balance the fewest turns in flight win, whatever is cached where. Else the longest cached prefix wins if
//! it covers enough of the prompt, and the replica with the smallest cache if not.

use super::rule::{Parameter, share, weight};
use crate::record::codec::record;

/// Thresholds, with the defaults of the original.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct CacheAware {
    /// Part of the prompt that the longest match must exceed.
    pub(crate) cache_threshold: f64,
    /// Out of balance: largest - smallest load above this, and
    pub(crate) balance_abs: f64,
    /// largest load above this times the smallest.
    pub(crate) balance_rel: f64,
}

/// What decides about one turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Regime {
    /// Fewest turns in flight.
    Load,
    /// Longest cached prefix.
    Match,
    /// Smallest cache.
    Room,
}

impl CacheAware {
    pub(super) const PARAMETERS: [Parameter; 3] = [share("cache_threshold", 0.3), weight("balance_abs", 64.0), weight("balance_rel", 1.5)];

    /// The regime for a turn whose longest match covers `matched` of `prompt` tokens, in a fleet with these loads.
    pub(crate) fn regime(self, loads: impl Iterator<Item = u64>, matched_tokens: u64, prompt_tokens: u64) -> Regime {
        let (least, most) = loads.fold((u64::MAX, 0), |(least, most), load| (least.min(load), most.max(load)));
        let apart = most.saturating_sub(least) as f64 > self.balance_abs && most as f64 > self.balance_rel * least as f64;
        if apart {
            Regime::Load
        } else if matched_tokens as f64 > self.cache_threshold * prompt_tokens as f64 {
            Regime::Match
        } else {
            Regime::Room
        }
    }
}

record!(CacheAware { cache_threshold, balance_abs, balance_rel });

#[cfg(test)]
mod tests {
    use super::{CacheAware, Regime};

    const RULE: CacheAware = CacheAware { cache_threshold: 0.3, balance_abs: 4.0, balance_rel: 1.5 };

    #[test]
    fn both_thresholds_make_an_imbalance() {
        let regime = |loads: [u64; 2], matched| RULE.regime(loads.into_iter(), matched, 100);
        assert_eq!(regime([0, 5], 90), Regime::Load);
        assert_eq!(regime([0, 4], 90), Regime::Match, "4 apart is not above 4");
        assert_eq!(regime([10, 15], 90), Regime::Match, "15 is not above 1.5 times 10");
        assert_eq!(regime([10, 16], 90), Regime::Load);
        assert_eq!(regime([1, 1], 31), Regime::Match);
        assert_eq!(regime([1, 1], 30), Regime::Room, "a match of just the threshold is none");
    }
}
