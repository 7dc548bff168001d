//! Expected peak of a session that grows and ends at random: the function phi.
//!
//! A session that has grown by `g` tokens, grows at rate r and ends with hazard r/L (mean final growth L) has the expected
//! occupancy (g + r h) exp(-r h / L) after a time h, which peaks at r h = L - g with `L exp(g/L - 1)`. Beyond L nothing
//! more is expected. Computed in integers, so that every machine agrees.

/// `E[j] = round(2^16 exp(j/1024 - 1))`.
const TABLE: [u32; 1025] = exponentials();

/// phi(g; L) in tokens: `g` if `g >= L`, else `max(g, ceil(L * E[floor(1024 g / L)] / 2^16))`. `L = 0` expects no growth.
///
/// ```
/// use turnout_core::ledger::phi;
/// assert_eq!((phi(0, 2_000), phi(500, 2_000), phi(600, 2_000)), (736, 945, 993));
/// assert_eq!(phi(3_000, 2_000), 3_000);
/// ```
#[must_use]
pub fn phi(grown_tokens: u64, growth_tokens: u64) -> u64 {
    if grown_tokens >= growth_tokens {
        return grown_tokens;
    }
    let step = u128::from(grown_tokens) * 1024 / u128::from(growth_tokens);
    let peak = (u128::from(growth_tokens) * u128::from(TABLE[step as usize])).div_ceil(1 << 16);
    grown_tokens.max(peak as u64)
}

/// The table in 100-bit fixed point: e^-1 from its series, then 1,024 multiplications by e^(1/1024).
const fn exponentials() -> [u32; 1025] {
    const FRACTION: u32 = 60;
    const ONE: u128 = 1 << FRACTION;
    // e^-1 = sum (-1)^k / k!, and e^(1/1024) = sum (1/1024)^k / k!.
    let (mut inverse, mut term, mut k) = (0i128, ONE.cast_signed(), 0i128);
    while k < 24 {
        inverse += term;
        k += 1;
        term = -term / k;
    }
    let (mut ratio, mut step, mut n) = (0u128, ONE, 0u128);
    while n < 12 {
        ratio += step;
        n += 1;
        step = step / (n * 1024);
    }
    let mut table = [0; 1025];
    let (mut value, mut j) = (inverse.cast_unsigned(), 0);
    while j < 1025 {
        table[j] = ((value + (1 << (FRACTION - 17))) >> (FRACTION - 16)) as u32;
        value = (value * ratio) >> FRACTION;
        j += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::{TABLE, phi};

    #[test]
    fn table_is_the_rounded_exponential() {
        for (j, &entry) in TABLE.iter().enumerate() {
            let exact = 65_536.0 * (j as f64 / 1024.0 - 1.0).exp();
            assert!((f64::from(entry) - exact).abs() <= 0.5 + 1e-6, "E[{j}] = {entry}, exact {exact}");
        }
        assert_eq!((TABLE[0], TABLE[1024]), (24_109, 65_536));
    }

    #[test]
    fn grows_and_never_falls_below_what_is_there() {
        for growth in [0, 1, 7, 1_000, 131_072, u64::MAX >> 4] {
            let mut last = 0;
            for step in 0..=2_048u64 {
                let grown = (u128::from(growth) * u128::from(step) / 1_024) as u64;
                let peak = phi(grown, growth);
                assert!(peak >= grown && peak >= last);
                last = peak;
            }
        }
        assert_eq!((phi(0, 8_192), phi(0, 60_000)), (3_014, 22_073));
    }
}
