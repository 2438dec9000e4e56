use clap::{ArgAction, Parser};

use stowage_runtime::args::{AdminArgs, ClientArgs, LeaderElectArgs, LogArgs};
use stowage_runtime::launch::Launch;

use crate::controller::{Options, run};

/// Binds claims to volumes, asks for provisioning, releases volumes
///
/// Stands in for kube-controller-manager's persistentvolume-binder, persistentvolumeclaim-protection and
/// persistentvolume-protection controllers: switch those off there, or run this where there is none.
#[derive(Debug, Parser)]
#[command(name = "pv-controller", version)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    election: LeaderElectArgs,
    /// Make volumes for claims that name a class and fit none
    #[arg(long, action = ArgAction::Set, default_value_t = true, value_name = "BOOL")]
    enable_dynamic_provisioning: bool,
    /// Decisions applied at the same time
    #[arg(long, default_value_t = Options::default().parallel, value_name = "COUNT")]
    concurrent_syncs: usize,
}

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        let launch = Launch { client: &self.client, log: &self.log, admin: Some(&self.admin) };
        let election = self.election.options("pv-controller")?;
        anyhow::ensure!(self.concurrent_syncs > 0, "--concurrent-syncs 0 would bind nothing: give 1 or more");
        let options = Options { provisioning: self.enable_dynamic_provisioning, parallel: self.concurrent_syncs };
        launch.run(launch.context().await?, election, |context| run(context, options)).await
    }
}
