//! The flags of csi-provisioner, and how the process is put together from them.

use std::time::Duration;

use anyhow::bail;
use clap::{ArgAction, Parser};

use stowage_runtime::Context;
use stowage_runtime::api::Api;
use stowage_runtime::args::{ClientArgs, RELEASE_ON_EXIT, SidecarArgs, unknown_gates, workers};
use stowage_runtime::duration::GoDuration;

use crate::controller::run_limited;
use crate::options::{AttributesClasses, Capacity, NodeDeployment, Options, OwnerLevel};

/// Gates that mean something here.
const TOPOLOGY: &str = "Topology";
const CROSS_NAMESPACE: &str = "CrossNamespaceVolumeDataSource";
const ATTRIBUTES_CLASS: &str = "VolumeAttributesClass";

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
    /// Kubeconfig file that comes before --kubeconfig and the pod's service account
    #[arg(long, value_name = "FILE", env = "KUBECONFIG", default_value = "", hide = true)]
    kubeconfig_of_environment: String,
    /// Make every intent durable before the driver is called; without it a crash can leak a volume
    #[arg(long, value_name = "BOOL", action = ArgAction::Set, default_value_t = true)]
    intent_journal: bool,

    /// Accepted for compatibility: there are no Go profiles here
    #[arg(long, hide = true)]
    enable_pprof: bool,
    #[command(flatten)]
    ignored: Ignored,
    #[command(flatten)]
    capacity: CapacityArgs,
}

stowage_runtime::ignored_flags! {
    struct Ignored {
        cloning_protection_threads: u32 = "1", "claims that were cloned are freed by the workers that make volumes";
    }
}

/// The flags about CSIStorageCapacity objects.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Capacity")]
struct CapacityArgs {
    /// Publish how much room there is as CSIStorageCapacity objects in $NAMESPACE
    #[arg(long)]
    enable_capacity: bool,
    /// Also for classes that bind at once, which the scheduler does not ask about
    #[arg(long)]
    capacity_for_immediate_binding: bool,
    /// How often the driver is asked where nothing seems to have happened
    #[arg(long, value_name = "DURATION", default_value = "1m")]
    capacity_poll_interval: GoDuration,
    /// Who owns the objects: -1 nobody, 0 the pod $POD_NAME, 1 its StatefulSet or DaemonSet, 2 its Deployment
    #[arg(long, value_name = "LEVEL", default_value_t = 1, allow_negative_numbers = true)]
    capacity_ownerref_level: i32,
    /// Questions to the driver and writes at a time
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    capacity_threads: usize,
    /// Requests per second to the API server for the objects; unlike the original there is no limit unless this is set
    #[arg(long, value_name = "QPS", allow_negative_numbers = true)]
    kube_api_capacity_qps: Option<f32>,
    /// Requests that may exceed --kube-api-capacity-qps for a moment; counts only together with it
    #[arg(long, value_name = "COUNT", default_value_t = 5)]
    kube_api_capacity_burst: u32,
    /// Namespace of the objects
    #[arg(long, value_name = "NAMESPACE", env = "NAMESPACE", default_value = "", hide = true)]
    capacity_namespace: String,
    /// Name of the pod, for --capacity-ownerref-level
    #[arg(long, value_name = "NAME", env = "POD_NAME", default_value = "", hide = true)]
    pod_name: String,
}

impl CapacityArgs {
    fn options(&self) -> anyhow::Result<Option<Capacity>> {
        let threads = workers("--capacity-threads", self.capacity_threads)?;
        if !self.enable_capacity {
            return Ok(None);
        }
        if self.capacity_namespace.is_empty() {
            bail!("--enable-capacity needs the namespace of the pod in the environment variable NAMESPACE");
        }
        let poll_interval = self.capacity_poll_interval.0;
        if poll_interval.is_zero() {
            bail!("--capacity-poll-interval 0 would ask the driver all the time; give a duration, the default is 1m");
        }
        let owner = match u32::try_from(self.capacity_ownerref_level) {
            Err(_) if self.capacity_ownerref_level == -1 => None,
            Err(_) => bail!(
                "--capacity-ownerref-level {} is out of range; give -1 for no owner, 0 for the pod, or how many owners above it",
                self.capacity_ownerref_level
            ),
            Ok(_) if self.pod_name.is_empty() => bail!(
                "--capacity-ownerref-level {} needs the name of the pod in the environment variable POD_NAME; -1 for no owner",
                self.capacity_ownerref_level
            ),
            Ok(level) => Some(OwnerLevel { pod: self.pod_name.clone(), level }),
        };
        Ok(Some(Capacity {
            namespace: self.capacity_namespace.clone(),
            owner,
            poll_interval,
            immediate_binding: self.capacity_for_immediate_binding,
            threads,
        }))
    }

    /// Those that are set although nothing is published.
    fn ignored(&self) -> Vec<String> {
        if self.enable_capacity {
            let burst = (self.is_burst_set() && !self.is_limited()).then_some(self.kube_api_capacity_burst);
            let why = "has no effect without --kube-api-capacity-qps: there is no limit unless that is set";
            return burst.map(|burst| format!("--kube-api-capacity-burst={burst} {why}")).into_iter().collect();
        }
        let set = [
            (self.capacity_for_immediate_binding, "--capacity-for-immediate-binding"),
            (self.capacity_poll_interval.0 != Duration::from_secs(60), "--capacity-poll-interval"),
            (self.capacity_ownerref_level != 1, "--capacity-ownerref-level"),
            (self.capacity_threads != 1, "--capacity-threads"),
            (self.kube_api_capacity_qps.is_some(), "--kube-api-capacity-qps"),
            (self.is_burst_set(), "--kube-api-capacity-burst"),
        ];
        let set = set.into_iter().filter(|(is_set, _)| *is_set);
        set.map(|(_, flag)| format!("{flag} has no effect without --enable-capacity")).collect()
    }

    fn is_burst_set(&self) -> bool {
        self.kube_api_capacity_burst != 5
    }

    fn is_limited(&self) -> bool {
        self.kube_api_capacity_qps.is_some_and(|qps| qps > 0.0)
    }

    /// A connection of its own for what is published, if the user limits it.
    async fn api(&self, client: &ClientArgs) -> anyhow::Result<Option<Api>> {
        if !(self.enable_capacity && self.is_limited()) {
            return Ok(None);
        }
        let (kube_api_qps, kube_api_burst) = (self.kube_api_capacity_qps, Some(self.kube_api_capacity_burst));
        let limited = ClientArgs { kube_api_qps, kube_api_burst, ..client.clone() };
        Ok(Some(Api::new(limited.client(self.kube_api_capacity_burst).await?)))
    }
}

impl Args {
    /// Runs the service as a process of its own until a signal or a failure ends it.
    pub async fn run(mut self) -> anyhow::Result<()> {
        let overruled = self.obey_environment();
        // The namespace and identity of the election also serve without one: for the journal and for events.
        let (namespace, identity) = (self.sidecar.election.namespace(), self.sidecar.election.identity()?);
        let (options, mut ignored) = (self.options(namespace)?, self.ignored());
        ignored.extend(overruled);
        // The original's lock has the driver's name and nothing else.
        let (lease, timeout) = ("{driver}", options.driver.timeout);
        let publishing = self.capacity.api(&self.sidecar.client).await?;
        let service = |mut context: Context, driver| {
            context.identity = identity;
            run_limited(context, driver, options, publishing)
        };
        self.sidecar.run(10, lease, timeout, ignored, service).await
    }

    /// Of the originals only this one puts $KUBECONFIG first, in a pod too. Says what it overrules.
    fn obey_environment(&mut self) -> Option<String> {
        if self.kubeconfig_of_environment.is_empty() {
            return None;
        }
        let overruled = self.sidecar.client.kubeconfig.replace(self.kubeconfig_of_environment.clone());
        let sentence = "--kubeconfig has no effect: the environment variable KUBECONFIG is set and comes first";
        overruled.filter(|file| !file.is_empty()).map(|_| sentence.to_owned())
    }

    fn ignored(&self) -> Vec<String> {
        let interval = self.snapshot_orphan_sweep_interval.0;
        let swept = ![Duration::ZERO, Duration::from_secs(300)].contains(&interval);
        let why = "--snapshot-orphan-sweep-interval has no effect: snapshots are freed when they are seen; only 0 switches \
                   that off";
        let gates =
            unknown_gates(&self.sidecar.features, &[RELEASE_ON_EXIT, TOPOLOGY, CROSS_NAMESPACE, ATTRIBUTES_CLASS]);
        let profiles = "--enable-pprof has no effect: there are no Go profiles here";
        let own = [(swept, why), (self.enable_pprof, profiles)].into_iter().filter(|(is_set, _)| *is_set);
        let own = own.map(|(_, sentence)| sentence.to_owned());
        let of_nodes = self.ignored_of_nodes();
        self.ignored
            .sentences()
            .into_iter()
            .chain(own)
            .chain(of_nodes)
            .chain(self.capacity.ignored())
            .chain(gates)
            .collect()
    }

    /// Those about node deployment that are set although there is none.
    fn ignored_of_nodes(&self) -> Vec<String> {
        if self.node_deployment {
            return Vec::new();
        }
        let default = NodeDeployment::default();
        let (base, max) = (&self.node_deployment_base_delay, &self.node_deployment_max_delay);
        let set = [
            (!self.node_deployment_immediate_binding, "immediate-binding", "false".to_owned()),
            (base.0 != default.base_delay, "base-delay", base.to_string()),
            (max.0 != default.max_delay, "max-delay", max.to_string()),
        ];
        let set = set.into_iter().filter(|(is_set, ..)| *is_set);
        set.map(|(_, flag, value)| format!("--node-deployment-{flag}={value} has no effect without --node-deployment"))
            .collect()
    }

    /// As in the original, the server is asked only where the gate is not named.
    fn attributes_class(&self) -> AttributesClasses {
        let features = &self.sidecar.features;
        match features.enabled(ATTRIBUTES_CLASS, true) {
            false => AttributesClasses::Off,
            true if features.gates().any(|(gate, _)| gate == ATTRIBUTES_CLASS) => AttributesClasses::On,
            true => AttributesClasses::WhereServed,
        }
    }

    /// What the flags say, for [`crate::run`].
    fn options(&self, namespace: String) -> anyhow::Result<Options> {
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
            topology: self.sidecar.features.enabled(TOPOLOGY, true),
            attributes_class: self.attributes_class(),
            prevent_volume_mode_conversion: self.prevent_volume_mode_conversion,
            cross_namespace: self.sidecar.features.alpha_enabled(CROSS_NAMESPACE, false),
            sweep_snapshots: self.snapshot_orphan_sweep_interval.0 > Duration::ZERO,
            node_deployment,
            capacity: self.capacity.options()?,
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
    fn a_kubeconfig_of_the_environment_comes_before_the_flag() {
        let obeyed = |words: &[&str]| {
            let words = std::iter::once("provisioner").chain(words.iter().copied());
            let mut args = try_parse_from::<Args>(words.map(Into::into)).unwrap();
            let said = args.obey_environment();
            (args.sidecar.client.kubeconfig, said.is_some())
        };
        let environment = "--kubeconfig-of-environment=/env";
        assert_eq!(obeyed(&[environment]), (Some("/env".to_owned()), false));
        assert_eq!(obeyed(&[environment, "--kubeconfig=/flag"]), (Some("/env".to_owned()), true));
        assert_eq!(obeyed(&["--kubeconfig-of-environment=", "--kubeconfig=/flag"]), (Some("/flag".to_owned()), false));
    }

    #[test]
    fn all_alpha_switches_what_is_in_alpha() {
        assert!(!parsed(&[]).unwrap().cross_namespace);
        assert!(parsed(&["--feature-gates=AllAlpha=true"]).unwrap().cross_namespace);
        let named = "--feature-gates=AllAlpha=true,CrossNamespaceVolumeDataSource=false";
        assert!(!parsed(&[named]).unwrap().cross_namespace);
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

    /// The literal `args:` of the original's deploy/kubernetes/deployment.yaml and storage-capacity.yaml.
    #[test]
    fn the_literal_arguments_of_the_originals_examples_do_what_they_say() {
        let socket = "--csi-address=/var/lib/csi/sockets/pluginproxy/mock.socket";
        let plain = parsed(&[socket, "--leader-election", "--http-endpoint=:8080"]).unwrap();
        assert_eq!(plain.driver.csi_address, "/var/lib/csi/sockets/pluginproxy/mock.socket");
        assert_eq!(plain.capacity, None);
        let environment = ["--capacity-namespace=kube-system", "--pod-name=csi-provisioner-1"];
        let literal = [socket, "--leader-election", "--enable-capacity", "--capacity-ownerref-level=2"];
        let capacity = parsed(&[literal.as_slice(), &environment].concat()).unwrap().capacity.unwrap();
        let owner = Some(OwnerLevel { pod: "csi-provisioner-1".into(), level: 2 });
        assert_eq!(capacity, Capacity { namespace: "kube-system".into(), owner, ..Capacity::default() });
    }

    #[test]
    fn the_flags_about_capacity_are_obeyed_or_refused_with_the_way_out() {
        let on = ["--enable-capacity", "--capacity-namespace=n"];
        let with = |more: &[&str]| parsed(&[on.as_slice(), more].concat());
        let more = [
            "--capacity-ownerref-level=-1",
            "--capacity-for-immediate-binding",
            "--capacity-poll-interval=30s",
            "--capacity-threads=4",
        ];
        let (namespace, poll_interval) = ("n".to_owned(), Duration::from_secs(30));
        let wanted = Capacity { namespace, owner: None, poll_interval, immediate_binding: true, threads: 4 };
        assert_eq!(with(&more).unwrap().capacity, Some(wanted));
        for (refused, way_out) in [
            (parsed(&["--enable-capacity"]), "NAMESPACE"),
            (with(&[]), "POD_NAME"),
            (with(&["--capacity-ownerref-level=-2"]), "-1 for no owner"),
            (with(&["--capacity-threads=0"]), "at least 1"),
            (with(&["--capacity-poll-interval=0"]), "the default is 1m"),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(way_out), "{error}");
        }
    }

    #[test]
    fn a_flag_about_capacity_that_is_not_published_and_a_gate_that_is_not_known_are_named() {
        let words = ["provisioner", "--capacity-threads=4", "--kube-api-capacity-qps=1", "--enable-pprof"];
        let gate = "--feature-gates=Topology=true,VolumeAttributesClass=true,Levitation=true";
        let ignored = try_parse_from::<Args>(words.iter().chain([&gate]).map(Into::into)).unwrap().ignored();
        assert_eq!(
            ignored,
            [
                "--enable-pprof has no effect: there are no Go profiles here",
                "--capacity-threads has no effect without --enable-capacity",
                "--kube-api-capacity-qps has no effect without --enable-capacity",
                "--feature-gates Levitation has no effect: there is no such gate here",
            ]
        );
    }

    #[test]
    fn a_flag_that_needs_another_is_named_with_its_value_and_the_other() {
        let ignored = |words: &[&str]| {
            let words = std::iter::once("provisioner").chain(words.iter().copied());
            try_parse_from::<Args>(words.map(Into::into)).unwrap().ignored()
        };
        let of_nodes = ["--node-deployment-immediate-binding=false", "--node-deployment-base-delay=5s"];
        let said = of_nodes.map(|flag| format!("{flag} has no effect without --node-deployment"));
        assert_eq!(ignored(&of_nodes), said);
        let max = ignored(&["--node-deployment-max-delay=2m"]);
        assert!(max.len() == 1 && max[0].starts_with("--node-deployment-max-delay="), "{max:?}");
        assert!(ignored(&[of_nodes[0], of_nodes[1], "--node-deployment", "--node-name=n"]).is_empty());
        let burst = ignored(&["--enable-capacity", "--kube-api-capacity-burst=9"]);
        assert!(burst[0].starts_with("--kube-api-capacity-burst=9 has no effect without --kube-api-capacity-qps"));
        let limited = ["--enable-capacity", "--kube-api-capacity-burst=9", "--kube-api-capacity-qps=3"];
        assert!(ignored(&limited).is_empty());
    }

    #[test]
    fn the_gates_of_the_original_are_obeyed() {
        let gates = "--feature-gates=Topology=false,VolumeAttributesClass=false,CrossNamespaceVolumeDataSource=true";
        let options = parsed(&[gates]).unwrap();
        assert_eq!((options.topology, options.cross_namespace), (false, true));
        assert_eq!(options.attributes_class, AttributesClasses::Off);
        let named = parsed(&["--feature-gates=VolumeAttributesClass=true"]).unwrap();
        assert_eq!(named.attributes_class, AttributesClasses::On);
    }

    #[test]
    fn an_unknown_flag_is_refused() {
        assert!(parsed(&["--levitate"]).unwrap_err().to_string().contains("--levitate"));
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
