//! The flags of csi-attacher.

use std::time::Duration;

use anyhow::bail;
use clap::Parser;

use stowage_runtime::args::{RELEASE_ON_EXIT, SidecarArgs, unknown_gates, workers};
use stowage_runtime::duration::GoDuration;

use crate::controller::{Options, run_with};

/// Attaches volumes to nodes and detaches them, as VolumeAttachments ask for it, by calling one CSI driver
///
/// Stands in for csi-attacher. One call to attach or detach may take 15s unless --timeout says otherwise.
#[derive(Debug, Parser)]
#[command(name = "attacher", version)]
pub struct Args {
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Volumes worked on at the same time
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().driver.workers)]
    worker_threads: usize,
    /// File system type of volumes that name none
    #[arg(long, value_name = "TYPE", default_value = "")]
    default_fstype: String,
    /// How often to compare the attachments with what the driver lists, where it can list that
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    reconcile_sync: GoDuration,
    /// Volumes asked for in one page of that list; 0 leaves it to the driver
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    max_entries: i32,
    /// How often to look at every attachment again, in case an event was missed; 0 for never
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    resync: GoDuration,
    /// The most characters of a driver's answer in the log at -v=5; 0 and less for all of it
    #[arg(long, value_name = "COUNT", default_value_t = -1, allow_negative_numbers = true)]
    max_grpc_log_length: i64,
}

/// Whether attach errors say the gRPC code, by which schedulers learn that a node is full.
const ERROR_CODES: &str = "MutableCSINodeAllocatableCount";

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        let (options, ignored) = (self.options()?, self.ignored());
        stowage_csi::calls::limit_answers(self.max_grpc_log_length);
        let (lease, timeout) = ("external-attacher-leader-{driver}", options.driver.timeout);
        self.sidecar.run(10, lease, timeout, ignored, |context, driver| run_with(context, driver, options)).await
    }

    fn ignored(&self) -> Vec<String> {
        unknown_gates(&self.sidecar.features, &[RELEASE_ON_EXIT, ERROR_CODES])
    }

    fn options(&self) -> anyhow::Result<Options> {
        let workers = workers("--worker-threads", self.worker_threads)?;
        let driver = self.sidecar.driver(Options::default().driver.timeout, workers);
        Ok(Options {
            driver,
            default_fs_type: self.default_fstype.clone(),
            reconcile_sync: period("--reconcile-sync", self.reconcile_sync)?,
            max_entries: self.max_entries,
            resync: self.resync.into(),
            error_codes: self.sidecar.features.enabled(ERROR_CODES, true),
        })
    }
}

fn period(flag: &str, given: GoDuration) -> anyhow::Result<Duration> {
    let period = Duration::from(given);
    if period.is_zero() {
        bail!("{flag} 0s would never pause; give at least 1s");
    }
    Ok(period)
}

#[cfg(test)]
mod tests {
    use stowage_runtime::backoff::Backoff;

    use super::*;

    fn options(flags: &[&str]) -> anyhow::Result<Options> {
        Args::try_parse_from(["attacher"].iter().chain(flags))?.options()
    }

    #[test]
    fn the_defaults_are_the_originals() {
        let options = options(&[]).unwrap();
        assert_eq!(options, Options::default());
        let options = options.driver;
        assert_eq!((options.timeout, options.workers), (Duration::from_secs(15), 10));
        assert_eq!(options.retry, Backoff { base: Duration::from_secs(1), max: Duration::from_secs(300) });
        assert_eq!(options.csi_address, "/run/csi/socket");
    }

    #[test]
    fn the_arguments_of_the_original_deployments_are_taken() {
        let given = [
            "--v=5",
            "--csi-address=/csi/csi.sock",
            "--timeout=60s",
            "--leader-election",
            "--resync=10m",
            "--reconcile-sync=1m",
            "--worker-threads=20",
            "--default-fstype=ext4",
            "--max-entries=100",
            "--retry-interval-max=30s",
            "--max-grpc-log-length=-1",
            "--http-endpoint=:8080",
        ];
        let options = options(&given).unwrap();
        assert_eq!((options.driver.timeout, options.driver.workers), (Duration::from_secs(60), 20));
        assert_eq!(options.default_fs_type, "ext4");
        assert_eq!((options.max_entries, options.reconcile_sync), (100, Duration::from_secs(60)));
    }

    #[test]
    fn the_originals_example_manifest_starts_it() {
        let given = [
            "--v=5",
            "--csi-address=/var/lib/csi/sockets/pluginproxy/mock.socket",
            "--leader-election",
            "--http-endpoint=:8080",
        ];
        let words = std::iter::once("attacher").chain(given).map(Into::into);
        let args: Args = stowage_runtime::flags::try_parse_from(words).unwrap();
        assert_eq!(args.sidecar.admin.address().unwrap(), Some(":8080"));
        assert!(args.sidecar.election.leader_election);
        assert_eq!(args.options().unwrap().driver.csi_address, "/var/lib/csi/sockets/pluginproxy/mock.socket");
        assert!(args.ignored().is_empty());
    }

    #[test]
    fn every_flag_reaches_the_options() {
        let given = ["--resync=1h", "--reconcile-sync=5m", "--max-entries=7"];
        let set = options(&given).unwrap();
        assert_eq!((set.resync, set.reconcile_sync), (Duration::from_secs(3600), Duration::from_secs(300)));
        assert_eq!(set.max_entries, 7);
        assert!(set.error_codes);
        assert!(!options(&["--feature-gates=MutableCSINodeAllocatableCount=false"]).unwrap().error_codes);
        assert_eq!(options(&["--resync=0"]).unwrap().resync, Duration::ZERO, "never, as in the original");
        assert!(options(&["--reconcile-sync=0s"]).unwrap_err().to_string().contains("--reconcile-sync"));
    }

    #[test]
    fn a_gate_that_nobody_knows_is_named() {
        let gates = "--feature-gates=ReleaseLeaderElectionOnExit=true,MutableCSINodeAllocatableCount=true,Unheard=true";
        let ignored = Args::try_parse_from(["attacher", gates]).unwrap().ignored();
        assert_eq!(ignored, ["--feature-gates Unheard has no effect: there is no such gate here"]);
    }

    #[test]
    fn no_worker_at_all_is_refused() {
        assert!(options(&["--worker-threads=0"]).unwrap_err().to_string().contains("at least 1"));
    }
}
