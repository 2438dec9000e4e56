//! What a service has whatever it speaks to.

use std::future::Future;
use std::sync::Arc;

use stowage_csi::{code, identity};

use crate::admin::Admin;
use crate::clock::{Clock, SystemClock};
use crate::metrics::Metrics;
use crate::random::Random;
use crate::readiness::Readiness;
use crate::shutdown::Shutdown;
use crate::stop::Stop;
use crate::tasks::Tasks;

/// Time, randomness, the wish to stop and what is told to operators. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Process {
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
}

impl Process {
    /// A process on this machine.
    pub fn real(identity: impl Into<String>) -> Self {
        Self {
            clock: Arc::new(SystemClock),
            random: Random::from_os(),
            shutdown: Shutdown::new(),
            metrics: Metrics::default(),
            readiness: Readiness::default(),
            identity: identity.into(),
        }
    }

    /// An admin server of this process's numbers and readiness.
    pub fn admin(&self) -> Admin {
        Admin::new(self.metrics.clone(), self.readiness.clone())
    }

    /// Asks a driver about itself, and counts the call as the originals' clients do: under the name that is known so far,
    /// and not at all where nobody was reached, since theirs connect before they call.
    pub async fn ask<T>(
        &self,
        driver: &str,
        rpc: &str,
        question: impl Future<Output = Result<T, identity::Error>>,
    ) -> Result<T, identity::Error> {
        let begin = self.clock.boottime();
        let answer = question.await;
        if !answer.as_ref().is_err_and(identity::Error::is_unreachable) {
            let code = answer.as_ref().err().and_then(identity::Error::code).map_or("OK", code::name);
            let took = self.clock.boottime().saturating_sub(begin);
            self.metrics.observe_csi(driver, rpc, code, None, took);
        }
        answer
    }

    /// Waits for something unless a shutdown comes first.
    pub async fn unless_shutdown<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.shutdown.requested() => None,
            output = future => Some(output),
        }
    }

    /// Runs a service's work with its tasks; ends when the work ends or a task dies.
    pub async fn supervise(&self, mut tasks: Tasks, work: impl Future<Output = Result<(), Stop>>) -> Result<(), Stop> {
        tokio::select! {
            biased;
            panicked = tasks.supervise() => Err(panicked.into()),
            result = work => result,
        }
    }
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Process").field("identity", &self.identity).finish_non_exhaustive()
    }
}
