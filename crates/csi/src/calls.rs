//! The call log: each call's method, request and answer, without secrets, as the originals write it at `-v=5`.
//!
//! It stands around whatever carries calls as bytes, a client's channel or a server's routes, and copies what passes. The
//! line of a call is written when its request is whole, that of the answer when its end is known.

mod body;
mod wire;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use futures::future::{BoxFuture, FutureExt as _};
use http::{HeaderMap, Request, Response};
use tonic::{Code, Status, body::Body};
use tower::Service;

use crate::code;
use body::Copied;
use wire::Method;

/// The most that is shown of an answer, in bytes; 0 for all. Of the process, as its log is.
static LONGEST_ANSWER: AtomicUsize = AtomicUsize::new(0);

/// Shows no more than this of each answer: `--max-grpc-log-length`, where 0 and less mean all.
pub fn limit_answers(length: i64) {
    LONGEST_ANSWER.store(usize::try_from(length).unwrap_or(0), Ordering::Relaxed);
}

/// A service whose calls are logged.
#[derive(Debug, Clone)]
pub struct LoggedCalls<S>(S);

impl<S> LoggedCalls<S> {
    /// The same service, with its calls logged.
    pub fn new(service: S) -> Self {
        Self(service)
    }
}

impl<S> Service<Request<Body>> for LoggedCalls<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Answer + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let is_on = tracing::enabled!(tracing::Level::DEBUG);
        let Some(method) = is_on.then(|| wire::method(request.uri().path())).flatten() else {
            return self.0.call(request).boxed();
        };
        let request = request.map(|body| {
            let log = move |message: &[u8], _: Ending<'_>| {
                let request = wire::json(method.request, message);
                tracing::debug!(method = method.path, %request, "GRPC call");
            };
            Body::new(Copied::until_message(body, log))
        });
        let pending = Pending(Some(method));
        let answer = self.0.call(request);
        async move { pending.ended(answer.await) }.boxed()
    }
}

/// How a body ended.
enum Ending<'a> {
    /// With these trailers, or without any.
    Whole(Option<&'a HeaderMap>),
    /// By this error.
    Broken(&'a Status),
    /// Nobody wanted more of it.
    Dropped,
}

/// An error of a service, as a status.
pub trait Answer {
    /// The status, if it can be one at all.
    fn status(&self) -> Option<&Status>;
}

impl Answer for Status {
    fn status(&self) -> Option<&Status> {
        Some(self)
    }
}

impl Answer for std::convert::Infallible {
    fn status(&self) -> Option<&Status> {
        match *self {}
    }
}

/// A call whose answer has not come. Dropped, because its time is up or nobody waits for it any more, it says so.
struct Pending(Option<Method>);

impl Pending {
    fn ended<E: Answer>(mut self, answer: Result<Response<Body>, E>) -> Result<Response<Body>, E> {
        let Some(method) = self.0.take() else { return answer };
        match answer {
            Ok(response) if response.headers().contains_key("grpc-status") => {
                show(method, &[], &Ending::Whole(Some(response.headers())));
                Ok(response)
            }
            Ok(response) => Ok(response.map(|body| {
                Body::new(Copied::until_end(body, move |message: &[u8], ending: Ending<'_>| {
                    show(method, message, &ending);
                }))
            })),
            Err(error) => {
                error.status().into_iter().for_each(|status| show(method, &[], &Ending::Broken(status)));
                Err(error)
            }
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(method) = self.0.take() {
            show(method, &[], &Ending::Dropped);
        }
    }
}

fn show(method: Method, message: &[u8], ending: &Ending<'_>) {
    let error = match ending {
        Ending::Broken(status) => said(status),
        Ending::Dropped => Some("the call was given up before its answer came".to_owned()),
        Ending::Whole(trailers) => trailers.and_then(Status::from_header_map).and_then(|status| said(&status)),
    };
    let response = capped(wire::json(method.answer, message), LONGEST_ANSWER.load(Ordering::Relaxed));
    match error {
        None => tracing::debug!(method = method.path, %response, "GRPC response"),
        Some(error) => tracing::debug!(method = method.path, %response, err = error, "GRPC response"),
    }
}

/// As gRPC prints a status in Go.
fn said(status: &Status) -> Option<String> {
    let code = status.code();
    (code != Code::Ok).then(|| format!("rpc error: code = {} desc = {}", code::name(code), status.message()))
}

fn capped(mut text: String, longest: usize) -> String {
    if longest > 0 && text.len() > longest {
        text.truncate(text.floor_char_boundary(longest));
        text.push_str(&format!(" [response body too large, log capped to {longest} chars]"));
    }
    text
}

#[cfg(test)]
mod tests;
