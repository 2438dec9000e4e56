//! The original's flags; wires the real world and decides nothing.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::bail;
use clap::Parser;

use stowage_csi::{Connector, UnixConnector};
use stowage_process::args::{AUTOMAXPROCS, LogArgs};
use stowage_process::duration::GoDuration;
use stowage_process::launch;

use crate::health::Health;
use crate::serve::UnixServe;
use crate::service::Options;

/// The mode in which the original only checks that it can be started.
const PROBE_MODE: &str = "kubelet-registration-probe";

/// Registers a CSI driver with the kubelet of this node.
#[derive(Debug, Parser)]
#[command(name = "registrar", version)]
pub struct Args {
    #[command(flatten)]
    log: LogArgs,
    /// Socket of the CSI driver: a path, unix:///PATH, or tcp://HOST:PORT
    #[arg(long, value_name = "SOCKET", default_value = "/run/csi/socket")]
    csi_address: String,
    /// Socket of the CSI driver as the kubelet sees it
    #[arg(long, value_name = "SOCKET", default_value = "")]
    kubelet_registration_path: String,
    /// Directory the kubelet watches for registration sockets
    #[arg(long, value_name = "DIR", default_value = "/registration")]
    plugin_registration_path: PathBuf,
    /// Time limit of the call that asks the driver for its name, and of the health check
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    timeout: GoDuration,
    /// Address for /healthz, /readyz and /metrics, such as :9809; empty is off
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    http_endpoint: String,
    /// Deprecated: use --http-endpoint
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    health_port: u16,
    /// Deprecated: "kubelet-registration-probe" ends at once with success
    #[arg(long, value_name = "MODE", default_value = "")]
    mode: String,
    /// Accepted for compatibility: there are no Go profiles here
    #[arg(long, hide = true)]
    enable_pprof: bool,
    /// Accepted for compatibility
    #[arg(long, hide = true)]
    connection_timeout: Option<GoDuration>,
    /// Accepted for compatibility: threads follow the container's quota without it
    #[arg(long, hide = true)]
    automaxprocs: bool,
}

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        let process = launch::start(&self.log, "registrar")?;
        if self.mode == PROBE_MODE {
            return Ok(());
        }
        for ignored in self.ignored() {
            tracing::warn!("{ignored}");
        }
        let address = self.address()?;
        let options = self.options()?;
        let csi: Arc<dyn Connector> = Arc::new(UnixConnector);
        let admin = process.admin().check(options.health.check(Arc::clone(&csi), options.timeout));
        let bound = match address {
            Some(address) => Some(admin.bind(&address).await?),
            None => None,
        };
        let service = crate::run(process.clone(), csi, Arc::new(UnixServe), options);
        launch::run(&process, bound, service).await
    }

    /// What was asked for in vain, one sentence each.
    fn ignored(&self) -> Vec<&'static str> {
        let flags = [
            (self.enable_pprof, "--enable-pprof has no effect: there are no Go profiles here"),
            (self.connection_timeout.is_some(), "--connection-timeout has no effect: the driver is waited for"),
            (self.automaxprocs, AUTOMAXPROCS),
        ];
        flags.into_iter().filter(|(set, _)| *set).map(|(_, sentence)| sentence).collect()
    }

    fn options(&self) -> anyhow::Result<Options> {
        if self.kubelet_registration_path.is_empty() {
            bail!("--kubelet-registration-path is required: the driver's socket as the kubelet sees it");
        }
        Ok(Options {
            csi_address: self.csi_address.clone(),
            kubelet_registration_path: self.kubelet_registration_path.clone(),
            plugin_registration_path: self.plugin_registration_path.clone(),
            timeout: self.timeout.into(),
            health: Health::default(),
            ..Options::default()
        })
    }

    fn address(&self) -> anyhow::Result<Option<String>> {
        match (self.health_port, self.http_endpoint.as_str()) {
            (0, "") => Ok(None),
            (0, endpoint) => Ok(Some(endpoint.to_owned())),
            (port, "") => Ok(Some(format!(":{port}"))),
            _ => bail!("--health-port and --http-endpoint are both set, keep only --http-endpoint"),
        }
    }
}

#[cfg(test)]
mod tests {
    use stowage_process::flags;

    use super::*;

    fn parse(words: &[&str]) -> Args {
        let words = std::iter::once("registrar").chain(words.iter().copied());
        flags::try_parse_from(words.map(Into::into)).unwrap()
    }

    #[test]
    fn the_originals_example_arguments_are_understood() {
        let args = parse(&[
            "--v=5",
            "--csi-address=/csi/csi.sock",
            "--kubelet-registration-path=/var/lib/kubelet/plugins/csi-hostpath/csi.sock",
        ]);
        let options = args.options().unwrap();
        assert_eq!(options.csi_address, "/csi/csi.sock");
        assert_eq!(options.socket("a.b"), PathBuf::from("/registration/a.b-reg.sock"));
        assert_eq!(options.timeout, std::time::Duration::from_secs(1));
        assert_eq!(args.address().unwrap(), None);
    }

    #[test]
    fn a_missing_kubelet_path_is_named() {
        let error = parse(&[]).options().unwrap_err().to_string();
        assert!(error.contains("--kubelet-registration-path is required"), "{error}");
    }

    #[test]
    fn a_flag_that_means_nothing_here_is_named_when_it_is_set() {
        assert!(parse(&["--v=5"]).ignored().is_empty());
        let ignored = parse(&["--enable-pprof", "--connection-timeout=5s", "--automaxprocs"]).ignored();
        assert!(ignored[0].starts_with("--enable-pprof") && ignored[1].starts_with("--connection-timeout"));
        assert_eq!(ignored[2..], [AUTOMAXPROCS]);
    }

    #[test]
    fn the_two_health_flags_exclude_each_other() {
        assert_eq!(parse(&["--health-port=9809"]).address().unwrap().as_deref(), Some(":9809"));
        assert!(parse(&["--health-port=9809", "--http-endpoint=:1"]).address().is_err());
    }
}
