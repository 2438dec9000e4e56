use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use tokio::signal::unix::{SignalKind, signal};

use stowage_process::args::LogFormat;
use stowage_process::log;

use crate::descriptors;
use crate::limits::LimitArgs;
use crate::run::{Access, Authorization, Options, bind_with};

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
    /// File of static tokens: lines of token,user,uid,"group1,group2".
    #[arg(long, value_name = "FILE")]
    pub token_auth_file: Option<PathBuf>,
    /// Certificates of a further authority whose client certificates are accepted.
    #[arg(long, value_name = "FILE")]
    pub client_ca_file: Option<PathBuf>,
    /// Who may do what: AlwaysAllow (everyone who is known, everything) or RBAC.
    #[arg(long, default_value = "AlwaysAllow", value_name = "MODE")]
    pub authorization_mode: Authorization,
    /// Admit pods by their service accounts: each gets a token, kube-root-ca.crt and its namespace as files.
    #[arg(long)]
    pub service_account_admission: bool,
    #[command(flatten)]
    pub limits: LimitArgs,
    /// How long an event stays after it was last written, such as 1h0m0s.
    #[arg(long, default_value = "1h0m0s", value_name = "DURATION", value_parser = duration)]
    pub event_ttl: Duration,
    /// What to log: error, warn, info, debug, trace, or a filter such as stowage_apiserver=debug.
    #[arg(long, default_value = "info")]
    pub log: String,
}

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        let filter = log::filter(&self.log).with_context(|| format!("--log {:?} is not a log filter", self.log))?;
        log::start(filter, LogFormat::Text);
        let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
        let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
        let stop = async move {
            tokio::select! {
                biased;
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        };
        descriptors::raise();
        let access = Access {
            token_auth_file: self.token_auth_file,
            client_ca_file: self.client_ca_file,
            authorization: self.authorization_mode,
            mount_tokens: self.service_account_admission,
            limits: self.limits.into(),
            event_ttl: Some(self.event_ttl),
        };
        let Self { listen, data_dir, kubeconfig_out, .. } = self;
        bind_with(Options { listen, data_dir, kubeconfig_out }, access).await?.run(stop).await?;
        Ok(())
    }
}

pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<jiff::SignedDuration>().map_err(|error| error.to_string())?;
    Duration::try_from(parsed).map_err(|_| "a duration before its own beginning".to_owned())
}
