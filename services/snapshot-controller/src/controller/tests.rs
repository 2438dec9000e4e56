//! Looking at a cluster in which every snapshot is in a state of its own, and deciding until nothing is left to do.

mod rest;

use serde_json::{Value, json};

use stowage_model::object::{self, ObjectRef, Projection, kinds};
use stowage_model::{VolumeGroupSnapshot, annotations, finalizers};
use stowage_runtime::cache::Cache;
use stowage_runtime::tasks::Tasks;
use stowage_testing::{World, crds};

use super::*;
use crate::decide::{GroupAction, Missing};
use crate::snapshot::Place;

const DRIVER: &str = "d.example";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn fill<T: Projection>(cache: &Cache<T>, objects: Vec<Value>) {
    let read = |mut object: Value| {
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = json!(format!("{}-uid", object["metadata"]["name"].as_str().unwrap()));
        }
        object["metadata"]["resourceVersion"] = json!("1");
        serde_json::from_value(object).unwrap()
    };
    cache.relist(objects.into_iter().map(read).collect(), 1);
}

fn snapshot(name: &str, claim: &str, rest: Value) -> Value {
    let mut body = json!({
        "metadata": { "namespace": "shop", "name": name, "finalizers": [finalizers::SNAPSHOT_AS_SOURCE] },
        "spec": { "source": { "persistentVolumeClaimName": claim }, "volumeSnapshotClassName": "gold" },
    });
    for (key, value) in rest.as_object().unwrap() {
        match key.as_str() {
            "deletionTimestamp" => body["metadata"][key] = value.clone(),
            _ => body[key] = value.clone(),
        }
    }
    body
}

fn content(snapshot: &str, status: &Value) -> Value {
    json!({
        "metadata": { "name": format!("snapcontent-{snapshot}-uid"), "creationTimestamp": "1970-01-01T00:00:00Z" },
        "spec": {
            "volumeSnapshotRef": { "namespace": "shop", "name": snapshot, "uid": format!("{snapshot}-uid") },
            "deletionPolicy": "Delete", "driver": DRIVER, "source": { "volumeHandle": "h" },
        },
        "status": status,
    })
}

fn claim(name: &str, rest: Value) -> Value {
    let mut body = json!({
        "metadata": { "namespace": "shop", "name": name, "finalizers": [finalizers::CLAIM_AS_SNAPSHOT_SOURCE] },
        "spec": { "volumeName": format!("pv-{name}") },
        "status": { "phase": "Bound" },
    });
    for (key, value) in rest.as_object().unwrap() {
        body[key] = value.clone();
    }
    body
}

fn populated(tasks: &Tasks) -> Controller {
    let setup = Setup::new(World::new(1).life("test").context, tasks.spawner());
    let controller = Controller::new(&setup, &Options::default());
    let caches = &controller.caches;
    let ready = json!({ "readyToUse": true, "boundVolumeSnapshotContentName": "snapcontent-ready-uid" });
    fill(
        &caches.snapshots,
        vec![
            snapshot("new", "data", json!({})),
            snapshot("ready", "data", json!({ "status": ready })),
            snapshot("lost", "nowhere", json!({})),
            snapshot("quiet", "data", json!({})),
            snapshot("going", "data", json!({ "deletionTimestamp": "1970-01-01T00:00:01Z" })),
            snapshot("unanswered", "data", json!({})),
        ],
    );
    let said = json!({ "readyToUse": true, "snapshotHandle": "s", "creationTime": 5 });
    fill(&caches.contents, vec![content("ready", &said), content("quiet", &Value::Null), content("going", &said)]);
    let class = json!({ "metadata": { "name": "gold" }, "driver": DRIVER, "deletionPolicy": "Delete" });
    fill(&caches.classes, vec![class]);
    let source = json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "ready" });
    let restoring = json!({ "spec": { "dataSource": source }, "status": { "phase": "Pending" } });
    fill(&caches.claims, vec![claim("data", json!({})), claim("idle", json!({})), claim("copy", restoring)]);
    let group = json!({
        "metadata": { "namespace": "shop", "name": "all" },
        "spec": { "source": { "selector": {} } },
    });
    fill(&caches.groups, vec![group]);
    fill(&caches.group_contents, Vec::new());
    fill(&caches.group_classes, Vec::new());
    caches.snapshots.mark_unknown(&object::Key::namespaced("shop", "unanswered"));
    controller
}

#[tokio::test(start_paused = true)]
async fn looking_at_snapshots_in_many_states_changes_nothing() {
    let tasks = Tasks::new();
    let controller = populated(&tasks);
    let look = |key: &Key| {
        use engine::Controller as _;
        decide(&controller.gather(key, &Reserved::default(), at(1)), at(1)).why
    };
    let of = |name: &str| look(&Key::Snapshot(object::Key::namespaced("shop", name)));
    assert_eq!(of("new"), Why::NeedsVolume);
    assert_eq!(of("ready"), Why::Binding, "its bound finalizer is missing");
    assert_eq!(of("lost"), Why::Broken("SnapshotContentCreationFailed"));
    assert_eq!(of("going"), Why::Deleting);
    assert_eq!(of("unanswered"), Why::Unknown);
    assert_eq!(look(&Key::Claim(object::Key::namespaced("shop", "idle"))), Why::Unprotected);
    assert_eq!(look(&Key::Group(object::Key::namespaced("shop", "all"))), Why::NeedsVolume);
    engine::assert_quiet(&controller, at(1));
}

#[tokio::test(start_paused = true)]
async fn a_group_waits_for_the_first_lists_of_contents_and_classes() {
    use engine::Controller as _;
    let tasks = Tasks::new();
    let setup = Setup::new(World::new(1).life("test").context, tasks.spawner());
    let controller = Controller::new(&setup, &Options::default());
    let group = json!({
        "metadata": {
            "namespace": "shop", "name": "all", "finalizers": [finalizers::GROUP_SNAPSHOT_BOUND],
            "deletionTimestamp": "1970-01-01T00:00:01Z",
        },
        "spec": { "source": { "selector": {} } },
    });
    let caches = &controller.caches;
    fill(&caches.groups, vec![group]);
    let look = || {
        let key = Key::Group(object::Key::namespaced("shop", "all"));
        decide(&controller.gather(&key, &Reserved::default(), at(1)), at(1)).why
    };
    assert_eq!(look(), Why::Unlisted);
    fill(&caches.group_contents, Vec::new());
    assert_eq!(look(), Why::Unlisted);
    fill(&caches.group_classes, Vec::new());
    assert_eq!(look(), Why::Released);
}

#[tokio::test(start_paused = true)]
async fn a_group_made_anew_under_the_same_name_does_not_inherit_members() {
    use engine::Controller as _;
    let tasks = Tasks::new();
    let setup = Setup::new(World::new(1).life("test").context, tasks.spawner());
    let controller = Controller::new(&setup, &Options::default());
    let caches = &controller.caches;
    let group = json!({
        "metadata": { "namespace": "shop", "name": "all", "uid": "new" },
        "spec": { "source": { "selector": {} } },
    });
    fill(&caches.groups, vec![group]);
    let member = |name: &str, uid: &str| {
        let mut member = snapshot(name, "data", json!({ "status": { "volumeGroupSnapshotName": "all" } }));
        member["metadata"]["ownerReferences"] = json!([{ "kind": "VolumeGroupSnapshot", "name": "all", "uid": uid }]);
        member
    };
    fill(&caches.snapshots, vec![member("earlier", "old"), member("present", "new")]);
    let gather = |key: Key| controller.gather(&key, &Reserved::default(), at(1));
    let Snapshot::Group(group) = gather(Key::Group(object::Key::namespaced("shop", "all"))) else { panic!() };
    let names: Vec<&str> = group.snapshots.iter().map(|snapshot| snapshot.meta.name.as_str()).collect();
    assert_eq!(names, ["present"]);
    let uid_of = |name: &str| match gather(Key::Snapshot(object::Key::namespaced("shop", name))) {
        Snapshot::Single(single) => (single.group.owner, single.group.uid),
        other => panic!("{other:?}"),
    };
    assert_eq!(uid_of("earlier"), (Some("old".into()), None));
    assert_eq!(uid_of("present"), (Some("new".into()), Some("new".into())));
}

#[tokio::test(start_paused = true)]
async fn a_group_is_made_on_the_first_node_that_all_its_volumes_allow() {
    use engine::Controller as _;
    let tasks = Tasks::new();
    let setup = Setup::new(World::new(1).life("test").context, tasks.spawner());
    let options = Options { distributed_snapshotting: true, ..Options::default() };
    let controller = Controller::new(&setup, &options);
    let caches = &controller.caches;
    let node = |name: &str| json!({ "metadata": { "name": name, "labels": { "host": name } } });
    fill(&caches.nodes, vec![node("a"), node("b")]);
    fill(&caches.claims, vec![claim("one", json!({})), claim("two", json!({}))]);
    let group = json!({
        "metadata": { "namespace": "shop", "name": "all" },
        "spec": { "source": { "selector": {} } },
    });
    fill(&caches.groups, vec![group]);
    let place = |one: &[&str], two: &[&str]| {
        for (name, hosts) in [("pv-one", one), ("pv-two", two)] {
            let term = json!({ "matchExpressions": [{ "key": "host", "operator": "In", "values": hosts }] });
            let affinity = json!({ "required": { "nodeSelectorTerms": [term] } });
            let volume = json!({ "metadata": { "name": name }, "spec": { "nodeAffinity": affinity } });
            controller.memory.looked(name.into(), Some(Arc::new(serde_json::from_value(volume).unwrap())), at(1));
        }
        match controller.gather(&Key::Group(object::Key::namespaced("shop", "all")), &Reserved::default(), at(1)) {
            Snapshot::Group(group) => group.place,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(place(&["a", "b"], &["b"]), Place::Node("b".into()));
    assert_eq!(place(&["a"], &["b"]), Place::Nowhere);
}

#[tokio::test(start_paused = true)]
async fn what_no_cache_shows_is_not_gone_while_the_server_has_it() {
    let world = World::new(1);
    let (admin, tasks) = (world.admin(), Tasks::new());
    crds::install(admin).await.unwrap();
    let setup = Setup::new(world.life("test").context, tasks.spawner());
    let controller = Controller::new(&setup, &Options::default());
    admin.create(kinds::NAMESPACE, json!({ "metadata": { "name": "shop" } })).await.unwrap();
    admin.create(kinds::VOLUME_SNAPSHOT_CONTENT, content("late", &json!({}))).await.unwrap();
    let group = json!({
        "metadata": { "namespace": "shop", "name": "all" },
        "spec": { "source": { "selector": {} } },
    });
    admin.create(kinds::VOLUME_GROUP_SNAPSHOT, group).await.unwrap();
    let key = object::Key::namespaced("shop", "all");
    let group = admin.get::<VolumeGroupSnapshot>(&key).unwrap().reference();
    let is_stale = async |action: Action| match controller.carry_out(Key::Group(key.clone()), action).await {
        Ok(()) => false,
        Err(engine::Error::Stale(_)) => true,
        Err(other) => panic!("{other}"),
    };
    let content = |name: &str| Action::ConfirmContentGone { content: object::Key::cluster(name) };
    assert!(is_stale(content("snapcontent-late-uid")).await);
    assert!(!is_stale(content("snapcontent-other")).await);
    let group_of = |uid: Option<&str>| Action::ConfirmGroupGone { group: key.clone(), uid: uid.map(str::to_owned) };
    assert!(is_stale(group_of(Some(&group.uid))).await);
    assert!(is_stale(group_of(None)).await);
    assert!(!is_stale(group_of(Some("an earlier one"))).await);
    // Members are made for the group that is there, and for no other.
    let member = json!({
        "metadata": { "namespace": "shop", "name": "member" },
        "spec": { "source": { "persistentVolumeClaimName": "data" } },
    });
    let make = |uid: &str| {
        let group = ObjectRef { uid: uid.into(), ..group.clone() };
        Action::Group(GroupAction::MakeMembers { group, missing: vec![Missing::Snapshot(member.clone())] })
    };
    assert!(is_stale(make("an earlier one")).await);
    assert!(admin.list_raw(kinds::VOLUME_SNAPSHOT).is_empty());
    assert!(!is_stale(make(&group.uid)).await);
    assert_eq!(admin.list_raw(kinds::VOLUME_SNAPSHOT).len(), 1);
}
