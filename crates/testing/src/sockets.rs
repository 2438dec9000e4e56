//! Unix sockets without a file system: who listens at which path, and the way there.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use http_body_util::{BodyExt, Full};
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;

use stowage_csi::connect::{self, Connector};
use stowage_csi::{Channel, Endpoint};

use crate::changes::Changes;
use crate::gate::Gate;
use crate::trace::{Port, digest};

/// The sockets of a world; clones share them.
#[derive(Clone)]
pub struct Sockets {
    inner: Arc<Mutex<Inner>>,
    changes: Changes,
}

#[derive(Default)]
struct Inner {
    bound: BTreeMap<String, Socket>,
    instances: u64,
}

struct Socket {
    instance: u64,
    /// None once the process that listened was killed: the file stays, nobody answers.
    listener: Option<Channel>,
}

impl Sockets {
    pub(crate) fn new(changes: Changes) -> Self {
        Self { inner: Arc::default(), changes }
    }

    /// Listens at a path, in place of whatever was left there.
    pub fn listen(&self, path: impl Into<String>, routes: Routes) -> Listening {
        let path = path.into();
        let instance = {
            let mut inner = self.lock();
            inner.instances += 1;
            let instance = inner.instances;
            let listener = Some(Channel::in_process(routes));
            inner.bound.insert(path.clone(), Socket { instance, listener });
            instance
        };
        self.changes.announce();
        Listening { sockets: self.clone(), path, instance }
    }

    /// The sockets in a directory and a number that differs for each time one was bound.
    pub fn in_dir(&self, dir: &str) -> BTreeMap<String, u64> {
        let prefix = format!("{}/", dir.trim_end_matches('/'));
        let inner = self.lock();
        let inside =
            inner.bound.iter().filter(|(path, _)| path.strip_prefix(&prefix).is_some_and(|name| !name.contains('/')));
        inside.map(|(path, socket)| (path.clone(), socket.instance)).collect()
    }

    /// Signals every change of the sockets, among others.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The connector of one life of a service.
    pub(crate) fn connector(&self, gate: Arc<Gate>) -> Arc<dyn Connector> {
        Arc::new(Gated { sockets: self.clone(), gate })
    }

    fn listener(&self, path: &str) -> Option<Channel> {
        self.lock().bound.get(path).and_then(|socket| socket.listener.clone())
    }

    fn end(&self, path: &str, instance: u64, remove: bool) {
        {
            let mut inner = self.lock();
            let Some(socket) = inner.bound.get_mut(path).filter(|socket| socket.instance == instance) else { return };
            socket.listener = None;
            if remove {
                inner.bound.remove(path);
            }
        }
        self.changes.announce();
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no code panics while holding the sockets")
    }
}

/// A listener; dropped without [`Listening::close`] it was killed, and its socket stays behind unanswered.
pub struct Listening {
    sockets: Sockets,
    path: String,
    instance: u64,
}

impl Listening {
    /// Stops in good order: the socket is removed.
    pub fn close(self) {
        self.sockets.end(&self.path, self.instance, true);
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.sockets.end(&self.path, self.instance, false);
    }
}

struct Gated {
    sockets: Sockets,
    gate: Arc<Gate>,
}

impl Connector for Gated {
    fn connect(&self, endpoint: &str) -> Result<Channel, connect::Error> {
        let endpoint: Endpoint = endpoint.parse().map_err(|source| connect::Error::ParseEndpoint { source })?;
        let (sockets, gate) = (self.sockets.clone(), Arc::clone(&self.gate));
        // Who listens is looked up for every call, as a reconnecting client does.
        Ok(Channel::in_process(Routes::default())
            .intercept(move |request, _| call(sockets.clone(), Arc::clone(&gate), endpoint.clone(), request)))
    }
}

async fn call(
    sockets: Sockets,
    gate: Arc<Gate>,
    endpoint: Endpoint,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let what = format!("{} {}", parts.uri.path(), digest(&body));
    let request = http::Request::from_parts(parts, Body::new(Full::new(body)));
    let path = endpoint.path().map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
    let answer = async {
        match sockets.listener(&path) {
            Some(listener) => listener.send(request).await,
            // Nobody is there on the real machine either, so this fails as it does for a real service.
            None => Channel::unix(&endpoint).send(request).await,
        }
    };
    gate.act(Port::Csi, what, answer, || Err(Status::unavailable("connection reset by the simulation"))).await
}
