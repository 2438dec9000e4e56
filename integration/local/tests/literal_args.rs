//! The `args:` of the originals' own example manifests, word for word, in an environment as a container has it.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use stowage_model::Kind;
use stowage_model::object::kinds;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use local_suite::machine;
use local_suite::objects::{self, DRIVER, IMMEDIATE, SNAPSHOTS};
use local_suite::process::Process;
use local_suite::stack::{Place, Service, Stack};

/// external-provisioner/deploy/kubernetes/deployment.yaml
const PROVISIONER: [&str; 3] = ["--csi-address=$(ADDRESS)", "--leader-election", "--http-endpoint=:8080"];
/// external-provisioner/deploy/kubernetes/storage-capacity.yaml
const CAPACITY: [&str; 4] =
    ["--csi-address=$(ADDRESS)", "--leader-election", "--enable-capacity", "--capacity-ownerref-level=2"];
/// external-attacher/deploy/kubernetes/deployment.yaml
const ATTACHER: [&str; 4] = ["--v=5", "--csi-address=$(ADDRESS)", "--leader-election", "--http-endpoint=:8080"];
/// external-resizer/deploy/kubernetes/deployment.yaml
const RESIZER: [&str; 4] = ["--v=5", "--csi-address=$(ADDRESS)", "--leader-election", "--http-endpoint=:8080"];
/// external-snapshotter/deploy/kubernetes/csi-snapshotter/setup-csi-snapshotter.yaml
const SNAPSHOTTER: [&str; 3] = ["--v=5", "--csi-address=$(ADDRESS)", "--leader-election=false"];
/// node-driver-registrar/README.md and the deployments of csi-driver-host-path
const REGISTRAR: [&str; 3] = [
    "--v=5",
    "--csi-address=/csi/csi.sock",
    "--kubelet-registration-path=/var/lib/kubelet/plugins/csi-hostpath/csi.sock",
];
/// The same, as the exec probe of that container
const REGISTRAR_PROBE: [&str; 2] =
    ["--kubelet-registration-path=/var/lib/kubelet/plugins/csi-hostpath/csi.sock", "--mode=kubelet-registration-probe"];
/// livenessprobe/deployment/kubernetes/livenessprobe-sidecar.yaml
const LIVENESSPROBE: [&str; 2] = ["--v=4", "--csi-address=/csi/csi.sock"];

const NODE: &str = "node-1";
/// Free in a network of its own.
const PORT: &str = "tcp://127.0.0.1:10000";

const DEPLOYMENT: Kind =
    Kind { group: "apps", version: "v1", kind: "Deployment", plural: "deployments", namespaced: true };
const REPLICA_SET: Kind =
    Kind { group: "apps", version: "v1", kind: "ReplicaSet", plural: "replicasets", namespaced: true };

const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(50);

/// The examples' port may be somebody else's on this machine; in a network of its own it is free.
fn own_network() -> anyhow::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET).context("cannot leave the network")?;
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().context("cannot start ip")?;
    ensure!(up.success(), "no loopback: {up}");
    Ok(())
}

/// Starts a service; what the kubelet puts in place of `$(ADDRESS)` is put there here.
fn start(stack: &Stack, service: &str, args: &[&str]) -> anyhow::Result<Process> {
    start_beside(stack, service, args, &stack.place.socket().display().to_string())
}

/// The same beside the driver that listens there.
fn start_beside(stack: &Stack, service: &str, args: &[&str], socket: &str) -> anyhow::Result<Process> {
    let socket = socket.to_owned();
    let known_to_kubelet = "/var/lib/kubelet/plugins/csi-hostpath/csi.sock";
    let placed = |word: &&str| {
        let word = word.replace("$(ADDRESS)", &socket).replace(known_to_kubelet, &socket);
        word.replace("=/csi/csi.sock", &format!("={socket}"))
    };
    let args: Vec<String> = args.iter().map(placed).collect();
    let environment = [
        ("ADDRESS", socket),
        ("KUBECONFIG", stack.place.kubeconfig().display().to_string()),
        ("NAMESPACE", "default".to_owned()),
        ("POD_NAMESPACE", "default".to_owned()),
        ("POD_NAME", "csi-provisioner-0".to_owned()),
    ];
    Process::start_in(service, service, &args, &environment, &stack.place.logs())
}

async fn stop(mut process: Process) -> anyhow::Result<()> {
    process.signal(Signal::SIGTERM)?;
    let status = process.ended(PATIENCE).await?;
    ensure!(status.success(), "{} ended with {status} after SIGTERM", process.name());
    Ok(())
}

/// What a port answers once somebody listens there.
async fn ask(port: u16, path: &str) -> anyhow::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await {
            stream.write_all(format!("GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").as_bytes()).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            return Ok(answer);
        }
        ensure!(Instant::now() < deadline, "nobody listens on port {port}");
        sleep(LOOK).await;
    }
}

async fn is_healthy_and_counts(port: u16) -> anyhow::Result<()> {
    let health = ask(port, "/healthz/leader-election").await?;
    ensure!(health.starts_with("HTTP/1.1 200") && health.ends_with("ok"), "{health}");
    let metrics = ask(port, "/metrics").await?;
    ensure!(metrics.contains("text/plain; version=0.0.4"), "{metrics}");
    ensure!(metrics.contains("# TYPE csi_sidecar_operations_seconds histogram"), "{metrics}");
    Ok(())
}

async fn leads(stack: &Stack, lease: &str) -> anyhow::Result<()> {
    let held =
        |lease: Option<&Value>| lease?["spec"]["holderIdentity"].as_str().filter(|held| !held.is_empty()).map(drop);
    stack.api.until(kinds::LEASE, lease, held, "to be held").await
}

/// Waits until this is what the node's volume manager knows of drivers.
async fn node_knows(stack: &Stack, drivers: usize) -> anyhow::Result<()> {
    let count = |node: &Value| node["spec"]["drivers"].as_array().map_or(0, Vec::len);
    let known = |node: Option<&Value>| (count(node?) == drivers).then_some(());
    stack.api.until(kinds::CSI_NODE, NODE, known, format!("to know {drivers} drivers")).await
}

/// Waits until `/healthz` answers with this code, and returns the whole answer.
async fn health_is(code: u16) -> anyhow::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let health = ask(9808, "/healthz").await?;
        if health.starts_with(&format!("HTTP/1.1 {code}")) {
            return Ok(health);
        }
        ensure!(Instant::now() < deadline, "not {code} but {health}");
        sleep(LOOK).await;
    }
}

/// A driver that is not well, one that is gone, and one that came back.
async fn probe_beside_a_sick_driver(stack: &mut Stack) -> anyhow::Result<()> {
    let (pool, away) = (stack.place.pool(), stack.place.root.join("away"));
    std::fs::rename(&pool, &away).context("cannot take the pool away")?;
    let sick = health_is(500).await?;
    ensure!(sick.contains("FailedPrecondition"), "{sick}");
    std::fs::rename(&away, &pool).context("cannot bring the pool back")?;
    health_is(200).await?;
    stack.kill(Service::Driver)?;
    let gone = health_is(500).await?;
    ensure!(gone.contains("did not answer within 3s"), "{gone}");
    stack.launch(Service::Driver)?;
    health_is(200).await.map(drop)
}

/// The driver on a port in place of its socket.
async fn serve_by_port(stack: &mut Stack) -> anyhow::Result<()> {
    stack.kill(Service::Driver)?;
    let place = &stack.place;
    let args = [
        format!("--endpoint={PORT}"),
        "--nodeid=controller".to_owned(),
        format!("--state-dir={}", place.root.join("state/controller").display()),
        format!("--pool=default={}", place.pool().display()),
        "--mode=controller".to_owned(),
    ];
    let driver = Process::start("driver-by-port", "node-plugin", &args, &place.logs())?;
    let provisioner = start_beside(stack, "provisioner", &PROVISIONER, PORT)?;
    stack.api.create(kinds::CLAIM, objects::claim("by-port", IMMEDIATE, "32Mi")).await?;
    let bound = |claim: Option<&Value>| (claim?["status"]["phase"] == "Bound").then_some(());
    stack.api.until(kinds::CLAIM, "by-port", bound, "to be Bound").await?;
    is_healthy_and_counts(8080).await?;
    stop(provisioner).await?;
    stop(driver).await
}

/// A pod as the example's Deployment makes it: level 2 above it is the Deployment.
async fn own_pod(stack: &Stack) -> anyhow::Result<()> {
    let api = &stack.api;
    let meta = |name: &str, owner: Option<&Value>| {
        let references: Vec<Value> = owner
            .into_iter()
            .map(|owner| {
                json!({
                    "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                    "uid": owner["metadata"]["uid"], "controller": true,
                })
            })
            .collect();
        json!({ "namespace": "default", "name": name, "ownerReferences": references, "labels": { "app": "p" } })
    };
    let pod = json!({ "containers": [{ "name": "main", "image": "none" }] });
    let many = json!({
        "selector": { "matchLabels": { "app": "p" } },
        "template": { "metadata": { "labels": { "app": "p" } }, "spec": pod },
    });
    api.create(DEPLOYMENT, json!({ "metadata": meta("csi-provisioner", None), "spec": many })).await?;
    let owner = api.get(DEPLOYMENT, "csi-provisioner").await?;
    api.create(REPLICA_SET, json!({ "metadata": meta("csi-provisioner-1", owner.as_ref()), "spec": many })).await?;
    let owner = api.get(REPLICA_SET, "csi-provisioner-1").await?;
    api.create(kinds::POD, json!({ "metadata": meta("csi-provisioner-0", owner.as_ref()), "spec": pod })).await
}

#[test]
fn the_arguments_of_the_originals_examples_do_what_they_say() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        own_network()?;
        let services = [
            Service::Apiserver,
            Service::Driver,
            // Only a driver that was asked about its node knows it.
            Service::NodeDriver(NODE),
            Service::PvController,
            Service::SnapshotController,
        ];
        let mut stack = Stack::start(Place::prepare(&root)?, &services).await?;
        let api = &stack.api.clone();

        let socket = stack.place.node_socket(NODE).display().to_string();
        let mut once = start_beside(&stack, "registrar", &REGISTRAR_PROBE, &socket)?;
        let status = once.ended(PATIENCE).await?;
        ensure!(status.success(), "the registrar as a probe ended with {status}");
        // The example mounts the kubelet's directory at the default of this flag, which a test has no right to make.
        let registry = format!("--plugin-registration-path={}", stack.place.registry(NODE).display());
        let literal: Vec<&str> = REGISTRAR.into_iter().chain([registry.as_str()]).collect();
        let registrar = start_beside(&stack, "registrar", &literal, &socket)?;
        stack.launch(Service::VolumeManager(NODE))?;
        node_knows(&stack, 1).await?;

        let provisioner = start(&stack, "provisioner", &PROVISIONER)?;
        leads(&stack, "shared-csi-stowage-dev").await?;
        api.create(kinds::CLAIM, objects::claim("data", IMMEDIATE, "32Mi")).await?;
        let bound = |claim: Option<&Value>| {
            let claim = claim?;
            (claim["status"]["phase"] == "Bound").then(|| claim["spec"]["volumeName"].as_str().map(str::to_owned))?
        };
        let volume = api.until(kinds::CLAIM, "data", bound, "to be Bound").await?;
        is_healthy_and_counts(8080).await?;
        stop(provisioner).await?;

        own_pod(&stack).await?;
        let provisioner = start(&stack, "provisioner", &CAPACITY)?;
        let deadline = Instant::now() + PATIENCE;
        let published = loop {
            let mut published = api.list(kinds::STORAGE_CAPACITY).await?;
            if let Some(one) = published.pop() {
                break one;
            }
            ensure!(Instant::now() < deadline, "no room is published: {}", provisioner.said()?);
            sleep(LOOK).await;
        };
        ensure!(published["metadata"]["ownerReferences"][0]["kind"] == "Deployment", "{published}");
        ensure!(published["storageClassName"] == objects::WAITING, "{published}");
        stop(provisioner).await?;

        let attacher = start(&stack, "attacher", &ATTACHER)?;
        let spec = json!({ "attacher": DRIVER, "nodeName": NODE, "source": { "persistentVolumeName": volume } });
        api.create(kinds::VOLUME_ATTACHMENT, json!({ "metadata": { "name": "by-hand" }, "spec": spec })).await?;
        let attached = |attachment: Option<&Value>| (attachment?["status"]["attached"] == true).then_some(());
        api.until(kinds::VOLUME_ATTACHMENT, "by-hand", attached, "to be attached").await?;
        leads(&stack, "external-attacher-leader-shared-csi-stowage-dev").await?;
        is_healthy_and_counts(8080).await?;
        api.delete(kinds::VOLUME_ATTACHMENT, "by-hand").await?;
        api.gone(kinds::VOLUME_ATTACHMENT, "by-hand").await?;
        ensure!(attacher.said()?.contains("/csi.v1.Controller/ControllerPublishVolume"), "--v=5 shows no calls");
        stop(attacher).await?;

        let resizer = start(&stack, "resizer", &RESIZER)?;
        let more = json!({ "spec": { "resources": { "requests": { "storage": "48Mi" } } } });
        let asked = api.change(kinds::CLAIM, "data", &more).await?;
        ensure!(asked.is_ok(), "{asked:?}");
        let grown = |volume: Option<&Value>| (volume?["spec"]["capacity"]["storage"] == "48Mi").then_some(());
        api.until(kinds::VOLUME, &volume, grown, "to grow").await?;
        leads(&stack, "external-resizer-shared-csi-stowage-dev").await?;
        is_healthy_and_counts(8080).await?;
        ensure!(resizer.said()?.contains("/csi.v1.Controller/ControllerExpandVolume"), "--v=5 shows no calls");
        stop(resizer).await?;

        let snapshotter = start(&stack, "snapshotter", &SNAPSHOTTER)?;
        api.create(kinds::VOLUME_SNAPSHOT, objects::snapshot("monday", SNAPSHOTS, "data")).await?;
        let ready = |snapshot: Option<&Value>| (snapshot?["status"]["readyToUse"] == true).then_some(());
        api.until(kinds::VOLUME_SNAPSHOT, "monday", ready, "to be ready").await?;
        ensure!(snapshotter.said()?.contains("/csi.v1.Controller/CreateSnapshot"), "--v=5 shows no calls");
        let lease = api.get(kinds::LEASE, "external-snapshotter-leader-shared-csi-stowage-dev").await?;
        ensure!(lease.is_none(), "--leader-election=false elects: {lease:?}");
        stop(snapshotter).await?;

        let probe = start(&stack, "livenessprobe", &LIVENESSPROBE)?;
        let health = ask(9808, "/healthz").await?;
        ensure!(health.starts_with("HTTP/1.1 200") && health.ends_with("ok"), "{health}");
        probe_beside_a_sick_driver(&mut stack).await?;
        stop(probe).await?;

        serve_by_port(&mut stack).await?;
        stop(registrar).await?;
        node_knows(&stack, 0).await?;
        stack.stop().await
    })
}
