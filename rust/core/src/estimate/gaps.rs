//! What is learned of the time between a session's turns, and of whether another turn comes.

use std::collections::VecDeque;

use super::{FADE, ratio};
use crate::record::codec::record;
use crate::units::{Nanos, seconds};

/// Gaps of which the quantile is taken, the latest ones.
const REMEMBERED: usize = 128;
/// Gaps, and decided turns, below which nothing is concluded from them.
pub(crate) const ENOUGH: usize = 16;
/// Below this share of turns that are followed by another, none is waited for.
const RARELY: f64 = 0.05;
/// Of sessions that are not waited for, every so many one is: else nobody would notice that turns follow again.
const PROBE: u64 = 32;

/// Gaps between the end of a turn and the submit of the next, and turns that were followed by another or were the last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gaps {
    count: f64,
    sum_s: f64,
    recent: VecDeque<Nanos>,
    /// The 0.95 quantile of the recent ones.
    long: Nanos,
    followed: f64,
    last: f64,
    decided: u64,
    /// Sessions that were to end with their turn, those that are watched included.
    judged: u64,
}

record!(Gaps { count, sum_s, recent, long, followed, last, decided, judged });

/// The value that `95 %` of the sorted ones do not exceed.
fn quantile(sorted: &[Nanos]) -> Nanos {
    let at = (sorted.len() * 95).div_ceil(100);
    sorted.get(at.saturating_sub(1)).copied().unwrap_or(0)
}

impl Gaps {
    /// Notes that a turn was followed by another after this time.
    pub(crate) fn followed(&mut self, gap: Nanos) {
        self.decide();
        self.followed += 1.0;
        self.count = self.count * FADE + 1.0;
        self.sum_s = self.sum_s * FADE + seconds(gap);
        if self.recent.len() == REMEMBERED {
            self.recent.pop_front();
        }
        self.recent.push_back(gap);
        let mut sorted: Vec<Nanos> = self.recent.iter().copied().collect();
        sorted.sort_unstable();
        self.long = quantile(&sorted);
    }

    /// Notes that a session has ended after a turn.
    pub(crate) fn ended(&mut self) {
        self.decide();
        self.last += 1.0;
    }

    fn decide(&mut self) {
        self.followed *= FADE;
        self.last *= FADE;
        self.decided += 1;
    }

    /// The 0.95 quantile of the gaps, once there are enough.
    pub(crate) fn long(&self) -> Option<Nanos> {
        (self.recent.len() >= ENOUGH).then_some(self.long)
    }

    /// Whether a session without an end signal ends with its turn, because hardly any turn is followed by another.
    pub(crate) fn rarely_followed(&mut self) -> bool {
        if self.decided < ENOUGH as u64 || self.continue_fraction() >= RARELY {
            return false;
        }
        self.judged += 1;
        !self.judged.is_multiple_of(PROBE)
    }

    /// Share of turns that were followed by another; 1 while nothing is known.
    pub(crate) fn continue_fraction(&self) -> f64 {
        let decided = self.followed + self.last;
        if decided > 0.0 { self.followed / decided } else { 1.0 }
    }

    /// Mean and 0.95 quantile, s; 0 = unknown. A gap that has lasted longer than the mean, or the quantile, already counts as one more
    /// of at least that length.
    pub(crate) fn read(&self, lasting: impl Iterator<Item = Nanos> + Clone) -> (f64, f64) {
        let mean = ratio(self.sum_s, self.count);
        let longer = lasting.clone().map(seconds).filter(|&gap| gap > mean);
        let (sum, count) = longer.fold((self.sum_s, self.count), |(sum, count), gap| (sum + gap, count + 1.0));
        let mut sorted: Vec<Nanos> = self.recent.iter().copied().chain(lasting.filter(|&gap| gap > self.long)).collect();
        sorted.sort_unstable();
        (ratio(sum, count), seconds(quantile(&sorted)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::NANOS_PER_SECOND;

    #[test]
    fn the_quantile_is_of_the_latest_gaps() {
        let mut gaps = Gaps::default();
        for second in 1..=100 {
            gaps.followed(second * NANOS_PER_SECOND);
            assert_eq!(gaps.long().is_some(), second >= 16);
        }
        assert_eq!(gaps.long(), Some(95 * NANOS_PER_SECOND));
        for _ in 0..REMEMBERED {
            gaps.followed(3 * NANOS_PER_SECOND);
        }
        assert!((gaps.read(std::iter::empty()).1 - 3.0).abs() < 1e-9);
        assert!(gaps.read(std::iter::empty()).0 < 5.0, "the mean fades");
    }

    #[test]
    fn gaps_that_last_count_as_what_they_are_already() {
        let mut gaps = Gaps::default();
        assert_eq!(gaps.read([7 * NANOS_PER_SECOND].into_iter()), (7.0, 7.0), "before the first has ended");
        for _ in 0..20 {
            gaps.followed(10 * NANOS_PER_SECOND);
        }
        assert_eq!(gaps.read([9 * NANOS_PER_SECOND].into_iter()), gaps.read(std::iter::empty()), "it may still become an ordinary one");
        let (mean, long) = gaps.read(vec![100 * NANOS_PER_SECOND; 3].into_iter());
        assert!(mean > 20.0, "{mean}");
        assert!((long - 100.0).abs() < 1e-9);
    }

    #[test]
    fn one_in_many_is_waited_for() {
        let mut gaps = Gaps::default();
        assert!((gaps.continue_fraction() - 1.0).abs() < 1e-9);
        let waited = (0..320).filter(|_| {
            gaps.ended();
            !gaps.rarely_followed()
        });
        assert_eq!(waited.count(), 15 + 305 / 32, "the first, of which nothing was known, and every 32nd");
        gaps.followed(1);
        gaps.followed(1);
        assert!(gaps.continue_fraction() > 0.05);
    }
}
