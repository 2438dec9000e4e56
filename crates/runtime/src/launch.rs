//! Runs one service that speaks to the API as a process of its own: its client and leader election, then its `run`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use stowage_csi::UnixConnector;
use stowage_process::{Stop, launch};

use crate::args::{AdminArgs, ClientArgs, LogArgs};
use crate::context::Context;
use crate::driver::Driver;
use crate::lease::{self, Election};

pub use stowage_process::launch::host_name;

/// The arguments every service shares.
pub struct Launch<'a> {
    /// How to reach the API.
    pub client: &'a ClientArgs,
    /// The original's default of `--kube-api-burst`.
    pub burst: u32,
    /// How to log.
    pub log: &'a LogArgs,
    /// Where to serve health and metrics, if anywhere.
    pub admin: Option<&'a AdminArgs>,
}

impl Launch<'_> {
    /// Starts logging and connects; the rest is up to [`run`](Self::run).
    pub async fn context(&self) -> anyhow::Result<Context> {
        let process = launch::start(self.log, host_name())?;
        if let Some(sentence) = self.admin.and_then(AdminArgs::deprecated) {
            tracing::warn!("{sentence}");
        }
        let client = self.client.client(self.burst).await?;
        Ok(Context::new(process, client, Arc::new(UnixConnector)))
    }

    /// Runs a sidecar: meets its driver once, and leads by a Lease that has the driver's name.
    pub async fn sidecar<F>(
        &self,
        context: Context,
        (address, timeout): (&str, Duration),
        election: impl FnOnce(&str) -> anyhow::Result<Option<lease::Options>>,
        service: impl FnOnce(Context, Driver) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = Result<(), Stop>>,
    {
        let shutdown = context.shutdown.clone();
        let work = async {
            let met = context.unless_shutdown(Driver::meet(&context, address, timeout)).await;
            let Some(driver) = met.transpose()? else { return Ok(()) };
            let election = election(&driver.name)?;
            // From now on, not from the lease on, for which it may wait long.
            let changed = driver.changed(&context, timeout);
            let service = |context| Driver::unless_changed(changed, service(context, driver));
            self.work(context, election, service).await
        };
        launch::until_signal(shutdown, work).await
    }

    /// Runs a service until it drains or must stop. Without `election` it leads unasked.
    pub async fn run<F>(
        &self,
        context: Context,
        election: Option<lease::Options>,
        service: impl FnOnce(Context) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = Result<(), Stop>>,
    {
        launch::until_signal(context.shutdown.clone(), self.work(context, election, service)).await
    }

    async fn work<F>(
        &self,
        context: Context,
        election: Option<lease::Options>,
        service: impl FnOnce(Context) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = Result<(), Stop>>,
    {
        let election = match election {
            Some(options) => Some(Election::new(
                self.client.unlimited_client().await?,
                Arc::clone(&context.clock),
                context.random.clone(),
                context.metrics.clone(),
                options,
            )),
            None => None,
        };
        let mut admin = context.admin();
        if let Some(election) = &election {
            let health = election.health();
            admin = admin.election(move || health.check());
        }
        let bound = match self.admin {
            Some(args) => args.bind(admin).await?,
            None => None,
        };
        let process = context.process.clone();
        launch::serve(&process, bound, lead(context, election, service)).await
    }
}

async fn lead<F>(
    mut context: Context,
    election: Option<Election>,
    service: impl FnOnce(Context) -> F,
) -> anyhow::Result<()>
where
    F: Future<Output = Result<(), Stop>>,
{
    if let Some(election) = &election {
        match context.unless_shutdown(election.acquire()).await {
            Some(leadership) => context.leadership = Some(leadership),
            None => return Ok(()),
        }
    }
    let leadership = context.leadership.clone();
    // Boxed: the future of a whole service is deep, and this one is inside of several others.
    let ended = Box::pin(service(context)).await;
    match (&ended, leadership) {
        (_, None) => {}
        (Ok(()), Some(leadership)) => {
            if let Err(error) = leadership.end().await {
                tracing::warn!(%error, "the lease is not given back and runs out by itself");
            }
        }
        // What is under way must end before another leader begins: the lease is left to run out.
        (Err(_), Some(leadership)) => leadership.abandon().await,
    }
    match ended {
        Err(undrained @ Stop::Undrained { .. }) => {
            tracing::warn!("{undrained}");
            Ok(())
        }
        ended => Ok(ended?),
    }
}
