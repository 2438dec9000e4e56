//! A client-side rate limit, for users who set `--kube-api-qps`.

use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::Instant;
use tower::{Layer, Service};

/// Lets `burst` requests through at once and then `qps` per second; clones share the allowance.
#[derive(Debug, Clone)]
pub(super) struct RateLimit(Arc<Bucket>);

#[derive(Debug)]
struct Bucket {
    interval: Duration,
    burst: u32,
    /// When the allowance would be full again, if no request came.
    full_at: Mutex<Option<Instant>>,
}

impl RateLimit {
    /// `qps` is above zero.
    pub(super) fn new(qps: f32, burst: u32) -> Self {
        let interval = Duration::from_secs_f32(qps.recip().min(3600.0));
        Self(Arc::new(Bucket { interval, burst: burst.max(1), full_at: Mutex::new(None) }))
    }

    #[cfg(test)]
    pub(super) fn burst(&self) -> u32 {
        self.0.burst
    }

    /// Takes one request off the allowance and says when it may be sent.
    fn reserve(&self) -> Instant {
        let now = Instant::now();
        let mut full_at = self.0.full_at.lock().expect("no code panics while holding the allowance");
        let next = full_at.map_or(now, |at| at.max(now)) + self.0.interval;
        *full_at = Some(next);
        next.checked_sub(self.0.interval * self.0.burst).map_or(now, |at| at.max(now))
    }
}

impl<S> Layer<S> for RateLimit {
    type Service = Limited<S>;

    fn layer(&self, inner: S) -> Limited<S> {
        Limited { inner, limit: self.clone() }
    }
}

/// A service whose calls wait for their turn.
pub(super) struct Limited<S> {
    inner: S,
    limit: RateLimit,
}

impl<S, R> Service<R> for Limited<S>
where
    S: Service<R>,
    S::Future: Send + 'static,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: R) -> Self::Future {
        let turn = self.limit.reserve();
        let call = self.inner.call(request);
        Box::pin(async move {
            tokio::time::sleep_until(turn).await;
            call.await
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_at_once_and_the_rest_at_the_rate() {
        let limit = RateLimit::new(5.0, 3);
        let start = Instant::now();
        let waits: Vec<u128> = (0..6).map(|_| (limit.reserve() - start).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200, 400, 600]);
        tokio::time::advance(Duration::from_secs(10)).await;
        let later = Instant::now();
        let waits: Vec<u128> = (0..4).map(|_| (limit.reserve() - later).as_millis()).collect();
        assert_eq!(waits, [0, 0, 0, 200]);
    }
}
