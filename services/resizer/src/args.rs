//! The flags of csi-resizer.

use anyhow::bail;
use clap::{ArgAction, Parser};

use stowage_runtime::args::{RELEASE_ON_EXIT, SidecarArgs, unknown_gates, workers};
use stowage_runtime::duration::GoDuration;

use crate::controller::run_with;
use crate::options::{Gates, Options};

const ANNOTATE: &str = "AnnotateFsResize";
const RECOVER: &str = "RecoverVolumeExpansionFailure";
const ATTRIBUTES: &str = "VolumeAttributesClass";

/// Expands volumes and changes their attributes, as PersistentVolumeClaims ask for it, by calling one CSI driver
///
/// Stands in for csi-resizer. One call may take 10s unless --timeout says otherwise.
#[derive(Debug, Parser)]
#[command(name = "resizer", version)]
pub struct Args {
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// Driver calls at a time: to expand, and separately to modify
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().driver.workers)]
    workers: usize,
    /// Tell the driver the names of claim and volume when attributes change
    #[arg(long)]
    extra_modify_metadata: bool,
    /// Wait until no pod uses a volume that the driver refuses to expand in use
    #[arg(long, action = ArgAction::Set, default_value_t = true, value_name = "BOOL")]
    handle_volume_inuse_error: bool,
    /// Serve only volumes of this node, $NODE_NAME, beside a driver that runs on every node (not in the original)
    #[arg(long)]
    node_deployment: bool,
    /// Name of this node, for --node-deployment
    #[arg(long, value_name = "NAME", env = "NODE_NAME", default_value = "", hide = true)]
    node_name: String,
    /// How often to look at every claim again, in case an event was missed; 0 for never
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    resync_period: GoDuration,
}

impl Args {
    /// Runs the service as a process of its own until a signal or a failure ends it.
    pub async fn run(self) -> anyhow::Result<()> {
        let (options, ignored) = (self.options()?, self.ignored());
        let (lease, timeout) = ("external-resizer-{driver}", options.driver.timeout);
        self.sidecar.run(10, lease, timeout, ignored, |context, driver| run_with(context, driver, options)).await
    }

    fn ignored(&self) -> Vec<String> {
        unknown_gates(&self.sidecar.features, &[RELEASE_ON_EXIT, ANNOTATE, RECOVER, ATTRIBUTES])
    }

    fn options(&self) -> anyhow::Result<Options> {
        let features = &self.sidecar.features;
        if self.node_deployment && self.node_name.is_empty() {
            bail!("--node-deployment needs the name of this node in the environment variable NODE_NAME");
        }
        if self.node_deployment && self.sidecar.election.leader_election {
            bail!(
                "--node-deployment and --leader-election exclude each other: every node serves its own volumes; leave one out"
            );
        }
        Ok(Options {
            driver: self.sidecar.driver(Options::default().driver.timeout, workers("--workers", self.workers)?),
            extra_modify_metadata: self.extra_modify_metadata,
            handle_volume_in_use: self.handle_volume_inuse_error,
            node: self.node_deployment.then(|| self.node_name.clone()),
            resync: self.resync_period.into(),
            gates: Gates {
                annotate_fs_resize: features.beta_enabled(ANNOTATE, true),
                recover_volume_expansion_failure: features.enabled(RECOVER, true),
                volume_attributes_class: features.enabled(ATTRIBUTES, true),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use stowage_runtime::backoff::Backoff;
    use stowage_runtime::flags::try_parse_from;

    use super::*;

    fn args(words: &[&str]) -> anyhow::Result<Args> {
        let words = std::iter::once("resizer").chain(words.iter().copied());
        Ok(try_parse_from::<Args>(words.map(Into::into))?)
    }

    fn options(words: &[&str]) -> anyhow::Result<Options> {
        args(words)?.options()
    }

    #[test]
    fn no_flags_give_the_originals_defaults() {
        let options = options(&[]).unwrap();
        assert_eq!(options, Options::default());
        assert_eq!((options.driver.timeout, options.driver.workers), (Duration::from_secs(10), 10));
        assert_eq!(options.driver.retry, Backoff { base: Duration::from_secs(1), max: Duration::from_secs(300) });
        assert!(options.handle_volume_in_use && !options.extra_modify_metadata);
        assert_eq!(options.gates, Gates::default());
    }

    #[test]
    fn node_deployment_needs_a_node_and_excludes_an_election() {
        assert!(options(&["--node-deployment"]).unwrap_err().to_string().contains("NODE_NAME"));
        let both = options(&["--node-deployment", "--node-name=n", "--leader-election"]).unwrap_err().to_string();
        assert!(both.contains("exclude each other"), "{both}");
        let options = options(&["--node-deployment", "--node-name=n"]).unwrap();
        assert_eq!(options.node.as_deref(), Some("n"));
    }

    #[test]
    fn the_arguments_of_the_original_deployment_are_taken() {
        let given = ["--v=5", "--csi-address=$(ADDRESS)", "--leader-election", "--http-endpoint=:8080"];
        assert_eq!(options(&given).unwrap().driver.csi_address, "$(ADDRESS)");
    }

    #[test]
    fn the_arguments_of_drivers_deployments_are_taken() {
        let options = options(&[
            "-csi-address=/csi/csi.sock",
            "-v=2",
            "-leader-election=true",
            "--leader-election-namespace=kube-system",
            "-handle-volume-inuse-error=false",
            "-feature-gates=RecoverVolumeExpansionFailure=false,VolumeAttributesClass=true,AnnotateFsResize=false",
            "-timeout=240s",
            "--workers=100",
            "--kube-api-qps=50",
            "--kube-api-burst=100",
            "--retry-interval-start=500ms",
            "--retry-interval-max=30m",
            "--extra-modify-metadata=true",
            "--resync-period=10m",
        ])
        .unwrap();
        assert_eq!((options.driver.timeout, options.driver.workers), (Duration::from_secs(240), 100));
        assert_eq!(options.driver.retry, Backoff { base: Duration::from_millis(500), max: Duration::from_secs(1800) });
        assert!(!options.handle_volume_in_use && options.extra_modify_metadata);
        let gates =
            Gates { annotate_fs_resize: false, recover_volume_expansion_failure: false, volume_attributes_class: true };
        assert_eq!(options.gates, gates);
    }

    #[test]
    fn a_gate_that_nobody_knows_is_named() {
        assert!(args(&["--feature-gates=AnnotateFsResize=true"]).unwrap().ignored().is_empty());
        let ignored = args(&["--feature-gates=Unheard=true"]).unwrap().ignored();
        assert_eq!(ignored, ["--feature-gates Unheard has no effect: there is no such gate here"]);
    }

    #[test]
    fn the_period_of_the_resync_is_obeyed_and_zero_is_never() {
        for (given, expected) in
            [("1h", Duration::from_secs(3600)), ("0", Duration::ZERO), ("10m", Duration::from_secs(600))]
        {
            assert_eq!(options(&[&format!("--resync-period={given}")]).unwrap().resync, expected);
        }
    }

    #[test]
    fn values_that_cannot_work_are_refused_with_the_way_out() {
        for (flag, way_out) in [("--workers=0", "at least 1"), ("--no-such-flag", "unexpected argument")] {
            let error = options(&[flag]).unwrap_err().to_string();
            assert!(error.contains(way_out), "{flag}: {error}");
        }
    }
}
