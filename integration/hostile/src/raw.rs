//! Connections that do what no client library would.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream;
use http::{Request, Response};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::Server;

/// How much of an answer the client says it takes before it asks for more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Windows {
    /// As hyper has it.
    Usual,
    /// Nothing.
    Closed,
}

/// The body of a request.
pub type Sending = UnsyncBoxBody<Bytes, io::Error>;
/// A request that was sent and may not be answered yet; the answer is there when its head is.
pub type Sent = JoinHandle<hyper::Result<Response<Incoming>>>;

/// Nothing here takes so long, on any machine: a bound against hanging.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// A body that is there as a whole; none for null.
pub fn full(body: &Value) -> Sending {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    Full::new(Bytes::from(body)).map_err(|never| match never {}).boxed_unsync()
}

/// A body that begins with so many bytes and never ends.
pub fn unfinished(bytes: usize) -> Sending {
    let begun = stream::iter([Ok::<_, io::Error>(Frame::data(Bytes::from(vec![b'{'; bytes])))]);
    StreamBody::new(futures::StreamExt::chain(begun, stream::pending())).boxed_unsync()
}

/// The path of a namespace's config maps.
pub fn maps(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/configmaps")
}

/// An object with nothing but a name.
pub fn named(name: &str) -> Value {
    json!({"metadata": {"name": name}})
}

/// The code of an answer, when its head is there; the rest is not read.
pub async fn code(sent: Sent) -> u16 {
    timeout(PATIENCE, sent).await.expect("an answer").unwrap().unwrap().status().as_u16()
}

/// One HTTP/2 connection of one user.
pub struct Http2 {
    sender: http2::SendRequest<Sending>,
    token: String,
    /// Ends when the connection does.
    pub ended: JoinHandle<hyper::Result<()>>,
}

impl Http2 {
    /// Sends a request on a stream of its own.
    pub fn send(&self, method: &str, path: &str, body: Sending) -> Sent {
        self.send_as("application/json", method, path, body)
    }

    /// Sends a merge patch on a stream of its own.
    pub fn merge(&self, path: &str, patch: &Value) -> Sent {
        self.send_as("application/merge-patch+json", "PATCH", path, full(patch))
    }

    fn send_as(&self, content_type: &str, method: &str, path: &str, body: Sending) -> Sent {
        let request = Request::builder()
            .method(method)
            .uri(format!("https://localhost{path}"))
            .header("content-type", content_type)
            .header("authorization", format!("Bearer {}", self.token))
            .body(body)
            .unwrap();
        let mut sender = self.sender.clone();
        tokio::spawn(async move {
            sender.ready().await?;
            sender.send_request(request).await
        })
    }
}

impl Drop for Http2 {
    fn drop(&mut self) {
        self.ended.abort();
    }
}

impl Server {
    /// Where it keeps its data.
    pub fn data_dir(&self) -> PathBuf {
        self.kubeconfig().with_file_name("data")
    }

    /// The administrator's token.
    pub fn token(&self) -> String {
        std::fs::read_to_string(self.data_dir().join("admin.token")).unwrap().trim().to_owned()
    }

    /// Makes a service account that may edit its namespace, and a token for it.
    pub async fn editor(&self, namespace: &str, name: &str) -> String {
        let metadata = |name: &str| json!({"metadata": {"name": name}});
        self.call("POST", "/api/v1/namespaces", metadata(namespace)).await;
        let accounts = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        self.call("POST", &accounts, metadata(name)).await;
        let binding = json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        });
        let bindings = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings");
        let bound = self.call("POST", &bindings, binding).await;
        assert_eq!(bound.code, 201, "{}", bound.body);
        let made = self.call("POST", &format!("{accounts}/{name}/token"), json!({})).await;
        made.body["status"]["token"].as_str().unwrap().to_owned()
    }

    /// A bare TLS connection that offers this protocol.
    pub async fn connect(&self, protocol: &str) -> io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(self.data_dir().join("ca.crt")).unwrap()).unwrap();
        let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.address).await?;
        TlsConnector::from(Arc::new(config)).connect("localhost".try_into().unwrap(), stream).await
    }

    /// An HTTP/2 connection of the user of `token`.
    pub async fn http2(&self, token: &str, windows: Windows) -> Http2 {
        let stream = self.connect("h2").await.unwrap();
        let mut builder = http2::Builder::new(TokioExecutor::new());
        if windows == Windows::Closed {
            builder.initial_stream_window_size(0);
        }
        let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
        Http2 { sender, token: token.to_owned(), ended: tokio::spawn(connection) }
    }
}
