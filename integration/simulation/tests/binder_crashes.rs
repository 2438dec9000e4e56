//! The pv-controller stopped at every one of its writes, in every way, over the lives a volume can have without a node.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use futures::FutureExt;
use futures::future::BoxFuture;
use pv_controller::options::{Eraser, Recycling};
use serde_json::{Value, json};

use simulation_suite::block_on;
use stowage_model::object::{Key, Projection, kinds};
use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_model::pod::Pod;
use stowage_model::{Claim, Volume, annotations, names};
use stowage_plugins::nfs::Export;
use stowage_plugins::{Disk, Permit};
use stowage_testing::{Fault, Gate, Mode, Point, Port, World, tell};

const SEED: u64 = 5;
const SERVICE: &str = "pv-controller";
const LIMIT: Duration = Duration::from_secs(30 * 60);
const PATH: &str = "/tmp/volume";

/// Fewer cases than this, and the sweep has lost what it is about.
const LEAST: usize = 400;

/// Which life is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A volume made by hand, bound and released.
    Static,
    /// A volume reserved for the claim by name.
    PreBound,
    /// A claim that names its volume.
    Named,
    /// A volume that a provisioner makes and deletes.
    Dynamic,
    /// The same, for a claim whose class is the default that came after it.
    Retroactive,
    /// The same, for a claim that waits until a node is selected.
    Late,
    /// A volume that the service itself makes, and deletes with its data.
    Own,
    /// A volume whose data the service deletes.
    ReleasedDelete,
    /// A volume that the service erases.
    RecyclePlugin,
    /// A volume of another machine that the service erases.
    RecycleNfs,
    /// A volume that a pod erases.
    RecyclePod,
    /// A claim made for a pod.
    Ephemeral,
}

const LIVES: [Kind; 12] = [
    Kind::Static,
    Kind::PreBound,
    Kind::Named,
    Kind::Dynamic,
    Kind::Retroactive,
    Kind::Late,
    Kind::Own,
    Kind::ReleasedDelete,
    Kind::RecyclePlugin,
    Kind::RecycleNfs,
    Kind::RecyclePod,
    Kind::Ephemeral,
];

/// The files of one volume; removing each is a point at which the service can be stopped.
#[derive(Clone)]
struct Files {
    left: Arc<Mutex<BTreeSet<PathBuf>>>,
    gate: Arc<Gate>,
}

impl Disk for Files {
    fn erase<'a>(&'a self, directory: &'a Path, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>> {
        self.remove_each(directory, permit).boxed()
    }

    fn remove<'a>(&'a self, directory: &'a Path, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>> {
        self.remove_each(directory, permit).boxed()
    }

    fn erase_export<'a>(&'a self, export: &'a Export, permit: &'a Permit) -> BoxFuture<'a, io::Result<()>> {
        assert_eq!((export.volume.as_str(), export.server.as_str()), ("v", "server.example"));
        self.remove_each(&export.path, permit).boxed()
    }
}

impl Files {
    async fn remove_each(&self, directory: &Path, permit: &Permit) -> io::Result<()> {
        loop {
            if !permit.lasts() {
                return Err(io::Error::other("this process may not remove files any more"));
            }
            let Some(file) = self.left.lock().unwrap().first().cloned() else { return Ok(()) };
            assert!(file.starts_with(directory));
            let left = Arc::clone(&self.left);
            let remove = async move {
                left.lock().unwrap().remove(&file);
                Ok(())
            };
            let lost = || Err(io::Error::other("no answer from the disk"));
            self.gate.act(Port::Node, "remove a file".into(), remove, lost).await?;
        }
    }
}

fn volume(kind: Kind) -> Value {
    let policy = match kind {
        Kind::ReleasedDelete => "Delete",
        Kind::RecyclePlugin | Kind::RecycleNfs | Kind::RecyclePod => "Recycle",
        _ => "Retain",
    };
    let mut volume = json!({
        "metadata": { "name": "v" },
        "spec": {
            "capacity": { "storage": "1Gi" },
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": policy,
            "hostPath": { "path": PATH },
        },
    });
    if kind == Kind::RecycleNfs {
        volume["spec"]["hostPath"] = Value::Null;
        volume["spec"]["nfs"] = json!({ "server": "server.example", "path": PATH });
    }
    if kind == Kind::PreBound {
        volume["spec"]["claimRef"] = json!({ "namespace": "default", "name": "c" });
    }
    volume
}

fn claim_spec() -> Value {
    json!({ "accessModes": ["ReadWriteOnce"], "storageClassName": "", "resources": { "requests": { "storage": "1Gi" } } })
}

fn claim(kind: Kind) -> Value {
    let mut claim = json!({ "metadata": { "namespace": "default", "name": "c" }, "spec": claim_spec() });
    match kind {
        Kind::Named => claim["spec"]["volumeName"] = "v".into(),
        Kind::Dynamic | Kind::Late | Kind::Own => claim["spec"]["storageClassName"] = "fast".into(),
        Kind::Retroactive => claim["spec"]["storageClassName"] = Value::Null,
        _ => {}
    }
    claim
}

/// The class of the lives whose volume is made for them.
fn class(kind: Kind) -> Option<Value> {
    let mut class = json!({ "metadata": { "name": "fast" }, "provisioner": "d", "volumeBindingMode": "Immediate" });
    match kind {
        Kind::Dynamic => {}
        Kind::Retroactive => {
            class["metadata"]["annotations"] = json!({ "storageclass.kubernetes.io/is-default-class": "true" });
        }
        Kind::Late => class["volumeBindingMode"] = "WaitForFirstConsumer".into(),
        Kind::Own => class["provisioner"] = "kubernetes.io/host-path".into(),
        _ => return None,
    }
    Some(class)
}

fn pod() -> Value {
    json!({
        "metadata": { "namespace": "default", "name": "p" },
        "spec": {
            "containers": [{ "name": "main", "image": "none" }],
            "volumes": [{ "name": "data", "ephemeral": { "volumeClaimTemplate": { "spec": claim_spec() } } }],
        },
    })
}

fn options(kind: Kind) -> pv_controller::Options {
    let eraser = if kind == Kind::RecyclePod { Eraser::Pod } else { Eraser::Plugin };
    pv_controller::Options {
        host_path_provisioner: true,
        recycling: Recycling { eraser, ..Recycling::default() },
        ..pv_controller::Options::default()
    }
}

/// Keeps the service alive: stopped where it stands, it begins a new life.
fn supervise(world: World, kind: Kind, files: Arc<Mutex<BTreeSet<PathBuf>>>) -> BoxFuture<'static, ()> {
    async move {
        loop {
            let life = world.life(SERVICE);
            let disk = Arc::new(Files { left: Arc::clone(&files), gate: Arc::clone(&life.gate) });
            let mut running = tokio::spawn(pv_controller::run_with(life.context.clone(), options(kind), disk));
            tokio::select! {
                biased;
                () = life.gate.stopped() => {
                    running.abort();
                    let _ = running.await;
                }
                ended = &mut running => panic!("the service ended by itself: {ended:?}"),
            }
        }
    }
    .boxed()
}

/// What others do in a cluster: the provisioner makes and deletes, the node ends the recycler.
async fn others(world: World) {
    let admin = world.admin().clone();
    let changes = world.changes().clone();
    loop {
        let seen = changes.count();
        for claim in admin.list::<Claim>() {
            let name = claim.provisioned_volume_name();
            let wanted = claim.storage_provisioner() == Some("d") && !claim.names_volume() && !claim.meta.is_deleting();
            if wanted && !admin.exists(kinds::VOLUME, &Key::cluster(name.clone())) {
                let body = json!({
                    "metadata": { "name": name, "annotations": { "pv.kubernetes.io/provisioned-by": "d" } },
                    "spec": {
                        "capacity": { "storage": "1Gi" },
                        "accessModes": ["ReadWriteOnce"],
                        "persistentVolumeReclaimPolicy": "Delete",
                        "storageClassName": "fast",
                        "csi": { "driver": "d", "volumeHandle": "h" },
                        "claimRef": { "namespace": "default", "name": claim.meta.name, "uid": claim.meta.uid },
                    },
                });
                admin.create(kinds::VOLUME, body).await.unwrap();
            }
        }
        for volume in admin.list::<Volume>() {
            let released = volume.status.phase == VolumePhase::Released && volume.spec.csi.is_some();
            if released && !volume.meta.is_deleting() {
                admin.delete(kinds::VOLUME, &volume.key()).await.unwrap();
            }
        }
        for pod in admin.list::<Pod>() {
            let recycler = pod.meta.name == names::recycler_pod("v");
            if recycler && !pod.is_terminal() && !pod.meta.is_deleting() {
                let body = json!({ "status": { "phase": "Succeeded" } });
                admin.patch(kinds::POD, &pod.key(), "/status", &body).await.unwrap();
            }
        }
        changes.beyond(seen).await;
    }
}

/// Looks after every change whether a claim that says it is bound has its volume's word for it: at no moment, whoever was
/// stopped where, may it be otherwise.
async fn bound_means_bound(world: World, wrong: Arc<Mutex<BTreeSet<String>>>, looks: Arc<AtomicUsize>) {
    let admin = world.admin().clone();
    let changes = world.changes().clone();
    loop {
        let seen = changes.count();
        looks.fetch_add(1, Ordering::Relaxed);
        for claim in admin.list::<Claim>().iter().filter(|claim| claim.is_bind_completed()) {
            let volume: Option<Volume> = admin.get(&Key::cluster(claim.spec.volume_name.clone()));
            let held = volume.and_then(|volume| volume.spec.claim_ref);
            if !held.is_some_and(|held| held.uid == claim.meta.uid && held.key() == claim.key()) {
                wrong.lock().unwrap().insert(format!("claim {} is marked and its volume is not", claim.key()));
            }
        }
        changes.beyond(seen).await;
    }
}

struct Played {
    points: Vec<Point>,
    looks: usize,
    wrong: Vec<String>,
}

/// Aborts its task when dropped.
struct Task(tokio::task::JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

fn play(kind: Kind, fault: Option<Fault>) -> Played {
    block_on(async {
        let world = World::new(SEED);
        let (mut wrong, looks) = (Vec::new(), Arc::default());
        if let Err(hang) = story(&world, kind, fault, &mut wrong, &looks).await {
            wrong.push(hang);
        }
        if world.is_armed() {
            wrong.push("the fault's point was not reached".into());
        }
        for (service, numbers) in world.numbers() {
            if numbers.missed_wakeups > 0 {
                wrong.push(format!("{service}: {} wake-ups were missed", numbers.missed_wakeups));
            }
        }
        Played { points: world.trace().points(), looks: looks.load(Ordering::Relaxed), wrong }
    })
}

async fn story(
    world: &World,
    kind: Kind,
    fault: Option<Fault>,
    wrong: &mut Vec<String>,
    looks: &Arc<AtomicUsize>,
) -> Result<(), String> {
    let admin = world.admin();
    if let Some(fault) = fault {
        world.arm(fault, None);
    }
    let files_in = |path: &str| -> BTreeSet<PathBuf> { ["a", "b", "c"].map(|name| Path::new(path).join(name)).into() };
    let files = Arc::new(Mutex::new(files_in(PATH)));
    let _others = Task(tokio::spawn(others(world.clone())));
    let unbound = Arc::new(Mutex::new(BTreeSet::new()));
    let _looking = Task(tokio::spawn(bound_means_bound(world.clone(), Arc::clone(&unbound), Arc::clone(looks))));
    let _service = Task(tokio::spawn(supervise(world.clone(), kind, Arc::clone(&files))));
    let until = async |what: &str, look: &mut dyn FnMut() -> bool| {
        world.until(what, LIMIT, look).await.map_err(|hang| hang.to_string())
    };

    let made = "the manifests are valid";
    let (name, volume_name) = if kind == Kind::Ephemeral { ("p-data", "v") } else { ("c", "v") };
    let key = Key::namespaced("default", name);
    if class(kind).is_none() {
        admin.create(kinds::VOLUME, volume(kind)).await.expect(made);
    }
    // The default comes after the claim that it is given to.
    let class = class(kind);
    if let Some(class) = class.clone().filter(|_| kind != Kind::Retroactive) {
        admin.create(kinds::STORAGE_CLASS, class).await.expect(made);
    }
    if kind == Kind::Ephemeral {
        admin.create(kinds::POD, pod()).await.expect(made);
    } else {
        admin.create(kinds::CLAIM, claim(kind)).await.expect(made);
    }
    if let Some(class) = class.filter(|_| kind == Kind::Retroactive) {
        admin.create(kinds::STORAGE_CLASS, class).await.expect(made);
    }
    if kind == Kind::Late {
        world.settle().await;
        let waiting: Claim = admin.get(&key).expect("nobody deletes it");
        if waiting.storage_provisioner().is_some() || waiting.names_volume() {
            wrong.push("a volume was asked for before a node was selected".into());
        }
        let selected = json!({ "metadata": { "annotations": { annotations::SELECTED_NODE: "node" } } });
        admin.patch(kinds::CLAIM, &key, "", &selected).await.expect("a scheduler may annotate a claim");
    }
    let bound = || {
        let claim: Option<Claim> = admin.get(&key);
        claim.is_some_and(|claim| claim.status.phase == ClaimPhase::Bound && claim.is_fully_bound())
            && admin.list::<Volume>().iter().any(|volume| volume.status.phase == VolumePhase::Bound)
    };
    until("the claim Bound", &mut { bound }).await?;
    let disagreeing = || -> Vec<String> {
        let violations = world.observe().violations();
        violations.iter().filter(|found| found.id == "B1").map(ToString::to_string).collect()
    };
    wrong.extend(disagreeing());
    let node = admin.get::<Claim>(&key).and_then(|claim| claim.selected_node().map(str::to_owned));
    if node.is_some() != (kind == Kind::Late) {
        wrong.push(format!("node {node:?} is selected"));
    }
    if kind == Kind::Own {
        // A pod has written to where the volume says.
        let volumes = admin.list_raw(kinds::VOLUME);
        let path = volumes[0]["spec"]["hostPath"]["path"].as_str().expect("the service makes hostPath volumes");
        *files.lock().unwrap() = files_in(path);
    }
    if files.lock().unwrap().len() != 3 {
        wrong.push("files of a volume in use are gone".into());
    }

    if kind == Kind::Ephemeral {
        admin.delete(kinds::POD, &Key::namespaced("default", "p")).await.expect("a pod can be deleted");
    } else {
        admin.delete(kinds::CLAIM, &key).await.expect("a claim can be deleted");
    }
    let phase = || admin.get::<Volume>(&Key::cluster(volume_name)).map(|volume| volume.status.phase);
    let gone = || !admin.exists(kinds::CLAIM, &key);
    let over = || match kind {
        Kind::Static | Kind::PreBound | Kind::Named | Kind::Ephemeral => phase() == Some(VolumePhase::Released),
        Kind::Dynamic | Kind::Retroactive | Kind::Late | Kind::Own | Kind::ReleasedDelete => {
            admin.list_raw(kinds::VOLUME).is_empty()
        }
        Kind::RecyclePlugin | Kind::RecycleNfs | Kind::RecyclePod => {
            let volume: Option<Volume> = admin.get(&Key::cluster(volume_name));
            let pods = admin.list_raw(kinds::POD);
            phase() == Some(VolumePhase::Available)
                && volume.is_some_and(|v| v.spec.claim_ref.is_none())
                && pods.is_empty()
        }
    };
    until("the end of the life", &mut || gone() && over()).await?;
    world.settle().await;
    wrong.extend(disagreeing());
    let erased = matches!(kind, Kind::Own | Kind::ReleasedDelete | Kind::RecyclePlugin | Kind::RecycleNfs);
    let left = files.lock().unwrap().len();
    if erased != (left == 0) {
        wrong.push(format!("{left} files are left"));
    }
    wrong.extend(unbound.lock().unwrap().iter().cloned());
    Ok(())
}

fn cases(points: &[Point]) -> Vec<Fault> {
    let mut cases = Vec::new();
    for point in points.iter().filter(|point| point.service == SERVICE) {
        let modes = if point.port == Port::Node { &[Mode::Before, Mode::After][..] } else { &Mode::ALL[..] };
        cases.extend(modes.iter().map(|mode| Fault { service: SERVICE.into(), number: point.number, mode: *mode }));
    }
    cases
}

struct Swept {
    points: usize,
    cases: usize,
    looks: usize,
}

/// Plays the life without faults, then once with every fault.
fn sweep(kind: Kind) -> Swept {
    let plain = play(kind, None);
    assert!(plain.wrong.is_empty(), "{kind:?} without faults: {}", plain.wrong.join("\n"));
    let cases = cases(&plain.points);
    let (next, looks) = (AtomicUsize::new(0), AtomicUsize::new(plain.looks));
    let failed = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let played = play(kind, Some(case.clone()));
                    looks.fetch_add(played.looks, Ordering::Relaxed);
                    if !played.wrong.is_empty() {
                        failed.lock().unwrap().push(format!("{kind:?} {case}: {}", played.wrong.join("\n")));
                    }
                }
            });
        }
    });
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {} cases failed:\n{}", failed.len(), cases.len(), failed.join("\n\n"));
    Swept { points: plain.points.len(), cases: cases.len(), looks: looks.into_inner() }
}

#[test]
fn every_life_of_a_volume_survives_every_crash_of_the_controller() {
    let begin = Instant::now();
    let (mut points, mut cases, mut looks) = (0, 0, 0);
    for kind in LIVES {
        let swept = sweep(kind);
        tell(&format!("{kind:?}: {} points, {} cases, 0 failed", swept.points, swept.cases));
        points += swept.points;
        cases += swept.cases;
        looks += swept.looks;
    }
    let took = begin.elapsed();
    tell(&format!("binder: {points} points, {cases} cases swept in {took:.1?}, 0 failed; B1 held at {looks} looks"));
    assert!(cases >= LEAST, "only {cases} cases");
}

#[test]
fn every_life_without_faults_needs_no_time() {
    for kind in LIVES {
        block_on(async {
            let world = World::new(SEED);
            let mut wrong = Vec::new();
            let begin = world.elapsed();
            story(&world, kind, None, &mut wrong, &Arc::default())
                .await
                .unwrap_or_else(|hang| panic!("{kind:?}: {hang}"));
            // `settle` itself lets one millisecond pass.
            let settled = if kind == Kind::Late { 2 } else { 1 };
            assert!(world.elapsed() - begin <= Duration::from_millis(settled), "{kind:?} waited for a timer");
            assert_eq!(wrong, Vec::<String>::new(), "{kind:?}");
        });
    }
}
