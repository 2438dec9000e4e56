//! Virtual time: a fixed date plus what tokio's paused clock says has passed.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use stowage_runtime::clock::Clock;

/// 2024-01-01T00:00:00Z, when every world begins.
const BEGINNING: i64 = 1_704_067_200;

/// The clock of one world; it moves only while nobody has anything to do.
#[derive(Debug, Clone, Copy)]
pub struct VirtualClock {
    start: Instant,
}

impl VirtualClock {
    /// A clock that begins now; needs a runtime whose time is paused.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Virtual time since the beginning.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        let passed = SignedDuration::try_from(self.elapsed()).unwrap_or(SignedDuration::MAX);
        let beginning = Timestamp::from_second(BEGINNING).expect("a date in range");
        beginning.checked_add(passed).unwrap_or(Timestamp::MAX)
    }

    fn boottime(&self) -> Duration {
        self.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn time_passes_only_where_somebody_sleeps() {
        let clock = VirtualClock::start();
        assert_eq!(clock.now().to_string(), "2024-01-01T00:00:00Z");
        tokio::task::yield_now().await;
        assert_eq!(clock.elapsed(), Duration::ZERO);
        tokio::time::sleep(Duration::from_secs(90)).await;
        assert_eq!(clock.now().to_string(), "2024-01-01T00:01:30Z");
    }
}
