//! Tasks with an owner: every future a service starts lives and dies with its `run()`.

use std::future::Future;

use futures::future::BoxFuture;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Hands futures to the [`Tasks`] that own them.
#[derive(Clone)]
pub struct Spawner(mpsc::UnboundedSender<BoxFuture<'static, ()>>);

impl Spawner {
    /// Starts a future under the owner; once the owner is gone it is dropped unstarted.
    pub fn spawn(&self, future: impl Future<Output = ()> + Send + 'static) {
        // The owner only disappears when the whole service stops, and then nothing may start any more.
        let _ = self.0.send(Box::pin(future));
    }
}

impl std::fmt::Debug for Spawner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Spawner")
    }
}

/// Owns started futures. Dropping it aborts all of them: this is what a crash looks like in tests.
pub struct Tasks {
    spawner: Spawner,
    incoming: mpsc::UnboundedReceiver<BoxFuture<'static, ()>>,
    running: JoinSet<()>,
}

/// A task panicked; its owner must stop.
#[derive(Debug, thiserror::Error)]
#[error("a background task panicked: {0}")]
pub struct Panicked(String);

impl Tasks {
    /// An owner with nothing to own yet.
    pub fn new() -> Self {
        let (sender, incoming) = mpsc::unbounded_channel();
        Self { spawner: Spawner(sender), incoming, running: JoinSet::new() }
    }

    /// A handle for starting futures.
    pub fn spawner(&self) -> Spawner {
        self.spawner.clone()
    }

    /// Runs what is started, for ever; returns only if a task panics.
    pub async fn supervise(&mut self) -> Panicked {
        loop {
            tokio::select! {
                biased;
                Some(ended) = self.running.join_next() => {
                    if let Err(error) = ended && error.is_panic() {
                        return Panicked(error.to_string());
                    }
                }
                Some(future) = self.incoming.recv() => { self.running.spawn(future); }
            }
        }
    }
}

impl Default for Tasks {
    fn default() -> Self {
        Self::new()
    }
}
