//! The attacher against the embedded API server and a slow driver in memory: one thread, virtual time, no sockets.
//! Sections 3.5, 3.8 and 12.2 of reference/sidecars-and-csi.md.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "life/backend.rs"]
mod backend;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use attacher::Options;
use stowage_model::object::{Key, kinds};
use stowage_model::{VolumeAttachment, annotations, finalizers};
use stowage_testing::{Fault, Listening, Mode, Port, World};

use backend::{Backend, DRIVER};

const SOCKET: &str = "/csi.sock";
const NODE: &str = "node-1";
const LIMIT: Duration = Duration::from_secs(3600);

/// What happens at a fault.
type AtFault = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

struct Stage {
    world: World,
    backend: Backend,
    _listening: Listening,
}

impl Stage {
    async fn set(backend: Backend) -> Self {
        let world = World::new(5);
        let listening = world.sockets().listen(SOCKET, backend.routes());
        let drivers = json!([{ "name": backend.name(), "nodeID": "id-1", "topologyKeys": [] }]);
        let node = json!({ "metadata": { "name": NODE }, "spec": { "drivers": drivers } });
        world.admin().create(kinds::CSI_NODE, node).await.unwrap();
        Self { world, backend, _listening: listening }
    }

    async fn make_volume(&self, name: &str) {
        let volume = json!({
            "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                "csi": { "driver": DRIVER, "volumeHandle": format!("handle-{name}") },
            },
        });
        self.world.admin().create(kinds::VOLUME, volume).await.unwrap();
    }

    async fn attach(&self, name: &str, metadata: Value) {
        let mut whole = json!({ "name": format!("va-{name}") });
        whole.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        let source = json!({ "persistentVolumeName": name });
        let spec = json!({ "attacher": DRIVER, "nodeName": NODE, "source": source });
        let attachment = json!({ "metadata": whole, "spec": spec });
        self.world.admin().create(kinds::VOLUME_ATTACHMENT, attachment).await.unwrap();
    }

    /// One that was attached long ago and is to be detached.
    async fn make_going(&self, name: &str) {
        self.make_volume(name).await;
        let marked = json!({
            "finalizers": [finalizers::attacher(DRIVER)], "annotations": { annotations::ATTACHMENT_NODE_ID: "id-1" },
        });
        self.attach(name, marked).await;
        let key = Key::cluster(format!("va-{name}"));
        let status = json!({ "status": { "attached": true } });
        self.world.admin().patch(kinds::VOLUME_ATTACHMENT, &key, "/status", &status).await.unwrap();
        self.world.admin().delete(kinds::VOLUME_ATTACHMENT, &key).await.unwrap();
    }

    fn attachment(&self, name: &str) -> VolumeAttachment {
        self.world.admin().get(&Key::cluster(format!("va-{name}"))).unwrap()
    }

    async fn until(&self, what: &str, look: impl FnMut() -> bool) {
        self.world.until(what, LIMIT, look).await.unwrap_or_else(|hang| panic!("{} after {:?}", hang.what, hang.after));
    }

    async fn play(&self, options: Options, story: impl Future<Output = ()>) {
        let life = self.world.life("attacher");
        tokio::select! {
            biased;
            ended = attacher::run(life.context.clone(), options) => panic!("{ended:?}"),
            () = story => {}
        }
    }

    /// What the attacher has written so far, verb and kind of object.
    fn writes(&self) -> Vec<String> {
        let points = self.world.trace().points();
        let ours = points.iter().filter(|point| point.service == "attacher" && point.port == Port::Api);
        let words = ours.map(|point| point.what.split(' ').take(2).collect::<Vec<_>>().join(" "));
        words.filter(|what| !what.starts_with("GET")).collect()
    }
}

fn options() -> Options {
    let mut options = Options::default();
    options.driver.csi_address = SOCKET.into();
    options
}

#[tokio::test(start_paused = true)]
async fn calls_for_volumes_that_were_an_in_tree_plugins_are_counted_as_migrated() {
    const EBS: &str = "ebs.csi.aws.com";
    let stage = Stage::set(Backend { name: Some(EBS), ..Backend::default() }).await;
    let admin = stage.world.admin();
    let migrated = json!({ "pv.kubernetes.io/migrated-to": EBS });
    for (name, annotations, source) in [
        ("own", json!({}), json!({ "csi": { "driver": EBS, "volumeHandle": "vol-1" } })),
        ("plugins", migrated, json!({ "awsElasticBlockStore": { "volumeID": "vol-2" } })),
    ] {
        let mut spec = json!({ "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"] });
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        let volume = json!({ "metadata": { "name": name, "annotations": annotations }, "spec": spec });
        admin.create(kinds::VOLUME, volume).await.unwrap();
    }
    let inline = json!({ "accessModes": ["ReadWriteOnce"], "csi": { "driver": EBS, "volumeHandle": "vol-3" } });
    for (name, source) in [
        ("own", json!({ "persistentVolumeName": "own" })),
        ("plugins", json!({ "persistentVolumeName": "plugins" })),
        ("pods", json!({ "inlineVolumeSpec": inline })),
    ] {
        let spec = json!({ "attacher": EBS, "nodeName": NODE, "source": source });
        let attachment = json!({ "metadata": { "name": format!("va-{name}") }, "spec": spec });
        admin.create(kinds::VOLUME_ATTACHMENT, attachment).await.unwrap();
    }
    let life = stage.world.life("attacher");
    let names = ["own", "plugins", "pods"];
    tokio::select! {
        biased;
        ended = attacher::run(life.context.clone(), options()) => panic!("{ended:?}"),
        () = stage.until("attached", || names.iter().all(|name| stage.attachment(name).status.attached)) => {}
    }
    let metrics = life.context.metrics.encode();
    let count = |is_migrated: &str| {
        let of = |line: &&str| {
            line.starts_with("csi_sidecar_operations_seconds_count")
                && line.contains("ControllerPublishVolume")
                && line.contains(&format!("migrated=\"{is_migrated}\""))
        };
        metrics.lines().find(of).and_then(|line| line.rsplit(' ').next()).map(str::to_owned)
    };
    assert_eq!((count("false").as_deref(), count("true").as_deref()), (Some("1"), Some("2")), "{metrics}");
}

/// How long each of a hundred attaches took, sorted, while so many detaches of five seconds each wait.
async fn attach_times(detaches: usize) -> Vec<Duration> {
    let takes = Duration::from_millis(100);
    let backend = Backend { publish_takes: takes, unpublish_takes: Duration::from_secs(5), ..Backend::default() };
    let stage = Stage::set(backend).await;
    for n in 0..detaches {
        stage.make_going(&format!("old{n}")).await;
    }
    for n in 0..100 {
        stage.make_volume(&format!("new{n}")).await;
    }
    let mut times = Vec::new();
    stage
        .play(options(), async {
            stage.world.settle().await;
            assert_eq!(stage.backend.lock().detaching, detaches.min(10));
            let begin = Instant::now();
            for n in 0..100 {
                stage.attach(&format!("new{n}"), json!({})).await;
            }
            stage.until("attached", || stage.backend.lock().attached_at.len() == 100).await;
            stage.world.settle().await;
            assert!((0..100).all(|n| stage.attachment(&format!("new{n}")).status.attached));
            times = stage.backend.lock().attached_at.iter().map(|at| *at - begin).collect();
            let state = stage.backend.lock();
            assert_eq!(
                state.most_detaching,
                detaches.min(10),
                "as many calls of one sort at once as there are workers"
            );
        })
        .await;
    times.sort();
    times
}

#[tokio::test(start_paused = true)]
async fn a_thousand_slow_detaches_do_not_delay_an_attach() {
    let (alone, in_burst) = (attach_times(0).await, attach_times(1000).await);
    assert_eq!(alone[98], Duration::from_secs(1), "a hundred attaches of 100 ms, ten at a time");
    assert_eq!(in_burst[98], alone[98], "the 99th of a hundred");
}

#[tokio::test(start_paused = true)]
async fn the_backlog_is_shown_with_its_age() {
    let backend = Backend { unpublish_takes: Duration::from_secs(5), ..Backend::default() };
    let stage = Stage::set(backend).await;
    for n in 0..25 {
        stage.make_going(&format!("old{n}")).await;
    }
    let life = stage.world.life("attacher");
    let metrics = life.context.metrics.clone();
    let shown = |line: &str| assert!(metrics.encode().lines().any(|l| l == line), "no {line} in {}", metrics.encode());
    tokio::select! {
        biased;
        ended = attacher::run(life.context.clone(), options()) => panic!("{ended:?}"),
        () = async {
            tokio::time::sleep(Duration::from_secs(4)).await;
            assert_eq!(stage.backend.lock().detaching, 10);
            shown("stowage_attacher_backlog{lane=\"detach\"} 15");
            shown("stowage_attacher_backlog_age_seconds{lane=\"detach\"} 4.0");
            shown("stowage_attacher_backlog{lane=\"attach\"} 0");
            stage.until("detached", || stage.world.admin().list_raw(kinds::VOLUME_ATTACHMENT).is_empty()).await;
            shown("stowage_attacher_backlog{lane=\"detach\"} 0");
            shown("stowage_attacher_backlog_age_seconds{lane=\"detach\"} 0.0");
        } => {}
    }
}

#[tokio::test(start_paused = true)]
async fn an_attach_is_two_writes_and_one_more_for_a_volume_that_was_never_attached() {
    let stage = Stage::set(Backend::default()).await;
    stage.make_volume("a").await;
    stage
        .play(options(), async {
            stage.attach("a", json!({})).await;
            stage.until("attached", || stage.attachment("a").status.attached).await;
            stage.world.settle().await;
            let attachment = "PATCH /apis/storage.k8s.io/v1/volumeattachments/va-a";
            let status = format!("{attachment}/status");
            assert_eq!(stage.writes(), ["PATCH /api/v1/persistentvolumes/a", attachment, &status]);

            stage.world.admin().delete(kinds::VOLUME_ATTACHMENT, &Key::cluster("va-a")).await.unwrap();
            let gone = || !stage.world.admin().exists(kinds::VOLUME_ATTACHMENT, &Key::cluster("va-a"));
            stage.until("detached", gone).await;
            stage.world.settle().await;
            assert_eq!(stage.writes()[3..], [attachment], "a detach is one");

            stage.attach("a", json!({})).await;
            stage.until("attached again", || stage.attachment("a").status.attached).await;
            stage.world.settle().await;
            assert_eq!(stage.writes()[4..], [attachment, &status]);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_was_detached_behind_our_back_is_attached_again() {
    let stage = Stage::set(Backend::default()).await;
    for name in ["a", "b", "c"] {
        stage.make_volume(name).await;
    }
    let options = Options { max_entries: 1, reconcile_sync: Duration::from_secs(30), ..options() };
    stage
        .play(options, async {
            for name in ["a", "b", "c"] {
                stage.attach(name, json!({})).await;
            }
            stage.until("attached", || ["a", "b", "c"].iter().all(|n| stage.attachment(n).status.attached)).await;
            let written = stage.writes().len();
            tokio::time::sleep(Duration::from_secs(31)).await;
            let pages: Vec<String> = stage.backend.lock().pages.iter().map(|(_, token)| token.clone()).collect();
            assert_eq!(pages, ["", "1", "2"], "page by page");
            assert_eq!(stage.backend.lock().publishes["handle-b"], 1, "nothing is done where nothing is wrong");
            assert_eq!(stage.writes().len(), written);

            stage.backend.lock().published.remove("handle-b");
            tokio::time::sleep(Duration::from_secs(30)).await;
            let state = stage.backend.lock();
            assert_eq!((state.publishes["handle-b"], state.publishes["handle-a"]), (2, 1));
            assert!(state.published.contains_key("handle-b"));
            assert!(stage.attachment("b").status.attached, "it was wanted all the time");
        })
        .await;
    assert_eq!(stage.world.numbers()["attacher"].missed_wakeups, 0);
}

impl Stage {
    /// Attached, detached, and the volume deleted; where the attachment was deleted at a fault, that part is over early.
    async fn live(&self) {
        self.make_volume("a").await;
        self.attach("a", json!({})).await;
        let admin = self.world.admin();
        let key = Key::cluster("va-a");
        let attached = || {
            let found = admin.get::<VolumeAttachment>(&key);
            found.is_none_or(|attachment| attachment.status.attached || attachment.meta.is_deleting())
        };
        self.until("attached", attached).await;
        self.world.settle().await;
        if admin.exists(kinds::VOLUME_ATTACHMENT, &key) {
            admin.delete(kinds::VOLUME_ATTACHMENT, &key).await.unwrap();
        }
        self.until("detached", || !admin.exists(kinds::VOLUME_ATTACHMENT, &key)).await;
        assert!(self.backend.lock().published.is_empty(), "published for nobody");
        let own = json!({ "metadata": { "finalizers": self.kept_by_us() } });
        admin.patch(kinds::VOLUME, &Key::cluster("a"), "", &own).await.unwrap();
        admin.delete(kinds::VOLUME, &Key::cluster("a")).await.unwrap();
        self.until("released", || !admin.exists(kinds::VOLUME, &Key::cluster("a"))).await;
    }

    /// The API server's own finalizer would wait for a controller that is not here.
    fn kept_by_us(&self) -> Vec<String> {
        let volume: stowage_model::Volume = self.world.admin().get(&Key::cluster("a")).unwrap();
        volume.meta.finalizers.into_iter().filter(|finalizer| finalizer.starts_with("external-attacher/")).collect()
    }

    /// Runs the attacher again after each time it was stopped or gave up, as its supervisor would.
    async fn keep(&self) {
        loop {
            let life = self.world.life("attacher");
            tokio::select! {
                biased;
                () = life.gate.stopped() => {}
                ended = attacher::run(life.context.clone(), options()) => assert!(ended.is_err(), "ended unasked"),
            }
        }
    }

    async fn sweep(&self) {
        tokio::select! {
            biased;
            () = self.keep() => {}
            () = self.live() => {}
        }
    }
}

/// Section 3.10, every row of it: a crash, or an answer that is lost, at each write and call, alone and with the attachment
/// deleted at that very moment.
#[tokio::test(start_paused = true)]
async fn stopped_at_any_write_or_call_of_an_attachments_life_nothing_is_left() {
    let recording = Stage::set(Backend::default()).await;
    recording.sweep().await;
    let points = recording.world.trace().points().iter().filter(|point| point.service == "attacher").count();
    let mut swept = 0;
    for number in 1..=points {
        for mode in Mode::ALL {
            for deleted in [false, true] {
                let stage = Stage::set(Backend::default()).await;
                let fault = Fault { service: "attacher".into(), number, mode };
                let world = stage.world.clone();
                let delete: AtFault = Arc::new(move || {
                    let world = world.clone();
                    Box::pin(async move {
                        let key = Key::cluster("va-a");
                        if world.admin().exists(kinds::VOLUME_ATTACHMENT, &key) {
                            world.admin().delete(kinds::VOLUME_ATTACHMENT, &key).await.unwrap();
                        }
                    })
                });
                stage.world.arm(fault.clone(), deleted.then_some(delete));
                stage.sweep().await;
                assert!(!stage.world.is_armed(), "{fault} was missed");
                swept += 1;
            }
        }
    }
    println!("{swept} lives with a fault");
    assert!(swept >= 100, "{swept}");
}
