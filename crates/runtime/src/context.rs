//! Everything a service that speaks to the API may touch outside itself.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use stowage_csi::Connector;
use stowage_model::object::Projection;

use crate::api::Api;
use crate::cache::Cache;
use crate::engine::Objects;
use crate::events::Recorder;
use crate::lease::Leadership;
use crate::random::Random;
use crate::tasks::{Spawner, Tasks};

pub use stowage_process::{Process, Stop};

/// The ports of one service, beside what every process has. Cheap to clone; nothing in a service goes around it.
#[derive(Clone)]
pub struct Context {
    /// Clock, randomness, shutdown, metrics, readiness and identity; its fields are this one's too.
    pub process: Process,
    /// The Kubernetes API.
    pub api: Api,
    /// CSI drivers and plugin registration sockets.
    pub csi: Arc<dyn Connector>,
    /// The lease we lead by, where there is one.
    pub leadership: Option<Leadership>,
}

impl Context {
    /// The ports of a process.
    pub fn new(process: Process, client: kube::Client, csi: Arc<dyn Connector>) -> Self {
        Self { process, api: Api::new(client), csi, leadership: None }
    }

    /// The real world behind a client.
    pub fn real(client: kube::Client, csi: Arc<dyn Connector>, identity: impl Into<String>) -> Self {
        Self::new(Process::real(identity), client, csi)
    }

    /// A world in which nobody answers, for tests of what needs no answer.
    pub fn deaf() -> Self {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, std::io::Error>(std::io::Error::other("nobody answers"))
        });
        let process = Process { random: Random::seeded(1), ..Process::real("test") };
        Self::new(process, kube::Client::new(service, "default"), Arc::new(stowage_csi::UnixConnector))
    }

    /// The objects of a cache, to be read and written by actions.
    pub fn objects<'a, T: Projection>(&'a self, cache: &'a Cache<T>) -> Objects<'a, T> {
        Objects::new(&self.api, cache)
    }

    /// An event recorder whose writer lives under `spawner`.
    pub fn recorder(&self, component: impl Into<String>, spawner: &Spawner) -> Recorder {
        Recorder::start(
            self.api.clone(),
            Arc::clone(&self.clock),
            self.random.clone(),
            component,
            self.identity.clone(),
            spawner,
        )
    }

    /// Whether a driver call may start now: a lease does not fence a driver, so its age is checked before every call.
    pub fn may_call_driver(&self) -> bool {
        self.leadership.as_ref().is_none_or(Leadership::valid)
    }

    /// Runs the service's work with its tasks; ends when the work ends, a task dies or the lease is lost.
    pub async fn supervise(&self, tasks: Tasks, work: impl Future<Output = Result<(), Stop>>) -> Result<(), Stop> {
        let lost = async {
            match &self.leadership {
                Some(leadership) => (leadership.name().to_owned(), leadership.lost().await),
                None => std::future::pending().await,
            }
        };
        let leading = async {
            tokio::select! {
                biased;
                (lease, reason) = lost => Err(Stop::LeaseLost { lease, reason }),
                result = work => result,
            }
        };
        self.process.supervise(tasks, leading).await
    }
}

impl Deref for Context {
    type Target = Process;

    fn deref(&self) -> &Process {
        &self.process
    }
}

impl DerefMut for Context {
    fn deref_mut(&mut self) -> &mut Process {
        &mut self.process
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("identity", &self.identity).finish_non_exhaustive()
    }
}
