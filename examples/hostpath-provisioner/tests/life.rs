//! The example as a process, with the class that is shipped, against the embedded server and the real binder.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::process::{Child, Command};

use stowage_model::object::{Key, ObjectId, kinds};
use stowage_model::phase::{ClaimPhase, PodPhase, VolumePhase};
use stowage_model::{Claim, Event, Pod, Volume};
use stowage_mount::LinuxMounter;
use stowage_runtime::Context;
use stowage_runtime::api::{Api, Deletion, Part, Patch, Target};
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::random::Random;
use stowage_runtime::watch::{self, Scope};
use volume_manager::api::VolumeManager;

/// What is not done by then never will be, on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

struct World {
    server: stowage_apiserver::Server,
    api: Api,
    claims: Cache<Claim>,
    volumes: Cache<Volume>,
    directory: tempfile::TempDir,
    provisioner: Child,
}

/// The example on this node, making directories in this one.
fn provisioner(kubeconfig: &Path, directory: &Path, node: &str) -> Child {
    started(Command::new(PROGRAM), kubeconfig, directory, node)
}

const PROGRAM: &str = env!("CARGO_BIN_EXE_hostpath-provisioner");

fn started(mut program: Command, kubeconfig: &Path, directory: &Path, node: &str) -> Child {
    program
        .arg(format!("--kubeconfig={}", kubeconfig.display()))
        .arg(format!("--directory={}", directory.display()))
        .arg(format!("--node-name={node}"))
        // Not used, and no reason to end.
        .env("HTTPS_PROXY", "http://127.0.0.1:9")
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}

impl World {
    async fn start() -> Self {
        let server = stowage_apiserver::Server::in_memory(stowage_apiserver::Options::system());
        let client = || kube::Client::new(server.service(), "default");
        let api = Api::new(client());
        let context = Context::real(client(), Arc::new(stowage_csi::UnixConnector), "binder");
        tokio::spawn(async move { pv_controller::run(context, Default::default()).await.unwrap() });
        let directory = tempfile::tempdir().unwrap();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let identity = stowage_apiserver::Identity::generate(&[address.ip()]).unwrap();
        let kubeconfig = directory.path().join("kubeconfig");
        identity.write_kubeconfig(&kubeconfig, address).unwrap();
        let served = server.clone();
        tokio::spawn(async move {
            let limits = stowage_apiserver::Limits::default();
            let front = stowage_apiserver::Front::new(identity.tls(), identity.credentials(), limits).unwrap();
            served.serve(listener, front, std::future::pending()).await;
        });
        let provisioner = provisioner(&kubeconfig, &directory.path().join("volumes"), "node-1");
        let (claims, volumes) = (Cache::new(), Cache::new());
        tokio::spawn(watch::feed(api.clone(), claims.clone(), Scope::all(), Random::from_os()));
        tokio::spawn(watch::feed(api.clone(), volumes.clone(), Scope::all(), Random::from_os()));
        claims.synced().await;
        volumes.synced().await;
        for class in shipped("storageclass.yaml") {
            api.create_raw(kinds::STORAGE_CLASS, class).await.unwrap();
        }
        Self { server, api, claims, volumes, directory, provisioner }
    }

    /// Stops the example and starts it again with other directories, as on this node.
    async fn restart_in(&mut self, directory: &str, node: &str) {
        self.provisioner.kill().await.unwrap();
        self.start_in(directory, node);
    }

    fn start_in(&mut self, directory: &str, node: &str) {
        let base = self.directory.path();
        self.provisioner = provisioner(&base.join("kubeconfig"), &base.join(directory), node);
    }

    /// The same, but with no more capabilities than the shipped manifest adds.
    async fn restart_as_shipped(&mut self) {
        self.provisioner.kill().await.unwrap();
        let deployment = shipped("deployment.yaml").remove(0);
        let context = &deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"];
        assert_eq!(context["capabilities"]["drop"], json!(["ALL"]));
        let added = context["capabilities"]["add"].as_array().unwrap().iter();
        let added: Vec<String> = added.map(|name| format!("+{}", name.as_str().unwrap().to_lowercase())).collect();
        let mut program = Command::new("setpriv");
        program.arg(format!("--bounding-set=-all,{}", added.join(","))).arg(PROGRAM);
        let base = self.directory.path();
        self.provisioner = started(program, &base.join("kubeconfig"), &base.join("volumes"), "node-1");
    }

    /// The shipped claim, for which the node was chosen.
    async fn ask(&self) -> Arc<Claim> {
        let mut claim = shipped("claim-and-pod.yaml").remove(0);
        claim["metadata"]["namespace"] = "default".into();
        self.api.create_raw(kinds::CLAIM, claim).await.unwrap();
        let asked = self.claim("the claim", |_| true).await;
        self.select(&asked, "node-1").await;
        asked
    }

    async fn delete(&self, claim: &Claim) {
        self.api.delete(&self.claims, &Target::any_version(&claim.meta), Deletion::default()).await.unwrap();
    }

    /// Waits until somebody was told this.
    async fn told(&self, sentence: &str) {
        let events: Cache<Event> = Cache::new();
        let (sender, mut seen) = tokio::sync::watch::channel(false);
        let sentence = sentence.to_owned();
        events.on_change(move |change| {
            if change.after.is_some_and(|event| event.message.contains(&sentence)) {
                sender.send_replace(true);
            }
        });
        let fed = tokio::spawn(watch::feed(self.api.clone(), events, Scope::all(), Random::from_os()));
        tokio::time::timeout(PATIENCE, seen.wait_for(|told| *told)).await.expect("somebody is told").unwrap();
        fed.abort();
    }

    /// What was told for this reason so far.
    async fn told_because(&self, reason: &str) -> Option<Value> {
        self.api.find_raw(kinds::EVENT, |event| event["reason"] == reason).await.unwrap()
    }

    /// Whether the journal has a record.
    async fn is_recorded(&self) -> bool {
        let key = Key::namespaced("default", "hostpath-stowage-dev-intents-0");
        let lease = self.api.get_raw(&ObjectId { kind: kinds::LEASE, key }).await.unwrap().unwrap();
        let annotations = lease["metadata"]["annotations"].as_object().unwrap();
        annotations.keys().any(|key| key.starts_with("intent.provisioner.stowage.dev/"))
    }

    fn context(&self, identity: &str) -> Context {
        let client = kube::Client::new(self.server.service(), "default");
        Context::real(client, Arc::new(stowage_csi::UnixConnector), identity)
    }

    /// Runs the node and whoever places pods there.
    async fn start_node(&self) -> Arc<VolumeManager> {
        let context = self.context("scheduler");
        tokio::spawn(async move { scheduler::run(context, Default::default()).await.unwrap() });
        let root = self.directory.path().join("kubelet");
        let registry = root.join("plugins_registry");
        std::fs::create_dir_all(&registry).unwrap();
        let options = volume_manager::Options { node_name: "node-1".to_owned(), root, ..Default::default() };
        let (context, handle) = (self.context("node-1"), options.handle.clone());
        let plugins = Arc::new(volume_manager::plugin_watcher::RegistryDir::new(registry));
        tokio::spawn(async move {
            volume_manager::run(context, Arc::new(LinuxMounter), plugins, options).await.unwrap();
        });
        handle.get().await
    }

    async fn pod(&self, name: &str) -> Option<Value> {
        let id = ObjectId { kind: kinds::POD, key: Key::namespaced("default", name) };
        self.api.get_raw(&id).await.unwrap()
    }

    /// The claim, once it is as it should be.
    async fn claim(&self, what: &str, holds: impl Fn(&Claim) -> bool + Send + Sync + 'static) -> Arc<Claim> {
        let (sender, mut seen) = tokio::sync::watch::channel(None);
        self.claims.on_change(move |change| {
            if let Some(claim) = change.after.filter(|claim| holds(claim)) {
                sender.send_replace(Some(Arc::clone(claim)));
            }
        });
        self.claims.replay();
        let found = tokio::time::timeout(PATIENCE, seen.wait_for(Option::is_some)).await;
        found.unwrap_or_else(|_| panic!("{what}: not within {PATIENCE:?}")).unwrap().clone().unwrap()
    }

    /// As the scheduler does.
    async fn select(&self, claim: &Claim, node: &str) {
        let body = json!({ "metadata": { "annotations": { "volume.kubernetes.io/selected-node": node } } });
        let target = Target::any_version(&claim.meta);
        self.api.patch(&self.claims, &target, Part::Main, Patch::Merge(body)).await.unwrap();
    }

    /// Waits until nobody has the volume any more.
    async fn released(&self, volume: &str) {
        let (sender, mut seen) = tokio::sync::watch::channel(false);
        let name = volume.to_owned();
        self.volumes.on_change(move |change| {
            let after = change.after.filter(|volume| volume.meta.name == name);
            if after.is_some_and(|volume| volume.status.phase == VolumePhase::Released) {
                sender.send_replace(true);
            }
        });
        self.volumes.replay();
        tokio::time::timeout(PATIENCE, seen.wait_for(|released| *released)).await.expect("the release").unwrap();
    }

    async fn gone(&self, volume: &str) {
        let (sender, mut seen) = tokio::sync::watch::channel(false);
        let name = volume.to_owned();
        self.volumes.on_change(move |change| {
            if change.key.name == name && change.after.is_none() {
                sender.send_replace(true);
            }
        });
        if let View::Absent = self.volumes.view(&Key::cluster(volume)) {
            return;
        }
        tokio::time::timeout(PATIENCE, seen.wait_for(|gone| *gone)).await.expect("the volume's end").unwrap();
    }
}

fn shipped(file: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    serde_saphyr::from_multiple(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[tokio::test]
async fn a_claim_gets_a_directory_on_the_right_node_and_takes_it_along_when_it_goes() {
    let world = World::start().await;
    let mut claim = shipped("claim-and-pod.yaml").remove(0);
    claim["metadata"]["namespace"] = "default".into();
    world.api.create_raw(kinds::CLAIM, claim).await.unwrap();

    // Another node was chosen: it is given back.
    let asked = world.claim("the claim", |_| true).await;
    world.select(&asked, "node-2").await;
    world.claim("the other node", |claim| claim.selected_node() == Some("node-2")).await;
    let back = world.claim("the node is given back", |claim| claim.selected_node().is_none()).await;
    world.select(&back, "node-1").await;

    let bound = world.claim("the volume", |claim| claim.status.phase == ClaimPhase::Bound).await;
    let name = bound.spec.volume_name.clone();
    let id = ObjectId { kind: kinds::VOLUME, key: Key::cluster(&name) };
    let volume = world.api.get_raw(&id).await.unwrap().unwrap();
    let directory = world.directory.path().join("volumes").join(&name);
    assert_eq!(volume["spec"]["hostPath"]["path"], directory.to_str().unwrap());
    let expression = &volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(expression["values"], json!(["node-1"]));
    assert!(directory.is_dir());
    std::fs::write(directory.join("visits"), "one").unwrap();

    let target = Target::any_version(&bound.meta);
    world.api.delete(&world.claims, &target, Deletion::default()).await.unwrap();
    world.gone(&name).await;
    assert!(!directory.try_exists().unwrap());
}

/// Without FOWNER nobody but its owner, or that of the file, removes a file from a sticky directory.
#[tokio::test]
async fn what_pods_of_other_users_left_in_a_sticky_directory_is_removed_with_the_shipped_capabilities() {
    let has_setpriv = Command::new("setpriv").arg("--version").output().await.is_ok_and(|ran| ran.status.success());
    if std::fs::metadata("/proc/self").unwrap().uid() != 0 || !has_setpriv {
        eprintln!("left out: it needs root and setpriv");
        return;
    }
    let mut world = World::start().await;
    let claim = world.ask().await;
    let bound = world.claim("the volume", |claim| claim.status.phase == ClaimPhase::Bound).await;
    let name = bound.spec.volume_name.clone();
    let sticky = world.directory.path().join("volumes").join(&name).join("tmp");
    std::fs::create_dir(&sticky).unwrap();
    std::fs::write(sticky.join("file"), "of somebody").unwrap();
    std::fs::set_permissions(&sticky, std::fs::Permissions::from_mode(0o1777)).unwrap();
    chown(sticky.join("file"), Some(1001), Some(1001)).unwrap();
    chown(&sticky, Some(1000), Some(1000)).unwrap();
    world.restart_as_shipped().await;
    world.delete(&claim).await;
    world.gone(&name).await;
    assert!(!sticky.try_exists().unwrap());
}

#[tokio::test]
async fn what_may_have_been_made_for_a_claim_that_is_gone_is_made_out_and_removed() {
    let world = World::start().await;
    let directory = world.directory.path().join("volumes");
    std::fs::write(&directory, "in the way").unwrap();
    let claim = world.ask().await;
    world.told("cannot make").await;
    world.delete(&claim).await;
    let gone = async {
        while let View::Known(_) | View::Unknown = world.claims.view(&claim.meta.key()) {
            tokio::task::yield_now().await;
        }
        std::fs::remove_file(&directory).unwrap();
        while world.is_recorded().await {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("the record's end");
    // Nobody but a second try made it.
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0);
}

#[tokio::test]
async fn a_directory_that_is_elsewhere_by_now_is_not_taken_for_deleted() {
    let mut world = World::start().await;
    let claim = world.ask().await;
    let bound = world.claim("the volume", |claim| claim.status.phase == ClaimPhase::Bound).await;
    let name = bound.spec.volume_name.clone();
    world.restart_in("other", "node-1").await;
    world.delete(&claim).await;
    world.told("see --directory").await;
    assert!(world.directory.path().join("volumes").join(&name).is_dir());
    world.restart_in("volumes", "node-1").await;
    world.gone(&name).await;
    assert!(!world.directory.path().join("volumes").join(&name).try_exists().unwrap());
}

/// On another node it found nothing, and took it for deleted: the volume went and its directory stayed.
#[tokio::test]
async fn a_directory_on_another_node_waits_for_the_provisioner_to_come_back() {
    let mut world = World::start().await;
    let claim = world.ask().await;
    let bound = world.claim("the volume", |claim| claim.status.phase == ClaimPhase::Bound).await;
    let name = bound.spec.volume_name.clone();
    let (volumes, of_node_1) = (world.directory.path().join("volumes"), world.directory.path().join("of-node-1"));
    // Another node has another disk under the same path.
    world.provisioner.kill().await.unwrap();
    std::fs::rename(&volumes, &of_node_1).unwrap();
    world.start_in("volumes", "node-2");
    world.delete(&claim).await;
    // What it does for a later claim comes after what it does for the volume.
    world.released(&name).await;
    let mut later = shipped("claim-and-pod.yaml").remove(0);
    (later["metadata"]["namespace"], later["metadata"]["name"]) = ("default".into(), "later".into());
    world.api.create_raw(kinds::CLAIM, later).await.unwrap();
    let later = world.claim("the later claim", |claim| claim.meta.name == "later").await;
    world.select(&later, "node-2").await;
    world.claim("its volume", |claim| claim.meta.name == "later" && claim.status.phase == ClaimPhase::Bound).await;
    assert!(matches!(world.volumes.view(&Key::cluster(&name)), View::Known(_)));
    assert_eq!(world.told_because("VolumeFailedDelete").await, None);
    world.provisioner.kill().await.unwrap();
    std::fs::remove_dir_all(&volumes).unwrap();
    std::fs::rename(&of_node_1, &volumes).unwrap();
    assert!(volumes.join(&name).is_dir());
    world.start_in("volumes", "node-1");
    world.gone(&name).await;
    assert!(!volumes.join(&name).try_exists().unwrap());
}

/// As shipped, but for the token that no container here asks for.
#[tokio::test]
async fn a_pod_writes_into_its_directory_and_the_directory_goes_with_the_claim() {
    let world = World::start().await;
    let node = world.start_node().await;
    let mut shipped = shipped("claim-and-pod.yaml");
    let (mut pod, mut claim) = (shipped.pop().unwrap(), shipped.pop().unwrap());
    for object in [&mut claim, &mut pod] {
        object["metadata"]["namespace"] = "default".into();
    }
    pod["spec"]["automountServiceAccountToken"] = false.into();
    pod["spec"]["terminationGracePeriodSeconds"] = 0.into();
    world.api.create_raw(kinds::CLAIM, claim).await.unwrap();
    let made = world.api.create_raw(kinds::POD, pod).await.unwrap();
    let uid = made["metadata"]["uid"].as_str().unwrap();

    // Placed by the scheduler, provisioned where it was placed, mounted by the node.
    let bound = world.claim("the volume", |claim| claim.status.phase == ClaimPhase::Bound).await;
    assert_eq!(bound.selected_node(), Some("node-1"));
    node.wait_for_attach_and_mount(uid, PATIENCE).await.unwrap();
    let mounts = node.container_mounts(uid).await.unwrap();
    let [notes] = mounts.as_slice() else { panic!("{mounts:?}") };
    assert_eq!((notes.path.as_str(), notes.read_only), ("/notes", false));
    let directory = world.directory.path().join("volumes").join(&bound.spec.volume_name);
    std::fs::write(notes.host_path.join("visits"), "one").unwrap();
    assert_eq!(std::fs::read_to_string(directory.join("visits")).unwrap(), "one");
    assert_eq!(running(&world).await, "Running");

    let pods: Cache<Pod> = Cache::new();
    let target = Target::any_version(
        &world.api.refresh(&pods, &Key::namespaced("default", "writer")).await.unwrap().unwrap().meta,
    );
    world.api.delete(&pods, &target, Deletion::default()).await.unwrap();
    let target = Target::any_version(&bound.meta);
    world.api.delete(&world.claims, &target, Deletion::default()).await.unwrap();
    world.gone(&bound.spec.volume_name).await;
    assert!(!directory.try_exists().unwrap());
    assert_eq!(world.pod("writer").await, None, "the claim was held until its pod was gone");
}

/// The pod's phase once its status was written.
async fn running(world: &World) -> String {
    let pods: Cache<Pod> = Cache::new();
    tokio::spawn(watch::feed(world.api.clone(), pods.clone(), Scope::all(), Random::from_os()));
    let (sender, mut seen) = tokio::sync::watch::channel(false);
    pods.on_change(move |change| {
        if change.after.is_some_and(|pod| pod.status.phase == PodPhase::Running) {
            sender.send_replace(true);
        }
    });
    pods.synced().await;
    pods.replay();
    tokio::time::timeout(PATIENCE, seen.wait_for(|running| *running)).await.expect("the pod runs").unwrap();
    let pod = world.pod("writer").await.unwrap();
    pod["status"]["phase"].as_str().unwrap_or_default().to_owned()
}
