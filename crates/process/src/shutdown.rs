//! Draining: the first SIGTERM or SIGINT asks, the second aborts.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// A clonable wish to stop. Children stop with their parent, not the other way round.
#[derive(Debug, Clone, Default)]
pub struct Shutdown(CancellationToken);

impl Shutdown {
    /// A shutdown nobody has asked for yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Asks everyone who holds this to drain.
    pub fn trigger(&self) {
        self.0.cancel();
    }

    /// Whether draining was asked for.
    pub fn is_triggered(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Resolves when draining was asked for.
    pub async fn requested(&self) {
        self.0.cancelled().await;
    }

    /// A shutdown for a part: triggered with this one, or alone.
    pub fn child(&self) -> Self {
        Self(self.0.child_token())
    }

    /// Turns signals into a drain; never returns, and ends the process at the second signal.
    pub async fn listen_to_signals(self) -> std::io::Result<()> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut signals = 0;
        loop {
            tokio::select! {
                biased;
                _ = terminate.recv() => signals += 1,
                _ = interrupt.recv() => signals += 1,
            }
            if signals > 1 {
                tracing::warn!("second signal: aborting without drain");
                std::process::exit(1);
            }
            tracing::info!("draining; a second signal aborts");
            self.trigger();
        }
    }
}
