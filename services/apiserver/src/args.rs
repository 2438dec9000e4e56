use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::run::{Options, run};

/// The Kubernetes API for one machine.
#[derive(Debug, Parser)]
#[command(name = "apiserver")]
pub struct Args {
    /// Address to listen on with TLS; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:6443")]
    pub listen: SocketAddr,
    /// Directory to keep everything in; without it all is forgotten at the end.
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// File to write an administrator's kubeconfig to, once the server answers.
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_out: Option<PathBuf>,
    /// What to log: error, warn, info, debug, trace, or a filter such as stowage_apiserver=debug.
    #[arg(long, default_value = "info")]
    pub log: String,
}

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        let filter =
            EnvFilter::try_new(&self.log).with_context(|| format!("--log {:?} is not a log filter", self.log))?;
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let stop = async move {
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        let Self { listen, data_dir, kubeconfig_out, log: _ } = self;
        run(Options { listen, data_dir, kubeconfig_out }, stop).await?;
        Ok(())
    }
}
