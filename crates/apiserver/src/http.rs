//! HTTP around the store: a tower service that needs no socket.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, Limited};
use tokio::sync::watch;

use crate::auth::Credentials;
use crate::server::Shared;
use crate::status::Status;

mod answer;
mod discovery;
mod openapi;
mod query;
mod resource;
mod route;

use route::Route;

/// Body of every answer; a watch's goes on until it is dropped.
pub type Body = UnsyncBoxBody<Bytes, Infallible>;

/// No object, and so no request, may be larger than this (as upstream's limit on requests).
const MAX_BODY: usize = 3 << 20;

/// Who sends the requests of a [`Service`].
#[derive(Clone)]
pub(crate) enum Caller {
    /// The program around us: an administrator.
    InProcess,
    /// Whoever shows a token.
    Bearer(Arc<Credentials>),
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
        self.dispatch(request).await.unwrap_or_else(|status| refuse(&status))
    }

    async fn dispatch<B>(self, request: Request<B>) -> Result<Response<Body>, Status>
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Display + Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let (parts, body) = request.into_parts();
        let route = Route::parse(parts.uri.path())?;
        if let (Caller::Bearer(credentials), false) = (&self.caller, matches!(route, Route::Health)) {
            credentials.check(&parts.headers)?;
        }
        match route {
            Route::Health => Ok(plain("ok")),
            Route::Version => Ok(json(StatusCode::OK, discovery::version())),
            Route::Discovery(document) => Ok(document.answer()),
            Route::OpenApi(document) => Ok(document.answer()),
            Route::Resource(target) => {
                let limited = Limited::new(body, MAX_BODY);
                let body = limited.collect().await.map_err(|error| {
                    Status::new(413, "RequestEntityTooLarge", format!("the body cannot be read: {error}"))
                })?;
                resource::answer(&self.shared, target, &parts, body.to_bytes(), self.closing).await
            }
        }
    }
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

fn plain(body: &'static str) -> Response<Body> {
    with_type(StatusCode::OK, "text/plain; charset=utf-8", body)
}

fn with_type(code: StatusCode, content_type: &'static str, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Full::new(body.into()).boxed_unsync());
    *response.status_mut() = code;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
