//! Everything a service may touch outside itself.

use std::sync::Arc;

use stowage_csi::Connector;

use crate::api::Api;
use crate::clock::{Clock, SystemClock};
use crate::events::Recorder;
use crate::lease::{Leadership, Lost};
use crate::metrics::Metrics;
use crate::random::Random;
use crate::readiness::Readiness;
use crate::shutdown::Shutdown;
use crate::tasks::{Panicked, Spawner, Tasks};

/// Why a service's `run` ended before anybody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum Stop {
    /// We do not lead any more, and another replica may.
    #[error("stopped leading by lease {lease}: {reason}")]
    LeaseLost {
        /// Name of the Lease.
        lease: String,
        /// Taken by another, or not renewed in time.
        reason: Lost,
    },
    /// Asked to stop, but not everything that was begun has ended.
    #[error("stopped while {what} were under way: the lease is not given back and runs out by itself")]
    Undrained {
        /// What was under way.
        what: &'static str,
    },
    /// A part that must live died.
    #[error(transparent)]
    Panicked(#[from] Panicked),
    /// The service cannot do its work as configured.
    #[error("{reason}")]
    Unable {
        /// What is wrong and the way out.
        reason: String,
    },
}

/// The ports of one service. Cheap to clone; nothing in a service goes around it.
#[derive(Clone)]
pub struct Context {
    /// The Kubernetes API.
    pub api: Api,
    /// CSI drivers and plugin registration sockets.
    pub csi: Arc<dyn Connector>,
    /// Time.
    pub clock: Arc<dyn Clock>,
    /// Randomness.
    pub random: Random,
    /// The wish to stop.
    pub shutdown: Shutdown,
    /// Numbers for operators.
    pub metrics: Metrics,
    /// What is not ready yet.
    pub readiness: Readiness,
    /// Who we are: host or pod name.
    pub identity: String,
    /// The lease we lead by, where there is one.
    pub leadership: Option<Leadership>,
}

impl Context {
    /// The real world behind a client.
    pub fn real(client: kube::Client, csi: Arc<dyn Connector>, identity: impl Into<String>) -> Self {
        Self {
            api: Api::new(client),
            csi,
            clock: Arc::new(SystemClock),
            random: Random::from_os(),
            shutdown: Shutdown::new(),
            metrics: Metrics::default(),
            readiness: Readiness::default(),
            identity: identity.into(),
            leadership: None,
        }
    }

    /// A world in which nobody answers, for tests of what needs no answer.
    pub fn deaf() -> Self {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, std::io::Error>(std::io::Error::other("nobody answers"))
        });
        Self {
            random: Random::seeded(1),
            ..Self::real(kube::Client::new(service, "default"), Arc::new(stowage_csi::UnixConnector), "test")
        }
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

    /// Waits for something unless a shutdown comes first.
    pub async fn unless_shutdown<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.shutdown.requested() => None,
            output = future => Some(output),
        }
    }

    /// Runs the service's work with its tasks; ends when the work ends, a task dies or the lease is lost.
    pub async fn supervise(&self, mut tasks: Tasks, work: impl Future<Output = Result<(), Stop>>) -> Result<(), Stop> {
        let lost = async {
            match &self.leadership {
                Some(leadership) => (leadership.name().to_owned(), leadership.lost().await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            panicked = tasks.supervise() => Err(panicked.into()),
            (lease, reason) = lost => Err(Stop::LeaseLost { lease, reason }),
            result = work => result,
        }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("identity", &self.identity).finish_non_exhaustive()
    }
}
