//! One signal for "something in the world is different now".

use std::sync::Arc;

use tokio::sync::watch;

/// Counts changes of the world and wakes who waits for the next; clones share the count.
#[derive(Debug, Clone)]
pub struct Changes(Arc<watch::Sender<u64>>);

impl Default for Changes {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }
}

impl Changes {
    /// Something changed.
    pub fn announce(&self) {
        self.0.send_modify(|count| *count += 1);
    }

    /// A receiver that sees every change from now on.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.subscribe()
    }
}
