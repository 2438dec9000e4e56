use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use clap::Parser;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// Engines give up on a check after their own time; this only keeps it from hanging without one.
const PATIENCE: Duration = Duration::from_secs(5);
/// Enough for the status line.
const LONGEST_ANSWER: u64 = 4096;

/// Asks the server of a data directory whether it is ready, for images that have neither shell nor curl
#[derive(Debug, Parser)]
#[command(name = "apiserver healthcheck")]
pub struct Healthcheck {
    /// The server's own --data-dir, for its authority.
    #[arg(long, value_name = "DIR")]
    pub data_dir: PathBuf,
    /// The server's own --listen.
    #[arg(long, default_value = "127.0.0.1:6443")]
    pub listen: SocketAddr,
}

impl Healthcheck {
    pub async fn run(self) -> anyhow::Result<()> {
        let address = reachable(self.listen);
        let asked = tokio::time::timeout(PATIENCE, ask(&self.data_dir, address));
        let answer = asked.await.with_context(|| format!("{address} did not answer in time"))??;
        let status = answer.lines().next().unwrap_or_default();
        match status.split(' ').nth(1) {
            Some("200") => Ok(()),
            _ => bail!("{address} answers {status:?}"),
        }
    }
}

async fn ask(data_dir: &Path, address: SocketAddr) -> anyhow::Result<String> {
    let authority = data_dir.join("ca.crt");
    let unreadable =
        || format!("cannot read {}; has the server been started with this --data-dir?", authority.display());
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(&authority).with_context(unreadable)?).with_context(unreadable)?;
    let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .context("cannot set up TLS")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(address).await.with_context(|| format!("nobody listens on {address}"))?;
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("localhost").context("localhost is a name")?;
    let mut stream = connector.connect(name, stream).await.with_context(|| format!("no TLS with {address}"))?;
    stream.write_all(b"GET /readyz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await?;
    let mut answer = String::new();
    match stream.take(LONGEST_ANSWER).read_to_string(&mut answer).await {
        Err(error) if error.kind() != io::ErrorKind::UnexpectedEof => Err(error.into()),
        _ => Ok(answer),
    }
}

/// A wildcard address is for listening; this machine uses loopback.
fn reachable(listen: SocketAddr) -> SocketAddr {
    let ip = match listen.ip() {
        ip if !ip.is_unspecified() => ip,
        IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    SocketAddr::new(ip, listen.port())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpSocket;

    use super::*;
    use crate::{Options, bind};

    #[tokio::test]
    async fn a_server_is_healthy_while_it_serves_and_not_before_or_after() {
        let directory = tempfile::tempdir().unwrap();
        let data_dir = directory.path().to_owned();
        let check = |listen| Healthcheck { data_dir: data_dir.clone(), listen }.run();
        let before = check("127.0.0.1:1".parse().unwrap()).await.unwrap_err();
        assert!(format!("{before:#}").contains("--data-dir"), "{before:#}");
        // Bound and never listening: nobody else gets the port when the server is gone.
        let port = TcpSocket::new_v4().unwrap();
        port.set_reuseaddr(true).unwrap();
        port.bind("0.0.0.0:0".parse().unwrap()).unwrap();
        let listen = port.local_addr().unwrap();
        let bound = bind(Options { listen, data_dir: Some(data_dir.clone()), kubeconfig_out: None }).await.unwrap();
        let address = bound.address;
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let client = async {
            check(address).await.unwrap();
            stop.send(()).unwrap();
        };
        let (served, ()) = tokio::join!(bound.run(async { _ = stopped.await }), client);
        served.unwrap();
        let after = check(address).await.unwrap_err();
        assert!(format!("{after:#}").contains("nobody listens"), "{after:#}");
    }
}
