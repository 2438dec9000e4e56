//! The flags of a provisioner that stands on the library: those of the sidecars that have nothing to do with CSI.

use std::sync::Arc;
use std::time::Duration;

use stowage_runtime::Context;
use stowage_runtime::args::{AdminArgs, ClientArgs, FeatureArgs, LeaderElectionArgs, LogArgs, workers};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::driver;
use stowage_runtime::duration::GoDuration;
use stowage_runtime::launch::Launch;

use super::{Provisioner, run};
use crate::options::Options;

/// To be flattened into the arguments of a binary, whose own may be called `Args`.
#[derive(Debug, Clone, clap::Args)]
pub struct ProvisionerArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    election: LeaderElectionArgs,
    #[command(flatten)]
    features: FeatureArgs,
    /// Volumes made at a time, and separately deleted
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().driver.workers)]
    worker_threads: usize,
    /// One try to make a volume that takes longer is cancelled, and the volume asked for again; 0 is no limit
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    timeout: GoDuration,
    /// Wait after the first failure for a claim or volume; doubled after each further one
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    retry_interval_start: GoDuration,
    /// The longest wait between failures
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    retry_interval_max: GoDuration,
}

impl ProvisionerArgs {
    /// Runs as a process of its own until a signal or a failure ends it; leads, where that is asked for, by a Lease that
    /// has the provisioner's name.
    pub async fn run(self, name: &str, provisioner: impl Provisioner) -> anyhow::Result<()> {
        let options = Options {
            driver: driver::Options {
                timeout: Duration::from(self.timeout),
                retry: Backoff { base: self.retry_interval_start.into(), max: self.retry_interval_max.into() },
                workers: workers("--worker-threads", self.worker_threads)?,
                ..driver::Options::default()
            },
            namespace: self.election.namespace(),
            ..Options::default()
        };
        let identity = self.election.identity()?;
        let election = self.election.options(name, &self.features)?;
        let launch = Launch { client: &self.client, burst: 10, log: &self.log, admin: Some(&self.admin) };
        let context = launch.context().await?;
        let service = |mut context: Context| {
            context.identity = identity;
            run(context, name, Arc::new(provisioner), options)
        };
        launch.run(context, election, service).await
    }
}
