//! Tells watches that something changed, in the order in which they began to wait.
//!
//! tokio's watch channel wakes its receivers in a random order, which no seed decides; a simulation needs one that is
//! the same every time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// The newest revision of a kind, and who waits for the next.
#[derive(Debug, Default)]
pub(crate) struct Changed(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    revision: AtomicU64,
    waiting: Notify,
}

impl Changed {
    pub fn new(revision: u64) -> Self {
        Self(Arc::new(Shared { revision: AtomicU64::new(revision), waiting: Notify::new() }))
    }

    /// Wakes everyone who waits.
    pub fn announce(&self, revision: u64) {
        self.0.revision.store(revision, Ordering::Release);
        self.0.waiting.notify_waiters();
    }

    /// A receiver that has seen everything so far.
    pub fn subscribe(&self) -> Receiver {
        let mut receiver = Receiver { shared: Arc::clone(&self.0), seen: 0 };
        receiver.mark_seen();
        receiver
    }
}

/// One who waits for changes.
#[derive(Debug)]
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    seen: u64,
}

impl Receiver {
    /// What has changed so far is known.
    pub fn mark_seen(&mut self) {
        self.seen = self.shared.revision.load(Ordering::Acquire);
    }

    /// Resolves when something changed since it was last marked as seen.
    pub async fn changed(&self) {
        loop {
            let mut notified = std::pin::pin!(self.shared.waiting.notified());
            // Registered before the look, so that nothing falls between the two.
            notified.as_mut().enable();
            if self.shared.revision.load(Ordering::Acquire) != self.seen {
                return;
            }
            notified.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use futures::FutureExt;

    use super::*;

    #[tokio::test]
    async fn a_change_before_the_wait_is_seen_and_one_that_is_marked_is_not() {
        let changed = Changed::new(5);
        let mut receiver = changed.subscribe();
        assert!(receiver.changed().now_or_never().is_none());
        changed.announce(6);
        assert!(receiver.changed().now_or_never().is_some());
        receiver.mark_seen();
        assert!(receiver.changed().now_or_never().is_none());
    }

    #[tokio::test]
    async fn receivers_wake_in_the_order_in_which_they_began_to_wait() {
        let changed = Changed::new(0);
        let order = Arc::new(Mutex::new(Vec::new()));
        let tasks: Vec<_> = (0..32)
            .map(|number| {
                let (receiver, order) = (changed.subscribe(), Arc::clone(&order));
                tokio::spawn(async move {
                    receiver.changed().await;
                    order.lock().unwrap().push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        changed.announce(1);
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..32).collect::<Vec<_>>());
    }
}
