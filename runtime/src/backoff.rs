//! Random numbers that no secret hangs on, and randomised delays, so that many that failed together do not come back together.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

/// A duration between `base` and `base * (1 + fraction)`.
pub(crate) fn jitter(base: Duration, fraction: f64) -> Duration {
    base.mul_f64(1.0 + fraction * random())
}

/// Delay before the next try after `failures` failures in a row (1 or more): doubled each time from
/// `base` up to `cap`, then reduced by up to a half.
pub fn exponential(failures: u32, base: Duration, cap: Duration) -> Duration {
    let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    base.saturating_mul(factor).min(cap).mul_f64(1.0 - 0.5 * random())
}

/// A number from 0 to 1.
fn random() -> f64 {
    f64::from(u32::try_from(bits() >> 32).unwrap_or(0)) / f64::from(u32::MAX)
}

/// Sixteen hexadecimal digits that tell one thing from others in a log.
pub(crate) fn random_id() -> String {
    format!("{:016x}", bits())
}

/// The standard library seeds each hasher at random.
fn bits() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_cap() {
        let delay = |failures| exponential(failures, Duration::from_secs(1), Duration::from_secs(30));
        for (failures, most) in [(1, 1), (2, 2), (4, 8), (6, 30), (33, 30), (u32::MAX, 30)] {
            let most = Duration::from_secs(most);
            let delay = delay(failures);
            assert!(delay <= most && delay >= most / 2, "{failures}: {delay:?}");
        }
    }

    #[test]
    fn jitter_only_adds() {
        let base = Duration::from_secs(10);
        for _ in 0..100 {
            let delay = jitter(base, 0.2);
            assert!(delay >= base && delay <= Duration::from_secs(12), "{delay:?}");
        }
    }
}
