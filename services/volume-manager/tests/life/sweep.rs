//! The volume manager stopped at every point of a volume's life on the node, in every way, and the node spoiled there:
//! rebooted, its mounts held, its targets taken away, its metadata cut off or lost.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tonic::service::Routes;

use stowage_csi::registration::registration_server::RegistrationServer;
use stowage_csi::v1::node_server::NodeServer;
use stowage_model::claim::Claim;
use stowage_model::node::Node;
use stowage_model::object::{Key, kinds};
use stowage_model::phase::PodPhase;
use stowage_model::pod::Pod;
use stowage_model::{Kind, VolumeAttachment, names};
use stowage_mount::{Hold, Holder};
use stowage_testing::invariants::KUBELET_ROOT;
use stowage_testing::mounter::Tree;
use stowage_testing::{Fault, Hang, Listening, MemoryMounter, Mode, Point, Port, World};
use volume_manager::Options;
use volume_manager::plugin_watcher::{PluginEvent, PluginSource};

use crate::driver::{NAME, REGISTRATION};
use crate::model::{Model, SOCKET};
use crate::stage::{HANDLE, UNIQUE};

const NODE: &str = "node";
const SERVICE: &str = "volume-manager";
const GROUP: u32 = 2000;

/// No step takes longer in virtual time, whatever happens: backoffs end at two minutes.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// Of all cases only every so manieth is played, unless this says another number; 1 plays all, which takes minutes.
const EVERY: &str = "STOWAGE_SWEEP_EVERY";
const ORDINARY: usize = 5;

/// Only this life is played, if it says one.
const ONLY: &str = "STOWAGE_SWEEP_LIFE";

/// For how long mounts are held, and a driver is away.
const HELD: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    /// Mounted, grown in use, unmounted.
    Grown,
    /// Mounted, and published again because its driver's object changed.
    Remounted,
    TwoPods,
    Device,
    Inline,
    /// Its files are given to a group.
    Group,
    /// The node attaches and detaches it itself.
    Attached,
}

const LIVES: [Life; 7] =
    [Life::Grown, Life::Remounted, Life::TwoPods, Life::Device, Life::Inline, Life::Group, Life::Attached];

impl Life {
    fn pods(self) -> &'static [&'static str] {
        if self == Self::TwoPods { &["one", "two"] } else { &["one"] }
    }

    fn is_attached(self) -> bool {
        self != Self::Inline
    }
}

/// What happens to the node at the fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Twist {
    Nothing,
    Reboot,
    Busy,
    TargetGone,
    MetadataEmpty,
    MetadataCut,
    MetadataGone,
    /// The driver is stopped at whatever it does, and comes back a moment later.
    DriverRestarted,
}

impl Twist {
    const STOPPED: [Self; 7] = [
        Self::Nothing,
        Self::Reboot,
        Self::Busy,
        Self::TargetGone,
        Self::MetadataEmpty,
        Self::MetadataCut,
        Self::MetadataGone,
    ];
    const ALIVE: [Self; 3] = [Self::Nothing, Self::Busy, Self::DriverRestarted];
    const ANSWER_LOST: [Self; 2] = [Self::Nothing, Self::DriverRestarted];

    /// What cannot be read any more is never taken for nothing: it may stay, as long as it is said to be in use.
    fn may_stay(self) -> bool {
        matches!(self, Self::MetadataEmpty | Self::MetadataCut | Self::MetadataGone)
    }

    fn spoil(self, node: &MemoryMounter) {
        let targets = |tree: &Tree| tree.mounts().iter().map(|mount| mount.target.clone()).collect::<Vec<_>>();
        let data = |tree: &Tree| {
            let all = tree.below(Path::new(KUBELET_ROOT)).filter(|path| path.ends_with("vol_data.json"));
            all.map(Path::to_owned).collect::<Vec<_>>()
        };
        node.with(|tree| match self {
            Self::Nothing | Self::DriverRestarted => {}
            Self::Reboot => tree.reboot(),
            Self::Busy => targets(tree).iter().for_each(|target| {
                tree.hold(target, Holder { pid: 7, name: "editor".into(), how: Hold::WorkingDirectory })
            }),
            Self::TargetGone => {
                for target in targets(tree).into_iter().filter(|target| target.starts_with(pods_dir())) {
                    tree.unmount_lazily(&target).unwrap();
                    tree.remove_dir(&target).unwrap();
                }
            }
            Self::MetadataEmpty => {
                data(tree).iter().for_each(|file| tree.write_file_with(file, b"", 0o644).unwrap());
            }
            Self::MetadataGone => data(tree).iter().for_each(|file| tree.remove_file(file).unwrap()),
            Self::MetadataCut => {
                for file in data(tree) {
                    let bytes = tree.read_file(&file).unwrap().unwrap();
                    tree.write_file_with(&file, &bytes[..bytes.len() / 2], 0o644).unwrap();
                }
            }
        });
    }
}

fn pods_dir() -> PathBuf {
    Path::new(KUBELET_ROOT).join("pods")
}

#[derive(Debug, Clone)]
struct Case {
    life: Life,
    fault: Option<Fault>,
    twist: Twist,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fault = self.fault.as_ref().map(ToString::to_string).unwrap_or_default();
        write!(f, "{:?}/{fault}/{:?}", self.life, self.twist)
    }
}

#[derive(Default)]
struct Report {
    trace: Vec<Point>,
    wrong: BTreeSet<String>,
    looks: usize,
    took: Duration,
}

/// The driver as a process: the sockets it listens at, and who is told of them.
#[derive(Clone, Default)]
struct Process(Arc<Mutex<ProcessState>>);

#[derive(Default)]
struct ProcessState {
    listening: Vec<Listening>,
    watchers: Vec<mpsc::UnboundedSender<PluginEvent>>,
}

impl Process {
    fn start(&self, world: &World, model: &Model) {
        let sockets = world.sockets();
        let listening = vec![
            sockets.listen(REGISTRATION, Routes::new(RegistrationServer::new(model.clone()))),
            sockets.listen(SOCKET, Routes::new(NodeServer::new(model.clone()))),
        ];
        self.0.lock().unwrap().listening = listening;
        self.tell(PluginEvent::Appeared);
    }

    fn stop(&self) {
        self.0.lock().unwrap().listening.drain(..).for_each(Listening::close);
        self.tell(PluginEvent::Vanished);
    }

    fn tell(&self, event: fn(String) -> PluginEvent) {
        self.0.lock().unwrap().watchers.retain(|watcher| watcher.send(event(REGISTRATION.into())).is_ok());
    }
}

impl PluginSource for Process {
    fn watch(&self) -> io::Result<BoxStream<'static, io::Result<PluginEvent>>> {
        let (sender, receiver) = mpsc::unbounded_channel();
        let mut state = self.0.lock().unwrap();
        if !state.listening.is_empty() {
            sender.send(PluginEvent::Appeared(REGISTRATION.into())).unwrap();
        }
        state.watchers.push(sender);
        let events = stream::unfold(receiver, |mut receiver| async { Some((Ok(receiver.recv().await?), receiver)) });
        Ok(events.boxed())
    }
}

fn play(case: &Case) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let world = World::new(11);
        let (model, driver) = (Model::new(world.node(NODE)), Process::default());
        let stage = Stage { model, driver, case: case.clone(), world };
        stage.run().await
    })
}

#[derive(Clone)]
struct Stage {
    world: World,
    model: Model,
    driver: Process,
    case: Case,
}

impl Stage {
    async fn run(self) -> Report {
        self.driver.start(&self.world, &self.model);
        let seen: Arc<Mutex<Report>> = Arc::default();
        let watcher = tokio::spawn(self.clone().watch(Arc::clone(&seen)));
        let controller_attach = self.case.life != Life::Attached;
        let service = tokio::spawn(keep_alive(self.world.clone(), self.driver.clone(), controller_attach));
        let attacher = tokio::spawn(self.clone().attach_what_is_wished());
        let played = self.play().await;
        watcher.abort();
        let mut report = std::mem::take(&mut *seen.lock().unwrap());
        if let Err(hang) = played {
            report.wrong.insert(format!("L1: {hang}"));
        }
        service.abort();
        attacher.abort();
        report.wrong.extend(self.model.violations());
        report.trace = self.world.trace().points();
        report.took = self.world.elapsed();
        report
    }

    async fn watch(self, seen: Arc<Mutex<Report>>) {
        loop {
            let count = self.world.changes().count();
            {
                let mut report = seen.lock().unwrap();
                report.looks += 1;
                report.wrong.extend(self.wrong());
            }
            self.world.changes().beyond(count).await;
        }
    }

    /// What must hold at every moment.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let tree = self.world.node(NODE).snapshot();
        let table = tree.mounts();
        let device = format!("/dev/{HANDLE}");
        let is_mounted = table.iter().any(|mount| mount.source == HANDLE || mount.source == device);
        let is_there = is_mounted || self.model.is_staged(HANDLE);
        let node: Option<Node> = self.world.admin().get(&Key::cluster(NODE));
        if is_there && self.case.life.is_attached() && !node.is_some_and(|node| node.is_in_use(UNIQUE)) {
            wrong.push("M2: it is mounted or staged, and the node does not say that it is in use".to_owned());
        }
        let attachment = self.attachment();
        let stays = attachment.is_some_and(|found| found.status.attached && !found.meta.is_deleting());
        if is_there && self.case.life.is_attached() && !stays {
            wrong.push("A2: it is mounted, and not attached or about to be detached".to_owned());
        }
        for path in tree.below(Path::new(KUBELET_ROOT)) {
            let target = path.ancestors().skip(1).find(|dir| dir.ends_with("mount") || dir.ends_with("globalmount"));
            if let Some(target) = target.filter(|target| table.at(target).is_none()) {
                wrong.push(format!("M1: {} was written while {} is not mounted", path.display(), target.display()));
            }
            let given = tree.stat(path).is_some_and(|about| about.gid == GROUP);
            if given && self.case.twist == Twist::Nothing && table.at(path).is_none() {
                wrong.push(format!("M1: {} was given to the group while it was not mounted", path.display()));
            }
        }
        let claim: Option<Claim> = self.world.admin().get(&key("claim"));
        let says = claim.and_then(|claim| claim.status.capacity.storage).map_or(0, |size| size.bytes());
        let has = i128::from(self.model.size(HANDLE).unwrap_or(1 << 30));
        if says > has {
            wrong.push(format!("R1: the claim says {says} bytes, the file system has {has}"));
        }
        wrong
    }

    async fn play(&self) -> Result<(), Hang> {
        self.make_objects().await;
        self.arm();
        let life = self.case.life;
        for pod in life.pods() {
            self.create(kinds::POD, self.pod(pod)).await;
        }
        if life.is_attached() {
            self.until("the volume in use", |stage| stage.node().is_some_and(|node| node.is_in_use(UNIQUE))).await?;
            if life != Life::Attached {
                self.attach().await;
            }
        }
        self.all_run().await?;
        match life {
            Life::Grown => {
                let pending = json!({ "status": {
                    "allocatedResources": { "storage": "2Gi" },
                    "allocatedResourceStatuses": { "storage": "NodeResizePending" },
                } });
                self.patch(kinds::CLAIM, "claim", "/status", pending).await;
                self.patch(kinds::VOLUME, "pv", "", json!({ "spec": { "capacity": { "storage": "2Gi" } } })).await;
                let grown = |stage: &Self| {
                    let claim: Option<Claim> = stage.world.admin().get(&key("claim"));
                    claim.is_some_and(|claim| claim.status.capacity.storage.is_some_and(|size| size.bytes() == 2 << 30))
                };
                self.until("the claim grown", grown).await?;
            }
            Life::Remounted => {
                self.patch(kinds::CSI_DRIVER, NAME, "", json!({ "spec": { "podInfoOnMount": true } })).await;
                self.world.settle().await;
            }
            _ => {}
        }
        self.all_run().await?;
        for pod in life.pods() {
            self.world.admin().delete(kinds::POD, &key(pod)).await.unwrap();
            let gone = self.until("the pod gone", |stage| !stage.world.admin().exists(kinds::POD, &key(pod))).await;
            if gone.is_err() && self.case.twist.may_stay() {
                return Ok(());
            }
            gone?;
        }
        let ended = self.until("nothing left", |stage| stage.left().is_empty()).await;
        if self.case.twist.may_stay() { Ok(()) } else { ended }
    }

    /// Running, and mounted, or mapped, in the kernel's eyes.
    async fn all_run(&self) -> Result<(), Hang> {
        self.until("the pods Running with their volumes", |stage| {
            let table = stage.world.node(NODE).snapshot().mounts();
            stage.case.life.pods().iter().all(|name| {
                let pod: Option<Pod> = stage.world.admin().get(&key(name));
                let Some(pod) = pod.filter(|pod| pod.status.phase == PodPhase::Running) else { return false };
                let uid = &pod.meta.uid;
                let mounted = |mount: &&stowage_mount::Mount| {
                    let target = &mount.target;
                    target.starts_with(pods_dir().join(uid)) || target.ends_with(Path::new("dev").join(uid))
                };
                table.iter().any(|mount| mounted(&mount))
            })
        })
        .await
    }

    fn left(&self) -> Vec<String> {
        let tree = self.world.node(NODE).snapshot();
        let mut left: Vec<String> = tree.mounts().iter().map(|mount| mount.target.display().to_string()).collect();
        let csi = Path::new(KUBELET_ROOT).join("plugins/kubernetes.io/csi");
        let staging = csi.join(NAME);
        let devices = csi.join("volumeDevices");
        for dir in [pods_dir(), staging, devices.join("pv"), devices.join("staging"), devices.join("publish")] {
            left.extend(tree.below(&dir).map(|path| path.display().to_string()));
        }
        let in_use = self.node().is_some_and(|node| node.is_in_use(UNIQUE));
        left.extend(in_use.then(|| "volumesInUse".to_owned()));
        left.extend(self.model.is_staged(HANDLE).then(|| "a staged device".to_owned()));
        let detaches = self.case.life == Life::Attached;
        left.extend((detaches && self.attachment().is_some()).then(|| "the attachment".to_owned()));
        left
    }

    fn arm(&self) {
        let Some(fault) = self.case.fault.clone() else { return };
        let (twist, node, stage) = (self.case.twist, self.world.node(NODE), self.clone());
        let at_fault = move || {
            let (node, stage) = (node.clone(), stage.clone());
            async move {
                twist.spoil(&node);
                if twist == Twist::Reboot {
                    stage.model.reboot();
                }
                if twist == Twist::DriverRestarted {
                    stage.driver.stop();
                    tokio::spawn(async move {
                        tokio::time::sleep(HELD).await;
                        stage.driver.start(&stage.world, &stage.model);
                    });
                }
                if twist == Twist::Busy {
                    tokio::spawn(async move {
                        tokio::time::sleep(HELD).await;
                        node.with(|tree| {
                            let targets: Vec<_> = tree.mounts().iter().map(|mount| mount.target.clone()).collect();
                            targets.iter().for_each(|target| tree.release(target));
                        });
                    });
                }
            }
            .boxed()
        };
        self.world.arm(fault, Some(Arc::new(at_fault)));
    }

    async fn until(&self, what: &str, look: impl Fn(&Self) -> bool) -> Result<(), Hang> {
        let limit = if self.case.twist.may_stay() { LIMIT / 10 } else { LIMIT };
        self.world.until(what, limit, || look(self)).await
    }

    fn node(&self) -> Option<Node> {
        self.world.admin().get(&Key::cluster(NODE))
    }

    async fn create(&self, kind: Kind, body: Value) -> Value {
        self.world.admin().create(kind, body).await.unwrap()
    }

    async fn patch(&self, kind: Kind, name: &str, part: &str, body: Value) {
        let key = if kind.namespaced { key(name) } else { Key::cluster(name) };
        self.world.admin().patch(kind, &key, part, &body).await.unwrap();
    }

    async fn make_objects(&self) {
        let life = self.case.life;
        let spec = json!({
            "attachRequired": true, "fsGroupPolicy": "File", "requiresRepublish": life == Life::Remounted,
            "volumeLifecycleModes": ["Persistent", "Ephemeral"],
        });
        self.create(kinds::CSI_DRIVER, json!({ "metadata": { "name": NAME }, "spec": spec })).await;
        let bound = json!({ "pv.kubernetes.io/bind-completed": "yes" });
        let spec = json!({
            "accessModes": ["ReadWriteOnce"], "volumeName": "pv", "storageClassName": "",
            "resources": { "requests": { "storage": "1Gi" } },
        });
        let metadata = json!({ "name": "claim", "namespace": "default", "annotations": bound });
        let claim = self.create(kinds::CLAIM, json!({ "metadata": metadata, "spec": spec })).await;
        let status = json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } });
        self.patch(kinds::CLAIM, "claim", "/status", status).await;
        let mode = if life == Life::Device { "Block" } else { "Filesystem" };
        let spec = json!({
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "volumeMode": mode,
            "claimRef": { "namespace": "default", "name": "claim", "uid": claim["metadata"]["uid"] },
            "csi": { "driver": NAME, "volumeHandle": HANDLE },
        });
        self.create(kinds::VOLUME, json!({ "metadata": { "name": "pv" }, "spec": spec })).await;
    }

    fn pod(&self, name: &str) -> Value {
        let life = self.case.life;
        let container = match life {
            Life::Device => {
                json!({ "name": "c", "image": "i", "volumeDevices": [{ "name": "v", "devicePath": "/d" }] })
            }
            _ => json!({ "name": "c", "image": "i", "volumeMounts": [{ "name": "v", "mountPath": "/d" }] }),
        };
        let volume = match life {
            Life::Inline => json!({ "name": "v", "csi": { "driver": NAME } }),
            _ => json!({ "name": "v", "persistentVolumeClaim": { "claimName": "claim" } }),
        };
        let mut spec = json!({ "nodeName": NODE, "containers": [container], "volumes": [volume] });
        if life == Life::Group {
            spec["securityContext"]["fsGroup"] = GROUP.into();
        }
        json!({ "metadata": { "name": name, "namespace": "default" }, "spec": spec })
    }

    fn attachment(&self) -> Option<VolumeAttachment> {
        self.world.admin().get(&Key::cluster(names::attachment(HANDLE, NAME, NODE)))
    }

    /// What a driver's attacher does: a wish is fulfilled, and one that is withdrawn is let go.
    async fn attach_what_is_wished(self) {
        let name = names::attachment(HANDLE, NAME, NODE);
        loop {
            let count = self.world.changes().count();
            match self.attachment().filter(|_| self.case.life == Life::Attached) {
                Some(found) if found.meta.is_deleting() && !found.meta.finalizers.is_empty() => {
                    let free = json!({ "metadata": { "finalizers": null } });
                    self.patch(kinds::VOLUME_ATTACHMENT, &name, "", free).await;
                }
                Some(found) if !found.meta.is_deleting() && found.meta.finalizers.is_empty() => {
                    let held = json!({ "metadata": { "finalizers": ["external-attacher/driver"] } });
                    self.patch(kinds::VOLUME_ATTACHMENT, &name, "", held).await;
                }
                Some(found) if !found.meta.is_deleting() && !found.status.attached => {
                    let attached = json!({ "status": { "attached": true } });
                    self.patch(kinds::VOLUME_ATTACHMENT, &name, "/status", attached).await;
                }
                _ => self.world.changes().beyond(count).await,
            }
        }
    }

    async fn attach(&self) {
        let name = names::attachment(HANDLE, NAME, NODE);
        let source = json!({ "persistentVolumeName": "pv" });
        let spec = json!({ "attacher": NAME, "nodeName": NODE, "source": source });
        self.create(kinds::VOLUME_ATTACHMENT, json!({ "metadata": { "name": name }, "spec": spec })).await;
        let attached = json!({ "status": { "attached": true } });
        self.patch(kinds::VOLUME_ATTACHMENT, &name, "/status", attached).await;
        let listed = json!({ "status": { "volumesAttached": [{ "name": UNIQUE, "devicePath": "" }] } });
        self.patch(kinds::NODE, NODE, "/status", listed).await;
    }
}

fn key(name: &str) -> Key {
    Key::namespaced("default", name)
}

/// A service that is stopped begins a new life at once.
async fn keep_alive(world: World, driver: Process, controller_attach: bool) {
    loop {
        let life = world.life(SERVICE);
        let options =
            Options { node_name: NODE.into(), root: KUBELET_ROOT.into(), controller_attach, ..Options::default() };
        let run = volume_manager::run(life.context.clone(), life.mounter(NODE), Arc::new(driver.clone()), options);
        let mut running = tokio::task::JoinSet::new();
        running.spawn(run);
        tokio::select! {
            biased;
            () = life.gate.stopped() => {}
            _ = running.join_next() => tokio::time::sleep(Duration::from_secs(1)).await,
        }
        running.shutdown().await;
    }
}

fn cases(life: Life, trace: &[Point]) -> Vec<Case> {
    let mut cases = Vec::new();
    for point in trace.iter().filter(|point| point.service == SERVICE) {
        // Losing only the answer of a local system call is the same as being stopped after it.
        let modes = match point.port {
            Port::Node => &[Mode::Before, Mode::After, Mode::RequestLost][..],
            Port::Api | Port::Csi => &Mode::ALL[..],
        };
        for mode in modes {
            // What a spoiled node looks like does not depend on how the service died, nor on what it said to the API.
            let twists = match (mode, point.port) {
                (_, Port::Api) => &[Twist::Nothing][..],
                (Mode::After, _) => &Twist::STOPPED,
                (Mode::RequestLost, _) => &Twist::ALIVE,
                (Mode::AnswerLostAlive, _) => &Twist::ANSWER_LOST,
                _ => &[Twist::Nothing],
            };
            let fault = Fault { service: SERVICE.into(), number: point.number, mode: *mode };
            cases.extend(twists.iter().map(|twist| Case { life, fault: Some(fault.clone()), twist: *twist }));
        }
    }
    cases
}

/// Plays all cases on all cores; says how many looks there were, and which cases failed.
fn sweep(cases: Vec<Case>) -> (usize, Vec<(String, String)>) {
    let (next, cases) = (Arc::new(AtomicUsize::new(0)), Arc::new(cases));
    let workers = (0..std::thread::available_parallelism().map_or(2, usize::from)).map(|_| {
        let (next, cases) = (Arc::clone(&next), Arc::clone(&cases));
        std::thread::spawn(move || {
            let (mut looks, mut failed) = (0, Vec::new());
            while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                let report = play(case);
                looks += report.looks;
                if !report.wrong.is_empty() {
                    failed.push((case.to_string(), report.wrong.into_iter().collect::<Vec<_>>().join("\n")));
                }
            }
            (looks, failed)
        })
    });
    let workers: Vec<_> = workers.collect();
    let (mut looks, mut failed) = (0, Vec::new());
    for worker in workers {
        let (seen, wrong) = worker.join().unwrap();
        looks += seen;
        failed.extend(wrong);
    }
    (looks, failed)
}

#[test]
fn every_life_of_a_volume_on_a_node_survives_every_crash_and_every_spoiled_node() {
    let begin = Instant::now();
    if let Ok(text) = std::env::var("STOWAGE_SWEEP_CASE") {
        let life = LIVES.into_iter().find(|life| text.starts_with(&format!("{life:?}/"))).unwrap();
        let plain = play(&Case { life, fault: None, twist: Twist::Nothing });
        let case = cases(life, &plain.trace).into_iter().find(|case| case.to_string() == text).unwrap();
        let report = play(&case);
        let lines: Vec<String> = report.trace.iter().map(ToString::to_string).collect();
        assert!(report.wrong.is_empty(), "{}\n{:#?}", lines.join("\n"), report.wrong);
        return;
    }
    let every = std::env::var(EVERY).ok().map_or(ORDINARY, |text| text.parse().unwrap());
    let (mut points, mut all, mut looks, mut failed) = (0, 0, 0, Vec::new());
    let only = std::env::var(ONLY).ok();
    for life in LIVES.into_iter().filter(|life| only.as_ref().is_none_or(|only| format!("{life:?}") == *only)) {
        let plain = play(&Case { life, fault: None, twist: Twist::Nothing });
        assert!(plain.wrong.is_empty(), "{life:?} without faults: {:#?}", plain.wrong);
        let swept: Vec<Case> = cases(life, &plain.trace).into_iter().step_by(every).collect();
        points += plain.trace.len();
        all += swept.len();
        let count = swept.len();
        let (seen, wrong) = sweep(swept);
        let _ = writeln!(io::stderr(), "{life:?}: {count} cases, {} failed, {:.1?}", wrong.len(), begin.elapsed());
        looks += seen;
        failed.extend(wrong);
    }
    let (took, bad) = (begin.elapsed(), failed.len());
    // Past the harness, which shows what a passing test prints to nobody.
    let _ = writeln!(
        io::stderr(),
        "node: {points} points, {all} cases swept in {took:.1?}, {bad} failed; M1, M2 and R1 held at {looks} looks"
    );
    for (case, wrong) in failed.iter().take(3) {
        let _ = writeln!(io::stderr(), "{case}\n{wrong}\n");
    }
    let line = |(case, wrong): &(String, String)| format!("{case}: {}", wrong.lines().next().unwrap_or_default());
    assert!(
        failed.is_empty(),
        "{bad} of {all} cases failed:\n{}",
        failed.iter().map(line).collect::<Vec<_>>().join("\n")
    );
    assert!(all * every > if only.is_some() { 100 } else { 500 }, "only {all} cases");
}
