//! Looking at a cluster in which every volume is in a state of its own.

use serde_json::{Value, json};

use stowage_model::annotations;
use stowage_model::names::{self, UniqueVolumeName};
use stowage_model::object::{self, Projection, kinds};
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::Controller as _;
use stowage_runtime::tasks::Tasks;
use stowage_testing::World;

use super::*;
use crate::decide::Reason;
use crate::notice::Notice;

const DRIVER: &str = "d.example";

fn unique(handle: &str) -> UniqueVolumeName {
    UniqueVolumeName::csi(DRIVER, &handle.into())
}

fn attachment_name(handle: &str, node: &str) -> String {
    names::attachment(handle, DRIVER, node)
}

fn fill<T: Projection>(cache: &Cache<T>, objects: Vec<Value>) {
    let read = |(number, mut object): (usize, Value)| {
        object["metadata"]["uid"] = json!(format!("{}-{number}", T::KIND.plural));
        object["metadata"]["resourceVersion"] = json!("1");
        serde_json::from_value(object).unwrap()
    };
    cache.relist(objects.into_iter().enumerate().map(read).collect(), 1);
}

fn node(name: &str, ready: &str, listed: &[&str], in_use: &[&str]) -> Value {
    let listed: Vec<Value> = listed.iter().map(|handle| json!({ "name": unique(handle), "devicePath": "" })).collect();
    let in_use: Vec<UniqueVolumeName> = in_use.iter().map(|handle| unique(handle)).collect();
    json!({
        "metadata": { "name": name, "annotations": { annotations::CONTROLLER_MANAGED_ATTACH: "true" } },
        "status": {
            "volumesAttached": listed,
            "volumesInUse": in_use,
            "conditions": [{ "type": "Ready", "status": ready }],
        },
    })
}

fn attachment(handle: &str, node: &str, status: &Value) -> Value {
    json!({
        "metadata": { "name": attachment_name(handle, node) },
        "spec": { "attacher": DRIVER, "nodeName": node, "source": { "persistentVolumeName": handle } },
        "status": status,
    })
}

fn claim(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "volumeName": name },
        "status": { "phase": "Bound" },
    })
}

fn volume(number: usize, handle: &str) -> Value {
    let uid = format!("{}-{number}", kinds::CLAIM.plural);
    json!({
        "metadata": { "name": handle },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "claimRef": { "namespace": "default", "name": handle, "uid": uid },
            "csi": { "driver": DRIVER, "volumeHandle": handle },
        },
    })
}

fn pod(claim: &str, node: &str) -> Value {
    json!({
        "metadata": { "name": format!("{claim}-on-{node}"), "namespace": "default" },
        "spec": {
            "nodeName": node,
            "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }],
        },
    })
}

fn populate(caches: &Caches) {
    let names = ["wanted", "used", "refused", "moving", "left", "unused", "unanswered"];
    fill(&caches.volumes, names.iter().enumerate().map(|(number, name)| volume(number, name)).collect());
    fill(&caches.claims, names.iter().map(|name| claim(name)).collect());
    let pods = [("wanted", "a"), ("used", "a"), ("refused", "a"), ("moving", "a"), ("unanswered", "a"), ("used", "z")];
    fill(&caches.pods, pods.iter().map(|(claim, node)| pod(claim, node)).collect());
    let nodes = vec![
        node("a", "True", &["used"], &["used"]),
        node("silent", "False", &["moving", "left"], &["moving", "left"]),
        node("unheard", "True", &["unused"], &[]),
    ];
    fill(&caches.nodes, nodes);
    let attached = json!({ "attached": true });
    let refused = json!({ "attached": false, "attachError": { "message": "the node is full" } });
    let attachments = vec![
        attachment("used", "a", &attached),
        attachment("refused", "a", &refused),
        attachment("moving", "silent", &attached),
        attachment("left", "silent", &attached),
        attachment("unused", "a", &attached),
        attachment("unanswered", "a", &attached),
        attachment("orphan", "a", &attached),
    ];
    fill(&caches.attachments, attachments);
    fill(&caches.drivers, vec![json!({ "metadata": { "name": DRIVER }, "spec": { "attachRequired": true } })]);
    caches.attachments.mark_unknown(&object::Key::cluster(attachment_name("unanswered", "a")));
    caches.nodes.mark_unknown(&object::Key::cluster("unheard"));
}

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn populated(tasks: &Tasks) -> Controller {
    let context = World::new(1).life("test").context;
    let setup = Setup::new(context, tasks.spawner());
    let controller = Controller::new(&setup, &Options::default());
    populate(&controller.caches);
    let elsewhere = Notice::Elsewhere { node: "silent".into() };
    for pod in ["pods-3", "of a pod that is gone"] {
        controller.memory.told.note(unique("moving"), pod.into(), elsewhere.clone(), true, at(0));
    }
    controller
}

fn look(controller: &Controller, key: &Key, second: i64) -> Snapshot {
    controller.gather(key, &Reserved::default(), at(second))
}

#[tokio::test(start_paused = true)]
async fn looking_at_volumes_in_many_states_changes_nothing() {
    let tasks = Tasks::new();
    let controller = populated(&tasks);
    let reasons = controller.keys().into_iter().flat_map(|key| decide(&look(&controller, &key, 1), at(1)).why.0);
    let reasons: Vec<Reason> = reasons.map(|(_, reason)| reason).collect();
    let expected = [
        Reason::InUse,
        Reason::HeldElsewhere,
        Reason::InUse,
        Reason::AttachFailed,
        Reason::Unknown,
        Reason::Unused,
        Reason::Unknown,
        Reason::Attached,
        Reason::NodeGone,
        Reason::Wanted,
        Reason::Unused,
    ];
    assert_eq!(reasons, expected);
    engine::assert_quiet(&controller, at(1));
}

#[tokio::test(start_paused = true)]
async fn a_decision_and_no_mere_look_starts_the_clock_of_a_forced_detach_and_forgets_pods_that_are_gone() {
    let tasks = Tasks::new();
    let controller = populated(&tasks);
    let (left, moving) = (Key::Volume(unique("left")), Key::Volume(unique("moving")));
    let since = |second| look(&controller, &left, second).sites["silent"].unwanted_since;
    let told = controller.memory.told.known(&unique("moving"));
    assert_eq!((since(1), since(5)), (Some(at(1)), Some(at(5))));
    for key in [&left, &moving] {
        let snapshot = look(&controller, key, 9);
        assert!(key == &left || snapshot.told == told);
        controller.note(key, &snapshot, &decide(&snapshot, at(9)), at(9));
    }
    assert_eq!(since(20), Some(at(9)));
    let known = look(&controller, &moving, 20).told;
    assert!(known != told && known.said(&"pods-3".to_owned(), at(20)).is_some());
    engine::assert_quiet(&controller, at(20));
}
