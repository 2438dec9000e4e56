//! The flags of csi-provisioner, and how the process is put together from them.

use std::time::Duration;

use anyhow::bail;
use clap::{ArgAction, Parser};

use stowage_runtime::Context;
use stowage_runtime::args::{RELEASE_ON_EXIT, SidecarArgs, unknown_gates, workers};
use stowage_runtime::duration::GoDuration;

use crate::controller::run_with;
use crate::options::{NodeDeployment, Options};

/// Gates that mean something here.
const TOPOLOGY: &str = "Topology";
const CROSS_NAMESPACE: &str = "CrossNamespaceVolumeDataSource";

/// Makes and deletes volumes for the claims that ask for one CSI driver
#[derive(Debug, Clone, Parser)]
#[command(name = "provisioner", version)]
pub struct Args {
    #[command(flatten)]
    sidecar: SidecarArgs,
    /// First part of the names of volumes
    #[arg(long, value_name = "PREFIX", default_value = "pvc")]
    volume_name_prefix: String,
    /// Characters of the claim's uid in the names of volumes, without its dashes; -1 for the whole uid
    #[arg(long, value_name = "LENGTH", default_value_t = -1, allow_negative_numbers = true)]
    volume_name_uuid_length: i32,
    /// Driver calls at a time: creations, and separately deletions
    #[arg(long, value_name = "COUNT", default_value_t = Options::default().driver.workers)]
    worker_threads: usize,
    /// Tell the driver the names of claim and volume
    #[arg(long)]
    extra_create_metadata: bool,
    /// File system of volumes whose class names none
    #[arg(long, value_name = "TYPE", default_value = "")]
    default_fstype: String,
    /// Mark volumes read-only whose claim only asks to read
    #[arg(long)]
    controller_publish_readonly: bool,
    /// Let the driver make the volume only on the node that was chosen for the claim
    #[arg(long)]
    strict_topology: bool,
    /// Tell the driver all places of the cluster for claims that bind at once
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    immediate_topology: bool,
    /// Serve only this node, $NODE_NAME, beside a driver that runs on every node
    #[arg(long)]
    node_deployment: bool,
    /// With --node-deployment: also take claims that bind at once
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    node_deployment_immediate_binding: bool,
    /// With --node-deployment: wait before such a claim is taken; it doubles with each time another node was faster
    #[arg(long, value_name = "DURATION", default_value = "20s")]
    node_deployment_base_delay: GoDuration,
    /// With --node-deployment: wait that is never exceeded
    #[arg(long, value_name = "DURATION", default_value = "60s")]
    node_deployment_max_delay: GoDuration,
    /// Refuse to restore a snapshot of a file system as a device or the other way round, unless its content allows it
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    prevent_volume_mode_conversion: bool,
    /// 0 leaves snapshots alone that an earlier provisioner held and never freed; otherwise they are freed when seen
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    snapshot_orphan_sweep_interval: GoDuration,
    /// Name of this node, for --node-deployment
    #[arg(long, value_name = "NAME", env = "NODE_NAME", default_value = "", hide = true)]
    node_name: String,
    /// Make every intent durable before the driver is called; without it a crash can leak a volume
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    intent_journal: bool,

    #[command(flatten)]
    ignored: Ignored,
    #[command(flatten)]
    later: Later,
}

stowage_runtime::ignored_flags! {
    struct Ignored {
        cloning_protection_threads: u32 = "1", "claims that were cloned are freed by the workers that make volumes";
    }
}

/// Flags of the original whose features do not exist here yet: any other value than the default is refused at start.
#[derive(Debug, Clone, PartialEq, clap::Args)]
#[command(next_help_heading = "Not supported yet")]
struct Later {
    #[arg(long, default_value_t = 1)]
    capacity_threads: u32,
    #[arg(long)]
    enable_pprof: bool,
    #[arg(long, default_value_t = 1.0)]
    kube_api_capacity_qps: f32,
    #[arg(long, default_value_t = 5)]
    kube_api_capacity_burst: u32,
    #[arg(long)]
    enable_capacity: bool,
    #[arg(long)]
    capacity_for_immediate_binding: bool,
    #[arg(long, default_value = "1m")]
    capacity_poll_interval: GoDuration,
    #[arg(long, default_value_t = 1, allow_negative_numbers = true)]
    capacity_ownerref_level: i32,
}

impl Default for Later {
    fn default() -> Self {
        let minutes = |minutes: u64| GoDuration(Duration::from_secs(60 * minutes));
        Self {
            capacity_threads: 1,
            enable_pprof: false,
            kube_api_capacity_qps: 1.0,
            kube_api_capacity_burst: 5,
            enable_capacity: false,
            capacity_for_immediate_binding: false,
            capacity_poll_interval: minutes(1),
            capacity_ownerref_level: 1,
        }
    }
}

impl Later {
    /// The flags that are set to something we cannot do.
    fn refused(&self) -> Vec<&'static str> {
        let usual = Self::default();
        macro_rules! differing {
            ($($field:ident = $flag:literal,)*) => {
                [$((self.$field != usual.$field, $flag),)*]
            };
        }
        let flags = differing! {
            capacity_threads = "--capacity-threads",
            enable_pprof = "--enable-pprof",
            kube_api_capacity_qps = "--kube-api-capacity-qps",
            kube_api_capacity_burst = "--kube-api-capacity-burst",
            enable_capacity = "--enable-capacity",
            capacity_for_immediate_binding = "--capacity-for-immediate-binding",
            capacity_poll_interval = "--capacity-poll-interval",
            capacity_ownerref_level = "--capacity-ownerref-level",
        };
        flags.into_iter().filter(|(differs, _)| *differs).map(|(_, flag)| flag).collect()
    }
}

impl Args {
    /// Runs the service as a process of its own until a signal or a failure ends it.
    pub async fn run(self) -> anyhow::Result<()> {
        // The namespace and identity of the election also serve without one: for the journal and for events.
        let (namespace, identity) = (self.sidecar.election.namespace(), self.sidecar.election.identity()?);
        let (options, ignored) = (self.options(namespace)?, self.ignored());
        // The original's lock has the driver's name and nothing else.
        let (lease, timeout) = ("{driver}", options.driver.timeout);
        let service = |mut context: Context, driver| {
            context.identity = identity;
            run_with(context, driver, options)
        };
        self.sidecar.run(10, lease, timeout, ignored, service).await
    }

    fn ignored(&self) -> Vec<String> {
        let interval = self.snapshot_orphan_sweep_interval.0;
        let swept = ![Duration::ZERO, Duration::from_secs(300)].contains(&interval);
        let why = "--snapshot-orphan-sweep-interval has no effect: snapshots are freed when they are seen; only 0 switches \
                   that off";
        let gates = unknown_gates(&self.sidecar.features, &[RELEASE_ON_EXIT, TOPOLOGY, CROSS_NAMESPACE]);
        self.ignored.sentences().into_iter().chain(swept.then(|| why.to_owned())).chain(gates).collect()
    }

    /// What the flags say, for [`crate::run`].
    fn options(&self, namespace: String) -> anyhow::Result<Options> {
        let refused = self.later.refused();
        if !refused.is_empty() {
            bail!("{} not supported by this provisioner yet; leave it out", refused.join(", "));
        }
        if !self.sidecar.features.enabled(TOPOLOGY, true) {
            bail!("--feature-gates Topology=false is not supported: a volume always keeps the places its driver names");
        }
        let workers = workers("--worker-threads", self.worker_threads)?;
        let uuid_length = match self.volume_name_uuid_length {
            -1 => None,
            length @ 0..=32 => usize::try_from(length).ok(),
            length => bail!("--volume-name-uuid-length {length} is out of range; give -1, or 0 to 32"),
        };
        if self.node_deployment && self.node_name.is_empty() {
            bail!("--node-deployment needs the name of this node in the environment variable NODE_NAME");
        }
        let node_deployment = self.node_deployment.then(|| NodeDeployment {
            node: self.node_name.clone(),
            immediate_binding: self.node_deployment_immediate_binding,
            base_delay: self.node_deployment_base_delay.into(),
            max_delay: self.node_deployment_max_delay.into(),
        });
        Ok(Options {
            driver: self.sidecar.driver(Options::default().driver.timeout, workers),
            namespace,
            volume_name_prefix: self.volume_name_prefix.clone(),
            volume_name_uuid_length: uuid_length,
            default_fstype: self.default_fstype.clone(),
            extra_create_metadata: self.extra_create_metadata,
            controller_publish_readonly: self.controller_publish_readonly,
            strict_topology: self.strict_topology,
            immediate_topology: self.immediate_topology,
            prevent_volume_mode_conversion: self.prevent_volume_mode_conversion,
            cross_namespace: self.sidecar.features.enabled(CROSS_NAMESPACE, false),
            sweep_snapshots: self.snapshot_orphan_sweep_interval.0 > Duration::ZERO,
            node_deployment,
            journal: self.intent_journal,
        })
    }
}

#[cfg(test)]
mod tests {
    use stowage_runtime::flags::try_parse_from;

    use super::*;

    fn parsed(words: &[&str]) -> anyhow::Result<Options> {
        let words = std::iter::once("provisioner").chain(words.iter().copied());
        try_parse_from::<Args>(words.map(Into::into))?.options("default".into())
    }

    #[test]
    fn no_flags_give_the_originals_defaults() {
        assert_eq!(parsed(&[]).unwrap(), Options::default());
    }

    #[test]
    fn the_arguments_of_the_originals_manifests_are_understood() {
        let options = parsed(&[
            "-v=5",
            "--csi-address=/csi/csi.sock",
            "--leader-election",
            "--leader-election=true",
            "--http-endpoint=:8080",
            "--feature-gates=Topology=true",
            "--timeout=60s",
            "--worker-threads=5",
            "--default-fstype=ext4",
            "--extra-create-metadata",
            "-volume-name-uuid-length=8",
            "--kube-api-qps=20",
        ])
        .unwrap();
        assert_eq!(options.driver.csi_address, "/csi/csi.sock");
        assert_eq!(options.driver.timeout, Duration::from_secs(60));
        assert_eq!((options.driver.workers, options.volume_name_uuid_length), (5, Some(8)));
        assert!(options.extra_create_metadata && options.journal);
    }

    #[test]
    fn the_defaults_of_flags_for_later_are_those_clap_fills_in() {
        let args: Args = try_parse_from(["provisioner".into()]).unwrap();
        assert_eq!(args.later, Later::default());
    }

    #[test]
    fn a_flag_for_later_parses_and_is_refused_by_name() {
        let error = parsed(&["--enable-capacity=true", "--capacity-ownerref-level=-1"]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "--enable-capacity, --capacity-ownerref-level not supported by this provisioner yet; leave it out"
        );
    }

    #[test]
    fn node_deployment_needs_the_name_of_the_node() {
        let error = parsed(&["--node-deployment"]).unwrap_err();
        assert!(error.to_string().contains("NODE_NAME"), "{error}");
        let flags = ["--node-deployment", "--node-name=n1", "--node-deployment-base-delay=5s", "--strict-topology"];
        let options = parsed(&flags).unwrap();
        let deployment = options.node_deployment.unwrap();
        assert_eq!((deployment.node.as_str(), deployment.base_delay.as_secs()), ("n1", 5));
        assert!(deployment.immediate_binding && options.strict_topology && options.immediate_topology);
    }

    #[test]
    fn the_flags_about_sources_are_obeyed_or_named_as_having_no_effect() {
        let options = parsed(&[
            "--prevent-volume-mode-conversion=false",
            "--snapshot-orphan-sweep-interval=0",
            "--feature-gates=CrossNamespaceVolumeDataSource=true",
        ])
        .unwrap();
        assert!(!options.prevent_volume_mode_conversion && !options.sweep_snapshots && options.cross_namespace);
        let ignored = |words: &[&str]| {
            let words = std::iter::once("provisioner").chain(words.iter().copied());
            try_parse_from::<Args>(words.map(Into::into)).unwrap().ignored()
        };
        assert_eq!(ignored(&["--snapshot-orphan-sweep-interval=0"]), Vec::<String>::new());
        let both = ignored(&["--cloning-protection-threads=4", "--snapshot-orphan-sweep-interval=1m"]);
        assert!(both[0].starts_with("--cloning-protection-threads has no effect"), "{both:?}");
        assert!(both[1].starts_with("--snapshot-orphan-sweep-interval has no effect"), "{both:?}");
    }

    #[test]
    fn values_that_cannot_work_are_refused_with_the_way_out() {
        assert!(parsed(&["--worker-threads=0"]).unwrap_err().to_string().contains("at least 1"));
        assert!(parsed(&["--volume-name-uuid-length=33"]).unwrap_err().to_string().contains("0 to 32"));
    }

    #[test]
    fn the_journal_can_be_switched_off() {
        assert!(!parsed(&["--intent-journal=false"]).unwrap().journal);
    }
}
