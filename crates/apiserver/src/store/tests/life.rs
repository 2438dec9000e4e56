//! What objects have without being asked: accounts of namespaces, the end of events, defaults, creation by update.

use jiff::SignedDuration;

use super::*;

fn names(world: &World, kind: &str) -> Vec<String> {
    world.store.newest_all(Kind::named(kind)).map(|(key, _)| key.name.to_string()).collect()
}

fn event(name: &str) -> Value {
    json!({
        "metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p", "namespace": "default"},
        "reason": "Tested", "type": "Normal",
    })
}

#[test]
fn every_namespace_has_its_default_account_and_gets_it_back() {
    let mut world = World::new();
    assert_eq!(names(&world, "ServiceAccount"), ["default"]);
    let first = world.store.newest(Kind::named("ServiceAccount"), "default", "default").unwrap().tree();
    world.delete("ServiceAccount", "default").unwrap();
    let again = world.store.newest(Kind::named("ServiceAccount"), "default", "default").unwrap().tree();
    assert_ne!(text(&first, "/metadata/uid"), text(&again, "/metadata/uid"));
    world.create("Namespace", json!({"metadata": {"name": "team"}})).unwrap();
    assert_eq!(names(&world, "ServiceAccount").len(), 2);
    world.delete("Namespace", "team").unwrap();
    assert_eq!(names(&world, "ServiceAccount"), ["default"], "a namespace that ends gets none");
}

#[test]
fn a_pod_runs_as_the_default_account_unless_it_names_one() {
    let mut world = World::new();
    for (given, account) in [
        (json!({}), "default"),
        (json!({"serviceAccountName": "robot"}), "robot"),
        (json!({"serviceAccount": "old"}), "old"),
    ] {
        let mut spec = json!({"containers": [{"name": "c", "image": "i"}]});
        spec.as_object_mut().unwrap().extend(given.as_object().unwrap().clone());
        let pod = world.create("Pod", json!({"metadata": {"generateName": "p-"}, "spec": spec})).unwrap();
        assert_eq!(text(&pod, "/spec/serviceAccountName"), account);
        assert_eq!(text(&pod, "/spec/serviceAccount"), account);
        assert_eq!(text(&pod, "/status/qosClass"), "BestEffort");
    }
}

#[test]
fn an_event_goes_an_hour_after_it_was_last_written() {
    let mut world = World::new();
    world.create("Event", event("once")).unwrap();
    world.create("Event", event("again")).unwrap();
    world.now += SignedDuration::from_mins(40);
    world.merge("Event", "again", json!({"count": 2})).unwrap();
    world.now += SignedDuration::from_mins(20);
    let applied = world.apply("ConfigMap", "", Subresource::Main, Action::Create(json!({"metadata": {"name": "any"}})));
    let gone: Vec<_> = applied.unwrap().events.iter().skip(1).map(|e| (e.event_type, e.key.name.to_string())).collect();
    assert_eq!(gone, [(EventType::Deleted, "once".to_owned())]);
    world.now += SignedDuration::from_mins(40);
    assert_eq!(world.store.expire(world.now).len(), 1);
    assert!(names(&world, "Event").is_empty());
}

#[test]
fn events_expire_after_a_restart_and_after_an_undone_end_too() {
    let mut world = World::new();
    world.create("Event", event("old")).unwrap();
    let late = world.now + SignedDuration::from_mins(61);
    assert_eq!(world.store.expire(late).len(), 1);
    world.store.discard_unpublished();
    assert_eq!(names(&world, "Event"), ["old"]);
    assert_eq!(world.store.expire(late).len(), 1);
    world.store.discard_unpublished();
    let objects = world.store.newest_all(Kind::named("Event"));
    let objects = objects.map(|(key, object)| ("events".to_owned(), key.clone(), Object::clone(object))).collect();
    let mut restored = Store::restored(world.store.head(), objects, Vec::new(), 10);
    assert!(restored.expire(late - SignedDuration::from_mins(2)).is_empty());
    assert_eq!(restored.expire(late).len(), 1);
}

#[test]
fn what_was_left_out_is_completed_in_an_update_as_in_a_creation() {
    let mut world = World::new();
    let class = json!({"metadata": {"name": "sc"}, "provisioner": "example.com"});
    world.create("StorageClass", class.clone()).unwrap();
    let updated = world.update("StorageClass", "sc", class).unwrap();
    assert_eq!(text(&updated, "/volumeBindingMode"), "Immediate");
    let claim = json!({
        "metadata": {"name": "c"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1024Mi"}}},
    });
    let made = world.create("PersistentVolumeClaim", claim.clone()).unwrap();
    assert_eq!(text(&made, "/spec/resources/requests/storage"), "1Gi");
    world.update("PersistentVolumeClaim", "c", claim).unwrap();
}

#[test]
fn an_update_makes_what_is_not_there_only_for_some_kinds() {
    let mut world = World::new();
    let lease = json!({"metadata": {"name": "l", "resourceVersion": "7"}, "spec": {"holderIdentity": "me"}});
    let applied = world.apply("Lease", "l", Subresource::Main, Action::Update(lease)).unwrap();
    assert!(matches!(applied.answer, Answer::Created(_)));
    let mut gone = json!({"metadata": {"name": "m", "uid": "0"}});
    assert_eq!(world.update("Lease", "m", gone.clone()).unwrap_err().code, 409);
    gone["metadata"].as_object_mut().unwrap().remove("uid");
    assert_eq!(world.update("ConfigMap", "m", gone.clone()).unwrap_err().code, 404);
    assert_eq!(world.merge("Lease", "m", json!({})).unwrap_err().code, 404);
}

#[test]
fn an_event_is_where_its_object_is_and_says_enough() {
    let mut world = World::new();
    let mut elsewhere = event("a");
    elsewhere["involvedObject"]["namespace"] = "other".into();
    let status = world.create("Event", elsewhere).unwrap_err();
    assert_eq!((status.code, status.details.causes[0].field.as_str()), (422, "involvedObject.namespace"));
    let mut of_node = event("b");
    of_node["involvedObject"] = json!({"kind": "Node", "name": "n"});
    world.create("Event", of_node).unwrap();
    let mut timed = event("c");
    timed["eventTime"] = "2026-01-01T00:00:00.000000Z".into();
    let fields =
        world.create("Event", timed).unwrap_err().details.causes.iter().map(|c| c.field.clone()).collect::<Vec<_>>();
    assert_eq!(fields, ["reportingComponent", "reportingInstance", "action"]);
}

#[test]
fn what_others_noted_about_fields_is_dropped() {
    let mut world = World::new();
    let noted = json!({"metadata": {"name": "m", "managedFields": [{"manager": "me", "operation": "Update"}]}});
    let made = world.create("ConfigMap", noted.clone()).unwrap();
    assert!(made["metadata"].get("managedFields").is_none());
    let updated = world.update("ConfigMap", "m", noted).unwrap();
    assert!(updated["metadata"].get("managedFields").is_none());
}
