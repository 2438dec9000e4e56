//! How many operations call one driver, or one plugin of ours, at once. What is under way keeps its requests, answers and buffers
//! in memory, about 20 KB each, so that hundreds of pods at once would cost megabytes which never come back; and what waits
//! for a server that is away keeps a thread.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::executor::OperationName;

/// So many towards pods, and as many away from them: far more than a driver works on at once, so a slow volume, or dozens,
/// holds up no other.
pub const AT_ONCE: usize = 64;

/// Whether an operation brings a volume or takes it: neither waits for the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Direction {
    Towards,
    Away,
}

/// The turns of each driver and plugin.
#[derive(Debug, Default)]
pub struct Turns {
    drivers: Mutex<BTreeMap<(String, Direction), Arc<Semaphore>>>,
}

impl Turns {
    /// Waits for the operation's turn with the driver or plugin, in the order of asking; it lasts until this is dropped.
    pub async fn of(&self, driver: &str, operation: OperationName) -> Option<OwnedSemaphorePermit> {
        let direction = match operation {
            OperationName::MountDevice | OperationName::SetUp | OperationName::Expand => Direction::Towards,
            OperationName::UnmountDevice | OperationName::TearDown => Direction::Away,
            // These call no driver.
            OperationName::Attach | OperationName::Detach | OperationName::BindPart => return None,
        };
        let turns = {
            let mut drivers = self.drivers.lock().expect("no code panics while holding the turns");
            let turns = drivers.entry((driver.to_owned(), direction));
            Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(AT_ONCE))))
        };
        // It is never closed.
        turns.acquire_owned().await.ok()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn so_many_are_at_it_at_once_and_the_next_goes_on_when_one_has_ended() {
        let turns = Turns::default();
        let mut held = Vec::new();
        for _ in 0..AT_ONCE {
            held.push(turns.of("a", OperationName::SetUp).now_or_never().expect("it has to wait"));
        }
        let mut next = Box::pin(turns.of("a", OperationName::MountDevice));
        assert!((&mut next).now_or_never().is_none());
        for (driver, operation) in
            [("a", OperationName::TearDown), ("b", OperationName::SetUp), ("a", OperationName::Attach)]
        {
            assert!(turns.of(driver, operation).now_or_never().is_some(), "{driver} {operation:?} waits");
        }
        held.pop();
        assert!(next.now_or_never().is_some());
    }
}
