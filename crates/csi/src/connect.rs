//! The port through which a service reaches a driver, so that a test can put another driver behind it.

use crate::{Channel, Endpoint, endpoint};

/// Opens channels to drivers; what a service's context carries.
pub trait Connector: Send + Sync {
    /// A channel to the driver at this endpoint, without waiting for the driver to be there.
    fn connect(&self, endpoint: &str) -> Result<Channel, Error>;
}

/// Connects over sockets, and over TCP where an endpoint asks for it: the real thing.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnixConnector;

impl Connector for UnixConnector {
    /// Must be called inside a tokio runtime, which will drive the connection.
    fn connect(&self, endpoint: &str) -> Result<Channel, Error> {
        let endpoint: Endpoint = endpoint.parse().map_err(|source| Error::ParseEndpoint { source })?;
        Ok(Channel::unix(&endpoint))
    }
}

/// Connects to drivers that run in this process, over their sockets: their servers log each call, and once is enough.
#[derive(Clone, Copy, Debug, Default)]
pub struct UnloggedConnector;

impl Connector for UnloggedConnector {
    /// Must be called inside a tokio runtime, which will drive the connection.
    fn connect(&self, endpoint: &str) -> Result<Channel, Error> {
        let endpoint: Endpoint = endpoint.parse().map_err(|source| Error::ParseEndpoint { source })?;
        Ok(Channel::unlogged(&endpoint))
    }
}

/// Why no channel could be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint is not one.
    #[error("{source}")]
    ParseEndpoint {
        /// What is wrong with it.
        source: endpoint::Error,
    },
    /// No driver is known there; only connectors that keep a list of drivers say so.
    #[error("no driver is known at {endpoint}")]
    FindDriver {
        /// The endpoint asked for.
        endpoint: String,
    },
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_connector_can_be_kept_behind_a_pointer_and_takes_every_form() {
        let connector: Arc<dyn Connector> = Arc::new(UnixConnector);
        for endpoint in ["/run/x.sock", "unix:///run/x.sock", "unix:/run/x.sock"] {
            let channel = connector.connect(endpoint).unwrap();
            assert_eq!(format!("{channel:?}"), "Channel(unix:///run/x.sock)");
        }
        let channel = connector.connect("tcp://127.0.0.1:9000").unwrap();
        assert_eq!(format!("{channel:?}"), "Channel(tcp://127.0.0.1:9000)");
    }

    #[tokio::test]
    async fn a_bad_endpoint_is_refused_at_once() {
        let error = UnixConnector.connect("http://10.0.0.1:9000").unwrap_err();
        assert!(error.to_string().contains("write unix:///PATH"), "{error}");
    }
}
