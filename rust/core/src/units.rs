//! Units of the core: time in integer nanoseconds, capacity in whole index blocks, tokens only at the border.

/// Time in nanoseconds on the caller's monotonic clock. The core owns no clock.
pub type Nanos = u64;

/// Nanoseconds in one second.
pub const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Converts seconds to [`Nanos`], clamping what is negative, not finite or too large to the range of the type.
///
/// ```
/// assert_eq!(turnout_core::units::nanos(1.5), 1_500_000_000);
/// assert_eq!(turnout_core::units::nanos(-1.0), 0);
/// ```
#[must_use]
pub fn nanos(seconds: f64) -> Nanos {
    // `as` saturates, and maps NaN to 0.
    (seconds * 1e9).round() as u64
}

/// Converts [`Nanos`] to seconds.
#[must_use]
pub fn seconds(time: Nanos) -> f64 {
    time as f64 / 1e9
}

/// Converts a capacity in tokens to blocks, rounding down: a partial block cannot be used. Infinite stays unbounded.
#[must_use]
pub(crate) fn capacity_blocks(tokens: f64, block_tokens: u32) -> u64 {
    if tokens.is_infinite() { UNBOUNDED_BLOCKS } else { ((tokens / f64::from(block_tokens)).floor() as u64).min(UNBOUNDED_BLOCKS) }
}

/// No sequence is longer, so that sums over any fleet stay far below 2^64.
pub const MAX_SEQUENCE_TOKENS: u64 = 1 << 40;

/// No clock reads more (146 years), so that a time plus a duration never overflows.
pub const MAX_NANOS: Nanos = 1 << 62;

/// Stands for "no limit" in block arithmetic: large enough for any fleet, small enough that sums cannot overflow.
pub(crate) const UNBOUNDED_BLOCKS: u64 = 1 << 60;
