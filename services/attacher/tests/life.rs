//! The attacher against the embedded API server and a slow driver in memory: one thread, virtual time, no sockets.
//! Sections 1.8, 3.5, 3.6, 3.8 and 12.2 of reference/sidecars-and-csi.md.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "life/backend.rs"]
mod backend;
#[path = "life/codes.rs"]
mod codes;
#[path = "life/wire.rs"]
mod wire;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Value, json};
use tokio::time::Instant;

use attacher::Options;
use stowage_model::object::{Key, kinds};
use stowage_model::{Text, VolumeAttachment, annotations, finalizers};
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
        let stage = Self { world, backend, _listening: listening };
        stage.register(NODE, "id-1").await;
        stage
    }

    async fn register(&self, node: &str, id: &str) {
        let drivers = json!([{ "name": self.backend.name(), "nodeID": id, "topologyKeys": [] }]);
        let node = json!({ "metadata": { "name": node }, "spec": { "drivers": drivers } });
        self.world.admin().create(kinds::CSI_NODE, node).await.unwrap();
    }

    /// The driver comes back on the node by another id.
    async fn move_to(&self, id: &str) {
        self.world.admin().delete(kinds::CSI_NODE, &Key::cluster(NODE)).await.unwrap();
        self.register(NODE, id).await;
    }

    async fn make_volume(&self, name: &str) {
        self.make_volume_of(name, "ReadWriteOnce").await;
    }

    async fn make_volume_of(&self, name: &str, mode: &str) {
        let volume = json!({
            "metadata": { "name": name },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": [mode],
                "csi": { "driver": DRIVER, "volumeHandle": format!("handle-{name}") },
            },
        });
        self.world.admin().create(kinds::VOLUME, volume).await.unwrap();
    }

    async fn attach(&self, name: &str, metadata: Value) {
        self.attach_to(NODE, name, name, metadata).await;
    }

    async fn attach_to(&self, node: &str, volume: &str, name: &str, metadata: Value) {
        let mut whole = json!({ "name": format!("va-{name}") });
        whole.as_object_mut().unwrap().extend(metadata.as_object().unwrap().clone());
        let source = json!({ "persistentVolumeName": volume });
        let spec = json!({ "attacher": DRIVER, "nodeName": node, "source": source });
        let attachment = json!({ "metadata": whole, "spec": spec });
        self.world.admin().create(kinds::VOLUME_ATTACHMENT, attachment).await.unwrap();
    }

    /// One that was attached long ago.
    async fn make_attached(&self, node: &str, id: &str, volume: &str, name: &str) {
        let marked = json!({
            "finalizers": [finalizers::attacher(DRIVER)], "annotations": { annotations::ATTACHMENT_NODE_ID: id },
        });
        self.attach_to(node, volume, name, marked).await;
        let status = json!({ "status": { "attached": true } });
        let key = Key::cluster(format!("va-{name}"));
        self.world.admin().patch(kinds::VOLUME_ATTACHMENT, &key, "/status", &status).await.unwrap();
    }

    /// One that was attached long ago and is to be detached.
    async fn make_going(&self, name: &str) {
        self.make_volume(name).await;
        self.make_attached(NODE, "id-1", name, name).await;
        self.detach(name).await;
    }

    async fn detach(&self, name: &str) {
        self.world.admin().delete(kinds::VOLUME_ATTACHMENT, &Key::cluster(format!("va-{name}"))).await.unwrap();
    }

    fn is_published(&self, name: &str, id: &str) -> bool {
        self.backend.lock().published.get(&format!("handle-{name}")).is_some_and(|nodes| nodes.contains(id))
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
    let counts = (count("false"), count("true"));
    assert_eq!(
        (counts.0.as_deref(), counts.1.as_deref()),
        (Some("2"), Some("1")),
        "of pods as the original: {metrics}"
    );
}

/// How long each of a hundred attaches took, sorted, while so many detaches of five seconds each wait: of a volume each, or
/// all of the same one, which is for many nodes.
async fn attach_times(detaches: usize, is_shared: bool) -> Vec<Duration> {
    let takes = Duration::from_millis(100);
    let backend = Backend { publish_takes: takes, unpublish_takes: Duration::from_secs(5), ..Backend::default() };
    let stage = Stage::set(backend).await;
    if is_shared {
        stage.make_volume_of("shared", "ReadWriteMany").await;
    }
    for n in 0..detaches {
        let name = format!("old{n}");
        match is_shared {
            true => {
                stage.make_attached(&name, &name, "shared", &name).await;
                stage.detach(&name).await;
            }
            false => stage.make_going(&name).await,
        }
    }
    for n in 0..100 {
        let name = format!("new{n}");
        match is_shared {
            true => stage.register(&name, &name).await,
            false => stage.make_volume(&name).await,
        }
    }
    let mut times = Vec::new();
    stage
        .play(options(), async {
            stage.world.settle().await;
            assert_eq!(stage.backend.lock().detaching, detaches.min(10));
            let begin = Instant::now();
            for n in 0..100 {
                let name = format!("new{n}");
                match is_shared {
                    true => stage.attach_to(&name, "shared", &name, json!({})).await,
                    false => stage.attach(&name, json!({})).await,
                }
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
    let (alone, in_burst) = (attach_times(0, false).await, attach_times(1000, false).await);
    assert_eq!(alone[98], Duration::from_secs(1), "a hundred attaches of 100 ms, ten at a time");
    assert_eq!(in_burst[98], alone[98], "the 99th of a hundred");
}

/// They used to be made one after the other, and after every detach.
#[tokio::test(start_paused = true)]
async fn slow_detaches_of_a_volume_for_many_nodes_do_not_delay_its_attaches_to_others() {
    let in_burst = attach_times(100, true).await;
    assert_eq!(in_burst[98], Duration::from_secs(1), "a hundred attaches of 100 ms, ten at a time");
}

/// Its unpublish by the old id used to be refused by our own fresh read, again and again.
#[tokio::test(start_paused = true)]
async fn a_volume_that_was_lost_with_its_nodes_old_id_is_attached_by_the_new_one() {
    for is_forgotten in [false, true] {
        let stage = Stage::set(Backend::default()).await;
        stage.make_volume("a").await;
        stage
            .play(options(), async {
                stage.attach("a", json!({})).await;
                stage.until("attached", || stage.attachment("a").status.attached).await;
                stage.backend.lock().published.clear();
                if is_forgotten {
                    stage.backend.lock().unknown.insert("id-1".into());
                }
                stage.move_to("id-2").await;
                stage.until("attached by the new id", || stage.is_published("a", "id-2")).await;
                stage.world.settle().await;
                let attachment = stage.attachment("a");
                assert!(attachment.status.attached);
                assert_eq!((attachment.node_id(), stage.backend.lock().unpublishes.len()), (Some("id-2"), 0));
            })
            .await;
    }
}

/// It was unpublished by the old id, under the pod that had it mounted.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_listed_by_its_nodes_new_id_is_left_alone() {
    let stage = Stage::set(Backend::default()).await;
    stage.make_volume("a").await;
    stage
        .play(options(), async {
            stage.attach("a", json!({})).await;
            stage.until("attached", || stage.attachment("a").status.attached).await;
            stage.move_to("id-2").await;
            stage.backend.lock().published.insert("handle-a".into(), ["id-2".to_owned()].into());
            let pages = stage.backend.lock().pages.len();
            stage.until("listed again and again", || stage.backend.lock().pages.len() > pages + 3).await;
            let state = stage.backend.lock();
            assert_eq!((state.publish_requests.len(), state.unpublish_requests.len()), (1, 0));
        })
        .await;
}

/// The driver knows no node of the old id, and used to be asked about it for ever.
#[tokio::test(start_paused = true)]
async fn a_node_that_comes_back_by_another_id_before_it_was_attached_is_attached() {
    let stage = Stage::set(Backend::default()).await;
    stage.make_volume("a").await;
    stage.backend.lock().unknown.insert("id-1".into());
    stage
        .play(options(), async {
            stage.attach("a", json!({})).await;
            stage.until("refused", || stage.attachment("a").status.attach_error.is_some()).await;
            stage.move_to("id-2").await;
            stage.until("attached", || stage.attachment("a").status.attached).await;
            assert!(stage.is_published("a", "id-2"));
            assert!(stage.attachment("a").status.attach_error.is_none());
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_detach_by_an_id_that_the_driver_forgot_is_made_by_the_new_one() {
    let stage = Stage::set(Backend::default()).await;
    stage.make_going("a").await;
    stage.move_to("id-2").await;
    {
        let mut state = stage.backend.lock();
        state.unknown.insert("id-1".into());
        state.published.insert("handle-a".into(), ["id-2".to_owned()].into());
    }
    stage
        .play(options(), async {
            let gone = || !stage.world.admin().exists(kinds::VOLUME_ATTACHMENT, &Key::cluster("va-a"));
            stage.until("detached", gone).await;
        })
        .await;
    let asked = ["id-1", "id-2"].map(|id| ("handle-a".to_owned(), id.to_owned()));
    assert_eq!(stage.backend.lock().unpublishes, asked);
    assert!(!stage.is_published("a", "id-2"));
}

/// A doubt about it used to outlive its release: an attachment that somebody else keeps was unpublished once more.
#[tokio::test(start_paused = true)]
async fn what_is_doubted_while_it_is_unpublished_is_not_unpublished_again() {
    let stage = Stage::set(Backend { unpublish_takes: Duration::from_secs(10), ..Backend::default() }).await;
    stage.make_volume("a").await;
    let options = Options { reconcile_sync: Duration::from_secs(4), ..options() };
    stage
        .play(options, async {
            stage.attach("a", json!({ "finalizers": ["example.com/somebody"] })).await;
            stage.until("attached", || stage.attachment("a").status.attached).await;
            stage.detach("a").await;
            stage.until("called", || stage.backend.lock().detaching == 1).await;
            stage.backend.lock().published.clear();
            stage.until("detached", || !stage.attachment("a").status.attached).await;
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert_eq!(stage.backend.lock().unpublishes.len(), 1);
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn what_went_wrong_while_nobody_looked_is_found_at_once() {
    let stage = Stage::set(Backend::default()).await;
    stage.make_volume("a").await;
    stage.make_attached(NODE, "id-1", "a", "a").await;
    let options = Options { reconcile_sync: Duration::from_secs(3600), ..options() };
    stage
        .play(options, async {
            let before = stage.world.elapsed();
            stage.until("published again", || stage.is_published("a", "id-1")).await;
            assert!(stage.world.elapsed() - before < Duration::from_secs(1));
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_does_not_attach_needs_no_right_to_nodes_and_is_asked_for_no_list() {
    use backend::rpc::Type;
    let calls: &[Type] = &[Type::ListVolumes, Type::ListVolumesPublishedNodes];
    let stage = Stage::set(Backend { calls: Some(calls), ..Backend::default() }).await;
    stage.make_volume("a").await;
    stage.attach("a", json!({})).await;
    let mut life = stage.world.life("attacher");
    life.forbid("GET", "/csinodes");
    tokio::select! {
        biased;
        ended = attacher::run(life.context.clone(), options()) => panic!("{ended:?}"),
        () = async {
            stage.until("attached", || stage.attachment("a").status.attached).await;
            tokio::time::sleep(Duration::from_secs(90)).await;
        } => {}
    }
    assert!(stage.backend.lock().pages.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_write_that_the_server_refuses_is_told_in_the_attachments_status() {
    let stage = Stage::set(Backend::default()).await;
    stage.make_volume("a").await;
    stage.attach("a", json!({})).await;
    let mut life = stage.world.life("attacher");
    life.forbid("PATCH", "/persistentvolumes/");
    tokio::select! {
        biased;
        ended = attacher::run(life.context.clone(), options()) => panic!("{ended:?}"),
        () = stage.until("told", || stage.attachment("a").status.attach_error.is_some()) => {}
    }
    let told = stage.attachment("a").status.attach_error.unwrap().message;
    assert!(told.starts_with("could not add PersistentVolume finalizer: "), "{told}");
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
            stage.backend.lock().pages.clear();
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

/// What the publish had given outlived a lost answer, and was saved once more instead of a call; only the doubt after that
/// one led to a call.
#[tokio::test(start_paused = true)]
async fn a_volume_that_is_lost_long_after_its_status_was_saved_without_an_answer_is_published_again() {
    let options = || Options { reconcile_sync: Duration::from_secs(30), ..options() };
    let attach = async |stage: &Stage| {
        stage.make_volume("a").await;
        stage.attach("a", json!({})).await;
        stage.until("attached", || stage.attachment("a").status.attached).await;
        stage.world.settle().await;
    };
    let recording = Stage::set(Backend::default()).await;
    recording.play(options(), attach(&recording)).await;
    let points = recording.world.trace().points();
    let saved = points.iter().find(|point| point.what.starts_with("PATCH") && point.what.contains("/va-a/status"));
    let number = saved.unwrap().number;

    let stage = Stage::set(Backend::default()).await;
    stage.world.arm(Fault { service: "attacher".into(), number, mode: Mode::AnswerLostAlive }, None);
    stage
        .play(options(), async {
            attach(&stage).await;
            assert!(!stage.world.is_armed());
            tokio::time::sleep(Duration::from_secs(86_400)).await;
            assert_eq!(stage.backend.lock().publishes["handle-a"], 1);
            stage.backend.lock().published.clear();
            tokio::time::sleep(Duration::from_secs(31)).await;
            assert_eq!(stage.backend.lock().publishes["handle-a"], 2);
            assert!(stage.is_published("a", "id-1"));
        })
        .await;
}

/// Each of its attachments used to protect the volume for itself, and all were written at once.
#[tokio::test(start_paused = true)]
async fn a_volume_for_many_nodes_is_protected_once_and_its_attachments_are_written_a_few_at_a_time() {
    const NODES: usize = 60;
    let stage = Stage::set(Backend::default()).await;
    stage.make_volume_of("shared", "ReadWriteMany").await;
    for n in 0..NODES {
        stage.register(&format!("n{n:02}"), &format!("id-n{n:02}")).await;
        stage.attach_to(&format!("n{n:02}"), "shared", &format!("{n:02}"), json!({})).await;
    }
    stage
        .play(options(), async {
            let is_attached = |n: usize| stage.attachment(&format!("{n:02}")).status.attached;
            stage.until("attached", || (0..NODES).all(is_attached)).await;
            stage.world.settle().await;
        })
        .await;
    let writes = stage.writes();
    let of_volume = writes.iter().filter(|what| what.contains("/persistentvolumes/")).count();
    assert_eq!((of_volume, writes.len()), (1, 1 + 2 * NODES), "{writes:?}");
    let saved = writes.iter().position(|what| what.ends_with("/status")).unwrap();
    assert!(saved < NODES, "the first is attached before the last is marked");
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
    fn kept_by_us(&self) -> Vec<Text> {
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
    stowage_testing::tell(&format!("{swept} lives with a fault"));
    assert!(swept >= 100, "{swept}");
}
