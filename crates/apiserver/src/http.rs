//! HTTP around the store: a tower service that needs no socket.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Bytes, BytesMut};
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
use crate::server::Shared;
use crate::status::Status;
use crate::store::Store;
use crate::wire;

mod answer;
mod asked;
mod compress;
mod discovery;
mod impersonate;
mod limits;
mod list;
mod openapi;
mod query;
mod resource;
mod route;

use asked::Asked;
pub use limits::Limits;
pub(crate) use limits::Places;
use query::Parameters;
use route::Route;

/// Body of every answer; a watch's goes on until it is dropped.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// No object, and so no request, may be larger than this (as upstream's limit on requests).
const MAX_BODY: usize = 3 << 20;
/// Who sends more than this is cut off without an answer.
const MAX_UNREAD: usize = 64 << 20;

/// Who sends the requests of a [`Service`].
#[derive(Clone)]
pub(crate) enum Caller {
    /// The program around us, for this user.
    InProcess(Arc<User>),
    /// Whoever is at the other end of a connection.
    Remote {
        credentials: Arc<Credentials>,
        /// The user of the client certificate.
        certificate: Option<Arc<User>>,
        places: Places,
    },
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
        B::Error: std::fmt::Display + Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let started = Instant::now();
        let shared = self.shared.clone();
        let (parts, body) = request.into_parts();
        let kinds = shared.core.read(Store::kinds);
        let route = Route::parse(&kinds, parts.uri.path());
        let asked = Asked::new(&parts.method, parts.uri.path(), parts.uri.query(), &route);
        let gzip = compress::accepts_gzip(&parts.headers);
        let response = match self.dispatch(&kinds, route, &asked, &parts, body).await {
            Ok(response) if gzip => compress::gzip(response).await,
            Ok(response) => response,
            Err(status) => refuse(&status),
        };
        let response = if asked.is_watch() { counted(response, &shared.core.metrics.watches) } else { response };
        let seconds = (!asked.is_watch()).then(|| started.elapsed().as_secs_f64());
        shared.core.metrics.answered(asked.labels(), response.status().as_u16(), seconds);
        response
    }

    async fn dispatch<B>(
        self,
        kinds: &Kinds,
        route: Result<Route, Status>,
        asked: &Asked,
        parts: &Parts,
        body: B,
    ) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display + Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Ok(Route::Health { check }) = &route {
            return Ok(healthy(check, parts.uri.query()));
        }
        let core = &self.shared.core;
        let user = impersonate::effective(core, &parts.headers, self.identify(parts)?)?;
        // Held until the answer is there; a watch lasts, and takes none.
        let _place = match &self.caller {
            Caller::Remote { places, .. } if !asked.is_watch() => {
                Some(places.take(asked.is_mutating(), &core.metrics)?)
            }
            _ => None,
        };
        core.authorize(&user, &asked.request())?;
        let only_get = || match parts.method {
            Method::GET | Method::HEAD => Ok(()),
            _ => Err(Status::method_not_allowed(format!("{} is not allowed on {}", parts.method, parts.uri.path()))),
        };
        match route? {
            Route::Health { check } => Ok(healthy(&check, parts.uri.query())),
            Route::Version => only_get().map(|()| json(StatusCode::OK, discovery::version())),
            Route::Metrics => only_get().map(|()| with_type(StatusCode::OK, METRICS_TYPE, core.metrics.text())),
            Route::Discovery(document) => only_get().map(|()| document.answer(kinds, &parts.headers)),
            Route::OpenApi(document) => only_get().and_then(|()| document.answer(kinds, &parts.headers)),
            Route::Review(review, namespace) => {
                let body = created_body(parts, body).await?;
                review::answer(&self.shared, review, &namespace, &user, body).map(created)
            }
            Route::Token { namespace, name } => {
                let body = created_body(parts, body).await?;
                review::request_token(&self.shared, &namespace, &name, body).map(created)
            }
            Route::Resource(target) => {
                let body = read_body(body).await?;
                resource::answer(&self.shared, target, &user, parts, body, self.closing).await
            }
        }
    }

    fn identify(&self, parts: &Parts) -> Result<User, Status> {
        match &self.caller {
            Caller::InProcess(user) => Ok(User::clone(user)),
            Caller::Remote { credentials, certificate, .. } => credentials
                .identify(&self.shared.core, &parts.headers, certificate.as_deref())?
                .ok_or_else(unauthorized),
        }
    }
}

const METRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

async fn read_body<B>(body: B) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Display + Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = std::pin::pin!(body);
    let mut whole = BytesMut::new();
    let mut size = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Status::bad_request(format!("the body of the request cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        if size > MAX_UNREAD {
            break;
        }
        // What is too much is still taken, and dropped: a client that is cut off while it writes never sees the answer.
        if size <= MAX_BODY {
            whole.extend_from_slice(&data);
        }
    }
    if size > MAX_BODY {
        return Err(Status::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {MAX_BODY}"),
        ));
    }
    Ok(whole.freeze())
}

/// The body of a request that can only be a creation.
async fn created_body<B>(parts: &Parts, body: B) -> Result<Value, Status>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Display + Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if parts.method != Method::POST {
        return Err(Status::method_not_allowed(format!(
            "the server does not allow {} on the requested resource",
            parts.method
        )));
    }
    Ok(wire::read(&parts.headers, &read_body(body).await?)?.tree)
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
    let counted = Counted(watches.clone());
    response.map(|body| {
        let through = move |frame| {
            let _lives_with_the_body = &counted;
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
