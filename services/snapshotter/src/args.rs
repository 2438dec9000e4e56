//! The flags of csi-snapshotter, and how the process is put together from them.

use std::time::Duration;

use anyhow::bail;
use clap::Parser;

use stowage_runtime::args::{
    AdminArgs, ClientArgs, CsiArgs, FeatureArgs, LeaderElectionArgs, LogArgs, RELEASE_ON_EXIT,
};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::duration::GoDuration;
use stowage_runtime::launch::Launch;

use crate::controller;
use crate::options::{Names, Options};

/// The original's `--kube-api-burst`.
const BURST: u32 = 10;

/// The gate of group snapshots.
const GROUPS: &str = "CSIVolumeGroupSnapshot";

/// Makes and deletes snapshots of one CSI driver, as VolumeSnapshotContents ask for it
///
/// Stands in for csi-snapshotter. One call may take 1m unless --timeout says otherwise.
#[derive(Debug, Clone, Parser)]
#[command(name = "snapshotter", version)]
pub struct Args {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    csi: CsiArgs,
    #[command(flatten)]
    features: FeatureArgs,
    #[command(flatten)]
    election: LeaderElectionArgs,

    /// First part of the names of snapshots in the driver
    #[arg(long, value_name = "PREFIX", default_value = "snapshot")]
    snapshot_name_prefix: String,
    /// Characters of the VolumeSnapshot's uid in those names, without its dashes; -1 for the whole uid
    #[arg(long, value_name = "LENGTH", default_value_t = -1, allow_negative_numbers = true)]
    snapshot_name_uuid_length: i32,
    /// First part of the names of group snapshots in the driver
    #[arg(long, value_name = "PREFIX", default_value = "groupsnapshot")]
    groupsnapshot_name_prefix: String,
    /// Characters of the VolumeGroupSnapshot's uid in those names, without its dashes; -1 for the whole uid
    #[arg(long, value_name = "LENGTH", default_value_t = -1, allow_negative_numbers = true)]
    groupsnapshot_name_uuid_length: i32,
    /// Driver calls at a time: to make snapshots, and separately to delete them
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    worker_threads: usize,
    /// Tell the driver the names of VolumeSnapshot and VolumeSnapshotContent
    #[arg(long)]
    extra_create_metadata: bool,
    /// Delay after the first failed call for a snapshot; it doubles with each failure
    #[arg(long, value_name = "DURATION", default_value = "1s")]
    retry_interval_start: GoDuration,
    /// Delay after a failed call that is never exceeded
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    retry_interval_max: GoDuration,
    /// Serve only snapshots of this node, $NODE_NAME, beside a driver that runs on every node
    #[arg(long)]
    node_deployment: bool,
    /// Name of this node, for --node-deployment
    #[arg(long, value_name = "NAME", env = "NODE_NAME", default_value = "", hide = true)]
    node_name: String,
    /// Accepted for compatibility: events are never missed for that long
    #[arg(long, value_name = "DURATION", default_value = "15m", hide = true)]
    resync_period: GoDuration,
}

impl Args {
    /// Runs the service as a process of its own until a signal or a failure ends it.
    pub async fn run(self) -> anyhow::Result<()> {
        let launch = Launch { client: &self.client, burst: BURST, log: &self.log, admin: Some(&self.admin) };
        let options = self.options()?;
        let context = launch.context().await?;
        for ignored in self.ignored() {
            tracing::warn!("{ignored}");
        }
        let election =
            |driver: &str| self.election.options(&format!("external-snapshotter-leader-{driver}"), &self.features);
        let (address, timeout) = (options.csi_address.clone(), options.timeout);
        let service = |context, driver| controller::run(context, options, Some(driver));
        launch.sidecar(context, (&address, timeout), election, service).await
    }

    /// What was asked for in vain, one sentence each.
    fn ignored(&self) -> Vec<String> {
        let mut ignored = Vec::new();
        if self.resync_period != GoDuration(Duration::from_secs(15 * 60)) {
            ignored.push("--resync-period has no effect: the net for missed events has a fixed period".to_owned());
        }
        let known = |gate: &&String| ![RELEASE_ON_EXIT, GROUPS].contains(&gate.as_str());
        let gates = self.features.feature_gates.iter().map(|(gate, _)| gate).filter(known);
        ignored.extend(
            gates.map(|gate| format!("--feature-gates {gate} has no effect: this snapshotter has no such gate")),
        );
        ignored
    }

    fn options(&self) -> anyhow::Result<Options> {
        if self.worker_threads == 0 {
            bail!("--worker-threads 0 would never make a snapshot; give at least 1");
        }
        if self.node_deployment && self.node_name.is_empty() {
            bail!("--node-deployment needs the name of this node in the environment variable NODE_NAME");
        }
        if self.node_deployment && self.election.leader_election {
            bail!(
                "--node-deployment and --leader-election exclude each other: every node serves its own snapshots; leave one out"
            );
        }
        let with_groups = self.features.enabled(GROUPS, true);
        if with_groups {
            check_prefix("--groupsnapshot-name-prefix", &self.groupsnapshot_name_prefix)?;
        }
        check_prefix("--snapshot-name-prefix", &self.snapshot_name_prefix)?;
        Ok(Options {
            csi_address: self.csi.csi_address.clone(),
            timeout: self.csi.timeout_or(Options::default().timeout),
            retry: Backoff { base: self.retry_interval_start.into(), max: self.retry_interval_max.into() },
            worker_threads: self.worker_threads,
            snapshots: Names {
                prefix: self.snapshot_name_prefix.clone(),
                uuid_length: uuid_length("--snapshot-name-uuid-length", self.snapshot_name_uuid_length)?,
            },
            groups: Names {
                prefix: self.groupsnapshot_name_prefix.clone(),
                uuid_length: uuid_length("--groupsnapshot-name-uuid-length", self.groupsnapshot_name_uuid_length)?,
            },
            extra_create_metadata: self.extra_create_metadata,
            node: self.node_deployment.then(|| self.node_name.clone()),
            with_groups,
        })
    }
}

fn check_prefix(flag: &str, prefix: &str) -> anyhow::Result<()> {
    if prefix.is_empty() {
        bail!("{flag} must not be empty; leave it out for the usual one");
    }
    Ok(())
}

fn uuid_length(flag: &str, length: i32) -> anyhow::Result<Option<usize>> {
    match length {
        -1 => Ok(None),
        // None of it at all would give every snapshot the same name.
        1..=32 => Ok(usize::try_from(length).ok()),
        _ => bail!("{flag} {length} is out of range; give -1, or 1 to 32"),
    }
}

#[cfg(test)]
mod tests {
    use stowage_runtime::flags::try_parse_from;

    use super::*;

    fn args(words: &[&str]) -> anyhow::Result<Args> {
        let words = std::iter::once("snapshotter").chain(words.iter().copied());
        Ok(try_parse_from::<Args>(words.map(Into::into))?)
    }

    fn options(words: &[&str]) -> anyhow::Result<Options> {
        args(words)?.options()
    }

    #[test]
    fn no_flags_give_the_originals_defaults() {
        let options = options(&[]).unwrap();
        assert_eq!(options, Options::default());
        assert_eq!((options.timeout, options.worker_threads), (Duration::from_secs(60), 10));
        assert_eq!(options.retry, Backoff { base: Duration::from_secs(1), max: Duration::from_secs(300) });
        assert_eq!(options.snapshots.name("a-b"), "snapshot-a-b");
        assert_eq!(options.groups.name("a-b"), "groupsnapshot-a-b");
    }

    #[test]
    fn the_arguments_of_the_original_deployments_are_taken() {
        let options = options(&[
            "--v=5",
            "--csi-address=/csi/csi.sock",
            "--timeout=150s",
            "--leader-election=true",
            "--leader-election-namespace=kube-system",
            "--http-endpoint=:8080",
            "--extra-create-metadata",
            "--snapshot-name-prefix=snap",
            "--snapshot-name-uuid-length=5",
            "--feature-gates=CSIVolumeGroupSnapshot=true",
            "--resync-period=15m",
            "--kube-api-qps=100",
            "--kube-api-burst=200",
            "--worker-threads=40",
        ])
        .unwrap();
        assert_eq!((options.timeout.as_secs(), options.worker_threads), (150, 40));
        assert_eq!(options.snapshots.name("ab-cd-ef"), "snap-abcde");
        assert!(options.extra_create_metadata && options.with_groups);
    }

    #[test]
    fn groups_can_be_switched_off() {
        let off = options(&["--feature-gates=CSIVolumeGroupSnapshot=false", "--groupsnapshot-name-prefix="]).unwrap();
        assert!(!off.with_groups);
    }

    #[test]
    fn node_deployment_needs_a_node_and_excludes_an_election() {
        assert!(options(&["--node-deployment"]).unwrap_err().to_string().contains("NODE_NAME"));
        let both = options(&["--node-deployment", "--node-name=n", "--leader-election"]).unwrap_err().to_string();
        assert!(both.contains("exclude each other"), "{both}");
        assert_eq!(options(&["--node-deployment", "--node-name=n"]).unwrap().node.as_deref(), Some("n"));
    }

    #[test]
    fn values_that_cannot_work_are_refused_with_the_way_out() {
        for (flag, way_out) in [
            ("--worker-threads=0", "at least 1"),
            ("--snapshot-name-prefix=", "leave it out"),
            ("--groupsnapshot-name-prefix=", "leave it out"),
            ("--snapshot-name-uuid-length=33", "1 to 32"),
            ("--groupsnapshot-name-uuid-length=0", "1 to 32"),
            ("--no-such-flag", "unexpected argument"),
        ] {
            let error = options(&[flag]).unwrap_err().to_string();
            assert!(error.contains(way_out), "{flag}: {error}");
        }
    }

    #[test]
    fn a_flag_that_means_nothing_here_is_named_when_it_is_set() {
        assert!(args(&["--resync-period=15m"]).unwrap().ignored().is_empty());
        let ignored = args(&["--resync-period=1h", "--feature-gates=Unheard=true"]).unwrap().ignored();
        assert_eq!(
            ignored,
            [
                "--resync-period has no effect: the net for missed events has a fixed period",
                "--feature-gates Unheard has no effect: this snapshotter has no such gate"
            ]
        );
    }
}
