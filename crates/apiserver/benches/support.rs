//! A served API server and bare clients for it, with as little between as there can be.

#![allow(dead_code, clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject as _;
use serde_json::{Value, json};
use stowage_apiserver::{Credentials, Front, Identity, Limits, Options, Server};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

pub const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const TOKEN: &str = "benchmark";

/// A server with its data in a directory, or in memory, served over TLS on loopback.
pub struct Served {
    pub server: Server,
    pub address: SocketAddr,
    tls: Arc<ClientConfig>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Served {
    pub async fn start(data: Option<&Path>) -> Self {
        let server = match data {
            Some(directory) => Server::open(directory, Options::system()).unwrap(),
            None => Server::in_memory(Options::system()),
        };
        let identity = match data {
            Some(directory) => Identity::load_or_create(directory, &[]).unwrap(),
            None => Identity::generate(&[]).unwrap(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let limits = Limits { reading: 10_000, mutating: 10_000, ..Limits::default() };
        let front = Front::new(identity.tls(), Credentials::admin(TOKEN), limits).unwrap();
        let serving = server.clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let stopped = async {
                let _either_way = stopped.await;
            };
            serving.serve(listener, front, stopped).await;
        });
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(identity.tls().ca_certificate.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self { server, address, tls: Arc::new(tls), stop, task }
    }

    /// Ends the server and closes its data.
    pub async fn stop(self) {
        let _asked = self.stop.send(());
        self.task.await.unwrap();
    }

    async fn connect(&self, protocol: &[u8]) -> TlsStream<TcpStream> {
        let mut tls = ClientConfig::clone(&self.tls);
        tls.alpn_protocols = vec![protocol.to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        stream.set_nodelay(true).unwrap();
        TlsConnector::from(Arc::new(tls)).connect("localhost".try_into().unwrap(), stream).await.unwrap()
    }

    /// A client with an HTTP/1.1 connection of its own.
    pub async fn client(&self) -> Client {
        let (sender, connection) = http1::handshake(TokioIo::new(self.connect(b"http/1.1").await)).await.unwrap();
        tokio::spawn(connection);
        Client(sender)
    }

    /// A client with an HTTP/2 connection, to be shared.
    pub async fn shared_client(&self) -> SharedClient {
        let stream = TokioIo::new(self.connect(b"h2").await);
        let (sender, connection) = http2::handshake(TokioExecutor::new(), stream).await.unwrap();
        tokio::spawn(connection);
        SharedClient(sender)
    }
}

pub struct Client(http1::SendRequest<Full<Bytes>>);

#[derive(Clone)]
pub struct SharedClient(http2::SendRequest<Full<Bytes>>);

fn request(method: Method, path: &str, body: Bytes) -> Request<Full<Bytes>> {
    Request::builder()
        .method(method)
        .uri(format!("https://localhost{path}"))
        .header("host", "localhost")
        .header("authorization", format!("Bearer {TOKEN}"))
        .header("content-type", "application/json")
        .body(Full::new(body))
        .unwrap()
}

async fn whole(response: Response<Incoming>) -> (StatusCode, Bytes) {
    let code = response.status();
    (code, response.into_body().collect().await.unwrap().to_bytes())
}

impl Client {
    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> (StatusCode, Bytes) {
        whole(self.0.send_request(request(method, path, body)).await.unwrap()).await
    }
}

impl SharedClient {
    pub async fn send(&mut self, method: Method, path: &str, body: Bytes) -> (StatusCode, Bytes) {
        whole(self.begin(method, path, body).await).await
    }

    pub async fn begin(&mut self, method: Method, path: &str, body: Bytes) -> Response<Incoming> {
        self.0.ready().await.unwrap();
        self.0.send_request(request(method, path, body)).await.unwrap()
    }
}

/// A claim as users write it.
pub fn claim(name: &str, note: u64) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "labels": {"app": "database", "tier": "gold"}, "annotations": {"note": note.to_string()}},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": "10Gi"}},
        },
    })
}

/// Median, smallest and largest.
pub fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[0], values[values.len() - 1])
}

/// The value that `share` of the sorted values do not exceed.
pub fn percentile(sorted: &[f64], share: f64) -> f64 {
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted[index.clamp(1, sorted.len()) - 1]
}
