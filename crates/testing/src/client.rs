//! A real Kubernetes client whose requests go through a gate into the in-process server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use tower::{BoxError, Service};

use crate::gate::Gate;
use crate::rights::Right;
use crate::trace::{Port, digest};

/// What a client sees when the connection breaks after its request was sent.
#[derive(Debug, thiserror::Error)]
#[error("connection reset by the simulation before the answer")]
struct AnswerLost;

/// A client for one life of a service.
pub(crate) fn client(server: &stowage_apiserver::Server, gate: Arc<Gate>) -> kube::Client {
    kube::Client::new(GatedApi { server: server.service(), gate }, "default")
}

/// The same client, but requests of this method whose path has this part are answered as the server answers who lacks the
/// right to them.
pub(crate) fn refusing(inner: kube::Client, method: &'static str, part: &'static str) -> kube::Client {
    let service = tower::service_fn(move |request: Request<kube::client::Body>| {
        let inner = inner.clone();
        async move {
            if request.method().as_str() != method || !request.uri().path().contains(part) {
                return Ok::<_, BoxError>(inner.send(request).await?);
            }
            let status = serde_json::json!({
                "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 403,
                "reason": "Forbidden", "message": "this is not for you",
            });
            let body = kube::client::Body::from(status.to_string().into_bytes());
            Ok(Response::builder().status(403).body(body)?)
        }
    });
    kube::Client::new(service, "default")
}

#[derive(Clone)]
struct GatedApi {
    server: stowage_apiserver::Service,
    gate: Arc<Gate>,
}

impl Service<Request<kube::client::Body>> for GatedApi {
    type Response = Response<stowage_apiserver::Body>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let Self { mut server, gate } = self.clone();
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await?.to_bytes();
            let reads = parts.method == Method::GET;
            gate.asks(Right::of(&parts.method, parts.uri.path(), parts.uri.query().unwrap_or_default()));
            let what = format!("{} {} {}", parts.method, parts.uri.path(), digest(&body));
            let answer = server.call(Request::from_parts(parts, Full::<Bytes>::new(body)));
            if reads {
                gate.look().await;
                return answer.await.map_err(Into::into);
            }
            let answer = async { answer.await.map_err(BoxError::from) };
            gate.act(Port::Api, what, answer, || Err(AnswerLost.into())).await
        })
    }
}
