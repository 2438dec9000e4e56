//! The way from the service to its server, on which things are held back or refused.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as Task, Poll};

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use kube::client::Body;
use tokio::sync::watch;
use tower::{BoxError, Layer, Service};

/// What the service asked for: the verb, `LIST` and `WATCH` among them, and the path's end.
type Ask = (String, String);

#[derive(Clone, Default)]
pub struct Wire(Arc<State>);

#[derive(Default)]
struct State {
    held: watch::Sender<BTreeSet<Ask>>,
    refused: Mutex<Vec<(Ask, StatusCode)>>,
    lost: Mutex<Vec<Ask>>,
    asked: watch::Sender<Vec<(String, String)>>,
}

fn ask(verb: &str, end: &str) -> Ask {
    (verb.to_owned(), end.to_owned())
}

impl Wire {
    /// From now on what was asked like this gets no answer: of a watch no event.
    pub fn hold(&self, verb: &str, end: &str) {
        self.0.held.send_modify(|held| _ = held.insert(ask(verb, end)));
    }

    pub fn release(&self, verb: &str, end: &str) {
        self.0.held.send_modify(|held| _ = held.remove(&ask(verb, end)));
    }

    /// Refuses the next request like this.
    pub fn refuse(&self, verb: &str, end: &str, code: StatusCode) {
        self.0.refused.lock().unwrap().push((ask(verb, end), code));
    }

    /// The next request like this is carried out, and its answer says that something went wrong.
    pub fn lose(&self, verb: &str, end: &str) {
        self.0.lost.lock().unwrap().push(ask(verb, end));
    }

    /// Until so many requests like this were made.
    pub async fn asked(&self, verb: &str, end: &str, times: usize) {
        let is_like = |(made, path): &(String, String)| made == verb && path.ends_with(end);
        let mut asked = self.0.asked.subscribe();
        asked.wait_for(|asked| asked.iter().filter(|made| is_like(made)).count() >= times).await.unwrap();
    }

    /// How many requests like this were made so far.
    pub fn count(&self, verb: &str, end: &str) -> usize {
        self.0.asked.borrow().iter().filter(|(made, path)| made == verb && path.ends_with(end)).count()
    }
}

impl State {
    async fn passage(&self, verb: &str, path: &str) {
        let is_held = |held: &BTreeSet<Ask>| held.iter().any(|(held, end)| held == verb && path.ends_with(end));
        self.held.subscribe().wait_for(|held| !is_held(held)).await.unwrap();
    }

    fn refusal(&self, verb: &str, path: &str) -> Option<StatusCode> {
        let mut refused = self.refused.lock().unwrap();
        let at = refused.iter().position(|((refused, end), _)| refused == verb && path.ends_with(end.as_str()))?;
        Some(refused.remove(at).1)
    }
}

impl State {
    fn is_lost(&self, verb: &str, path: &str) -> bool {
        let mut lost = self.lost.lock().unwrap();
        let at = lost.iter().position(|(lost, end)| lost == verb && path.ends_with(end.as_str()));
        at.map(|at| lost.remove(at)).is_some()
    }
}

impl<S> Layer<S> for Wire {
    type Service = Wired<S>;

    fn layer(&self, inner: S) -> Wired<S> {
        Wired { inner, state: Arc::clone(&self.0) }
    }
}

#[derive(Clone)]
pub struct Wired<S> {
    inner: S,
    state: Arc<State>,
}

fn verb(request: &Request<Body>) -> String {
    let names_one = request.uri().path().split('/').next_back().is_some_and(|last| !last.ends_with('s'));
    match *request.method() {
        Method::GET if request.uri().query().is_some_and(|query| query.contains("watch=")) => "WATCH".into(),
        Method::GET if !names_one => "LIST".into(),
        ref other => other.to_string(),
    }
}

type Answer = UnsyncBoxBody<Bytes, BoxError>;

fn answer<B>(body: B) -> Answer
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    body.map_err(Into::into).boxed_unsync()
}

fn refused(code: StatusCode) -> Response<Answer> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(), "message": "refused by a test",
        "reason": "Forbidden",
    });
    Response::builder().status(code).body(answer(Full::new(Bytes::from(status.to_string())))).unwrap()
}

impl<S, B> Service<Request<Body>> for Wired<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
    S::Error: 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError> + Send,
{
    type Response = Response<Answer>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answer>, S::Error>> + Send>>;

    fn poll_ready(&mut self, task: &mut Task<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (state, verb, path) = (Arc::clone(&self.state), verb(&request), request.uri().path().to_owned());
        if let Some(code) = state.refusal(&verb, &path) {
            return Box::pin(async move { Ok(refused(code)) });
        }
        let sent = self.inner.call(request);
        Box::pin(async move {
            let received = sent.await?;
            state.asked.send_modify(|asked| asked.push((verb.clone(), path.clone())));
            if state.is_lost(&verb, &path) {
                return Ok(refused(StatusCode::INTERNAL_SERVER_ERROR));
            }
            let (parts, body) = received.into_parts();
            if verb != "WATCH" {
                state.passage(&verb, &path).await;
                return Ok(Response::from_parts(parts, answer(body)));
            }
            let pieces = body.into_data_stream().then(move |piece| {
                let (state, verb, path) = (Arc::clone(&state), verb.clone(), path.clone());
                async move {
                    state.passage(&verb, &path).await;
                    piece.map(http_body::Frame::data)
                }
            });
            Ok(Response::from_parts(parts, answer(StreamBody::new(pieces))))
        })
    }
}
