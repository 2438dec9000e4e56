//! The flags that every controller of the cluster has, and how one is run by them.

use std::future::Future;

use crate::args::{AdminArgs, ClientArgs, LeaderElectArgs, LogArgs};
use crate::context::{Context, Stop};
use crate::launch::Launch;

/// What the originals' controllers share.
#[derive(Debug, Clone, clap::Args)]
pub struct ControllerArgs {
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
    pub election: LeaderElectArgs,
}

impl ControllerArgs {
    /// What a process is launched with; `burst` is the original's default of `--kube-api-burst`.
    pub fn launch(&self, burst: u32) -> Launch<'_> {
        Launch { client: &self.client, burst, log: &self.log, admin: Some(&self.admin) }
    }

    /// Runs the service as a process of its own, leading by the Lease of this name; says first which flags have no
    /// effect.
    pub async fn run<F>(
        &self,
        burst: u32,
        lease: &str,
        ignored: Vec<String>,
        service: impl FnOnce(Context) -> F,
    ) -> anyhow::Result<()>
    where
        F: Future<Output = Result<(), Stop>>,
    {
        let launch = self.launch(burst);
        let election = self.election.options(lease)?;
        let context = launch.context().await?;
        // Before that nothing is logged.
        ignored.iter().chain(&self.client.ignored()).for_each(|sentence| tracing::warn!("{sentence}"));
        launch.run(context, election, service).await
    }
}
