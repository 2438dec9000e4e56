use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use stowage_csi::Endpoint;
use stowage_runtime::args::LogArgs;

use crate::{check, clean, demo, up};

/// The Kubernetes storage control plane on one machine
#[derive(Debug, Parser)]
#[command(name = "stowage", version)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the whole stack in this process: API server, controllers, driver and nodes
    Up(Up),
    /// Take a claim from create to a mounted volume and back, and show where the time went
    Demo(Demo),
    /// Say what this machine lacks
    Check,
    /// Remove the mounts, loop devices and sockets that a killed run left
    Clean(Clean),
}

/// Options of `stowage up`.
#[derive(Debug, clap::Args)]
pub struct Up {
    /// Where everything is kept: API data, volumes, node directories
    #[arg(long, value_name = "DIR", default_value = "/var/lib/stowage")]
    pub root: PathBuf,
    /// Address of the API server; port 0 takes a free one
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:6443")]
    pub listen: SocketAddr,
    /// Where to write the administrator's kubeconfig [default: kubeconfig in the root directory]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_out: Option<PathBuf>,
    /// How many nodes to run
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub nodes: u16,
    /// Socket of another CSI driver to run in the pipeline instead of ours
    #[arg(long, value_name = "unix:///PATH")]
    pub csi_endpoint: Option<Endpoint>,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Options of `stowage demo`.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Where to run [default: a new directory below the system's temporary one]
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// Show the services' logs too
    #[arg(long)]
    pub logs: bool,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Options of `stowage clean`.
#[derive(Debug, clap::Args)]
pub struct Clean {
    /// The root directory of the killed run
    #[arg(long, value_name = "DIR")]
    pub root: PathBuf,
}

impl Args {
    pub async fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Up(options) => up::run(options).await.map(|()| ExitCode::SUCCESS),
            Command::Demo(options) => demo::run(options).await,
            Command::Check => Ok(check::run()),
            Command::Clean(options) => clean::run(&options.root).await.map(|()| ExitCode::SUCCESS),
        }
    }
}
