//! Services side by side in one process: one that ends is started again alone.

use std::future::Future;
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::task::JoinSet;

use stowage_runtime::Stop;
use stowage_runtime::backoff::Backoff;
use stowage_runtime::shutdown::Shutdown;

const RESTART: Backoff = Backoff { base: Duration::from_millis(200), max: Duration::from_secs(30) };

/// A service that ran this long is forgiven its earlier failures.
const STABLE: Duration = Duration::from_secs(60);

/// Owns the services of a stack.
#[derive(Default)]
pub struct Supervisor {
    services: JoinSet<&'static str>,
}

impl Supervisor {
    /// Starts a service and keeps it running until its shutdown is triggered.
    pub fn keep<F>(&mut self, name: &'static str, shutdown: Shutdown, mut service: impl FnMut() -> F + Send + 'static)
    where
        F: Future<Output = Result<(), Stop>> + Send + 'static,
    {
        self.services.spawn(async move {
            let mut failures = 0;
            loop {
                let started = tokio::time::Instant::now();
                let ended = contain(Box::pin(service())).await;
                if shutdown.is_triggered() {
                    if let Err(reason) = ended {
                        tracing::warn!(service = name, reason, "service did not stop cleanly");
                    }
                    return name;
                }
                failures = if started.elapsed() > STABLE { 1 } else { failures + 1 };
                let delay = RESTART.delay(failures);
                match ended {
                    Ok(()) => tracing::warn!(service = name, ?delay, "service ended by itself, starting it again"),
                    Err(reason) => tracing::warn!(service = name, reason, ?delay, "service stopped, starting it again"),
                }
                tokio::select! {
                    biased;
                    () = shutdown.requested() => return name,
                    () = tokio::time::sleep(delay) => {}
                }
            }
        });
    }

    /// Waits until every service has ended.
    pub async fn join(mut self) {
        while let Some(ended) = self.services.join_next().await {
            match ended {
                Ok(name) => tracing::debug!(service = name, "ended"),
                Err(error) => tracing::error!(%error, "a service's task failed"),
            }
        }
    }
}

/// A panic in a service is its own failure, not the stack's.
async fn contain(service: BoxFuture<'static, Result<(), Stop>>) -> Result<(), String> {
    let mut alone = JoinSet::new();
    alone.spawn(service);
    match alone.join_next().await {
        Some(Ok(result)) => result.map_err(|stop| stop.to_string()),
        Some(Err(error)) => Err(error.to_string()),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use stowage_runtime::lease::Lost;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_service_that_fails_or_panics_is_started_again_until_shutdown() {
        let shutdown = Shutdown::new();
        let starts = Arc::new(AtomicU32::new(0));
        let mut supervisor = Supervisor::default();
        supervisor.keep("test", shutdown.clone(), {
            let (starts, shutdown) = (Arc::clone(&starts), shutdown.clone());
            move || {
                let start = starts.fetch_add(1, Ordering::Relaxed);
                let shutdown = shutdown.clone();
                async move {
                    match start {
                        0 => Err(Stop::LeaseLost { lease: "l".into(), reason: Lost::Ended }),
                        1 => panic!("a bug"),
                        _ => {
                            shutdown.trigger();
                            Ok(())
                        }
                    }
                }
            }
        });
        supervisor.join().await;
        assert_eq!(starts.load(Ordering::Relaxed), 3);
    }
}
