//! The flags that every sidecar of a driver has, and how one is run by them.

use std::future::Future;
use std::time::Duration;

use anyhow::bail;

use crate::args::{AdminArgs, ClientArgs, CsiArgs, FeatureArgs, LeaderElectionArgs, LogArgs};
use crate::backoff::Backoff;
use crate::context::{Context, Stop};
use crate::driver::{self, Driver};
use crate::duration::GoDuration;
use crate::launch::Launch;

/// What the originals' sidecars share.
#[derive(Debug, Clone, clap::Args)]
pub struct SidecarArgs {
    /// How to reach the API.
    #[command(flatten)]
    pub client: ClientArgs,
    /// How to log.
    #[command(flatten)]
    pub log: LogArgs,
    /// Where to serve health and metrics.
    #[command(flatten)]
    pub admin: AdminArgs,
    /// Whether and how to elect a leader.
    #[command(flatten)]
    pub election: LeaderElectionArgs,
    /// Feature gates.
    #[command(flatten)]
    pub features: FeatureArgs,
    /// Where the driver is.
    #[command(flatten)]
    pub csi: CsiArgs,
    /// Wait after the first failed call for an object; doubled after each further one
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    pub retry_interval_start: GoDuration,
    /// The longest wait between failed calls
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    pub retry_interval_max: GoDuration,
}

impl SidecarArgs {
    /// How the driver is called, where the original's default of `--timeout` is this.
    pub fn driver(&self, timeout: Duration, workers: usize) -> driver::Options {
        let retry = Backoff { base: self.retry_interval_start.into(), max: self.retry_interval_max.into() };
        let csi_address = self.csi.csi_address.clone();
        driver::Options { csi_address, timeout: self.csi.timeout_or(timeout), retry, workers }
    }

    /// Meets the driver and runs the service as a process of its own, leading by a Lease in whose name `{driver}` stands
    /// for the driver's; says first which flags have no effect. `burst` is the original's default of `--kube-api-burst`.
    pub async fn run<F>(
        &self,
        burst: u32,
        lease: &str,
        timeout: Duration,
        ignored: Vec<String>,
        service: impl FnOnce(Context, Driver) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = Result<(), Stop>>,
    {
        let launch = Launch { client: &self.client, burst, log: &self.log, admin: Some(&self.admin) };
        let context = launch.context().await?;
        // Before that nothing is logged.
        let of_client = self.client.ignored();
        let ignored = ignored.iter().chain(&of_client).map(String::as_str).chain(self.features.ignored());
        ignored.for_each(|sentence| tracing::warn!("{sentence}"));
        let election = |driver: &str| self.election.options(&lease.replace("{driver}", driver), &self.features);
        let driver = (self.csi.csi_address.as_str(), self.csi.timeout_or(timeout));
        launch.sidecar(context, driver, election, service).await
    }
}

/// How many workers a flag asks for: at least one.
pub fn workers(flag: &str, count: usize) -> anyhow::Result<usize> {
    if count == 0 {
        bail!("{flag} 0 would never do anything; give at least 1");
    }
    Ok(count)
}
