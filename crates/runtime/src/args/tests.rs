//! The literal `args:` of manifests that ship with the originals.

use std::ffi::OsString;
use std::time::Duration;

use clap::{ArgAction, Parser};

use super::{AdminArgs, ClientArgs, CsiArgs, FeatureArgs, LeaderElectArgs, LeaderElectionArgs, LogArgs, LogFormat};
use crate::duration::GoDuration;
use crate::flags::try_parse_from;

#[derive(Debug, Parser)]
#[command(version)]
struct Sidecar {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    admin: AdminArgs,
    #[command(flatten)]
    election: LeaderElectionArgs,
    #[command(flatten)]
    csi: CsiArgs,
    #[command(flatten)]
    features: FeatureArgs,
    #[arg(long, default_value_t = -1)]
    volume_name_uuid_length: i32,
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    immediate_topology: bool,
    #[arg(long)]
    enable_capacity: bool,
    #[arg(long, default_value_t = 1)]
    capacity_ownerref_level: i32,
    #[arg(long, default_value = "5m")]
    retry_interval_max: GoDuration,
    #[arg(long)]
    kubelet_registration_path: Option<String>,
}

#[derive(Debug, Parser)]
struct Manager {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    election: LeaderElectArgs,
    #[arg(long, value_delimiter = ',', default_value = "*")]
    controllers: Vec<String>,
    #[arg(long, default_value = "15s")]
    pvclaimbinder_sync_period: GoDuration,
    #[arg(long, action = ArgAction::Set, default_value_t = true)]
    enable_dynamic_provisioning: bool,
}

#[derive(Debug, Parser)]
struct Driver {
    #[command(flatten)]
    log: LogArgs,
    #[arg(long)]
    drivername: Option<String>,
    #[arg(long)]
    endpoint: String,
    #[arg(long)]
    nodeid: String,
    #[arg(long)]
    capacity: Vec<String>,
    #[arg(long, alias = "node-expand-required", action = ArgAction::Set, default_value_t = true)]
    enable_volume_expansion: bool,
}

#[derive(Debug, Parser)]
struct Tool {
    #[command(flatten)]
    log: LogArgs,
    #[arg(long, global = true)]
    root: Option<String>,
    #[command(subcommand)]
    command: Verb,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Up {
        #[arg(long, default_value_t = 1)]
        nodes: u32,
        names: Vec<String>,
    },
}

fn words(args: &[&str]) -> Vec<OsString> {
    std::iter::once("program").chain(args.iter().copied()).map(OsString::from).collect()
}

fn read<P: Parser>(args: &[&str]) -> P {
    try_parse_from(words(args)).unwrap_or_else(|error| panic!("{args:?}: {error}"))
}

fn refused<P: Parser + std::fmt::Debug>(args: &[&str]) -> String {
    try_parse_from::<P>(words(args)).unwrap_err().to_string()
}

#[test]
fn the_args_of_every_shipped_sidecar_manifest_parse() {
    const MOCK: &str = "--csi-address=/var/lib/csi/sockets/pluginproxy/mock.socket";
    let manifests: [(&str, &[&str]); 12] = [
        ("external-provisioner deployment.yaml", &[MOCK, "--enable-leader-election"]),
        (
            "external-provisioner storage-capacity.yaml",
            &[MOCK, "--leader-election", "--enable-capacity", "--capacity-ownerref-level=2"],
        ),
        ("external-attacher deployment.yaml", &["--v=5", MOCK, "--leader-election"]),
        ("external-resizer deployment.yaml", &["--v=5", MOCK, "--leader-election"]),
        ("csi-snapshotter setup", &["--v=5", "--csi-address=/csi/csi.sock", "--leader-election=false"]),
        ("snapshot-controller setup", &["--v=5", "--leader-election=false"]),
        ("snapshot-controller release", &["--v=5", "--leader-election=true"]),
        ("hostpath csi-attacher", &["--v=5", "--csi-address=/csi/csi.sock"]),
        ("hostpath csi-provisioner", &["-v=5", "--csi-address=/csi/csi.sock", "--feature-gates=Topology=true"]),
        ("hostpath csi-resizer", &["-v=5", "-csi-address=/csi/csi.sock"]),
        ("hostpath csi-snapshotter", &["-v=5", "--csi-address=/csi/csi.sock"]),
        (
            "hostpath node-driver-registrar",
            &[
                "--v=5",
                "--csi-address=/csi/csi.sock",
                "--kubelet-registration-path=/var/lib/kubelet/plugins/csi-hostpath/csi.sock",
            ],
        ),
    ];
    for (manifest, args) in manifests {
        let sidecar: Sidecar = read(args);
        let wants_election = args.iter().any(|a| a.ends_with("leader-election") || a.ends_with("leader-election=true"));
        assert_eq!(sidecar.election.leader_election, wants_election, "{manifest}");
        let verbose = args.iter().any(|a| a.ends_with("v=5"));
        assert_eq!(sidecar.log.verbosity, if verbose { 5 } else { 0 }, "{manifest}");
        if let Some(address) = args.iter().find_map(|a| a.trim_start_matches('-').strip_prefix("csi-address=")) {
            assert_eq!(sidecar.csi.csi_address, address, "{manifest}");
        }
    }
}

#[test]
fn the_args_of_the_hostpath_driver_parse() {
    let driver: Driver = read(&[
        "--drivername=hostpath.csi.k8s.io",
        "--v=5",
        "--endpoint=unix:///csi/csi.sock",
        "--nodeid=node-1",
        "-capacity",
        "slow=1Ti",
        "-capacity=fast=1Gi",
        "-node-expand-required=false",
    ]);
    assert_eq!(driver.endpoint, "unix:///csi/csi.sock");
    assert_eq!((driver.nodeid.as_str(), driver.drivername.as_deref()), ("node-1", Some("hostpath.csi.k8s.io")));
    assert_eq!(driver.capacity, ["slow=1Ti", "fast=1Gi"]);
    assert!(!driver.enable_volume_expansion);
    assert_eq!(driver.log.verbosity, 5);
}

#[test]
fn the_args_of_kube_controller_manager_parse() {
    let manager: Manager = read(&[
        "--controllers=*,-persistentvolume-expander,bootstrapsigner",
        "--kubeconfig=/etc/kubernetes/controller-manager.conf",
        "--leader-elect=true",
        "--leader-elect-retry-period=3s",
        "--pvclaimbinder-sync-period=1m30s",
        "--enable-dynamic-provisioning=false",
        "-v",
        "2",
    ]);
    assert_eq!(manager.controllers, ["*", "-persistentvolume-expander", "bootstrapsigner"]);
    assert!(manager.election.leader_elect && !manager.enable_dynamic_provisioning);
    assert_eq!(manager.election.leader_elect_retry_period.0, Duration::from_secs(3));
    assert_eq!(manager.pvclaimbinder_sync_period.0, Duration::from_secs(90));
    assert_eq!(manager.client.kubeconfig.as_deref(), Some("/etc/kubernetes/controller-manager.conf"));
    assert_eq!(manager.log.verbosity, 2);
}

#[test]
fn a_switch_may_stand_alone_or_carry_any_spelling_of_a_boolean() {
    for (args, on) in [
        (&["--leader-election"][..], true),
        (&["-leader-election"], true),
        (&["--leader_election"], true),
        (&["--leader-election=true"], true),
        (&["--leader-election=T"], true),
        (&["-leader-election=1"], true),
        (&["--leader-election=False"], false),
        (&["--leader-election", "--leader-election=false"], false),
        (&["--leader-election=false", "--leader-election"], true),
        (&[], false),
    ] {
        assert_eq!(read::<Sidecar>(args).election.leader_election, on, "{args:?}");
    }
    for (args, on) in [
        (&["--immediate-topology"][..], true),
        (&["-immediate-topology=0"], false),
        (&["--immediate-topology=false", "--immediate-topology"], true),
        (&[], true),
    ] {
        assert_eq!(read::<Sidecar>(args).immediate_topology, on, "{args:?}");
    }
}

#[test]
fn every_way_to_give_a_value_is_understood() {
    for args in [&["-v=5"][..], &["-v", "5"], &["-v5"], &["--v=5"], &["--v", "5"], &["-v=2", "--v=5"]] {
        assert_eq!(read::<Sidecar>(args).log.verbosity, 5, "{args:?}");
    }
    for args in [
        &["--volume-name-uuid-length", "-1"][..],
        &["--volume-name-uuid-length=-1"],
        &["-volume_name_uuid_length", "-1"],
    ] {
        assert_eq!(read::<Sidecar>(args).volume_name_uuid_length, -1, "{args:?}");
    }
    let sidecar: Sidecar = read(&[
        "-vmodule=a=1",
        "-logging-format=json",
        "--timeout",
        "1.5m",
        "--retry-interval-max=300ms",
        "--leader-election-labels=app:csi,tier:storage",
        "--feature-gates=Topology=true,VolumeAttributesClass=false",
        "--http-endpoint=:8080",
        "--automaxprocs",
        "--log-flush-frequency=5s",
        "--kube-api-qps=20",
        "--kube-api-burst=30",
    ]);
    assert_eq!(sidecar.log.logging_format, LogFormat::Json);
    assert_eq!(sidecar.csi.timeout, Some(GoDuration(Duration::from_secs(90))));
    assert_eq!(sidecar.retry_interval_max.0, Duration::from_millis(300));
    let options =
        LeaderElectionArgs { leader_election: true, ..sidecar.election }.options("d/x", &sidecar.features).unwrap();
    let labels: Vec<_> = options.unwrap().labels.into_iter().collect();
    assert_eq!(labels, [("app".to_owned(), "csi".to_owned()), ("tier".to_owned(), "storage".to_owned())]);
    assert!(sidecar.features.enabled("Topology", false) && !sidecar.features.enabled("VolumeAttributesClass", true));
    assert!(sidecar.features.enabled("Unmentioned", true));
    assert_eq!(sidecar.admin.address().unwrap(), Some(":8080"));
    assert_eq!((sidecar.client.kube_api_qps, sidecar.client.kube_api_burst), (Some(20.0), Some(30)));
}

#[test]
fn defaults_are_the_originals() {
    let sidecar: Sidecar = read(&[]);
    assert_eq!(sidecar.csi.csi_address, "/run/csi/socket");
    assert_eq!(sidecar.admin.metrics_path, "/metrics");
    assert_eq!(sidecar.admin.address().unwrap(), None);
    let election = &sidecar.election;
    assert_eq!(election.leader_election_lease_duration.to_string(), "15s");
    assert_eq!(election.leader_election_renew_deadline.to_string(), "10s");
    assert_eq!(election.leader_election_retry_period.to_string(), "5s");
    assert!(election.options("lock", &FeatureArgs::default()).unwrap().is_none());
    let manager: Manager = read(&[]);
    let options = manager.election.options("pv-controller").unwrap().unwrap();
    assert_eq!((options.namespace.as_str(), options.name.as_str()), ("kube-system", "pv-controller"));
    assert_eq!(options.timing.retry_period(), Duration::from_secs(2));
}

#[test]
fn wrong_words_are_refused_by_their_whole_name() {
    for (args, said) in [
        (&["-no-such-flag=1"][..], "'--no-such-flag'"),
        (&["--leader-electoin"], "'--leader-election'"),
        (&["--timeout=15"], "has no unit after \"15\", write for example 15s"),
        (&["--timeout"], "a value is required for '--timeout <DURATION>'"),
        (&["--immediate-topology=maybe"], "[possible values: true, false]"),
        (&["--leader-election=maybe"], "unexpected value 'maybe' for '--leader-election'"),
        (&["--leader-election-labels=a:b:c"], "write key:value, with one colon"),
        (&["--feature-gates=Topology"], "write NAME=true or NAME=false"),
        (&["--logging-format=xml"], "[possible values: text, json]"),
        (&["stray"], "unexpected argument 'stray'"),
    ] {
        let message = refused::<Sidecar>(args);
        assert!(message.contains(said), "{args:?} gave\n{message}");
    }
    assert!(refused::<Sidecar>(&["-version"]).contains(env!("CARGO_PKG_VERSION")));
}

#[test]
fn settings_that_exclude_each_other_are_refused_by_name() {
    let sidecar: Sidecar = read(&["--http-endpoint=:1", "--metrics-address=:2"]);
    let message = sidecar.admin.address().unwrap_err().to_string();
    assert!(message.contains("--http-endpoint") && message.contains("--metrics-address"), "{message}");
    assert_eq!(read::<Sidecar>(&["--http-endpoint=", "--metrics-address=:2"]).admin.address().unwrap(), Some(":2"));
    let sidecar: Sidecar = read(&["--leader-election", "--leader-election-renew-deadline=20s"]);
    let message = format!("{:#}", sidecar.election.options("lock", &FeatureArgs::default()).unwrap_err());
    assert!(message.contains("--leader-election-*") && message.contains("lease duration 15s"), "{message}");
}

#[test]
fn subcommands_know_their_own_flags_and_the_global_ones() {
    let tool: Tool = read(&["-v=4", "up", "-nodes", "3", "-root=/tmp/x", "--", "-literal"]);
    let Verb::Up { nodes, names } = tool.command;
    assert_eq!((tool.log.verbosity, nodes, tool.root.as_deref()), (4, 3, Some("/tmp/x")));
    assert_eq!(names, ["-literal"]);
}
