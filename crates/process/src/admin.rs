//! The admin HTTP server: `/healthz`, `/readyz`, `/metrics` and `/healthz/leader-election`.

use std::convert::Infallible;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::metrics::{Format, Metrics};
use crate::readiness::Readiness;

/// Probes and one scraper need a handful; more would only be abuse.
const CONNECTIONS: usize = 64;
/// A client that is slower than this to ask holds a connection for nothing.
const HEADER_TIMEOUT: Duration = Duration::from_secs(5);
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Accepting fails when file descriptors run out; trying again at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);

/// A service's own answer to `/healthz`: healthy, or a status and the reason.
pub type Check = Arc<dyn Fn() -> BoxFuture<'static, Result<(), (StatusCode, String)>> + Send + Sync>;

/// Why the server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The text is not an address.
    #[error("cannot resolve the HTTP endpoint {address:?}, write HOST:PORT or :PORT, for example :8080")]
    Resolve {
        /// The address as given.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The address cannot be bound.
    #[error("cannot listen on the HTTP endpoint {address:?}, choose a free port of this machine: {source}")]
    Listen {
        /// The address as given.
        address: String,
        /// What the system said.
        source: std::io::Error,
    },
}

/// Whether leading or following goes as it should.
type Election = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// What the server answers with.
#[derive(Clone)]
pub struct Admin {
    metrics: Metrics,
    readiness: Readiness,
    metrics_path: String,
    /// Whether the metrics are served, and whether anything else is.
    serves: (bool, bool),
    election: Option<Election>,
    check: Option<Check>,
}

impl Admin {
    /// A server of these numbers and this readiness, with metrics under `/metrics`.
    pub fn new(metrics: Metrics, readiness: Readiness) -> Self {
        Self {
            metrics,
            readiness,
            metrics_path: "/metrics".to_owned(),
            serves: (true, true),
            election: None,
            check: None,
        }
    }

    /// Serves the metrics under another path.
    pub fn metrics_path(mut self, path: impl Into<String>) -> Self {
        self.metrics_path = path.into();
        self
    }

    /// Serves no metrics.
    pub fn without_metrics(mut self) -> Self {
        self.serves.0 = false;
        self
    }

    /// Serves nothing but the metrics: nobody takes this server's answer for the service's health.
    pub fn only_metrics(mut self) -> Self {
        self.serves.1 = false;
        self
    }

    /// Serves `/healthz/leader-election`.
    pub fn election(mut self, health: impl Fn() -> Result<(), String> + Send + Sync + 'static) -> Self {
        self.election = Some(Arc::new(health));
        self
    }

    /// Lets the service answer `/healthz` itself; without it the answer is `ok`.
    pub fn check(mut self, check: Check) -> Self {
        self.check = Some(check);
        self
    }

    /// Starts to listen; `:PORT` means every address of the machine, as in Go.
    pub async fn bind(self, address: &str) -> Result<Bound, Error> {
        let candidates = match address.strip_prefix(':') {
            Some(port) => vec![format!("[::]:{port}"), format!("0.0.0.0:{port}")],
            None => vec![address.to_owned()],
        };
        let mut failed = None;
        for candidate in &candidates {
            let resolved: Vec<SocketAddr> = tokio::net::lookup_host(candidate)
                .await
                .map_err(|source| Error::Resolve { address: address.to_owned(), source })?
                .collect();
            match TcpListener::bind(&resolved[..]).await {
                Ok(listener) => return Ok(Bound { admin: self, listener }),
                // A machine without IPv6 refuses the first candidate.
                Err(source) => failed = Some(source),
            }
        }
        let source = failed.unwrap_or_else(|| std::io::ErrorKind::AddrNotAvailable.into());
        Err(Error::Listen { address: address.to_owned(), source })
    }

    async fn answer<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        if request.method() != Method::GET && request.method() != Method::HEAD {
            return plain(StatusCode::METHOD_NOT_ALLOWED, "use GET");
        }
        let path = request.uri().path();
        let (metrics, others) = self.serves;
        match path {
            _ if metrics && path == self.metrics_path => {
                let accepts = request.headers().get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
                let format = Format::accepted(accepts);
                respond(StatusCode::OK, format.content_type(), self.metrics.encode_as(format))
            }
            _ if !others => plain(StatusCode::NOT_FOUND, format!("only {} is here", self.metrics_path)),
            "/healthz" | "/livez" => match &self.check {
                Some(check) => outcome(check().await),
                None => plain(StatusCode::OK, "ok"),
            },
            "/readyz" => outcome(
                self.readiness.check().map_err(|unready| (StatusCode::SERVICE_UNAVAILABLE, unready.to_string())),
            ),
            "/healthz/leader-election" => match &self.election {
                Some(health) => outcome(health().map_err(|reason| (StatusCode::INTERNAL_SERVER_ERROR, reason))),
                None => plain(StatusCode::NOT_FOUND, "leader election is off"),
            },
            _ if !metrics => plain(StatusCode::NOT_FOUND, "try /healthz or /readyz"),
            _ => plain(
                StatusCode::NOT_FOUND,
                format!("try /healthz, /readyz, /healthz/leader-election or {}", self.metrics_path),
            ),
        }
    }
}

fn outcome(result: Result<(), (StatusCode, String)>) -> Response<Full<Bytes>> {
    match result {
        Ok(()) => plain(StatusCode::OK, "ok"),
        Err((status, reason)) => plain(status, reason),
    }
}

fn plain(status: StatusCode, text: impl Into<String>) -> Response<Full<Bytes>> {
    respond(status, "text/plain; charset=utf-8", text.into())
}

fn respond(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static(content_type));
    response
}

/// A server that listens but does not answer yet.
pub struct Bound {
    admin: Admin,
    listener: TcpListener,
}

impl Bound {
    /// Where the server listens, with the real port if zero was asked for.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Answers until `shutdown` resolves, then finishes the requests at hand.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) {
        let mut http = http1::Builder::new();
        // Probes come one by one; connections kept open would only delay the drain.
        http.timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT).keep_alive(false);
        let graceful = GracefulShutdown::new();
        let admin = Arc::new(self.admin);
        let mut connections = JoinSet::new();
        let mut shutdown = std::pin::pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                Some(_) = connections.join_next() => {}
                accepted = self.listener.accept(), if connections.len() < CONNECTIONS => match accepted {
                    Ok((stream, _)) => {
                        let admin = Arc::clone(&admin);
                        let service = service_fn(move |request: Request<Incoming>| {
                            let admin = Arc::clone(&admin);
                            async move { Ok::<_, Infallible>(admin.answer(&request).await) }
                        });
                        let connection = graceful.watch(http.serve_connection(TokioIo::new(stream), service));
                        connections.spawn(async move {
                            if let Err(error) = connection.await {
                                tracing::debug!(%error, "admin connection ended early");
                            }
                        });
                    }
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept an admin connection");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
            }
        }
        if tokio::time::timeout(DRAIN_TIMEOUT, graceful.shutdown()).await.is_err() {
            tracing::debug!("admin connections cut off at the end of the drain time");
        }
        connections.shutdown().await;
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;

    use super::*;

    async fn ask(admin: &Admin, path: &str) -> (u16, String) {
        let response = admin.answer(&Request::get(path).body(()).unwrap()).await;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    fn admin() -> (Admin, Readiness) {
        let readiness = Readiness::default();
        (Admin::new(Metrics::default(), readiness.clone()), readiness)
    }

    #[tokio::test]
    async fn readiness_names_what_is_missing_until_nothing_is() {
        let (admin, readiness) = admin();
        let claims = readiness.handle("claims");
        assert_eq!(ask(&admin, "/readyz").await, (503, "waiting for claims".into()));
        claims.ready();
        assert_eq!(ask(&admin, "/readyz").await, (200, "ok".into()));
        readiness.drain();
        assert_eq!(ask(&admin, "/readyz").await, (503, "draining".into()));
        assert_eq!(ask(&admin, "/healthz").await, (200, "ok".into()));
    }

    #[tokio::test]
    async fn metrics_are_where_the_flag_puts_them() {
        let admin = admin().0.metrics_path("/numbers");
        assert!(ask(&admin, "/numbers").await.1.contains("# TYPE process_start_time_seconds gauge\n"));
        assert_eq!(ask(&admin, "/metrics").await.0, 404);
    }

    #[tokio::test]
    async fn metrics_are_in_the_old_text_format_unless_the_other_is_asked_for() {
        let (admin, _) = admin();
        let asked = async |accept: &str| {
            let request = Request::get("/metrics").header(header::ACCEPT, accept).body(()).unwrap();
            let response = admin.answer(&request).await;
            response.headers()[header::CONTENT_TYPE].to_str().unwrap().to_owned()
        };
        assert_eq!(asked("*/*").await, "text/plain; version=0.0.4; charset=utf-8");
        let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.1";
        assert_eq!(asked(prometheus).await, "application/openmetrics-text; version=1.0.0; charset=utf-8");
        assert!(!ask(&admin, "/metrics").await.1.contains("# EOF"));
    }

    #[tokio::test]
    async fn metrics_and_health_can_be_served_apart() {
        let metrics = admin().0.only_metrics();
        assert_eq!((ask(&metrics, "/metrics").await.0, ask(&metrics, "/healthz").await.0), (200, 404));
        let health = admin().0.without_metrics();
        assert_eq!((ask(&health, "/metrics").await.0, ask(&health, "/healthz").await.0), (404, 200));
    }

    #[tokio::test]
    async fn a_service_may_answer_for_its_own_health() {
        let check: Check = Arc::new(|| Box::pin(async { Err((StatusCode::NOT_FOUND, "no socket".into())) }));
        let admin = admin().0.check(check);
        assert_eq!(ask(&admin, "/healthz").await, (404, "no socket".into()));
        assert_eq!(ask(&admin, "/healthz/leader-election").await.0, 404);
    }

    #[tokio::test]
    async fn a_bad_or_taken_address_is_refused_by_name() {
        let error = admin().0.bind("no port here").await.err().unwrap().to_string();
        assert!(error.contains("\"no port here\"") && error.contains(":8080"), "{error}");
        let first = admin().0.bind("127.0.0.1:0").await.unwrap();
        let taken = first.local_addr().unwrap().to_string();
        let error = admin().0.bind(&taken).await.err().unwrap().to_string();
        assert!(error.contains(&taken) && error.contains("free port"), "{error}");
    }

    #[tokio::test]
    async fn the_server_answers_over_tcp_and_ends_when_told() {
        let bound = admin().0.bind("127.0.0.1:0").await.unwrap();
        let address = bound.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let client = async move {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.unwrap();
            stop.send(()).unwrap();
            answer
        };
        let (answer, ()) = tokio::join!(client, bound.serve(async { _ = stopped.await }));
        assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("ok"), "{answer}");
    }
}
