//! A layer of the client that counts what is asked of the server, and has it answered on a task of its own, as over a
//! connection: a server in the same process would else be asked by the one task of its client, and be as fast as one core.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use kube::client::Body;
use tokio::task::JoinHandle;
use tower::{Layer, Service};

use crate::rights::Right;

/// Requests that were answered, watches apart.
#[derive(Default)]
pub struct Counts(Mutex<Answered>);

#[derive(Default)]
struct Answered {
    requests: BTreeMap<Right, u64>,
    conflicts: u64,
}

impl Counts {
    /// Every request.
    pub fn all(&self) -> u64 {
        self.lock().requests.values().sum()
    }

    /// Requests of the sort.
    pub fn of(&self, is_so: impl Fn(&Right) -> bool) -> u64 {
        self.lock().requests.iter().filter(|(right, _)| is_so(right)).map(|(_, count)| count).sum()
    }

    /// Writes of anything but events.
    pub fn writes(&self) -> u64 {
        self.of(|right| right.is_write() && right.resource != "events")
    }

    /// Writes of events.
    pub fn events(&self) -> u64 {
        self.of(|right| right.is_write() && right.resource == "events")
    }

    /// Writes that somebody else's had overtaken.
    pub fn conflicts(&self) -> u64 {
        self.lock().conflicts
    }

    /// What was counted so far, which is then counted no more.
    pub fn take(&self) -> BTreeMap<Right, u64> {
        std::mem::take(&mut *self.lock()).requests
    }

    fn add(&self, right: Right, status: StatusCode) {
        let mut answered = self.lock();
        *answered.requests.entry(right).or_default() += 1;
        answered.conflicts += u64::from(status == StatusCode::CONFLICT);
    }

    fn lock(&self) -> MutexGuard<'_, Answered> {
        self.0.lock().expect("no code panics while it counts")
    }
}

/// The layer.
#[derive(Clone)]
pub struct Counting(pub Arc<Counts>);

impl<S> Layer<S> for Counting {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted { inner, counts: Arc::clone(&self.0) }
    }
}

/// An answer that is worked on elsewhere for as long as somebody waits for it.
struct Elsewhere<T>(JoinHandle<T>);

impl<T> Future for Elsewhere<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<T> {
        Pin::new(&mut self.0).poll(task).map(|ended| ended.expect("a server does not panic, and nobody else aborts it"))
    }
}

impl<T> Drop for Elsewhere<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A service whose requests are counted.
#[derive(Clone)]
pub struct Counted<S> {
    inner: S,
    counts: Arc<Counts>,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
{
    type Response = Response<B>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<B>, S::Error>> + Send>>;

    fn poll_ready(&mut self, task: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let right = Right::of(request.method(), request.uri().path(), request.uri().query().unwrap_or_default());
        let counts = Arc::clone(&self.counts);
        let answer = Elsewhere(tokio::spawn(self.inner.call(request)));
        Box::pin(async move {
            let answer = answer.await?;
            if let Some(right) = right.filter(|right| right.verb != "watch") {
                counts.add(right, answer.status());
            }
            Ok(answer)
        })
    }
}
