//! The way to a driver: one type for a socket, for a driver in this process, and for either with something in between.

use std::{
    convert::Infallible,
    error::Error as StdError,
    fmt,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response};
use tokio::sync::watch;
use tonic::{Status, body::Body, service::Routes};
use tower::{Layer, Service, ServiceExt, util::BoxCloneSyncService};

use crate::Endpoint;
use crate::calls::LoggedCalls;

mod socket;

pub use socket::Unreachable;

/// How often a channel was connected, and how often it lost the connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Connections {
    made: u64,
    lost: u64,
}

impl Connections {
    /// What it is while a call is answered: as now, or with one connection more where there is none.
    pub fn in_use(self) -> Self {
        Self { made: self.made.max(self.lost + 1), lost: self.lost }
    }
}

/// A cheap clone of a way to one driver, over which the generated clients run: `NodeClient::new(channel)`.
///
/// Its errors are statuses already. Whatever breaks between us and the driver, before or after the request was sent,
/// is `Unavailable`: tonic alone would call some of it `Unknown` or `Internal`, which read as the driver's final word.
#[derive(Clone)]
pub struct Channel {
    service: BoxCloneSyncService<Request<Body>, Response<Body>, Status>,
    label: Arc<str>,
    connections: Option<watch::Receiver<Connections>>,
}

impl Channel {
    /// A channel that connects to the socket when first used, and again whenever the connection is gone.
    ///
    /// A call that finds nobody there fails at once with `Unavailable`: the caller has its own backoff, and an event
    /// about a missing driver is worth more than silence. At `-v=5` every call is logged. Must be called inside a tokio
    /// runtime.
    pub fn unix(endpoint: &Endpoint) -> Self {
        let (count, connections) = watch::channel(Connections::default());
        let channel = Self::named(endpoint.to_string(), LoggedCalls::new(socket::connect(endpoint, count)));
        channel.counting(Some(connections))
    }

    /// The same for a driver that runs in this process and logs the calls itself.
    pub fn unlogged(endpoint: &Endpoint) -> Self {
        let (count, connections) = watch::channel(Connections::default());
        Self::named(endpoint.to_string(), socket::connect(endpoint, count)).counting(Some(connections))
    }

    /// A channel to services in this process: no socket, no HTTP/2, no task of its own.
    pub fn in_process(routes: Routes) -> Self {
        let service = ServiceExt::<Request<Body>>::map_err(routes.prepare(), |never: Infallible| match never {});
        Self::named("in process", service)
    }

    /// This channel behind a layer, such as one that counts, delays or loses calls.
    pub fn layer<L>(self, layer: L) -> Self
    where
        L: Layer<Self>,
        L::Service: Service<Request<Body>, Response = Response<Body>> + Clone + Send + Sync + 'static,
        <L::Service as Service<Request<Body>>>::Error: Into<Box<dyn StdError + Send + Sync>>,
        <L::Service as Service<Request<Body>>>::Future: Send + 'static,
    {
        let (label, connections) = (self.label.clone(), self.connections.clone());
        Self::named(label, layer.layer(self).map_err(|error| Status::from_error(error.into()))).counting(connections)
    }

    /// This channel behind a function that gets every request and the way on; [`Self::send`] passes a request on.
    pub fn intercept<F, R>(self, through: F) -> Self
    where
        F: Fn(Request<Body>, Self) -> R + Clone + Send + Sync + 'static,
        R: Future<Output = Result<Response<Body>, Status>> + Send + 'static,
    {
        let (label, connections) = (self.label.clone(), self.connections.clone());
        Self::named(label, tower::service_fn(move |request| through(request, self.clone()))).counting(connections)
    }

    /// The connections so far; none where there is no socket. A lost one is told also while no call is made, and behind a
    /// new one may be another driver.
    pub fn connections(&self) -> Option<watch::Receiver<Connections>> {
        self.connections.clone()
    }

    fn counting(self, connections: Option<watch::Receiver<Connections>>) -> Self {
        Self { connections, ..self }
    }

    /// Sends one raw request.
    pub async fn send(self, request: Request<Body>) -> Result<Response<Body>, Status> {
        self.service.oneshot(request).await
    }

    fn named<S>(label: impl Into<Arc<str>>, service: S) -> Self
    where
        S: Service<Request<Body>, Response = Response<Body>, Error = Status> + Clone + Send + Sync + 'static,
        S::Future: Send + 'static,
    {
        Self { service: BoxCloneSyncService::new(service), label: label.into(), connections: None }
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.service.call(request)
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Channel({})", self.label)
    }
}

#[cfg(test)]
mod tests;
