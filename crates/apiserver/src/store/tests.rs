use serde_json::{Value, json};

use super::*;
use crate::object::text;

mod accounts;
mod definitions;
mod life;
mod owners;
mod rules;

/// A store with one namespace and a clock that stands still.
struct World {
    store: Store,
    now: Timestamp,
    next_id: u128,
}

impl World {
    fn new() -> Self {
        let now = Timestamp::from_second(1_700_000_000).unwrap();
        let mut world = Self { store: Store::new(100), now, next_id: 1 };
        world.create("Namespace", json!({"metadata": {"name": "default"}})).unwrap();
        world
    }

    fn apply(&mut self, kind: &str, name: &str, subresource: Subresource, action: Action) -> Result<Applied, Status> {
        let kind = Kind::named(kind);
        self.next_id += 1;
        let namespace = if kind.namespaced { "default" } else { "" };
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let write =
            Write { kind, namespace, name, subresource, action, id: self.next_id, dry_run: false, strict: false };
        let applied = self.store.apply(write, self.now)?;
        self.store.publish(applied.revision);
        Ok(applied)
    }

    fn create(&mut self, kind: &str, body: Value) -> Result<Value, Status> {
        self.apply(kind, "", Subresource::Main, Action::Create(body)).map(|a| tree(&a))
    }

    fn update(&mut self, kind: &str, name: &str, body: Value) -> Result<Value, Status> {
        self.apply(kind, name, Subresource::Main, Action::Update(body)).map(|a| tree(&a))
    }

    fn update_status(&mut self, kind: &str, name: &str, body: Value) -> Result<Value, Status> {
        self.apply(kind, name, Subresource::Status, Action::Update(body)).map(|a| tree(&a))
    }

    fn merge(&mut self, kind: &str, name: &str, patch: Value) -> Result<Value, Status> {
        self.apply(kind, name, Subresource::Main, Action::Patch(Patch::Merge(patch))).map(|a| tree(&a))
    }

    fn delete(&mut self, kind: &str, name: &str) -> Result<Applied, Status> {
        self.apply(kind, name, Subresource::Main, Action::Delete(DeleteOptions::default()))
    }

    fn delete_with_grace(&mut self, kind: &str, name: &str, seconds: i64) -> Result<Applied, Status> {
        let options = DeleteOptions { grace_period_seconds: Some(seconds), ..DeleteOptions::default() };
        self.apply(kind, name, Subresource::Main, Action::Delete(options))
    }

    fn get(&self, kind: &str, name: &str) -> Option<Value> {
        let kind = Kind::named(kind);
        self.store.get(kind, if kind.namespaced { "default" } else { "" }, name).ok().map(|o| o.tree())
    }
}

fn tree(applied: &Applied) -> Value {
    match &applied.answer {
        Answer::Created(object) | Answer::Object(object) => object.tree(),
        other => panic!("no object in {other:?}"),
    }
}

fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

fn volume(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"},
            "csi": {"driver": "d.example.com", "volumeHandle": "h"},
        },
    })
}

fn pod(name: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "image": "i"}]}})
}

fn class(name: &str, default: bool) -> Value {
    let annotations = json!({"storageclass.kubernetes.io/is-default-class": default.to_string()});
    json!({"metadata": {"name": name, "annotations": annotations}, "provisioner": "d.example.com"})
}

fn config(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

fn with(mut tree: Value, pointer: &str, value: Value) -> Value {
    if let Some(slot) = tree.pointer_mut(pointer) {
        *slot = value;
        return tree;
    }
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    tree.pointer_mut(parent).unwrap().as_object_mut().unwrap().insert(name.to_owned(), value);
    tree
}

#[test]
fn a_new_object_gets_uid_time_and_revision() {
    let mut world = World::new();
    let made = world.create("ConfigMap", config("a")).unwrap();
    assert_eq!(text(&made, "/metadata/uid").len(), 36);
    assert_eq!(text(&made, "/metadata/creationTimestamp"), "2023-11-14T22:13:20Z");
    assert_eq!(text(&made, "/metadata/resourceVersion"), world.store.published().to_string());
    assert_eq!((text(&made, "/kind"), text(&made, "/apiVersion")), ("ConfigMap", "v1"));
    assert_eq!(text(&made, "/metadata/namespace"), "default");
}

#[test]
fn every_change_of_any_kind_takes_the_next_revision() {
    let mut world = World::new();
    let before = world.store.head();
    world.create("ConfigMap", config("a")).unwrap();
    world.create("StorageClass", class("s", false)).unwrap();
    world.delete("ConfigMap", "a").unwrap();
    assert_eq!(world.store.head(), before + 3);
}

#[test]
fn a_generated_name_has_five_random_characters_and_is_free() {
    let mut world = World::new();
    let body = json!({"metadata": {"generateName": "a-"}});
    let one = world.create("ConfigMap", body.clone()).unwrap();
    let two = world.create("ConfigMap", body).unwrap();
    let (one, two) = (text(&one, "/metadata/name"), text(&two, "/metadata/name"));
    assert!(one.starts_with("a-") && one.len() == 7, "{one}");
    assert_ne!(one, two);
}

#[test]
fn a_name_that_is_taken_is_refused() {
    let mut world = World::new();
    world.create("ConfigMap", config("a")).unwrap();
    let status = world.create("ConfigMap", config("a")).unwrap_err();
    assert_eq!((status.code, status.reason), (409, "AlreadyExists"));
}

#[test]
fn names_labels_and_missing_names_are_checked() {
    let mut world = World::new();
    for body in [
        config("Upper"),
        config("-a"),
        config("a..b"),
        json!({"metadata": {}}),
        json!({"metadata": {"name": "a", "labels": {"k": "not a value"}}}),
        json!({"metadata": {"name": "a", "annotations": {"not a key": "v"}}}),
    ] {
        let status = world.create("ConfigMap", body.clone()).unwrap_err();
        assert_eq!((status.code, status.reason), (422, "Invalid"), "{body}");
        assert!(!status.details.causes.is_empty());
    }
}

#[test]
fn an_object_of_another_kind_or_namespace_is_refused() {
    let mut world = World::new();
    for body in [
        json!({"kind": "Secret", "metadata": {"name": "a"}}),
        json!({"apiVersion": "v2", "metadata": {"name": "a"}}),
        json!({"metadata": {"name": "a", "namespace": "other"}}),
        json!([]),
    ] {
        assert_eq!(world.create("ConfigMap", body).unwrap_err().code, 400);
    }
}

#[test]
fn a_namespaced_object_needs_its_namespace() {
    let mut world = World::new();
    world.store = Store::new(10);
    assert_eq!(world.create("ConfigMap", config("a")).unwrap_err().code, 404);
}

#[test]
fn an_update_of_an_older_version_conflicts() {
    let mut world = World::new();
    let old = world.create("ConfigMap", config("a")).unwrap();
    world.update("ConfigMap", "a", with(old.clone(), "/data", json!({"a": "c"}))).unwrap();
    let status = world.update("ConfigMap", "a", with(old, "/data", json!({"a": "d"}))).unwrap_err();
    assert_eq!((status.code, status.reason), (409, "Conflict"));
    assert_eq!((status.details.kind, status.details.name.as_str()), ("configmaps", "a"));
}

#[test]
fn an_update_without_a_version_wins_except_for_kinds_that_need_one() {
    let mut world = World::new();
    world.create("ConfigMap", config("a")).unwrap();
    world.update("ConfigMap", "a", config("a")).unwrap();
    world.create("Lease", json!({"metadata": {"name": "l"}})).unwrap();
    let status = world.update("Lease", "l", json!({"metadata": {"name": "l"}, "spec": {}})).unwrap_err();
    assert_eq!(status.code, 422);
}

#[test]
fn uid_and_version_inside_a_patch_are_preconditions() {
    let mut world = World::new();
    let made = world.create("ConfigMap", config("a")).unwrap();
    let version = text(&made, "/metadata/resourceVersion");
    for metadata in [json!({"uid": "other"}), json!({"resourceVersion": "1"})] {
        let patch = json!({"metadata": metadata, "data": {"x": "y"}});
        assert_eq!(world.merge("ConfigMap", "a", patch).unwrap_err().code, 409);
    }
    let uid = text(&made, "/metadata/uid");
    let patch = json!({"metadata": {"uid": uid, "resourceVersion": version}, "data": {"x": "y"}});
    assert_eq!(world.merge("ConfigMap", "a", patch).unwrap()["data"]["x"], "y");
}

#[test]
fn a_write_that_changes_nothing_keeps_the_version_and_makes_no_event() {
    let mut world = World::new();
    let made = world.create("ConfigMap", config("a")).unwrap();
    for action in [
        Action::Patch(Patch::Merge(json!({"data": {"a": "b"}}))),
        Action::Update(made.clone()),
        Action::Patch(Patch::Merge(json!({"metadata": {"labels": {}}}))),
    ] {
        let applied = world.apply("ConfigMap", "a", Subresource::Main, action).unwrap();
        assert!(applied.events.is_empty());
        assert_eq!(tree(&applied), made);
    }
}

#[test]
fn fields_this_server_does_not_know_survive_every_write() {
    let mut world = World::new();
    let body = with(claim("a"), "/spec/futureField", json!({"x": [1]}));
    world.create("PersistentVolumeClaim", body).unwrap();
    world.merge("PersistentVolumeClaim", "a", json!({"metadata": {"labels": {"l": "v"}}})).unwrap();
    let status = json!({"metadata": {"name": "a"}, "status": {"phase": "Bound", "futureStatus": 1}});
    world.update_status("PersistentVolumeClaim", "a", status).unwrap();
    let kept = world.get("PersistentVolumeClaim", "a").unwrap();
    assert_eq!((&kept["spec"]["futureField"]["x"][0], &kept["status"]["futureStatus"]), (&json!(1), &json!(1)));
}

#[test]
fn the_main_resource_cannot_change_status_nor_status_the_spec() {
    let mut world = World::new();
    let made = world.create("PersistentVolume", volume("v")).unwrap();
    let changed = with(with(made.clone(), "/status/phase", json!("Bound")), "/spec/storageClassName", json!("x"));
    let main = world.update("PersistentVolume", "v", changed.clone()).unwrap();
    assert_eq!((text(&main, "/status/phase"), text(&main, "/spec/storageClassName")), ("Pending", "x"));
    let newest = with(changed, "/metadata/resourceVersion", main["metadata"]["resourceVersion"].clone());
    let status =
        world.update_status("PersistentVolume", "v", with(newest, "/spec/storageClassName", json!("y"))).unwrap();
    assert_eq!((text(&status, "/status/phase"), text(&status, "/spec/storageClassName")), ("Bound", "x"));
}

#[test]
fn a_status_write_may_change_annotations_but_not_of_volume_attachments() {
    let mut world = World::new();
    world.create("PersistentVolumeClaim", claim("a")).unwrap();
    let patch = json!({"metadata": {"annotations": {"k": "v"}}, "status": {"phase": "Bound"}});
    let action = Action::Patch(Patch::Merge(patch.clone()));
    let made = world.apply("PersistentVolumeClaim", "a", Subresource::Status, action.clone()).unwrap();
    assert_eq!(tree(&made)["metadata"]["annotations"]["k"], "v");
    let attachment = json!({
        "metadata": {"name": "va"},
        "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
    });
    world.create("VolumeAttachment", attachment).unwrap();
    let made = world.apply("VolumeAttachment", "va", Subresource::Status, action).unwrap();
    assert_eq!(tree(&made)["metadata"].get("annotations"), None);
}

#[test]
fn generation_counts_changes_of_the_spec_only() {
    let mut world = World::new();
    let made = world.create("CSIDriver", json!({"metadata": {"name": "d.example.com"}, "spec": {}})).unwrap();
    assert_eq!(made["metadata"]["generation"], 1);
    let labelled = world.merge("CSIDriver", "d.example.com", json!({"metadata": {"labels": {"a": "b"}}})).unwrap();
    assert_eq!(labelled["metadata"]["generation"], 1);
    let changed = world.merge("CSIDriver", "d.example.com", json!({"spec": {"requiresRepublish": true}})).unwrap();
    assert_eq!(changed["metadata"]["generation"], 2);
}

#[test]
fn an_object_without_finalizers_is_deleted_at_once() {
    let mut world = World::new();
    let made = world.create("ConfigMap", config("a")).unwrap();
    let applied = world.delete("ConfigMap", "a").unwrap();
    assert!(matches!(&applied.answer, Answer::Deleted { uid } if *uid == made["metadata"]["uid"]));
    assert_eq!(applied.events[0].event_type, EventType::Deleted);
    assert_eq!(applied.events[0].object.revision, applied.revision);
    assert_eq!(world.get("ConfigMap", "a"), None);
}

#[test]
fn finalizers_hold_a_deleted_object_until_the_last_one_goes() {
    let mut world = World::new();
    world.create("PersistentVolumeClaim", claim("a")).unwrap();
    let applied = world.delete("PersistentVolumeClaim", "a").unwrap();
    assert_eq!(text(&tree(&applied), "/metadata/deletionTimestamp"), "2023-11-14T22:13:20Z");
    assert!(world.delete("PersistentVolumeClaim", "a").unwrap().events.is_empty(), "deleting again changes nothing");
    let more = json!({"metadata": {"finalizers": ["kubernetes.io/pvc-protection", "x.io/y"]}});
    assert_eq!(world.merge("PersistentVolumeClaim", "a", more).unwrap_err().code, 422, "no new finalizers now");
    let last = Action::Patch(Patch::Merge(json!({"metadata": {"finalizers": null}})));
    let applied = world.apply("PersistentVolumeClaim", "a", Subresource::Main, last).unwrap();
    assert_eq!(applied.events.iter().map(|e| e.event_type).collect::<Vec<_>>(), [EventType::Deleted]);
    assert_eq!(world.get("PersistentVolumeClaim", "a"), None);
}

#[test]
fn a_deletion_with_another_uid_or_version_conflicts() {
    let mut world = World::new();
    world.create("ConfigMap", config("a")).unwrap();
    let uid = DeleteOptions { uid: Some("other".to_owned()), ..DeleteOptions::default() };
    let version = DeleteOptions { resource_version: Some("1".to_owned()), ..DeleteOptions::default() };
    for options in [uid, version] {
        let status = world.apply("ConfigMap", "a", Subresource::Main, Action::Delete(options)).unwrap_err();
        assert_eq!(status.code, 409);
    }
}

fn bind(world: &mut World, name: &str, node: &str) -> Result<Applied, Status> {
    let body = json!({"metadata": {"name": name}, "target": {"kind": "Node", "name": node}});
    world.apply("Pod", name, Subresource::Binding, Action::Create(body))
}

#[test]
fn a_binding_sets_the_node_once() {
    let mut world = World::new();
    world.create("Pod", pod("p")).unwrap();
    bind(&mut world, "p", "node-1").unwrap();
    let bound = world.get("Pod", "p").unwrap();
    assert_eq!(text(&bound, "/spec/nodeName"), "node-1");
    assert_eq!(text(&bound, "/status/conditions/0/type"), "PodScheduled");
    assert_eq!(bind(&mut world, "p", "node-2").unwrap_err().code, 409);
    let patch = json!({"spec": {"nodeName": "node-2"}});
    assert_eq!(world.merge("Pod", "p", patch).unwrap_err().code, 422, "not by an update");
}

#[test]
fn an_unbound_pod_is_deleted_at_once_and_a_bound_one_waits_for_its_node() {
    let mut world = World::new();
    world.create("Pod", pod("unbound")).unwrap();
    world.delete("Pod", "unbound").unwrap();
    assert_eq!(world.get("Pod", "unbound"), None);

    world.create("Pod", pod("p")).unwrap();
    bind(&mut world, "p", "node-1").unwrap();
    let waiting = tree(&world.delete("Pod", "p").unwrap());
    assert_eq!(waiting["metadata"]["deletionGracePeriodSeconds"], 30);
    assert_eq!(text(&waiting, "/metadata/deletionTimestamp"), "2023-11-14T22:13:50Z");
    assert!(world.delete_with_grace("Pod", "p", 60).unwrap().events.is_empty(), "never longer");
    let shorter = tree(&world.delete_with_grace("Pod", "p", 5).unwrap());
    assert_eq!(shorter["metadata"]["deletionGracePeriodSeconds"], 5);
    world.delete_with_grace("Pod", "p", 0).unwrap();
    assert_eq!(world.get("Pod", "p"), None);
}

#[test]
fn a_collection_is_deleted_by_selector() {
    let mut world = World::new();
    for (name, label) in [("a", "x"), ("b", "y"), ("c", "x")] {
        world.create("ConfigMap", with(config(name), "/metadata/labels", json!({"l": label}))).unwrap();
    }
    let selector = Selector::parse(Kind::named("ConfigMap"), "l=x", "").unwrap();
    let action = Action::DeleteCollection(DeleteOptions::default(), selector);
    let applied = world.apply("ConfigMap", "", Subresource::Main, action).unwrap();
    assert_eq!(applied.events.len(), 2);
    assert!(world.get("ConfigMap", "b").is_some());
}

#[test]
fn a_namespace_goes_when_its_last_object_has_gone() {
    let mut world = World::new();
    let name = "default";
    // The fixture's namespace is permanent under its name; a copy with another name is not.
    assert_eq!(world.delete("Namespace", name).unwrap_err().code, 403);
    world.create("Namespace", json!({"metadata": {"name": "team"}})).unwrap();
    let in_team = |action, name: &str| Write {
        kind: Kind::named("PersistentVolumeClaim"),
        namespace: "team".to_owned(),
        name: name.to_owned(),
        subresource: Subresource::Main,
        action,
        id: 7,
        dry_run: false,
        strict: false,
    };
    world.store.apply(in_team(Action::Create(claim("a")), ""), world.now).unwrap();
    let terminating = tree(&world.delete("Namespace", "team").unwrap());
    assert_eq!(text(&terminating, "/status/phase"), "Terminating");
    let refused = world.store.apply(in_team(Action::Create(claim("b")), ""), world.now).unwrap_err();
    assert_eq!((refused.code, refused.details.causes[0].reason), (403, "NamespaceTerminating"));
    let release = Action::Patch(Patch::Merge(json!({"metadata": {"finalizers": null}})));
    let applied = world.store.apply(in_team(release, "a"), world.now).unwrap();
    assert_eq!(applied.events.last().unwrap().key.name.as_ref(), "team");
    world.store.publish(applied.revision);
    assert_eq!(world.get("Namespace", "team"), None);
}

#[test]
fn a_claim_gets_the_newest_default_class_a_finalizer_a_mode_and_a_phase() {
    let mut world = World::new();
    world.create("StorageClass", class("older", true)).unwrap();
    world.now = Timestamp::from_second(1_700_000_100).unwrap();
    world.create("StorageClass", class("newer", true)).unwrap();
    world.create("StorageClass", class("plain", false)).unwrap();
    let made = world.create("PersistentVolumeClaim", with(claim("a"), "/status", json!({"phase": "Bound"}))).unwrap();
    assert_eq!(text(&made, "/spec/storageClassName"), "newer");
    assert_eq!(text(&made, "/metadata/finalizers/0"), "kubernetes.io/pvc-protection");
    assert_eq!((text(&made, "/spec/volumeMode"), text(&made, "/status/phase")), ("Filesystem", "Pending"));
    let none = with(claim("b"), "/spec/storageClassName", json!(""));
    let made = world.create("PersistentVolumeClaim", none).unwrap();
    assert_eq!(text(&made, "/spec/storageClassName"), "", "an empty class is a choice");
}

#[test]
fn a_volume_and_a_class_get_their_defaults() {
    let mut world = World::new();
    let made = world.create("PersistentVolume", with(volume("v"), "/status", json!({"phase": "Bound"}))).unwrap();
    assert_eq!(text(&made, "/spec/persistentVolumeReclaimPolicy"), "Retain");
    assert_eq!(text(&made, "/metadata/finalizers/0"), "kubernetes.io/pv-protection");
    assert_eq!(text(&made, "/status/phase"), "Pending");
    assert_eq!(text(&made, "/status/lastPhaseTransitionTime"), "2023-11-14T22:13:20Z");
    let made = world.create("StorageClass", class("s", false)).unwrap();
    assert_eq!((text(&made, "/reclaimPolicy"), text(&made, "/volumeBindingMode")), ("Delete", "Immediate"));
}

#[test]
fn a_volumes_phase_change_is_stamped_unless_the_writer_did() {
    let mut world = World::new();
    world.create("PersistentVolume", volume("v")).unwrap();
    world.now = Timestamp::from_second(1_700_000_060).unwrap();
    let status = |status: Value| json!({"metadata": {"name": "v"}, "status": status});
    let time = |tree: &Value| text(tree, "/status/lastPhaseTransitionTime").to_owned();
    let same = world.update_status("PersistentVolume", "v", status(json!({"phase": "Pending"}))).unwrap();
    assert_eq!(time(&same), "2023-11-14T22:13:20Z");
    let changed = world.update_status("PersistentVolume", "v", status(json!({"phase": "Available"}))).unwrap();
    assert_eq!(time(&changed), "2023-11-14T22:14:20Z");
    let own = json!({"phase": "Bound", "lastPhaseTransitionTime": "2024-01-01T00:00:00Z"});
    assert_eq!(time(&world.update_status("PersistentVolume", "v", status(own)).unwrap()), "2024-01-01T00:00:00Z");
}

#[test]
fn bad_claims_volumes_and_attachments_are_refused_with_the_field() {
    let mut world = World::new();
    let pvc = "PersistentVolumeClaim";
    let request = "/spec/resources/requests/storage";
    for (kind, body, field) in [
        (pvc, with(claim("a"), request, json!("0")), "spec.resources[storage]"),
        (pvc, with(claim("a"), request, json!("much")), "spec.resources[storage]"),
        (pvc, with(claim("a"), request, json!("-1Gi")), "spec.resources[storage]"),
        (pvc, with(claim("a"), "/spec/resources", json!({})), "spec.resources[storage]"),
        (pvc, with(claim("a"), "/spec/accessModes", json!([])), "spec.accessModes"),
        (pvc, with(claim("a"), "/spec/accessModes", json!(["Sometimes"])), "spec.accessModes"),
        (pvc, with(claim("a"), "/spec/accessModes", json!(["ReadWriteOncePod", "ReadOnlyMany"])), "spec.accessModes"),
        (pvc, with(claim("a"), "/spec/volumeMode", json!("Tape")), "spec.volumeMode"),
        ("PersistentVolume", with(volume("v"), "/spec/csi", json!(null)), "spec"),
        ("PersistentVolume", with(volume("v"), "/spec/nfs", json!({"path": "/x"})), "spec.nfs"),
        ("PersistentVolume", with(volume("v"), "/spec/csi/volumeHandle", json!("")), "spec.csi.volumeHandle"),
        ("PersistentVolume", with(volume("v"), "/spec/capacity", json!({})), "spec.capacity"),
        ("StorageClass", json!({"metadata": {"name": "s"}}), "provisioner"),
        (
            "VolumeAttachment",
            json!({"metadata": {"name": "a"}, "spec": {"attacher": "d", "nodeName": "n"}}),
            "spec.source",
        ),
        ("Pod", json!({"metadata": {"name": "p"}, "spec": {}}), "spec.containers"),
    ] {
        let status = world.create(kind, body.clone()).unwrap_err();
        assert_eq!(status.code, 422, "{body}");
        assert_eq!(status.details.causes[0].field, field, "{}", status.message);
    }
}

#[test]
fn a_claims_spec_is_fixed_but_for_the_volume_name_once() {
    let mut world = World::new();
    world.create("PersistentVolumeClaim", claim("a")).unwrap();
    let patch = |spec: Value| json!({"spec": spec});
    world.merge("PersistentVolumeClaim", "a", patch(json!({"volumeName": "v"}))).unwrap();
    for spec in [json!({"volumeName": "w"}), json!({"accessModes": ["ReadOnlyMany"]}), json!({"volumeMode": "Block"})] {
        assert_eq!(world.merge("PersistentVolumeClaim", "a", patch(spec)).unwrap_err().code, 422);
    }
    world.merge("PersistentVolumeClaim", "a", patch(json!({"storageClassName": "late"}))).unwrap();
    let again = world.merge("PersistentVolumeClaim", "a", patch(json!({"storageClassName": "other"})));
    assert_eq!(again.unwrap_err().code, 422);
}

#[test]
fn a_claim_grows_only_when_bound_and_its_class_allows_it() {
    let mut world = World::new();
    world.create("StorageClass", with(class("grow", true), "/allowVolumeExpansion", json!(true))).unwrap();
    world.create("PersistentVolumeClaim", claim("a")).unwrap();
    let grow = |size: &str| json!({"spec": {"resources": {"requests": {"storage": size}}}});
    assert_eq!(world.merge("PersistentVolumeClaim", "a", grow("2Gi")).unwrap_err().code, 422);
    let bound = json!({"metadata": {"name": "a"}, "status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}});
    world.update_status("PersistentVolumeClaim", "a", bound).unwrap();
    world.merge("PersistentVolumeClaim", "a", grow("2Gi")).unwrap();
    world.merge("PersistentVolumeClaim", "a", grow("1536Mi")).expect("a failed growth may be taken back in part");
    for too_small in ["1Gi", "512Mi"] {
        assert_eq!(world.merge("PersistentVolumeClaim", "a", grow(too_small)).unwrap_err().code, 422, "{too_small}");
    }
}

#[test]
fn a_claim_tells_how_far_its_expansion_is_in_the_words_there_are() {
    let mut world = World::new();
    world.create("PersistentVolumeClaim", claim("a")).unwrap();
    let mut tell = |status: Value| {
        let body = json!({"metadata": {"name": "a", "annotations": {"note": "kept"}}, "status": status});
        world.update_status("PersistentVolumeClaim", "a", body)
    };
    for step in [
        "ControllerResizeInProgress",
        "ControllerResizeInfeasible",
        "NodeResizePending",
        "NodeResizeInProgress",
        "NodeResizeInfeasible",
    ] {
        let status = json!({"allocatedResources": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": step}});
        let told = tell(status).unwrap();
        assert_eq!(text(&told, "/status/allocatedResourceStatuses/storage"), step);
        assert_eq!(text(&told, "/metadata/annotations/note"), "kept", "the resizer's annotation comes this way");
    }
    for (status, field) in [
        (json!({"allocatedResourceStatuses": {"storage": "Growing"}}), "status.allocatedResourceStatuses"),
        (json!({"allocatedResourceStatuses": {"cpu": "NodeResizePending"}}), "status.allocatedResourceStatuses"),
        (json!({"allocatedResources": {"cpu": "1"}}), "status.allocatedResources"),
        (json!({"allocatedResources": {"storage": "-1"}}), "status.allocatedResources[storage]"),
    ] {
        let refused = tell(status).unwrap_err();
        assert_eq!(refused.code, 422);
        assert!(refused.message.contains(field), "{}", refused.message);
    }
    let other = json!({"allocatedResourceStatuses": {"example.com/iops": "NodeResizePending"}});
    tell(other).expect("names with a prefix are anybody's");
}

#[test]
fn the_source_of_a_volume_and_the_spec_of_an_attachment_are_fixed() {
    let mut world = World::new();
    world.create("PersistentVolume", volume("v")).unwrap();
    let patch = json!({"spec": {"csi": {"volumeHandle": "other"}}});
    assert_eq!(world.merge("PersistentVolume", "v", patch).unwrap_err().code, 422);
    let attachment = json!({
        "metadata": {"name": "va"},
        "spec": {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}},
    });
    world.create("VolumeAttachment", attachment).unwrap();
    assert_eq!(world.merge("VolumeAttachment", "va", json!({"spec": {"nodeName": "m"}})).unwrap_err().code, 422);
}

#[test]
fn a_list_goes_on_at_its_revision_whatever_happens_meanwhile() {
    let mut world = World::new();
    for name in ["a", "b", "c", "d"] {
        world.create("ConfigMap", config(name)).unwrap();
    }
    let kind = Kind::named("ConfigMap");
    let first = world.store.list(kind, &Query { limit: Some(2), ..Query::default() }).unwrap();
    let (last, left) = first.rest.unwrap();
    assert_eq!((last.name.as_ref(), left), ("b", 2));
    world.delete("ConfigMap", "c").unwrap();
    world.merge("ConfigMap", "d", json!({"data": {"a": "changed"}})).unwrap();
    world.create("ConfigMap", config("e")).unwrap();
    let after = Some((first.revision, last));
    let second = world.store.list(kind, &Query { after, ..Query::default() }).unwrap();
    let seen: Vec<String> = second.items.iter().map(|o| text(&o.tree(), "/metadata/name").to_owned()).collect();
    assert_eq!((seen, second.revision), (vec!["c".to_owned(), "d".to_owned()], first.revision));
    assert_eq!(second.items[1].tree()["data"]["a"], "b");
}

#[test]
fn what_is_not_published_is_neither_read_listed_nor_watched_but_conflicts() {
    let mut world = World::new();
    let made = world.create("ConfigMap", config("a")).unwrap();
    let published = world.store.published();
    let kind = Kind::named("ConfigMap");
    let write = |name: &str, action| Write {
        kind,
        namespace: "default".to_owned(),
        name: name.to_owned(),
        subresource: Subresource::Main,
        action,
        id: 9,
        dry_run: false,
        strict: false,
    };
    let changed = with(made.clone(), "/data", json!({"a": "c"}));
    world.store.apply(write("a", Action::Update(changed.clone())), world.now).unwrap();
    world.store.apply(write("", Action::Create(config("b"))), world.now).unwrap();
    assert_eq!(world.get("ConfigMap", "a"), Some(made));
    assert_eq!(world.get("ConfigMap", "b"), None);
    assert_eq!(world.store.list(kind, &Query::default()).unwrap().items.len(), 1);
    assert!(world.store.events_after(kind, published).unwrap().is_empty());
    let stale = world.store.apply(write("a", Action::Update(changed)), world.now).unwrap_err();
    assert_eq!(stale.code, 409);
    world.store.publish(world.store.head());
    assert_eq!(world.store.events_after(kind, published).unwrap().len(), 2);
    assert!(world.get("ConfigMap", "b").is_some());
}

#[test]
fn events_beyond_the_window_are_gone_and_quiet_kinds_keep_theirs() {
    let mut world = World::new();
    let start = world.store.published();
    world.create("StorageClass", class("s", false)).unwrap();
    for number in 0..150 {
        world.create("ConfigMap", config(&format!("c{number}"))).unwrap();
    }
    assert_eq!(world.store.events_after(Kind::named("ConfigMap"), start).unwrap_err().code, 410);
    assert_eq!(world.store.events_after(Kind::named("StorageClass"), start).unwrap().len(), 1);
}

#[test]
fn a_dry_run_answers_as_if_done_and_changes_nothing() {
    let mut world = World::new();
    let head = world.store.head();
    let write = Write {
        kind: Kind::named("PersistentVolumeClaim"),
        namespace: "default".to_owned(),
        name: String::new(),
        subresource: Subresource::Main,
        action: Action::Create(claim("a")),
        id: 3,
        dry_run: true,
        strict: false,
    };
    let applied = world.store.apply(write, world.now).unwrap();
    assert_eq!(text(&tree(&applied), "/spec/volumeMode"), "Filesystem");
    assert_eq!((world.store.head(), world.get("PersistentVolumeClaim", "a")), (head, None));
}

#[test]
fn a_field_of_the_wrong_type_is_refused_also_in_a_patch() {
    let mut world = World::new();
    let body = with(claim("a"), "/spec/accessModes", json!("ReadWriteOnce"));
    assert_eq!(world.create("PersistentVolumeClaim", body).unwrap_err().code, 400);
    world.create("PersistentVolumeClaim", claim("a")).unwrap();
    let patch = json!({"metadata": {"labels": "none"}});
    assert_eq!(world.merge("PersistentVolumeClaim", "a", patch).unwrap_err().code, 400);
}

#[test]
fn a_quantity_written_as_a_number_is_kept_as_text() {
    let mut world = World::new();
    let body = with(claim("a"), "/spec/resources/requests/storage", json!(1_073_741_824));
    let made = world.create("PersistentVolumeClaim", body).unwrap();
    assert_eq!(text(&made, "/spec/resources/requests/storage"), "1073741824");
}

#[test]
fn a_strict_write_refuses_fields_its_kind_does_not_have() {
    let mut world = World::new();
    let mut write = Write {
        kind: Kind::named("PersistentVolumeClaim"),
        namespace: "default".to_owned(),
        name: String::new(),
        subresource: Subresource::Main,
        action: Action::Create(with(claim("a"), "/spec/colour", json!("red"))),
        id: 3,
        dry_run: false,
        strict: true,
    };
    let status = world.store.apply(write.clone(), world.now).unwrap_err();
    assert!(status.code == 400 && status.message.contains(r#"unknown field "spec.colour""#), "{status}");
    write.strict = false;
    world.store.apply(write.clone(), world.now).unwrap();
    write.strict = true;
    write.name = "a".to_owned();
    write.action = Action::Patch(Patch::Merge(json!({"metadata": {"labels": {"l": "v"}}})));
    world.store.apply(write, world.now).expect("a field that was there before is not this write's fault");
}

proptest::proptest! {
    /// A list at any revision and the events after it give the newest state; each revision is used once.
    #[test]
    fn a_list_and_the_events_after_it_never_miss_or_double(steps in proptest::collection::vec((0..5_usize, 0..4_u8), 1..60)) {
        let mut world = World::new();
        let kind = Kind::named("ConfigMap");
        let start = world.store.published();
        for (name, what) in steps {
            let name = format!("m{name}");
            let value = json!({"data": {"a": world.store.head().to_string()}});
            // Refused steps (taken or missing names) are part of the game.
            let _outcome = match what {
                0 => world.create("ConfigMap", config(&name)).map(|_| ()),
                1 => world.delete("ConfigMap", &name).map(|_| ()),
                _ => world.merge("ConfigMap", &name, value).map(|_| ()),
            };
        }
        let names = |items: Vec<Arc<Object>>| -> BTreeMap<String, u64> {
            items.into_iter().map(|o| (text(&o.tree(), "/metadata/name").to_owned(), o.revision)).collect()
        };
        let newest = names(world.store.list(kind, &Query::default()).unwrap().items);
        for revision in start..=world.store.published() {
            let after = Some((revision, Key::new("", "")));
            let mut state = names(world.store.list(kind, &Query { after, ..Query::default() }).unwrap().items);
            let mut last = revision;
            for event in world.store.events_after(kind, revision).unwrap() {
                assert!(event.revision > last);
                last = event.revision;
                let name = event.key.name.to_string();
                let before = match event.event_type {
                    EventType::Deleted => state.remove(&name),
                    _ => state.insert(name, event.revision),
                };
                assert_eq!(before, event.previous.as_ref().map(|p| p.revision));
            }
            assert_eq!(state, newest);
        }
    }
}
