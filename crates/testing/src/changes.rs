//! One signal for "something in the world is different now".

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Counts changes of the world and wakes who waits for the next, in the order in which they began to wait.
///
/// tokio's watch channel would wake them in a random order.
#[derive(Debug, Clone, Default)]
pub struct Changes(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    count: AtomicU64,
    waiting: Notify,
}

impl Changes {
    /// Something changed.
    pub fn announce(&self) {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        self.0.waiting.notify_waiters();
    }

    /// How many changes there were.
    pub fn count(&self) -> u64 {
        self.0.count.load(Ordering::Acquire)
    }

    /// Resolves when there were more changes than these.
    pub async fn beyond(&self, count: u64) {
        loop {
            let mut notified = std::pin::pin!(self.0.waiting.notified());
            // Registered before the look, so that nothing falls between the two.
            notified.as_mut().enable();
            if self.count() > count {
                return;
            }
            notified.await;
        }
    }
}
