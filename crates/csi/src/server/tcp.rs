//! A port in place of a socket: for drivers that are called from another machine, and for tests of those who call.

use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::service::Routes;

use super::{Error, answer};

/// A port that listens; connections wait until [`serve`](Self::serve).
#[derive(Debug)]
pub struct Port {
    listener: TcpListener,
    address: SocketAddr,
}

impl Port {
    /// Listens on this host and port; 0 is any free one.
    pub async fn bind(host_and_port: &str) -> Result<Self, Error> {
        let failed = |source| Error::BindPort { address: host_and_port.to_owned(), source };
        let listener = TcpListener::bind(host_and_port).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        // No mode and no token: whoever reaches the port is as good as root on the volumes.
        tracing::warn!(%address, "anybody who can reach this port can use and delete volumes; keep the network closed");
        Ok(Self { listener, address })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `stop`, then refuses new calls and lets those in flight finish.
    pub async fn serve(self, routes: Routes, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let served = answer(TcpListenerStream::new(self.listener), routes, stop).await;
        served.map_err(|source| Error::Serve { place: format!("tcp://{}", self.address), source })
    }
}
