//! Runs one service as a process of its own: logs, client, admin server, signals, leader election, then its `run`.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;

use stowage_csi::UnixConnector;

use crate::admin::Admin;
use crate::args::{AdminArgs, ClientArgs, LogArgs};
use crate::context::{Context, Stop};
use crate::driver::Driver;
use crate::lease::{self, Election};
use crate::shutdown::Shutdown;

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
    /// Starts logging and connects; the rest is up to [`run`].
    pub async fn context(&self) -> anyhow::Result<Context> {
        crate::log::init(self.log)?;
        let client = self.client.client(self.burst).await?;
        let context = Context::real(client, Arc::new(UnixConnector), host_name());
        context.metrics.started(context.clock.now());
        Ok(context)
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
            self.work(context, election, |context| service(context, driver)).await
        };
        until_signal(shutdown, work).await
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
        until_signal(context.shutdown.clone(), self.work(context, election, service)).await
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
        let admin = match self.admin {
            Some(args) => match args.address()? {
                Some(address) => {
                    let mut admin = Admin::new(context.metrics.clone(), context.readiness.clone())
                        .metrics_path(args.metrics_path.clone());
                    if let Some(election) = &election {
                        let health = election.health();
                        admin = admin.election(move || health.check());
                    }
                    Some(admin.bind(address).await?)
                }
                None => None,
            },
            None => None,
        };
        let stopped = Shutdown::new();
        let served = async {
            if let Some(bound) = admin {
                bound.serve(stopped.requested()).await;
            }
        };
        let worked = async {
            let result = lead(context, election, service).await;
            stopped.trigger();
            result
        };
        tokio::join!(served, worked).1
    }
}

/// Works; a signal asks to stop from the first moment on, also while a driver is waited for.
async fn until_signal(shutdown: Shutdown, work: impl Future<Output = anyhow::Result<()>>) -> anyhow::Result<()> {
    tokio::select! {
        biased;
        listened = shutdown.listen_to_signals() => listened.context("cannot listen to signals"),
        result = work => result,
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
        let leadership = tokio::select! {
            biased;
            () = context.shutdown.requested() => return Ok(()),
            leadership = election.acquire() => leadership,
        };
        context.leadership = Some(leadership);
    }
    let leadership = context.leadership.clone();
    let drained = context.readiness.clone();
    let shutdown = context.shutdown.clone();
    let draining = async {
        shutdown.requested().await;
        drained.drain();
        std::future::pending::<Result<(), Stop>>().await
    };
    let result = tokio::select! {
        biased;
        result = service(context) => result,
        result = draining => result,
    };
    match result {
        // What is under way must end before another leader begins: the lease is left to run out.
        Err(undrained @ Stop::Undrained { .. }) => {
            tracing::warn!("{undrained}");
            return Ok(());
        }
        ended => ended?,
    }
    if let Some(leadership) = leadership
        && let Err(error) = leadership.end().await
    {
        tracing::warn!(%error, "the lease is not given back and runs out by itself");
    }
    Ok(())
}

/// The pod's or machine's name.
pub fn host_name() -> String {
    nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()).unwrap_or_else(|| "localhost".to_owned())
}
