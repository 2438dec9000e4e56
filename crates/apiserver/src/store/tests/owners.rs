//! Owners and what becomes of those they own.

use super::*;

fn owned(name: &str, owners: &[&Value], blocks: bool) -> Value {
    let references: Vec<Value> = owners
        .iter()
        .map(|owner| {
            json!({
                "apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks,
            })
        })
        .collect();
    with(config(name), "/metadata/ownerReferences", references.into())
}

fn delete_as(world: &mut World, name: &str, propagation: Propagation) -> Applied {
    let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
    world.apply("ConfigMap", name, Subresource::Main, Action::Delete(options)).unwrap()
}

fn steps(applied: &Applied) -> Vec<(EventType, String)> {
    applied.events.iter().map(|e| (e.event_type, e.key.name.to_string())).collect()
}

#[test]
fn dependents_go_after_their_owner_down_to_the_last() {
    let mut world = World::new();
    let a = world.create("ConfigMap", config("a")).unwrap();
    let b = world.create("ConfigMap", owned("b", &[&a], false)).unwrap();
    world.create("ConfigMap", owned("c", &[&b], false)).unwrap();
    let applied = world.delete("ConfigMap", "a").unwrap();
    let gone = |name: &str| (EventType::Deleted, name.to_owned());
    assert_eq!(steps(&applied), [gone("a"), gone("b"), gone("c")]);
    assert!(world.store.dependents.is_empty());
}

#[test]
fn an_object_with_another_owner_stays_and_forgets_the_one_that_is_gone() {
    let mut world = World::new();
    let a = world.create("ConfigMap", config("a")).unwrap();
    let b = world.create("ConfigMap", config("b")).unwrap();
    world.create("ConfigMap", owned("c", &[&a, &b], false)).unwrap();
    world.delete("ConfigMap", "a").unwrap();
    let c = world.get("ConfigMap", "c").unwrap();
    assert_eq!(c["metadata"]["ownerReferences"].as_array().unwrap().len(), 1);
    world.delete("ConfigMap", "b").unwrap();
    assert!(world.get("ConfigMap", "c").is_none());
}

#[test]
fn an_object_whose_owner_never_was_or_was_made_anew_is_collected() {
    let mut world = World::new();
    let a = world.create("ConfigMap", config("a")).unwrap();
    world.delete("ConfigMap", "a").unwrap();
    world.create("ConfigMap", config("a")).unwrap();
    let applied = world.apply("ConfigMap", "", Subresource::Main, Action::Create(owned("b", &[&a], false))).unwrap();
    assert_eq!(steps(&applied), [(EventType::Added, "b".to_owned()), (EventType::Deleted, "b".to_owned())]);
}

#[test]
fn an_owner_of_a_kind_that_is_not_served_is_left_to_others() {
    let mut world = World::new();
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "uid": "u"}});
    world.create("ConfigMap", owned("b", &[&job], true)).unwrap();
    assert!(world.get("ConfigMap", "b").is_some());
}

#[test]
fn a_foreground_deletion_waits_for_the_dependents_that_block_it() {
    let mut world = World::new();
    let a = world.create("ConfigMap", config("a")).unwrap();
    let held = with(owned("b", &[&a], true), "/metadata/finalizers", json!(["example.com/hold"]));
    let b = world.create("ConfigMap", held).unwrap();
    world.create("ConfigMap", owned("c", &[&b], true)).unwrap();
    world.create("ConfigMap", owned("d", &[&a], false)).unwrap();
    delete_as(&mut world, "a", Propagation::Foreground);
    let waiting = world.get("ConfigMap", "a").unwrap();
    assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    assert!(world.get("ConfigMap", "c").is_none() && world.get("ConfigMap", "d").is_none(), "leaves go first");
    assert!(is_deleting_in(&world, "b"));
    let applied = world
        .apply(
            "ConfigMap",
            "b",
            Subresource::Main,
            Action::Patch(Patch::Merge(json!({"metadata": {"finalizers": null}}))),
        )
        .unwrap();
    assert_eq!(steps(&applied), [(EventType::Deleted, "b".to_owned()), (EventType::Deleted, "a".to_owned())]);
}

fn is_deleting_in(world: &World, name: &str) -> bool {
    world.get("ConfigMap", name).is_some_and(|tree| crate::object::is_deleting(&tree))
}

#[test]
fn a_foreground_deletion_without_dependents_ends_at_once() {
    let mut world = World::new();
    world.create("ConfigMap", config("a")).unwrap();
    delete_as(&mut world, "a", Propagation::Foreground);
    assert!(world.get("ConfigMap", "a").is_none());
}

#[test]
fn orphans_stay_and_lose_their_owner() {
    let mut world = World::new();
    let a = world.create("ConfigMap", config("a")).unwrap();
    world.create("ConfigMap", owned("b", &[&a], true)).unwrap();
    let applied = delete_as(&mut world, "a", Propagation::Orphan);
    assert_eq!(steps(&applied), [(EventType::Modified, "b".to_owned()), (EventType::Deleted, "a".to_owned())]);
    assert!(world.get("ConfigMap", "b").unwrap()["metadata"].get("ownerReferences").is_none());
}

#[test]
fn a_namespace_that_goes_takes_owners_and_dependents_with_it() {
    let mut world = World::new();
    world.create("Namespace", json!({"metadata": {"name": "team"}})).unwrap();
    let create = |world: &mut World, body: Value| {
        world.next_id += 1;
        let write = Write {
            kind: Kind::named("ConfigMap"),
            namespace: "team".to_owned(),
            name: String::new(),
            subresource: Subresource::Main,
            action: Action::Create(body),
            id: world.next_id,
            dry_run: false,
            strict: false,
        };
        tree(&world.store.apply(write, world.now).unwrap())
    };
    let a = create(&mut world, config("a"));
    create(&mut world, owned("b", &[&a], true));
    let applied = world.delete("Namespace", "team").unwrap();
    let gone: Vec<String> =
        applied.events.iter().filter(|e| e.event_type == EventType::Deleted).map(|e| e.key.name.to_string()).collect();
    assert_eq!(gone, ["a", "b", "default", "team"]);
}
