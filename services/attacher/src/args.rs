use std::time::Duration;

use anyhow::bail;
use clap::Parser;

use stowage_runtime::args::{
    AdminArgs, ClientArgs, CsiArgs, FeatureArgs, LeaderElectionArgs, LogArgs, RELEASE_ON_EXIT,
};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::duration::GoDuration;
use stowage_runtime::launch::Launch;

use crate::controller::{Options, run_with};

/// Attaches volumes to nodes and detaches them, as VolumeAttachments ask for it, by calling one CSI driver
///
/// Stands in for csi-attacher. One call to attach or detach may take 15s unless --timeout says otherwise.
#[derive(Debug, Parser)]
#[command(name = "attacher", version)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    election: LeaderElectionArgs,
    #[command(flatten)]
    features: FeatureArgs,
    #[command(flatten)]
    csi: CsiArgs,
    /// Wait after the first failed call for a volume; doubled after each further one
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    retry_interval_start: GoDuration,
    /// The longest wait between failed calls
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    retry_interval_max: GoDuration,
    /// Volumes worked on at the same time
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().workers)]
    worker_threads: usize,
    /// File system type of volumes that name none
    #[arg(long, value_name = "TYPE", default_value = "")]
    default_fstype: String,
    /// Accepted for compatibility: what the driver lists is not compared with the attachments
    #[arg(long, value_name = "DURATION", default_value = "1m", hide = true)]
    reconcile_sync: GoDuration,
    /// Accepted for compatibility: only used by --reconcile-sync
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide = true)]
    max_entries: u32,
    /// Accepted for compatibility: events are never missed for that long
    #[arg(long, value_name = "DURATION", default_value = "10m", hide = true)]
    resync: GoDuration,
    /// Accepted for compatibility: answers of the driver are not logged
    #[arg(long, value_name = "BYTES", default_value_t = -1, allow_negative_numbers = true, hide = true)]
    max_grpc_log_length: i64,
}

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        let launch = Launch { client: &self.client, burst: 10, log: &self.log, admin: Some(&self.admin) };
        let options = self.options()?;
        let context = launch.context().await?;
        for ignored in self.ignored() {
            tracing::warn!("{ignored}");
        }
        let election =
            |driver: &str| self.election.options(&format!("external-attacher-leader-{driver}"), &self.features);
        let address = options.csi_address.clone();
        let service = |context, driver| run_with(context, driver, options);
        launch.sidecar(context, (&address, self.csi.timeout_or(Options::default().timeout)), election, service).await
    }

    /// What was asked for in vain, one sentence each.
    fn ignored(&self) -> Vec<String> {
        let minutes = |minutes: u64| GoDuration(Duration::from_secs(60 * minutes));
        let compared = "what the driver lists is not compared with the attachments";
        let flags = [
            ("--reconcile-sync", self.reconcile_sync != minutes(1), compared),
            ("--max-entries", self.max_entries != 0, compared),
            ("--resync", self.resync != minutes(10), "the net for missed events has a fixed period"),
            ("--max-grpc-log-length", self.max_grpc_log_length != -1, "answers of the driver are not logged"),
        ];
        let flags = flags.into_iter().filter(|(_, set, _)| *set);
        let mut ignored: Vec<String> = flags.map(|(flag, _, why)| format!("{flag} has no effect: {why}")).collect();
        let gates = self.features.feature_gates.iter().map(|(gate, _)| gate).filter(|gate| *gate != RELEASE_ON_EXIT);
        ignored
            .extend(gates.map(|gate| format!("--feature-gates {gate} has no effect: this attacher has no such gate")));
        ignored
    }

    fn options(&self) -> anyhow::Result<Options> {
        let defaults = Options::default();
        if self.worker_threads == 0 {
            bail!("--worker-threads 0 would never attach anything; give at least 1");
        }
        Ok(Options {
            csi_address: self.csi.csi_address.clone(),
            timeout: self.csi.timeout_or(defaults.timeout),
            retry: Backoff { base: self.retry_interval_start.into(), max: self.retry_interval_max.into() },
            workers: self.worker_threads,
            default_fs_type: self.default_fstype.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(flags: &[&str]) -> anyhow::Result<Options> {
        Args::try_parse_from(["attacher"].iter().chain(flags))?.options()
    }

    #[test]
    fn the_defaults_are_the_originals() {
        let options = options(&[]).unwrap();
        assert_eq!(options, Options::default());
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
        assert_eq!((options.timeout, options.workers), (Duration::from_secs(60), 20));
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
        assert_eq!(gates, ["--feature-gates Unheard has no effect: this attacher has no such gate"]);
    }

    #[test]
    fn no_worker_at_all_is_refused() {
        assert!(options(&["--worker-threads=0"]).unwrap_err().to_string().contains("at least 1"));
    }
}
