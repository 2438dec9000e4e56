use std::time::Duration;

use anyhow::bail;
use clap::{ArgAction, Parser};

use stowage_runtime::args::{AdminArgs, ClientArgs, FeatureArgs, LeaderElectionArgs, LogArgs, RELEASE_ON_EXIT};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::duration::GoDuration;
use stowage_runtime::launch::Launch;

use crate::controller::Options;
use crate::run;

/// The Lease's name, and the original's.
const LEASE: &str = "snapshot-controller-leader";

const GROUPS: &str = "CSIVolumeGroupSnapshot";

/// The original has so many queues, each with threads of its own.
const QUEUES: usize = 4;

/// Binds VolumeSnapshots and VolumeGroupSnapshots to their contents, which the snapshotter of each driver fills
///
/// Stands in for snapshot-controller of external-snapshotter. Needs the definitions (CRDs) of snapshot.storage.k8s.io;
/// those of groupsnapshot.storage.k8s.io may come later or never.
#[derive(Debug, Parser)]
#[command(name = "snapshot-controller", version)]
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
    /// Objects of one kind worked on at the same time
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    worker_threads: usize,
    /// Wait after the first failed write for an object; doubled after each further one
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    retry_interval_start: GoDuration,
    /// The longest wait between failed writes
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    retry_interval_max: GoDuration,
    /// Label each content with the node that its volume is bound to, for drivers whose nodes make their own snapshots
    #[arg(long)]
    enable_distributed_snapshotting: bool,
    /// Note the mode of a volume in the content made of it, so that it is not restored in another
    #[arg(long, action = ArgAction::Set, default_value_t = true, value_name = "BOOL")]
    prevent_volume_mode_conversion: bool,
    /// Give up if the definitions of the snapshot kinds are not there by then, at least 1s; unlike the original's 30s,
    /// they are waited for without an end unless this is set
    #[arg(long, value_name = "DURATION")]
    retry_crd_interval_max: Option<GoDuration>,
    /// Accepted for compatibility: events are never missed for that long
    #[arg(long, value_name = "DURATION", default_value = "15m", hide = true)]
    resync_period: GoDuration,
}

impl Args {
    pub async fn run(self) -> anyhow::Result<()> {
        let launch = Launch { client: &self.client, burst: 10, log: &self.log, admin: Some(&self.admin) };
        let election = self.election.options(LEASE, &self.features)?;
        let options = self.options()?;
        let context = launch.context().await?;
        for ignored in self.ignored() {
            tracing::warn!("{ignored}");
        }
        launch.run(context, election, |context| run(context, options)).await
    }

    /// What was asked for in vain, one sentence each.
    fn ignored(&self) -> Vec<String> {
        let mut ignored = Vec::new();
        if self.resync_period != GoDuration(Duration::from_secs(15 * 60)) {
            ignored.push("--resync-period has no effect: the net for missed events has a fixed period".to_owned());
        }
        let gates = self.features.gates().map(|(gate, _)| gate);
        let unknown = gates.filter(|gate| ![RELEASE_ON_EXIT, GROUPS].contains(gate));
        ignored
            .extend(unknown.map(|gate| {
                format!("--feature-gates {gate} has no effect: this snapshot-controller has no such gate")
            }));
        ignored
    }

    fn options(&self) -> anyhow::Result<Options> {
        if self.worker_threads == 0 {
            bail!("--worker-threads 0 would never bind anything; give at least 1");
        }
        Ok(Options {
            prevent_volume_mode_conversion: self.prevent_volume_mode_conversion,
            distributed_snapshotting: self.enable_distributed_snapshotting,
            group_snapshots: self.features.enabled(GROUPS, true),
            parallel: self.worker_threads.saturating_mul(QUEUES),
            retry: Backoff { base: self.retry_interval_start.into(), max: self.retry_interval_max.into() },
            definitions_within: self
                .retry_crd_interval_max
                .map(|most| Duration::from(most).max(Duration::from_secs(1))),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use stowage_runtime::flags;

    use super::*;

    fn parsed(flags: &[&str]) -> Result<Args, clap::Error> {
        flags::try_parse_from(["snapshot-controller"].iter().chain(flags).map(OsString::from))
    }

    fn args(flags: &[&str]) -> Args {
        parsed(flags).unwrap()
    }

    #[test]
    fn the_defaults_are_the_originals() {
        let args = args(&[]);
        assert_eq!(args.options().unwrap(), Options::default());
        assert!(args.election.options(LEASE, &args.features).unwrap().is_none());
        assert!(args.ignored().is_empty());
    }

    #[test]
    fn every_flag_of_the_originals_manifest_is_taken() {
        let args = args(&[
            "--v=5",
            "--leader-election=true",
            "--leader-election-namespace=kube-system",
            "--http-endpoint=:8080",
            "--metrics-path=/metrics",
            "--worker-threads=3",
            "--retry-interval-start=2s",
            "--retry-interval-max=1m",
            "--enable-distributed-snapshotting=true",
            "--prevent-volume-mode-conversion=false",
            "--retry-crd-interval-max=100ms",
            "--feature-gates=CSIVolumeGroupSnapshot=false",
            "--kube-api-qps=20",
            "--kube-api-burst=40",
        ]);
        let options = args.options().unwrap();
        assert!(
            options.distributed_snapshotting && !options.prevent_volume_mode_conversion && !options.group_snapshots
        );
        assert_eq!(options.parallel, 12);
        assert_eq!(options.retry, Backoff { base: Duration::from_secs(2), max: Duration::from_secs(60) });
        assert_eq!(options.definitions_within, Some(Duration::from_secs(1)), "never less than a second");
        let election = args.election.options(LEASE, &args.features).unwrap().unwrap();
        assert_eq!((election.namespace.as_str(), election.name.as_str()), ("kube-system", LEASE));
    }

    #[test]
    fn an_unknown_flag_is_refused_and_what_has_no_effect_is_named() {
        assert!(parsed(&["--csi-address=/x"]).is_err());
        let ignored = args(&["--resync-period=1m", "--feature-gates=Other=true"]).ignored();
        assert!(ignored[0].contains("--resync-period") && ignored[1].contains("Other"), "{ignored:?}");
    }

    #[test]
    fn no_worker_at_all_is_refused() {
        assert!(args(&["--worker-threads=0"]).options().unwrap_err().to_string().contains("at least 1"));
    }
}
