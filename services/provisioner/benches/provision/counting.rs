//! A layer of the client that counts requests by verb and kind.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Poll};

use http::{Method, Request, Response};
use kube::client::Body;
use tower::{Layer, Service};

/// Requests that were answered, by verb and kind, as in `POST events`.
#[derive(Default)]
pub struct Counts(Mutex<BTreeMap<String, usize>>);

impl Counts {
    pub fn take(&self) -> BTreeMap<String, usize> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    pub fn all(&self) -> usize {
        self.0.lock().unwrap().values().sum()
    }

    fn add(&self, method: &Method, path: &str) {
        let kinds = ["leases", "events", "persistentvolumes", "persistentvolumeclaims"];
        let kind = kinds.into_iter().find(|kind| path.split('/').any(|part| part == *kind)).unwrap_or("other");
        *self.0.lock().unwrap().entry(format!("{method} {kind}")).or_default() += 1;
    }
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
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        let is_watch = request.uri().query().is_some_and(|query| query.contains("watch="));
        let counts = Arc::clone(&self.counts);
        let answer = self.inner.call(request);
        Box::pin(async move {
            let answer = answer.await?;
            if !is_watch {
                counts.add(&method, &path);
            }
            Ok(answer)
        })
    }
}
