use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use futures::future::LocalBoxFuture;

use stowage_csi::Endpoint;
use stowage_runtime::args::{ClientArgs, LogArgs};
use stowage_runtime::duration::GoDuration;

use crate::{certificates, check, clean, demo, drain, explain, run, setup, up};

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
    /// Run a command with volumes mounted where it wants them, and give them back afterwards
    Run(Run),
    /// The second half of `run`, in namespaces of its own
    #[command(hide = true)]
    Enter(Enter),
    /// Say why a claim, pod, volume or snapshot is stuck, who must act next, and the way out
    #[command(after_help = explain::HELP)]
    Explain(Explain),
    /// Delete the pods of nodes and wait until nothing is mounted there
    Drain(Drain),
    /// Wait for an API server, create a driver's objects and hand out the kubeconfig
    Setup(Setup),
    /// Make the certificates, keys and token that a kube-apiserver needs, and a kubeconfig for it
    Certificates(Certificates),
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
    /// Endpoint of another CSI driver to run in the pipeline instead of ours: unix:///PATH or tcp://HOST:PORT
    #[arg(long, value_name = "ENDPOINT")]
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

/// Options of `stowage run`.
#[derive(Debug, clap::Args)]
pub struct Run {
    /// A claim to mount, as NAME[/PART/OF/IT][:PATH[:ro]]; without a path it is at /mnt/NAME. May be repeated
    #[arg(long = "claim", value_name = "NAME[:PATH[:ro]]", required_unless_present = "pod")]
    pub claims: Vec<run::ClaimMount>,
    /// A file with a Pod: the command gets its volumes, of any kind, where its container mounts them
    #[arg(long, value_name = "FILE")]
    pub pod: Option<PathBuf>,
    /// The container of the Pod whose place the command takes, if it has several
    #[arg(long, short = 'c', value_name = "NAME", requires = "pod")]
    pub container: Option<String>,
    /// Make claims that do not exist with this size
    #[arg(long, value_name = "QUANTITY")]
    pub size: Option<stowage_model::Quantity>,
    /// The class of claims that are made [default: the default class]
    #[arg(long, value_name = "NAME", requires = "size")]
    pub class: Option<String>,
    /// Delete the claims that were made, with their data, whatever ends the command
    #[arg(long, requires = "size")]
    pub rm: bool,
    /// The node to run on; the scheduler chooses if not given
    #[arg(long, value_name = "NAME")]
    pub node: Option<String>,
    /// Namespace of the claims [default: that of the Pod's file, or "default"]
    #[arg(long, short = 'n', value_name = "NAME")]
    pub namespace: Option<String>,
    /// The root directory of the running `stowage up`
    #[arg(long, value_name = "DIR", default_value = "/var/lib/stowage")]
    pub root: PathBuf,
    #[command(flatten)]
    pub log: LogArgs,
    /// The command and its arguments
    #[arg(last = true, value_name = "COMMAND", required = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// Options of `stowage enter`.
#[derive(Debug, clap::Args)]
pub struct Enter {
    /// What to show where, in JSON
    #[arg(long)]
    pub mounts: String,
    /// The pipe that signals come through
    #[arg(long)]
    pub orders: PathBuf,
    /// The command and its arguments
    #[arg(last = true, required = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// Options of `stowage explain`.
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// What to explain: pvc, pod, pv or volumesnapshot; without it, everything that is not where it should be
    #[arg(value_name = "KIND", requires = "name")]
    pub kind: Option<explain::Subject>,
    /// Its name
    #[arg(value_name = "NAME")]
    pub name: Option<String>,
    /// Its namespace [default: that of the kubeconfig's context]; without a name, all of them
    #[arg(long, short = 'n', value_name = "NAME")]
    pub namespace: Option<String>,
    /// What to print
    #[arg(long, short = 'o', value_name = "FORMAT", default_value = "text")]
    pub output: explain::Output,
    /// Kubeconfig file [default: $KUBECONFIG, else that of `stowage up` on --root, else ~/.kube/config]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<String>,
    /// The root directory of a running `stowage up`
    #[arg(long, value_name = "DIR", default_value = "/var/lib/stowage")]
    pub root: PathBuf,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Options of `stowage drain`.
#[derive(Debug, clap::Args)]
pub struct Drain {
    /// Names of the nodes; all of them if none is named
    #[arg(value_name = "NODE")]
    pub nodes: Vec<String>,
    /// Wait for SIGTERM first: for a container that a stack stops before all others
    #[arg(long)]
    pub at_shutdown: bool,
    /// How long the nodes may take
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    pub timeout: GoDuration,
    #[command(flatten)]
    pub client: ClientArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Options of `stowage setup`.
#[derive(Debug, clap::Args)]
pub struct Setup {
    /// Files with CustomResourceDefinitions, CSIDrivers and classes of storage and of snapshots; what exists is left as it is
    #[arg(long = "filename", short = 'f', value_name = "FILE")]
    pub filenames: Vec<PathBuf>,
    /// Copy the kubeconfig here, readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub hand_out: Option<PathBuf>,
    /// Give the copy to the owner of this file or directory
    #[arg(long, value_name = "PATH", requires = "hand_out")]
    pub like: Option<PathBuf>,
    /// How long the API server may take to answer, and to serve a kind whose definition was just created
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    pub timeout: GoDuration,
    #[command(flatten)]
    pub client: ClientArgs,
    #[command(flatten)]
    pub log: LogArgs,
}

/// Options of `stowage certificates`.
#[derive(Debug, clap::Args)]
pub struct Certificates {
    /// Where the files go; if an authority is there already, everything is kept
    #[arg(long, value_name = "DIR")]
    pub directory: PathBuf,
    /// The server's address in the kubeconfig
    #[arg(long, value_name = "URL")]
    pub server: String,
    /// A further name of the server, for its certificate; may be repeated
    #[arg(long = "name", value_name = "NAME")]
    pub names: Vec<String>,
    /// Where to write the administrator's kubeconfig
    #[arg(long, value_name = "FILE")]
    pub kubeconfig_out: PathBuf,
    /// User and group the kubeconfig is given to
    #[arg(long, value_name = "ID")]
    pub owner: Option<u32>,
}

impl Args {
    /// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
    pub fn run(self) -> LocalBoxFuture<'static, anyhow::Result<ExitCode>> {
        Box::pin(self.obey())
    }

    async fn obey(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Up(options) => up::run(options).await.map(|()| ExitCode::SUCCESS),
            Command::Demo(options) => demo::run(options).await,
            Command::Check => Ok(check::run()),
            Command::Clean(options) => clean::run(&options.root).await.map(|()| ExitCode::SUCCESS),
            Command::Run(options) => run::run(options).await,
            Command::Enter(options) => run::enter(options).await,
            Command::Explain(options) => explain::run(options).await,
            Command::Drain(options) => drain::run(options).await.map(|()| ExitCode::SUCCESS),
            Command::Certificates(options) => certificates::run(&options).map(|()| ExitCode::SUCCESS),
            Command::Setup(options) => setup::run(options).await.map(|()| ExitCode::SUCCESS),
        }
    }
}
