//! HTTP around the store: a tower service that needs no socket.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use prometheus_client::metrics::gauge::Gauge;
use serde_json::Value;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::auth::{Credentials, User, unauthorized};
use crate::kind::Kinds;
use crate::review;
use crate::serve::Visitor;
use crate::server::Shared;
use crate::status::Status;
use crate::store::Store;
use crate::wire;

mod answer;
mod asked;
mod compress;
mod discovery;
mod impersonate;
mod incoming;
mod limits;
mod list;
mod openapi;
mod outgoing;
mod query;
mod resource;
mod route;

use answer::DryRun;
use asked::Asked;
use incoming::Allowance;
pub use limits::Limits;
use limits::{Asker, Pots};
pub(crate) use limits::{Level, Places, later};
pub(crate) use outgoing::{Hold, Meter, Unsent};
use query::Parameters;
use route::Route;

/// Body of every answer; a watch's goes on until it is dropped.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Who sends the requests of a [`Service`].
#[derive(Clone)]
pub(crate) enum Caller {
    /// The program around us, for this user.
    InProcess(Arc<User>),
    /// Whoever is at the other end of a connection.
    Remote(Arc<Remote>),
}

/// One connection, and what it may use.
pub(crate) struct Remote {
    pub credentials: Arc<Credentials>,
    /// The user of the client certificate.
    pub certificate: Option<User>,
    pub visitor: Visitor,
    pub unsent: Arc<Unsent>,
    pub gate: Arc<Gate>,
}

/// What all connections share.
pub(crate) struct Gate {
    pub limits: Limits,
    pub places: Places,
    /// Bytes of request bodies.
    pub bodies: Pots,
    /// Bytes of answers.
    pub unsent: Pots,
    pub watches: Pots,
}

impl Gate {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            places: Places::new(&limits),
            bodies: Pots::divided(limits.body_bytes),
            unsent: Pots::divided(limits.unsent_bytes),
            watches: Pots::each(limits.watches),
        }
    }
}

/// What a request's answer needs to know of its connection.
struct Session {
    /// Becomes true when watches must end.
    closing: watch::Receiver<bool>,
    meter: Meter,
}

/// The API as a tower service; cheap to clone.
#[derive(Clone)]
pub struct Service {
    shared: Arc<Shared>,
    caller: Caller,
    closing: watch::Receiver<bool>,
}

impl Service {
    /// `closing` ends the watches that were begun through this service.
    pub(crate) fn new(shared: Arc<Shared>, caller: Caller, closing: watch::Receiver<bool>) -> Self {
        Self { shared, caller, closing }
    }

    async fn answer<B>(self, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        let started = Instant::now();
        let shared = self.shared.clone();
        let (parts, body) = request.into_parts();
        let kinds = shared.core.read(Store::kinds);
        let route = Route::parse(&kinds, parts.uri.path());
        let asked = Asked::new(&parts.method, parts.uri.path(), parts.uri.query(), &route);
        let mut meter = Meter::default();
        let response = match self.dispatch(&kinds, route, &asked, &parts, body, &mut meter).await {
            Ok(response) => response,
            Err(status) => meter.always(refuse(&status)),
        };
        let response = if asked.is_watch() { counted(response, &shared.core.metrics.watches) } else { response };
        let seconds = (!asked.is_watch()).then(|| started.elapsed().as_secs_f64());
        shared.core.metrics.answered(asked.labels(), response.status().as_u16(), seconds);
        response
    }

    /// Everything from who asks to the answer; `meter` counts for whoever asks as soon as that is known.
    async fn dispatch<B>(
        self,
        kinds: &Kinds,
        route: Result<Route, Status>,
        asked: &Asked,
        parts: &Parts,
        body: B,
        meter: &mut Meter,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display,
    {
        if let Ok(Route::Health { check }) = &route {
            return Ok(healthy(check, parts.uri.query()));
        }
        let core = &self.shared.core;
        let caller = self.identify(parts)?;
        let remote = match &self.caller {
            Caller::Remote(remote) => Some(remote.clone()),
            Caller::InProcess(_) => None,
        };
        let asker = Asker::of(&caller, asked);
        if let Some(remote) = &remote {
            remote.visitor.is(&caller)?;
            *meter = Meter::new(remote.unsent.clone(), asker.clone());
        }
        let user = impersonate::effective(core, &parts.headers, caller.clone())?;
        core.authorize(&user, &asked.request())?;
        let body = incoming::read(body, remote.as_deref().map(|remote| remote.allowance(&asker))).await?;
        meter.check()?;
        // Taken when nothing of the client's is waited for, held until the answer is there.
        let _place = match &remote {
            Some(remote) if !asked.is_watch() => Some(remote.gate.places.take(&asker, asked, &core.metrics)?),
            _ => None,
        };
        // A watch lasts, and is counted with others of its kind.
        let watch = match &remote {
            Some(remote) if asked.is_watch() => Some(remote.gate.watches.take(&asker, 1).ok_or_else(later)?),
            _ => None,
        };
        let session = Session { closing: self.closing, meter: meter.clone() };
        let work = work(&self.shared, kinds, route?, &user, parts, body.bytes.clone(), session);
        let response = match &remote {
            Some(remote) => tokio::time::timeout(remote.gate.limits.request_timeout, work).await.map_err(|_| late())?,
            None => work.await,
        }?;
        let gzip = compress::accepts_gzip(&parts.headers);
        let response = if gzip { compress::gzip(response).await } else { response };
        let response = match watch {
            Some(watch) => keeping(response, watch),
            None => response,
        };
        // What is done is told, room or not.
        let done = asked.is_mutating() && response.extensions().get::<DryRun>().is_none();
        if done { Ok(meter.clone().always(response)) } else { meter.clone().answer(response) }
    }

    fn identify(&self, parts: &Parts) -> Result<User, Status> {
        match &self.caller {
            Caller::InProcess(user) => Ok(User::clone(user)),
            Caller::Remote(remote) => remote
                .credentials
                .identify(&self.shared.core, &parts.headers, remote.certificate.as_ref())?
                .ok_or_else(unauthorized),
        }
    }
}

impl Remote {
    fn allowance(&self, asker: &Asker) -> Allowance {
        Allowance { bytes: self.gate.bodies.clone(), asker: asker.clone(), timeout: self.gate.limits.request_timeout }
    }
}

async fn work(
    shared: &Arc<Shared>,
    kinds: &Kinds,
    route: Route,
    user: &User,
    parts: &Parts,
    body: Bytes,
    session: Session,
) -> Result<Response<Body>, Status> {
    let only_get = || match parts.method {
        Method::GET | Method::HEAD => Ok(()),
        _ => Err(Status::method_not_allowed(format!("{} is not allowed on {}", parts.method, parts.uri.path()))),
    };
    match route {
        Route::Health { check } => Ok(healthy(&check, parts.uri.query())),
        Route::Version => only_get().map(|()| json(StatusCode::OK, discovery::version())),
        Route::Metrics => only_get().map(|()| with_type(StatusCode::OK, METRICS_TYPE, shared.core.metrics.text())),
        Route::Discovery(document) => only_get().map(|()| document.answer(kinds, &parts.headers)),
        Route::OpenApi(document) => only_get().and_then(|()| document.answer(kinds, &parts.headers)),
        Route::Review(review, namespace) => {
            let body = created_body(parts, &body)?;
            review::answer(shared, review, &namespace, user, body).map(created)
        }
        Route::Token { namespace, name } => {
            let body = created_body(parts, &body)?;
            review::request_token(shared, &namespace, &name, body).map(created)
        }
        Route::Resource(target) => resource::answer(shared, target, user, parts, body, session).await,
    }
}

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

fn late() -> Status {
    Status::new(504, "Timeout", "the request was not done in time; a write may or may not have been kept")
}

/// The body of a request that can only be a creation.
fn created_body(parts: &Parts, body: &[u8]) -> Result<Value, Status> {
    if parts.method != Method::POST {
        return Err(Status::method_not_allowed(format!(
            "the server does not allow {} on the requested resource",
            parts.method
        )));
    }
    Ok(wire::read(&parts.headers, body)?.tree)
}

/// A watch that is counted as long as its body is there.
fn counted(response: Response<Body>, watches: &Gauge) -> Response<Body> {
    struct Counted(Gauge);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.dec();
        }
    }
    watches.inc();
    keeping(response, Counted(watches.clone()))
}

/// An answer that keeps something as long as its body is there.
fn keeping(response: Response<Body>, kept: impl Send + 'static) -> Response<Body> {
    response.map(|body| {
        let through = move |frame| {
            let _lives_with_the_body = &kept;
            frame
        };
        body.map_frame(through).boxed_unsync()
    })
}

fn created(body: Value) -> Response<Body> {
    json(StatusCode::CREATED, body.to_string())
}

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display + Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move { Ok(service.answer(request).await) })
    }
}

fn refuse(status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(code, status.to_json());
    if let Some(seconds) = status.details.retry_after_seconds {
        response.headers_mut().insert(http::header::RETRY_AFTER, seconds.into());
    }
    if status.code == 401 {
        response.headers_mut().insert(http::header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn json(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    with_type(code, "application/json", body)
}

/// A server that answers is well: it takes requests only once all its data is read.
fn healthy(check: &str, query: Option<&str>) -> Response<Body> {
    let verbose = !check.is_empty() && Parameters::parse(query).is_there("verbose");
    let body = if verbose { format!("[+]ping ok\n[+]store ok\n{check} check passed\n") } else { "ok".to_owned() };
    with_type(StatusCode::OK, "text/plain; charset=utf-8", body)
}

fn with_type(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
