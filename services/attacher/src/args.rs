//! The flags of csi-attacher.

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
    #[command(flatten)]
    ignored: Ignored,
}

stowage_runtime::ignored_flags! {
    struct Ignored {
        reconcile_sync: GoDuration = "1m", "what the driver lists is not compared with the attachments";
        max_entries: u32 = "0", "what the driver lists is not compared with the attachments";
        resync: GoDuration = "10m", "the net for missed events has a fixed period";
        max_grpc_log_length: i64 = "-1", "answers of the driver are not logged";
    }
}

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        let (options, ignored) = (self.options()?, self.ignored());
        let (lease, timeout) = ("external-attacher-leader-{driver}", options.driver.timeout);
        self.sidecar.run(10, lease, timeout, ignored, |context, driver| run_with(context, driver, options)).await
    }

    fn ignored(&self) -> Vec<String> {
        let gates = unknown_gates(&self.sidecar.features, &[RELEASE_ON_EXIT]);
        self.ignored.sentences().into_iter().chain(gates).collect()
    }

    fn options(&self) -> anyhow::Result<Options> {
        let workers = workers("--worker-threads", self.worker_threads)?;
        let driver = self.sidecar.driver(Options::default().driver.timeout, workers);
        Ok(Options { driver, default_fs_type: self.default_fstype.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

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
    }

    #[test]
    fn a_flag_that_means_nothing_here_is_named_when_it_is_set() {
        let ignored = |flags: &[&str]| Args::try_parse_from(["attacher"].iter().chain(flags)).unwrap().ignored();
        assert_eq!(ignored(&["--resync=10m", "--reconcile-sync=1m", "--max-entries=0"]), Vec::<String>::new());
        for flag in ["--resync=1h", "--reconcile-sync=5m", "--max-entries=100", "--max-grpc-log-length=10"] {
            let [sentence] = ignored(&[flag]).try_into().unwrap();
            assert!(flag.starts_with(sentence.split(' ').next().unwrap()), "{sentence}");
        }
        let gates = ignored(&["--feature-gates=ReleaseLeaderElectionOnExit=true,Unheard=true"]);
        assert_eq!(gates, ["--feature-gates Unheard has no effect: there is no such gate here"]);
    }

    #[test]
    fn no_worker_at_all_is_refused() {
        assert!(options(&["--worker-threads=0"]).unwrap_err().to_string().contains("at least 1"));
    }
}
