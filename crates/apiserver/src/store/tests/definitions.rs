//! CustomResourceDefinitions and the objects of the kinds they bring.

use super::*;

fn definition() -> Value {
    json!({
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget"},
            "versions": [
                {"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}],
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                        "spec": {"type": "object", "required": ["size"], "properties": {
                            "size": {"type": "integer", "minimum": 1}, "color": {"type": "string", "default": "red"}}},
                        "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}},
                {"name": "v1beta1", "served": true, "storage": false, "schema": {"openAPIV3Schema": {
                    "type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
            ],
        },
    })
}

impl World {
    fn defined() -> Self {
        let mut world = Self::new();
        world.create("CustomResourceDefinition", definition()).unwrap();
        world
    }

    fn widget(&mut self, version: &str, name: &str, part: Subresource, action: Action) -> Result<Applied, Status> {
        let kind = self.store.kinds().find("example.com", version, "widgets").expect("the kind is there");
        self.next_id += 1;
        let (namespace, name) = ("default".to_owned(), name.to_owned());
        let write =
            Write { kind, namespace, name, subresource: part, action, id: self.next_id, dry_run: false, strict: false };
        let applied = self.store.apply(write, self.now)?;
        self.store.publish(applied.revision);
        Ok(applied)
    }

    fn create_widget(&mut self, version: &str, body: Value) -> Result<Value, Status> {
        self.widget(version, "", Subresource::Main, Action::Create(body)).map(|a| tree(&a))
    }

    fn find_widgets(&self) -> Option<&'static Kind> {
        self.store.kinds().find("example.com", "v1", "widgets")
    }
}

#[test]
fn a_definition_is_established_at_once_and_brings_its_kinds() {
    let mut world = World::new();
    let made = world.create("CustomResourceDefinition", definition()).unwrap();
    let conditions: Vec<(&str, &str)> = made["status"]["conditions"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| (text(c, "/type"), text(c, "/status")))
        .collect();
    assert_eq!(conditions, [("NamesAccepted", "True"), ("Established", "True")]);
    assert_eq!(made["spec"]["names"]["singular"], "widget");
    assert_eq!(made["status"]["storedVersions"], json!(["v1"]));
    assert!(world.find_widgets().is_some_and(|kind| kind.namespaced && kind.status));
}

#[test]
fn objects_are_pruned_defaulted_and_checked() {
    let mut world = World::defined();
    let applied = world
        .widget(
            "v1",
            "",
            Subresource::Main,
            Action::Create(json!({"metadata": {"name": "a"}, "spec": {"size": 2, "x": 1}})),
        )
        .unwrap();
    assert_eq!(tree(&applied)["spec"], json!({"size": 2, "color": "red"}));
    assert_eq!(applied.warnings, ["unknown field \"spec.x\""]);
    let refused = world.create_widget("v1", json!({"metadata": {"name": "b"}, "spec": {"size": 0}})).unwrap_err();
    assert_eq!((refused.code, refused.details.causes[0].field.as_str()), (422, "spec.size"));
    let refused = world.create_widget("v1", json!({"metadata": {"name": "b"}, "spec": {}})).unwrap_err();
    assert!(refused.message.contains("spec.size: Required value"), "{}", refused.message);
}

#[test]
fn versions_are_the_same_objects_under_another_name() {
    let mut world = World::defined();
    world.create_widget("v1beta1", json!({"metadata": {"name": "a"}, "spec": {"size": 2}})).unwrap();
    let kind = world.find_widgets().unwrap();
    let kept = world.store.get(kind, "default", "a").unwrap();
    assert_eq!(kept.tree()["apiVersion"], "example.com/v1");
    let beta = world.store.kinds().find("example.com", "v1beta1", "widgets").unwrap();
    let shown: Value = serde_json::from_slice(&beta.present(&kept)).unwrap();
    assert_eq!((shown["apiVersion"].as_str(), &shown["spec"]["size"]), (Some("example.com/v1beta1"), &json!(2)));
    let patch = Action::Patch(Patch::Merge(json!({"spec": {"size": 5}})));
    let patched = tree(&world.widget("v1beta1", "a", Subresource::Main, patch).unwrap());
    assert_eq!((patched["apiVersion"].as_str(), &patched["spec"]["size"]), (Some("example.com/v1"), &json!(5)));
}

#[test]
fn status_is_a_part_of_its_own_and_generation_counts_the_rest() {
    let mut world = World::defined();
    let body = json!({"metadata": {"name": "a"}, "spec": {"size": 1}, "status": {"ready": true}});
    let made = world.create_widget("v1", body).unwrap();
    assert!(made.get("status").is_none());
    let status = Action::Patch(Patch::Merge(json!({"status": {"ready": true}, "spec": {"size": 9}})));
    let patched = tree(&world.widget("v1", "a", Subresource::Status, status).unwrap());
    assert_eq!((&patched["spec"]["size"], &patched["metadata"]["generation"]), (&json!(1), &json!(1)));
    let spec = Action::Patch(Patch::Merge(json!({"status": {"ready": false}, "spec": {"size": 9}})));
    let patched = tree(&world.widget("v1", "a", Subresource::Main, spec).unwrap());
    assert_eq!((&patched["status"]["ready"], &patched["metadata"]["generation"]), (&json!(true), &json!(2)));
    let strategic = Action::Patch(Patch::Strategic(json!({})));
    assert_eq!(world.widget("v1", "a", Subresource::Main, strategic).unwrap_err().code, 415);
}

#[test]
fn a_definition_that_goes_takes_its_objects_first() {
    let mut world = World::defined();
    let held = json!({"metadata": {"name": "a", "finalizers": ["example.com/hold"]}, "spec": {"size": 1}});
    world.create_widget("v1", held).unwrap();
    world.create_widget("v1", json!({"metadata": {"name": "b"}, "spec": {"size": 1}})).unwrap();
    world.delete("CustomResourceDefinition", "widgets.example.com").unwrap();
    assert!(world.get("CustomResourceDefinition", "widgets.example.com").is_some(), "an object is held back");
    let refused = world.create_widget("v1", json!({"metadata": {"name": "c"}, "spec": {"size": 1}})).unwrap_err();
    assert_eq!(refused.code, 405);
    let release = Action::Patch(Patch::Merge(json!({"metadata": {"finalizers": null}})));
    world.widget("v1", "a", Subresource::Main, release).unwrap();
    assert!(world.get("CustomResourceDefinition", "widgets.example.com").is_none());
    assert!(world.find_widgets().is_none());
    world.create("CustomResourceDefinition", definition()).unwrap();
    assert_eq!(world.store.count(world.find_widgets().unwrap()), 0);
}

#[test]
fn a_name_that_is_in_use_is_not_accepted() {
    let mut world = World::defined();
    let mut other = with(definition(), "/metadata/name", "gadgets.example.com".into());
    other["spec"]["names"] = json!({"plural": "gadgets", "singular": "gadget", "kind": "Widget"});
    let made = world.create("CustomResourceDefinition", other).unwrap();
    assert_eq!(made["status"]["conditions"][0]["reason"], "KindConflict");
    assert!(world.store.kinds().find("example.com", "v1", "gadgets").is_none());
}

#[test]
fn a_built_in_kind_cannot_be_defined_anew() {
    let mut world = World::new();
    let mut classes = with(definition(), "/metadata/name", "storageclasses.storage.k8s.io".into());
    classes["metadata"]["annotations"] = json!({"api-approved.kubernetes.io": "https://example.com"});
    classes["spec"]["group"] = "storage.k8s.io".into();
    classes["spec"]["names"] = json!({"plural": "storageclasses", "kind": "Other"});
    let made = world.create("CustomResourceDefinition", classes).unwrap();
    assert_eq!(made["status"]["conditions"][0]["reason"], "PluralConflict");
    world.create("StorageClass", class("s", false)).unwrap();
}

#[test]
fn bad_definitions_are_refused_with_the_field() {
    let version = "/spec/versions/0";
    for (pointer, value, field) in [
        ("/metadata/name".to_owned(), json!("widget.example.com"), "metadata.name"),
        ("/spec/scope".to_owned(), json!("Global"), "spec.scope"),
        (format!("{version}/storage"), json!(false), "spec.versions"),
        (format!("{version}/name"), json!("v1beta1"), "spec.versions[1].name"),
        (
            format!("{version}/schema/openAPIV3Schema/type"),
            json!("string"),
            "spec.versions[0].schema.openAPIV3Schema.type",
        ),
        (
            format!("{version}/schema/openAPIV3Schema/properties/spec/x-kubernetes-validations"),
            json!([{"rule": "self.none > 1"}]),
            "spec.versions[0].schema.openAPIV3Schema.properties[spec].x-kubernetes-validations[0].rule",
        ),
        (
            format!("{version}/schema/openAPIV3Schema/properties/spec/properties/list"),
            json!({"type": "array"}),
            "spec.versions[0].schema.openAPIV3Schema.properties[spec].properties[list].items",
        ),
        ("/spec/conversion".to_owned(), json!({"strategy": "Webhook"}), "spec.conversion.strategy"),
    ] {
        let refused = World::new().create("CustomResourceDefinition", with(definition(), &pointer, value)).unwrap_err();
        let fields: Vec<&str> = refused.details.causes.iter().map(|c| c.field.as_str()).collect();
        assert_eq!((refused.code, fields.contains(&field)), (422, true), "{pointer}: {fields:?}");
    }
}

#[test]
fn a_restored_store_knows_the_kinds_and_owners_it_had() {
    let mut world = World::defined();
    let a = world.create_widget("v1", json!({"metadata": {"name": "a"}, "spec": {"size": 1}})).unwrap();
    let owner = json!([{"apiVersion": "example.com/v1", "kind": "Widget", "name": "a", "uid": a["metadata"]["uid"]}]);
    world.create("ConfigMap", with(config("b"), "/metadata/ownerReferences", owner)).unwrap();
    let kinds = world.store.kinds();
    let rows = kinds.kept().flat_map(|kind| {
        let all = world.store.newest_all(kind);
        all.map(|(key, o)| (kind.group_resource(), key.clone(), Object { revision: o.revision, json: o.json.clone() }))
    });
    let rows: Vec<_> = rows.collect();
    world.store = Store::restored(world.store.head(), rows.clone(), Vec::new(), 100);
    world.widget("v1", "a", Subresource::Main, Action::Delete(DeleteOptions::default())).unwrap();
    assert!(world.get("ConfigMap", "b").is_none());
    let unknown = rows.into_iter().filter(|(resource, ..)| !resource.starts_with("customresource")).collect();
    let mut store = Store::restored(world.store.head(), unknown, Vec::new(), 100);
    std::mem::swap(&mut world.store, &mut store);
    assert!(world.get("ConfigMap", "b").is_some(), "what is of no known kind is set aside, all else is there");
}
