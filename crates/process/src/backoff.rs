//! Exponential backoff as a plain calculation.

use std::time::Duration;

/// Doubles from `base` up to `max`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    /// Delay after the first failure.
    pub base: Duration,
    /// Delay that is never exceeded.
    pub max: Duration,
}

impl Backoff {
    /// What the Go work queues use per item: 5 ms doubling to 1000 s, here capped at five minutes.
    pub const QUEUE: Self = Self { base: Duration::from_millis(5), max: Duration::from_secs(300) };

    /// What the Go sidecars use between driver calls for one object.
    pub const DRIVER: Self = Self { base: Duration::from_secs(1), max: Duration::from_secs(300) };

    /// The delay after `failures` failures in a row; none after zero.
    pub fn delay(&self, failures: u32) -> Duration {
        match failures {
            0 => Duration::ZERO,
            n => self.base.saturating_mul(1_u32.checked_shl(n - 1).unwrap_or(u32::MAX)).min(self.max),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_delay_doubles_and_stops_at_the_maximum() {
        let backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(5) };
        let delays: Vec<u64> = [0, 1, 2, 3, 4, 40, u32::MAX].iter().map(|n| backoff.delay(*n).as_secs()).collect();
        assert_eq!(delays, [0, 1, 2, 4, 5, 5, 5]);
    }
}
