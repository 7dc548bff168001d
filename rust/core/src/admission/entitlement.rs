//! What each workload is entitled to: a weighted max-min share of the ceilings, between its guarantee and its limit.
//!
//! `q_w = clamp(lambda share_w, min(guarantee_w, d_w), min(limit_w, d_w))` with the one lambda for which the sum of all q
//! is what can be given: the ceilings, or all demands where those are less. Water-filling: the sum is piecewise linear in
//! lambda, with corners where a workload leaves its lower or reaches its upper bound.

/// One workload's claim to the ceilings, in blocks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Claim {
    pub(crate) share: f64,
    /// Commit and waiting prompts.
    pub(crate) demand: f64,
    pub(crate) guarantee: f64,
    pub(crate) limit: f64,
}

impl Claim {
    fn bounds(&self) -> (f64, f64) {
        (self.guarantee.min(self.demand), self.limit.min(self.demand))
    }

    fn at(&self, lambda: f64) -> f64 {
        let (least, most) = self.bounds();
        (lambda * self.share).clamp(least, most)
    }
}

/// Entitlements in blocks, in the order of the claims. O(W log W).
pub(crate) fn entitlements(claims: &[Claim], room: f64) -> Vec<f64> {
    let total = |lambda: f64| claims.iter().map(|claim| claim.at(lambda)).sum::<f64>();
    let room = room.min(claims.iter().map(|claim| claim.bounds().1).sum());
    let mut corners: Vec<f64> = claims.iter().flat_map(|claim| [claim.bounds().0 / claim.share, claim.bounds().1 / claim.share]).collect();
    corners.sort_by(f64::total_cmp);
    // Between the last corner that gives too little and the next the sum grows linearly.
    let above = corners.partition_point(|&lambda| total(lambda) < room);
    let (from, to) = (above.checked_sub(1).map_or(0.0, |at| corners[at]), corners.get(above).copied().unwrap_or(0.0));
    let (low, high) = (total(from), total(to));
    let lambda = if high > low { from + (to - from) * ((room - low) / (high - low)).clamp(0.0, 1.0) } else { to };
    claims.iter().map(|claim| claim.at(lambda)).collect()
}

#[cfg(test)]
#[allow(clippy::float_cmp, reason = "whole numbers")]
mod tests {
    use super::{Claim, entitlements};

    fn claim(share: f64, demand: f64, guarantee: f64, limit: f64) -> Claim {
        Claim { share, demand, guarantee, limit }
    }

    #[test]
    fn what_is_left_by_small_demands_goes_to_the_others() {
        let equal = |demands: [f64; 2], guarantee: f64| {
            entitlements(&[claim(1.0, demands[0], guarantee, f64::INFINITY), claim(1.0, demands[1], 0.0, f64::INFINITY)], 1_000.0)
        };
        assert_eq!(equal([250.0, 1_000.0], 400.0), [250.0, 750.0]);
        assert_eq!(equal([450.0, 1_000.0], 400.0), [450.0, 550.0]);
        assert_eq!(equal([900.0, 1_000.0], 400.0), [500.0, 500.0]);
        assert_eq!(equal([900.0, 1_000.0], 700.0), [700.0, 300.0]);
        assert_eq!(equal([10.0, 20.0], 0.0), [10.0, 20.0]);
        assert_eq!(entitlements(&[], 7.0), [0.0; 0]);
    }

    #[test]
    fn shares_limits_and_nothing() {
        let rows = [claim(3.0, 900.0, 0.0, 300.0), claim(1.0, 900.0, 0.0, f64::INFINITY), claim(2.0, 0.0, 50.0, f64::INFINITY)];
        assert_eq!(entitlements(&rows, 1_000.0), [300.0, 700.0, 0.0]);
        assert_eq!(entitlements(&rows, 200.0), [150.0, 50.0, 0.0]);
        assert_eq!(entitlements(&rows, 0.0), [0.0, 0.0, 0.0]);
        assert_eq!(entitlements(&rows, f64::INFINITY), [300.0, 900.0, 0.0]);
    }
}
