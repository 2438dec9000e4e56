use serde_json::{Value, json};

use stowage_csi::Channel;
use stowage_csi::identity::{ControllerCapabilities, PluginCapabilities};
use stowage_model::{VolumeSnapshotClass, VolumeSnapshotContent, annotations};
use stowage_runtime::Context;
use stowage_runtime::engine::{self, Setup};
use stowage_runtime::operation::Ended;
use stowage_runtime::tasks::Tasks;

use super::*;
use crate::decide::decide;

/// Nothing is asked of the API or of the driver here.
fn controller(tasks: &Tasks) -> (Arc<Controller>, Setup<Key>) {
    let setup = Setup::new(Context::deaf(), tasks.spawner());
    let driver = Driver {
        channel: Channel::in_process(tonic::service::Routes::default()),
        name: "d.example".into(),
        plugin: PluginCapabilities::new(),
        controller: ControllerCapabilities::from([Call::CreateDeleteSnapshot, Call::ListSnapshots]),
    };
    let controller = Arc::new(Controller::new(&setup, &driver, true, Options::default()).unwrap());
    engine::subscribe(&setup, &controller);
    (controller, setup)
}

fn content(name: &str, spoil: impl FnOnce(&mut Value)) -> VolumeSnapshotContent {
    let mut object = json!({
        "metadata": { "name": name, "uid": name, "resourceVersion": "2", "finalizers": ["f"] },
        "spec": {
            "volumeSnapshotRef": { "namespace": "shop", "name": "monday", "uid": name },
            "deletionPolicy": "Delete", "driver": "d.example", "volumeSnapshotClassName": "fast",
            "source": { "volumeHandle": "vol-1" },
        },
    });
    spoil(&mut object);
    serde_json::from_value(object).unwrap()
}

fn key(name: &str) -> Key {
    Key { sort: Sort::Snapshot, name: name.into() }
}

fn operation(name: &str, kind: Kind) -> Operation {
    Operation { subject: Subject { key: key(name), uid: name.into() }, kind }
}

fn is_doubtful(controller: &Controller, name: &str) -> bool {
    controller.calls.doubts.of(&Subject { key: key(name), uid: name.into() }).is_some()
}

#[tokio::test]
async fn what_the_first_list_shows_without_a_status_is_in_doubt_and_what_comes_later_is_not() {
    let tasks = Tasks::new();
    let (controller, _setup) = controller(&tasks);
    let contents = vec![
        content("new", |_| {}),
        content("failed", |object| object["status"] = json!({ "error": { "message": "no" } })),
        content("marked", |object| {
            object["status"] = json!({ "error": { "message": "no" } });
            object["metadata"]["annotations"] = json!({ annotations::SNAPSHOT_BEING_CREATED: "yes" });
        }),
        content("made", |object| object["status"] = json!({ "snapshotHandle": "s" })),
        content("foreign", |object| object["spec"]["driver"] = json!("other.example")),
    ];
    controller.caches.contents.relist(contents, 2);
    let later = content("later", |object| object["metadata"]["resourceVersion"] = json!("3"));
    controller.caches.contents.watched(later);
    let names = ["new", "failed", "marked", "made", "foreign", "later"];
    assert_eq!(names.map(|name| is_doubtful(&controller, name)), [true, false, true, false, false, false]);
    controller.caches.contents.relist(Vec::new(), 9);
    assert!(controller.calls.doubts.all().is_empty(), "nothing is kept of what is gone");
}

#[tokio::test]
async fn gathering_and_deciding_change_nothing() {
    let mut tasks = Tasks::new();
    let (controller, _setup) = controller(&tasks);
    let class = json!({ "metadata": { "name": "fast", "resourceVersion": "1" }, "driver": "d.example" });
    controller.caches.classes.relist(vec![serde_json::from_value::<VolumeSnapshotClass>(class).unwrap()], 1);
    let going = |object: &mut Value| {
        object["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z");
        object["metadata"]["annotations"] = json!({ annotations::SNAPSHOT_BEING_DELETED: "yes" });
    };
    let contents = vec![
        content("new", |_| {}),
        content("calling", |_| {}),
        content("failed", |object| object["status"] = json!({ "error": { "message": "no" } })),
        content("ready", |object| object["status"] = json!({ "snapshotHandle": "s", "readyToUse": true })),
        content("going", going),
        content("classless", |object| object["spec"]["volumeSnapshotClassName"] = json!("slow")),
        content("existing", |object| object["spec"]["source"] = json!({ "snapshotHandle": "s" })),
        content("unclear", |object| object["spec"]["source"] = json!({})),
    ];
    controller.caches.contents.relist(contents, 2);
    // One has ended for a content that is gone, one is under way.
    controller.operations.start(operation("gone", Kind::Create), async { Ended::Done(Answer::default()) });
    controller.operations.start(operation("calling", Kind::Create), std::future::pending());
    assert!(tokio::time::timeout(Duration::from_millis(10), tasks.supervise()).await.is_err());
    engine::assert_quiet(&*controller, Timestamp::UNIX_EPOCH);
}

#[tokio::test]
async fn a_call_that_ends_for_a_content_that_is_gone_is_forgotten() {
    let mut tasks = Tasks::new();
    let (controller, _setup) = controller(&tasks);
    controller.operations.start(operation("gone", Kind::Create), async { Ended::Done(Answer::default()) });
    assert!(tokio::time::timeout(Duration::from_millis(10), tasks.supervise()).await.is_err());
    let now = Timestamp::UNIX_EPOCH;
    let snapshot = controller.gather(&key("gone"));
    assert_eq!(snapshot.abandoned, [operation("gone", Kind::Create)]);
    engine::Controller::note(&*controller, &key("gone"), &snapshot, &decide(&snapshot, now), now);
    assert!(controller.operations.keys().is_empty());
}

#[tokio::test]
async fn whether_a_class_exists_is_known_once_classes_are_listed() {
    let tasks = Tasks::new();
    let (controller, _setup) = controller(&tasks);
    controller.caches.contents.relist(vec![content("new", |_| {})], 2);
    let class = || controller.gather(&key("new")).case.unwrap().class;
    assert_eq!(class(), Class::Unlisted);
    controller.caches.classes.relist(Vec::new(), 1);
    assert_eq!(class(), Class::Missing("fast".into()));
}
