use std::time::Duration;

use serde_json::{Value, json};

use stowage_csi::Channel;
use stowage_csi::identity::PluginCapabilities;
use stowage_model::annotations;
use stowage_runtime::Context;
use stowage_runtime::driver::Driver;
use stowage_runtime::engine::{self, Setup};
use stowage_runtime::operation::Ended;
use stowage_runtime::tasks::Tasks;

use super::*;
use crate::watches::Place;

/// Nothing is asked of the API or of the driver here.
fn controller(tasks: &Tasks, driver: &str) -> (Arc<Controller>, Setup<Key>) {
    controller_at(tasks, driver, None)
}

fn controller_at(tasks: &Tasks, driver: &str, place: Option<Place>) -> (Arc<Controller>, Setup<Key>) {
    let setup = Setup::new(Context::deaf(), tasks.spawner());
    let driver = Driver {
        channel: Channel::in_process(tonic::service::Routes::default()),
        name: driver.into(),
        plugin: PluginCapabilities::new(),
        controller: ControllerCapabilities::from([Call::ExpandVolume, Call::ModifyVolume]),
    };
    let controller = Controller::new(&setup, &driver, Expansion::Controller, place, Options::default()).unwrap();
    let controller = Arc::new(controller);
    engine::subscribe(&setup, &controller);
    (controller, setup)
}

fn claim(name: &str, spoil: impl FnOnce(&mut Value)) -> Claim {
    let mut object = json!({
        "metadata": { "namespace": "shop", "name": name, "uid": name, "resourceVersion": "2" },
        "spec": { "volumeName": format!("pv-{name}"), "resources": { "requests": { "storage": "5Gi" } } },
        "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } },
    });
    spoil(&mut object);
    serde_json::from_value(object).unwrap()
}

fn volume(claim: &str, spoil: impl FnOnce(&mut Value)) -> Volume {
    let mut object = json!({
        "metadata": { "name": format!("pv-{claim}"), "uid": claim, "resourceVersion": "2" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "claimRef": { "namespace": "shop", "name": claim, "uid": claim },
            "csi": { "driver": "d.example", "volumeHandle": claim },
        },
    });
    spoil(&mut object);
    serde_json::from_value(object).unwrap()
}

fn key(name: &str) -> Key {
    Key::namespaced("shop", name)
}

#[tokio::test]
async fn a_claim_is_ours_if_its_volume_is_the_drivers_and_holds_this_very_claim() {
    let tasks = Tasks::new();
    let (controller, _setup) = controller(&tasks, "d.example");
    controller.caches.volumes.relist(
        vec![
            volume("ours", |_| {}),
            volume("foreign", |object| object["spec"]["csi"]["driver"] = json!("other.example")),
            volume("namesake", |object| object["spec"]["claimRef"]["uid"] = json!("an older claim")),
        ],
        2,
    );
    let names = ["ours", "foreign", "namesake", "missing"];
    controller.caches.claims.relist(names.map(|name| claim(name, |_| {})).into(), 2);
    let is_ours = |name: &str| matches!(controller.gather(&key(name)).case.unwrap().source, Source::Ours(_));
    assert_eq!(names.map(is_ours), [true, false, false, false]);
    assert_eq!(controller.caches.keys(), ["missing", "namesake", "ours"].map(key), "others are not even queued");
}

#[tokio::test]
async fn in_node_deployment_only_volumes_of_this_node_are_ours() {
    let tasks = Tasks::new();
    let segments = [("topology.example/node".to_owned(), "n1".to_owned())].into();
    let place = Place { node: "n1".into(), segments };
    let (controller, _setup) = controller_at(&tasks, "d.example", Some(place));
    let on = |nodes: Value| {
        move |object: &mut Value| {
            let rule = json!({ "key": "topology.example/node", "operator": "In", "values": nodes });
            let terms = json!([{ "matchExpressions": [rule] }]);
            object["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": terms } });
        }
    };
    let volumes =
        vec![volume("here", on(json!(["n1"]))), volume("there", on(json!(["n2"]))), volume("everywhere", |_| {})];
    controller.caches.volumes.relist(volumes, 2);
    let names = ["here", "there", "everywhere"];
    controller.caches.claims.relist(names.map(|name| claim(name, |_| {})).into(), 2);
    let is_ours = |name: &str| matches!(controller.gather(&key(name)).case.unwrap().source, Source::Ours(_));
    assert_eq!(names.map(is_ours), [true, false, false]);
    assert_eq!(controller.caches.keys(), ["here"].map(key), "others are not even queued");
}

#[tokio::test]
async fn a_volume_of_an_in_tree_plugin_is_ours_once_its_claim_is_handed_over() {
    let tasks = Tasks::new();
    let (controller, _setup) = controller(&tasks, "ebs.csi.aws.com");
    let in_tree = |object: &mut Value| {
        object["spec"]["csi"] = Value::Null;
        object["spec"]["awsElasticBlockStore"] = json!({ "volumeID": "vol-1" });
    };
    controller.caches.volumes.relist(vec![volume("before", in_tree), volume("after", in_tree)], 2);
    let handed_over = |object: &mut Value| {
        object["metadata"]["annotations"] = json!({ annotations::STORAGE_RESIZER: "ebs.csi.aws.com" })
    };
    controller.caches.claims.relist(vec![claim("before", |_| {}), claim("after", handed_over)], 2);
    let is_ours = |name: &str| matches!(controller.gather(&key(name)).case.unwrap().source, Source::Ours(_));
    assert_eq!(["before", "after"].map(is_ours), [false, true]);
}

#[tokio::test]
async fn what_was_kept_for_a_claim_goes_with_it() {
    let mut tasks = Tasks::new();
    let (controller, _setup) = controller(&tasks, "d.example");
    controller.caches.volumes.relist(vec![volume("a", |_| {})], 2);
    controller.caches.claims.relist(vec![claim("a", |_| {})], 2);
    let operation = Operation::new(&claim("a", |_| {}).meta, Aim::Size("5Gi".parse().unwrap()));
    let failed = Failure { code: "FailedPrecondition".into(), message: "in use".into() };
    controller.operations.start(operation, async { Ended::Failed(failed) });
    // Nothing but the end of the call is under way.
    let _ = tokio::time::timeout(Duration::from_millis(10), tasks.supervise()).await;
    controller.watching.begin(&key("a"));
    assert_eq!(controller.gather(&key("a")).case.unwrap().users, Users::Unlisted);
    controller.caches.claims.relist(Vec::new(), 9);
    assert!(controller.operations.keys().is_empty());
    assert_eq!(controller.watching.users(&key("a")), Users::Unwatched);
}

#[tokio::test]
async fn gathering_and_deciding_change_nothing() {
    let tasks = Tasks::new();
    let (controller, _setup) = controller(&tasks, "d.example");
    let names = ["growing", "begun", "pending", "changing", "modifying", "settled"];
    controller.caches.volumes.relist(names.map(|name| volume(name, |_| {})).into(), 2);
    controller.caches.classes.relist(Vec::new(), 2);
    controller.caches.claims.relist(
        vec![
            claim("growing", |_| {}),
            claim("begun", |object| {
                object["status"]["allocatedResourceStatuses"] = json!({ "storage": "ControllerResizeInProgress" });
            }),
            claim("pending", |object| {
                object["status"]["allocatedResourceStatuses"] = json!({ "storage": "NodeResizePending" });
            }),
            claim("changing", |object| object["spec"]["volumeAttributesClassName"] = json!("gold")),
            claim("modifying", |object| {
                object["status"]["modifyVolumeStatus"] =
                    json!({ "targetVolumeAttributesClassName": "gold", "status": "InProgress" });
            }),
            claim("settled", |object| object["spec"]["resources"]["requests"]["storage"] = json!("1Gi")),
        ],
        2,
    );
    controller
        .operations
        .start(Operation::new(&claim("begun", |_| {}).meta, Aim::Size("5Gi".parse().unwrap())), std::future::pending());
    engine::assert_quiet(&*controller, jiff::Timestamp::UNIX_EPOCH);
}
