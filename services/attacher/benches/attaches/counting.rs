//! A layer of the client that counts what is written.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context as Task, Poll};

use http::{Method, Request, Response, StatusCode};
use kube::client::Body;
use tower::{Layer, Service};

/// Writes that were answered: of events, of anything else, and conflicts among these.
#[derive(Default)]
pub struct Counts {
    pub writes: AtomicU64,
    pub events: AtomicU64,
    pub conflicts: AtomicU64,
}

#[derive(Clone)]
pub struct Counting(pub Arc<Counts>);

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, counts: Arc::clone(&self.0) }
    }
}

#[derive(Clone)]
pub struct Counted<S> {
    inner: S,
    counts: Arc<Counts>,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, task: &mut Task<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_write = request.method() != Method::GET;
        let is_event = request.uri().path().contains("/events");
        let counts = Arc::clone(&self.counts);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            if is_write {
                let count = if is_event { &counts.events } else { &counts.writes };
                count.fetch_add(1, Ordering::Relaxed);
            }
            if answer.status() == StatusCode::CONFLICT {
                counts.conflicts.fetch_add(1, Ordering::Relaxed);
            }
            Ok(answer)
        })
    }
}
