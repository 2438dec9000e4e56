//! The clock port: wall time for what is written, boot time for what must count suspended seconds.

use std::time::Duration;

use jiff::Timestamp;
use nix::time::{ClockId, clock_gettime};

/// Where a service reads the time. Sleeping goes through `tokio::time`, which tests pause.
pub trait Clock: Send + Sync + 'static {
    /// Wall-clock time, for timestamps in objects and for decisions.
    fn now(&self) -> Timestamp;

    /// Time since some fixed moment that also counts while the machine or process is suspended.
    fn boottime(&self) -> Duration;
}

/// The machine's own clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn boottime(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from).expect("CLOCK_BOOTTIME exists since Linux 2.6.39")
    }
}
