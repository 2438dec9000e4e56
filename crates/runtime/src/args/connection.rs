//! The way to the API server: one connection for all requests and watches where the server speaks HTTP/2, as client-go has
//! it. With HTTP/1 each request under way has a connection, with a handshake and buffers of its own.

use std::time::Duration;

use anyhow::{Context as _, bail};
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::{Body, ClientBuilder, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, ServiceBuilder};

use super::limit::RateLimit;

/// A connection on which nothing came for so long is asked whether it is still there, and given up without an answer in time.
const QUIET: Duration = Duration::from_secs(30);
const ANSWER: Duration = Duration::from_secs(15);

/// What we speak, the preferred first.
const PROTOCOLS: [&str; 2] = ["h2", "http/1.1"];

/// A client for this configuration. kube's own speaks HTTP/1 only.
pub(super) fn client(config: Config, limit: Option<RateLimit>) -> anyhow::Result<Client> {
    if config.proxy_url.is_some() {
        bail!("the kubeconfig asks for a proxy (proxy-url), and none can be used; take it out");
    }
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(config.connect_timeout);
    let https = secured(&config, tcp)?;
    let connections: legacy::Client<_, Body> = legacy::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_keep_alive_interval(QUIET)
        .http2_keep_alive_timeout(ANSWER)
        .build(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    let builder = ClientBuilder::new(service, config.default_namespace);
    Ok(match limit {
        Some(limit) => builder.with_layer(&limit).build(),
        None => builder.build(),
    })
}

fn secured(config: &Config, tcp: HttpConnector) -> anyhow::Result<HttpsConnector<HttpConnector>> {
    let mut tls = config.rustls_client_config()?;
    let Some(name) = config.tls_server_name.clone() else {
        tls.alpn_protocols = PROTOCOLS.map(|protocol| protocol.as_bytes().to_vec()).into();
        return Ok(HttpsConnector::from((tcp, tls)));
    };
    let expected = name.clone().try_into().with_context(|| format!("tls-server-name {name:?} is no name"))?;
    let resolver = FixedServerNameResolver::new(expected);
    let builder = HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
    Ok(builder.with_server_name_resolver(resolver).enable_http1().wrap_connector(tcp))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use stowage_model::object::{Key, ObjectId, kinds};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::ClientArgs;
    use crate::api::Api;

    /// Passes everything on, and counts who comes.
    async fn relay(listener: TcpListener, to: std::net::SocketAddr, count: Arc<AtomicUsize>) {
        while let Ok((mut from, _)) = listener.accept().await {
            count.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(async move {
                let mut to = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut from, &mut to).await;
            });
        }
    }

    #[tokio::test]
    async fn many_requests_at_once_share_one_connection() {
        let server = stowage_apiserver::Server::in_memory(stowage_apiserver::Options::system());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let behind = listener.local_addr().unwrap();
        let front = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let identity = stowage_apiserver::Identity::generate(&[behind.ip()]).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        identity.write_kubeconfig(&file, front.local_addr().unwrap()).unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let relayed = tokio::spawn(relay(front, behind, Arc::clone(&connections)));
        let limits = stowage_apiserver::Limits::default();
        let door = stowage_apiserver::Front::new(identity.tls(), identity.credentials(), limits).unwrap();
        let served = tokio::spawn(async move { server.serve(listener, door, std::future::pending()).await });

        let args = ClientArgs { kubeconfig: file.to_str().map(Into::into), ..ClientArgs::default() };
        let api = Api::new(args.client(10).await.unwrap());
        let id = ObjectId { kind: kinds::NAMESPACE, key: Key::cluster("default") };
        assert!(api.get_raw(&id).await.unwrap().is_some());
        let all = futures::future::join_all((0..50).map(|_| api.get_raw(&id))).await;
        assert!(all.into_iter().all(|found| found.unwrap().is_some()));
        assert_eq!(connections.load(Ordering::Relaxed), 1);
        served.abort();
        relayed.abort();
    }
}
