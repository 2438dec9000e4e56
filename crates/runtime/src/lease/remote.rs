//! The requests an election makes, on raw JSON.

use std::time::Duration;

use futures::Stream;
use http::Request;
use kube::client::Body;
use kube::core::WatchEvent;
use serde_json::Value;

use super::record::Record;
use super::{Options, Shared};
use crate::api::read;

/// Why the Lease could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request cannot be made from these names.
    #[error("cannot make a request for lease {name} in namespace {namespace:?}, check the namespace")]
    Ask {
        /// Namespace of the Lease.
        namespace: String,
        /// Name of the Lease.
        name: String,
        /// What is wrong.
        source: http::Error,
    },
    /// The server refused or could not be reached.
    #[error("cannot {verb} lease {namespace}/{name}, check that the API server is up and the role allows leases")]
    Call {
        /// What was tried.
        verb: &'static str,
        /// Namespace of the Lease.
        namespace: String,
        /// Name of the Lease.
        name: String,
        /// What the client said.
        source: Box<kube::Error>,
    },
    /// Others write the Lease faster than we can.
    #[error("lease {name} changed while it was being written")]
    Race {
        /// Name of the Lease.
        name: String,
    },
    /// No answer came.
    #[error("no answer about lease {name} within {limit:?}")]
    Answer {
        /// Name of the Lease.
        name: String,
        /// The time given.
        limit: Duration,
    },
}

impl Error {
    /// How long a server that has no time now asks us to wait.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        let Self::Call { source, .. } = self else { return None };
        let kube::Error::Api(status) = &**source else { return None };
        let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
        matches!(status.code, 429 | 503).then(|| Duration::from_secs(u64::from(seconds).max(1)))
    }
}

impl Shared {
    pub(super) async fn get(&self) -> Result<Option<Record>, Error> {
        let request = Request::get(self.path()).body(Vec::new());
        match self.ask(request).await? {
            Ok(value) => Ok(Some(Record(value))),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(self.failed("get", error)),
        }
    }

    /// None if somebody else was first.
    pub(super) async fn create(&self, record: &Record) -> Result<Option<Record>, Error> {
        let request = Request::post(self.folder()).header("content-type", "application/json").body(body(record));
        match self.ask(request).await? {
            Ok(value) => Ok(Some(Record(value))),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(self.failed("create", error)),
        }
    }

    /// None if somebody else wrote first or the Lease is gone.
    pub(super) async fn put(&self, verb: &'static str, record: &Record) -> Result<Option<Record>, Error> {
        let request = Request::put(self.path()).header("content-type", "application/json").body(body(record));
        match self.ask(request).await? {
            Ok(value) => Ok(Some(Record(value))),
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(None),
            Err(error) => Err(self.failed(verb, error)),
        }
    }

    pub(super) async fn watch(
        &self,
        from: &str,
    ) -> Result<impl Stream<Item = kube::Result<WatchEvent<Value>>> + use<>, Error> {
        let name = &self.options.name;
        let uri = format!("{}?watch=true&fieldSelector=metadata.name%3D{name}&resourceVersion={from}", self.folder());
        let request = self.built(Request::get(uri).body(Vec::new()))?;
        self.client.request_events(request).await.map_err(|error| self.failed("watch", error))
    }

    pub(super) async fn ask(
        &self,
        request: http::Result<Request<Vec<u8>>>,
    ) -> Result<Result<Value, kube::Error>, Error> {
        let request = self.built(request)?.map(Body::from);
        Ok(match self.client.send(request).await {
            Ok(response) => read(response).await,
            Err(error) => Err(error),
        })
    }

    fn folder(&self) -> String {
        format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases", self.options.namespace)
    }

    fn path(&self) -> String {
        format!("{}/{}", self.folder(), self.options.name)
    }

    fn built(&self, request: http::Result<Request<Vec<u8>>>) -> Result<Request<Vec<u8>>, Error> {
        let Options { namespace, name, .. } = &self.options;
        request.map_err(|source| Error::Ask { namespace: namespace.clone(), name: name.clone(), source })
    }

    pub(super) fn failed(&self, verb: &'static str, source: kube::Error) -> Error {
        let Options { namespace, name, .. } = &self.options;
        Error::Call { verb, namespace: namespace.clone(), name: name.clone(), source: Box::new(source) }
    }

    pub(super) fn unanswered(&self, limit: Duration) -> Error {
        Error::Answer { name: self.options.name.clone(), limit }
    }
}

fn body(record: &Record) -> Vec<u8> {
    record.0.to_string().into_bytes()
}
