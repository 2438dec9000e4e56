//! The flags of csi-snapshotter, and how the process is put together from them.

use anyhow::bail;
use clap::Parser;

use stowage_runtime::args::{RELEASE_ON_EXIT, SidecarArgs, unknown_gates, workers};
use stowage_runtime::duration::GoDuration;

use crate::controller::run_with;
use crate::options::{Names, Options};

/// The gate of group snapshots.
const GROUPS: &str = "CSIVolumeGroupSnapshot";

/// Makes and deletes snapshots of one CSI driver, as VolumeSnapshotContents ask for it
///
/// Stands in for csi-snapshotter. One call may take 1m unless --timeout says otherwise.
#[derive(Debug, Clone, Parser)]
#[command(name = "snapshotter", version)]
pub struct Args {
    #[command(flatten)]
    sidecar: SidecarArgs,
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
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().driver.workers)]
    worker_threads: usize,
    /// Tell the driver the names of VolumeSnapshot and VolumeSnapshotContent
    #[arg(long)]
    extra_create_metadata: bool,
    /// Serve only snapshots of this node, $NODE_NAME, beside a driver that runs on every node
    #[arg(long)]
    node_deployment: bool,
    /// Name of this node, for --node-deployment
    #[arg(long, value_name = "NAME", env = "NODE_NAME", default_value = "", hide = true)]
    node_name: String,
    #[command(flatten)]
    ignored: Ignored,
}

stowage_runtime::ignored_flags! {
    struct Ignored {
        resync_period: GoDuration = "15m", "the net for missed events has a fixed period";
    }
}

impl Args {
    /// Runs the service as a process of its own until a signal or a failure ends it.
    pub async fn run(self) -> anyhow::Result<()> {
        let (options, ignored) = (self.options()?, self.ignored());
        let (lease, timeout) = ("external-snapshotter-leader-{driver}", options.driver.timeout);
        self.sidecar.run(10, lease, timeout, ignored, |context, driver| run_with(context, driver, options)).await
    }

    fn ignored(&self) -> Vec<String> {
        let gates = unknown_gates(&self.sidecar.features, &[RELEASE_ON_EXIT, GROUPS]);
        self.ignored.sentences().into_iter().chain(gates).collect()
    }

    fn options(&self) -> anyhow::Result<Options> {
        let workers = workers("--worker-threads", self.worker_threads)?;
        if self.node_deployment && self.node_name.is_empty() {
            bail!("--node-deployment needs the name of this node in the environment variable NODE_NAME");
        }
        if self.node_deployment && self.sidecar.election.leader_election {
            bail!(
                "--node-deployment and --leader-election exclude each other: every node serves its own snapshots; leave one out"
            );
        }
        let with_groups = self.sidecar.features.enabled(GROUPS, true);
        if with_groups {
            check_prefix("--groupsnapshot-name-prefix", &self.groupsnapshot_name_prefix)?;
        }
        check_prefix("--snapshot-name-prefix", &self.snapshot_name_prefix)?;
        Ok(Options {
            driver: self.sidecar.driver(Options::default().driver.timeout, workers),
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
    use std::time::Duration;

    use stowage_runtime::backoff::Backoff;
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
        assert_eq!((options.driver.timeout.as_secs(), options.driver.workers), (60, 10));
        assert_eq!(options.driver.retry, Backoff { base: Duration::from_secs(1), max: Duration::from_secs(300) });
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
        assert_eq!((options.driver.timeout.as_secs(), options.driver.workers), (150, 40));
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
                "--feature-gates Unheard has no effect: there is no such gate here"
            ]
        );
    }
}
