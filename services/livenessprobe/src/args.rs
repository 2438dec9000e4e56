//! The original's flags; wires the real world and decides nothing.

use std::sync::Arc;

use anyhow::bail;
use clap::Parser;

use stowage_csi::UnixConnector;
use stowage_process::admin::Admin;
use stowage_process::args::{AUTOMAXPROCS, LogArgs};
use stowage_process::duration::GoDuration;
use stowage_process::{Process, launch};

use crate::probe::{Options, Probe, run};

const HEALTH_PORT: u16 = 9808;

/// Answers HTTP probes with a CSI driver's own Probe
///
/// GET /healthz is 200 if the driver is well and 500 with the reason if not.
#[derive(Debug, Parser)]
#[command(name = "livenessprobe", version)]
pub struct Args {
    #[command(flatten)]
    log: LogArgs,
    /// Socket of the CSI driver: a path, unix:///PATH, or tcp://HOST:PORT
    #[arg(long, value_name = "SOCKET", default_value = "/run/csi/socket")]
    csi_address: String,
    /// How long the driver may take to be reached and to answer one probe
    #[arg(long, value_name = "DURATION", default_value = "3s")]
    probe_timeout: GoDuration,
    /// Address for /healthz, /readyz and the metrics, such as :9808
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    http_endpoint: String,
    /// Deprecated: use --http-endpoint. Port for /healthz, without metrics
    #[arg(long, value_name = "PORT", default_value_t = HEALTH_PORT)]
    health_port: u16,
    /// Deprecated: use --http-endpoint. Address for the metrics alone
    #[arg(long, value_name = "ADDRESS", default_value = "")]
    metrics_address: String,
    /// Path of the metrics
    #[arg(long, value_name = "PATH", default_value = "/metrics")]
    metrics_path: String,
    /// Accepted for compatibility: threads follow the container's quota without it
    #[arg(long, hide = true)]
    automaxprocs: bool,
}

/// Where what is served.
#[derive(Debug, PartialEq, Eq)]
struct Addresses {
    health: String,
    /// Whether the metrics are there too.
    with_metrics: bool,
    /// Where the metrics alone are.
    metrics: Option<String>,
}

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        self.serve(launch::start(&self.log, "livenessprobe")?).await
    }

    async fn serve(&self, process: Process) -> anyhow::Result<()> {
        let addresses = self.addresses()?;
        self.remarks().into_iter().for_each(|sentence| tracing::warn!("{sentence}"));
        let probe = Probe::new(process.clone(), Arc::new(UnixConnector), &self.options()?)?;
        let health = process.admin().check(probe.check()).metrics_path(self.metrics_path.clone());
        let health = if addresses.with_metrics { health } else { health.without_metrics() };
        let bound = health.bind(&addresses.health).await?;
        let metrics = match &addresses.metrics {
            Some(address) => Some(self.metrics(&process).bind(address).await?),
            None => None,
        };
        let service = launch::serve(&process, metrics, run(probe));
        launch::run(&process, Some(bound), service).await
    }

    fn metrics(&self, process: &Process) -> Admin {
        process.admin().metrics_path(self.metrics_path.clone()).only_metrics()
    }

    fn options(&self) -> anyhow::Result<Options> {
        let options = Options { csi_address: self.csi_address.clone(), probe_timeout: self.probe_timeout.into() };
        if options.probe_timeout.is_zero() {
            bail!("--probe-timeout 0s leaves the driver no time to answer; give 3s, for example");
        }
        Ok(options)
    }

    fn addresses(&self) -> anyhow::Result<Addresses> {
        if !self.metrics_path.starts_with('/') || self.metrics_path == "/healthz" {
            bail!("--metrics-path {:?} must begin with a slash and not be /healthz; give /metrics", self.metrics_path);
        }
        let is_set = |address: &str| (!address.is_empty()).then(|| address.to_owned());
        match (is_set(&self.http_endpoint), is_set(&self.metrics_address)) {
            (Some(_), Some(_)) => {
                bail!("--metrics-address and --http-endpoint are both set, keep only --http-endpoint")
            }
            (Some(_), None) if self.health_port != HEALTH_PORT => {
                bail!("--health-port and --http-endpoint are both set, keep only --http-endpoint")
            }
            (Some(health), None) => Ok(Addresses { health, with_metrics: true, metrics: None }),
            (None, metrics) => Ok(Addresses { health: format!(":{}", self.health_port), with_metrics: false, metrics }),
        }
    }

    /// What the original means to drop, and what has no effect here, one sentence each.
    fn remarks(&self) -> Vec<&'static str> {
        let flags = [
            (self.health_port != HEALTH_PORT, "--health-port is deprecated: use --http-endpoint"),
            (!self.metrics_address.is_empty(), "--metrics-address is deprecated: use --http-endpoint"),
            (self.automaxprocs, AUTOMAXPROCS),
        ];
        flags.into_iter().filter(|(set, _)| *set).map(|(_, sentence)| sentence).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tonic::service::Routes;

    use stowage_csi::server::{Socket, SocketMode};
    use stowage_process::flags;

    use super::*;

    fn parse(words: &[&str]) -> Args {
        let words = std::iter::once("livenessprobe").chain(words.iter().copied());
        flags::try_parse_from(words.map(Into::into)).unwrap()
    }

    #[test]
    fn the_originals_example_manifest_starts_it() {
        let args = parse(&["--csi-address=/csi/csi.sock"]);
        let expected = Options { csi_address: "/csi/csi.sock".into(), probe_timeout: Duration::from_secs(3) };
        assert_eq!(args.options().unwrap(), expected);
        let health = Addresses { health: ":9808".into(), with_metrics: false, metrics: None };
        assert_eq!(args.addresses().unwrap(), health);
        assert!(args.remarks().is_empty());
    }

    #[test]
    fn every_flag_has_the_originals_meaning() {
        let args = parse(&["--v=5", "--probe-timeout=10s", "--health-port=9999", "--metrics-address=:8080"]);
        assert_eq!(args.options().unwrap().probe_timeout, Duration::from_secs(10));
        let metrics = Some(":8080".to_owned());
        let expected = Addresses { health: ":9999".into(), with_metrics: false, metrics };
        assert_eq!(args.addresses().unwrap(), expected);
        assert_eq!(args.remarks().len(), 2);
        let one = parse(&["--http-endpoint=127.0.0.1:1", "--metrics-path=/m", "--automaxprocs"]);
        let expected = Addresses { health: "127.0.0.1:1".into(), with_metrics: true, metrics: None };
        assert_eq!((one.addresses().unwrap(), one.remarks()), (expected, vec![AUTOMAXPROCS]));
        assert!(parse(&["--http-endpoint=:1", "--health-port=9808"]).addresses().is_ok(), "the default says nothing");
    }

    #[test]
    fn what_excludes_each_other_is_refused_with_the_way_out() {
        for words in [
            &["--http-endpoint=:1", "--health-port=2"][..],
            &["--http-endpoint=:1", "--metrics-address=:2"],
            &["--metrics-path=numbers"],
        ] {
            let error = parse(words).addresses().unwrap_err().to_string();
            assert!(error.contains("keep only --http-endpoint") || error.contains("slash"), "{error}");
        }
        assert!(parse(&["--probe-timeout=0s"]).options().unwrap_err().to_string().contains("--probe-timeout"));
    }

    /// What served the numbers went on until a shutdown, and so did a process that had nothing left to do.
    #[tokio::test]
    async fn a_driver_that_cannot_say_its_name_ends_the_process_whatever_is_served_beside() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("csi.sock");
        let socket = Socket::bind(&path, SocketMode::default()).unwrap();
        let address = format!("--csi-address={}", path.display());
        let story = async {
            for served in [&["--http-endpoint=127.0.0.1:0"][..], &["--health-port=0", "--metrics-address=127.0.0.1:0"]]
            {
                let args = parse(&[&[address.as_str()], served].concat());
                // Real time passes, and the machine may be busy.
                let ended = tokio::time::timeout(Duration::from_secs(60), args.serve(Process::real("test")));
                let reason = ended.await.expect("it goes on").unwrap_err().to_string();
                assert!(reason.contains("its name") && reason.contains("Unimplemented"), "{served:?}: {reason}");
            }
        };
        tokio::select! {
            biased;
            ended = socket.serve(Routes::default(), std::future::pending()) => panic!("{ended:?}"),
            () = story => {}
        }
    }
}
