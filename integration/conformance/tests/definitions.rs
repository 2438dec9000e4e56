//! CustomResourceDefinitions and the objects of their kinds.

#![allow(clippy::unwrap_used, clippy::panic)]

use conformance_suite::{World, rule};
use serde_json::{Value, json};

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// A definition in a group that no other rule uses; returns the path of its objects in `v1`.
async fn define(world: &World) -> String {
    let group = format!("{}.example.com", world.namespace);
    let spec = json!({"type": "object", "required": ["size"], "properties": {
        "size": {"type": "integer", "minimum": 1}, "color": {"type": "string", "default": "red"},
        "zone": {"type": "string", "maxLength": 9, "x-kubernetes-validations": [{"rule": "self == oldSelf", "message": "fixed"}]}},
        "x-kubernetes-validations": [
            {"rule": "self.size < 10 || self.color == 'blue'", "fieldPath": ".size", "reason": "FieldValueForbidden",
                "messageExpression": "'%d is too much for %s'.format([self.size, self.color])"}]});
    let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {
        "spec": spec, "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}});
    let version = |name: &str, storage: bool| {
        json!({"name": name, "served": true, "storage": storage, "schema": schema, "subresources": {"status": {}},
            "additionalPrinterColumns": [{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}]})
    };
    let definition = json!({
        "metadata": {"name": format!("widgets.{group}")},
        "spec": {"group": group, "scope": "Namespaced", "names": {"plural": "widgets", "kind": "Widget", "singular": "widget"},
            "versions": [version("v1", true), version("v1beta1", false)]},
    });
    let made = world.works("POST", DEFINITIONS, definition).await;
    let version = made["metadata"]["resourceVersion"].as_str().unwrap();
    let mut established = is_established(&made);
    let path = format!(
        "{DEFINITIONS}?watch=1&timeoutSeconds=60&resourceVersion={version}&fieldSelector=metadata.name%3Dwidgets.{group}"
    );
    let mut watch = world.watch(&path).await;
    while !established {
        established = is_established(&watch.next().await.expect("it is established before the watch ends").1);
    }
    let path = format!("/apis/{group}/v1/namespaces/{{ns}}/widgets");
    // A server may take a moment longer to serve what it has promised.
    while world.call("GET", &path, Value::Null).await.code == 404 {
        tokio::task::yield_now().await;
    }
    path
}

fn is_established(definition: &Value) -> bool {
    let conditions = definition["status"]["conditions"].as_array();
    conditions.into_iter().flatten().any(|c| c["type"] == "Established" && c["status"] == "True")
}

async fn undefine(world: &World) {
    let name = format!("widgets.{}.example.com", world.namespace);
    world.works("DELETE", &format!("{DEFINITIONS}/{name}"), Value::Null).await;
}

fn widget(spec: Value) -> Value {
    json!({"metadata": {"name": "w"}, "spec": spec})
}

fn typed(world: &World, version: &str, mut object: Value) -> Value {
    object["apiVersion"] = format!("{}.example.com/{version}", world.namespace).into();
    object["kind"] = "Widget".into();
    object
}

#[tokio::test]
async fn objects_are_checked_pruned_and_completed() {
    rule(async |world| {
        let path = define(&world).await;
        let status = world.refused(422, "POST", &path, typed(&world, "v1", widget(json!({"size": 0})))).await;
        assert_eq!(status["details"]["causes"][0]["field"], "spec.size");
        let made = world.works("POST", &path, typed(&world, "v1", widget(json!({"size": 1, "unknown": true})))).await;
        assert_eq!(made["spec"], json!({"size": 1, "color": "red"}));
        let with_null = world.patch("merge", &format!("{path}/w"), json!({"spec": {"unknown": null}})).await;
        assert_eq!(with_null.code, 200);
        let mut replaced = with_null.json();
        replaced["spec"] = json!({"size": 2, "color": null, "zone": null});
        let replaced = world.works("PUT", &format!("{path}/w"), replaced).await;
        assert_eq!(replaced["spec"], json!({"size": 2, "color": "red"}), "nulls that may not be are none");
        let strict = format!("{path}?fieldValidation=Strict");
        let object = typed(&world, "v1", widget(json!({"size": 1, "unknown": true})));
        world.refused(400, "POST", &strict, object).await;
        undefine(&world).await;
    })
    .await;
}

#[tokio::test]
async fn kubectl_creates_and_applies_objects_alone_and_in_lists() {
    rule(async |world| {
        define(&world).await;
        let object = |name: &str, size: u32| {
            let metadata = json!({"name": name, "namespace": world.namespace});
            typed(&world, "v1", json!({"metadata": metadata, "spec": {"size": size, "zone": null}}))
        };
        let alone = |size: u32| object("alone", size).to_string();
        let listed = |size: u32| {
            json!({"apiVersion": "v1", "kind": "List", "items": [object("a", size), object("b", size)]}).to_string()
        };
        let does = async |verb: &str, input: &str| {
            let (ok, output) = world.kubectl(&[verb, "-f", "-"], input).await?;
            assert!(ok, "kubectl {verb}: {output}");
            Some(output)
        };
        if let Some(applied) = does("apply", &alone(1)).await {
            assert!(applied.contains("/alone created"), "{applied}");
            for (size, told) in [(1, "/alone unchanged"), (2, "/alone configured")] {
                let applied = does("apply", &alone(size)).await.unwrap();
                assert!(applied.contains(told), "{applied}");
            }
            assert!(does("create", &listed(1)).await.unwrap().contains("/b created"));
            // They were not applied, so kubectl warns, and takes them over.
            assert!(does("apply", &listed(2)).await.unwrap().contains("/b configured"));
            assert!(does("apply", &listed(2)).await.unwrap().contains("/b unchanged"));
            let (ok, output) = world.kubectl(&["apply", "-f", "-"], &alone(0)).await.unwrap();
            assert!(!ok && output.contains("spec.size"), "{output}");
            let (ok, output) =
                world.kubectl(&["apply", "--server-side", "-f", "-"], &object("c", 1).to_string()).await.unwrap();
            let refused = "server-side apply is not part of this API server";
            assert_eq!((ok, output.contains(refused)), (!world.is_embedded(), world.is_embedded()), "{output}");
        }
        undefine(&world).await;
    })
    .await;
}

#[tokio::test]
async fn rules_are_kept_and_rules_about_changes_are_for_changes() {
    rule(async |world| {
        let path = define(&world).await;
        let status = world.refused(422, "POST", &path, typed(&world, "v1", widget(json!({"size": 10})))).await;
        let cause = json!({"reason": "FieldValueForbidden", "message": "Forbidden: 10 is too much for red", "field": "spec.size"});
        assert_eq!(status["details"]["causes"], json!([cause]));
        let blue = json!({"size": 10, "color": "blue", "zone": "a"});
        world.works("POST", &path, typed(&world, "v1", widget(blue))).await;
        let answer = world.patch("merge", &format!("{path}/w"), json!({"spec": {"zone": "b"}})).await;
        assert_eq!(answer.code, 422);
        let cause = json!({"reason": "FieldValueInvalid", "message": "Invalid value: \"string\": fixed", "field": "spec.zone"});
        assert_eq!(answer.json()["details"]["causes"], json!([cause]));
        let broken = json!({"type": "object", "x-kubernetes-validations": [{"rule": "self.none == 1"}]});
        let group = format!("{}.example.org", world.namespace);
        let definition = json!({"metadata": {"name": format!("gadgets.{group}")}, "spec": {
            "group": group, "scope": "Cluster", "names": {"plural": "gadgets", "kind": "Gadget", "singular": "gadget"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": broken}}]}});
        let status = world.refused(422, "POST", DEFINITIONS, definition).await;
        let cause = &status["details"]["causes"][0];
        let field = cause["field"].as_str().unwrap();
        assert!(field.ends_with(".openAPIV3Schema.x-kubernetes-validations[0].rule"), "{field}");
        assert!(cause["message"].as_str().unwrap().contains("undefined field 'none'"), "{status}");
        undefine(&world).await;
    })
    .await;
}

#[tokio::test]
async fn the_same_object_is_served_in_every_version() {
    rule(async |world| {
        let path = define(&world).await;
        let beta = path.replace("/v1/", "/v1beta1/");
        world.works("POST", &beta, typed(&world, "v1beta1", widget(json!({"size": 1})))).await;
        for (path, version) in [(&path, "v1"), (&beta, "v1beta1")] {
            let found = world.works("GET", &format!("{path}/w"), Value::Null).await;
            assert!(found["apiVersion"].as_str().unwrap().ends_with(&format!("/{version}")), "{found}");
        }
        undefine(&world).await;
    })
    .await;
}

#[tokio::test]
async fn status_and_spec_are_written_apart_and_generation_counts_the_spec() {
    rule(async |world| {
        let path = define(&world).await;
        world.works("POST", &path, typed(&world, "v1", widget(json!({"size": 1})))).await;
        let both = json!({"spec": {"size": 2}, "status": {"ready": true}});
        let answer = world.patch("merge", &format!("{path}/w/status"), both.clone()).await.json();
        assert_eq!((&answer["spec"]["size"], &answer["metadata"]["generation"]), (&json!(1), &json!(1)));
        assert_eq!(answer["status"]["ready"], true);
        let answer = world.patch("merge", &format!("{path}/w"), both).await.json();
        assert_eq!((&answer["spec"]["size"], &answer["metadata"]["generation"]), (&json!(2), &json!(2)));
        assert_eq!(world.patch("strategic-merge", &format!("{path}/w"), json!({})).await.code, 415);
        undefine(&world).await;
    })
    .await;
}

#[tokio::test]
async fn columns_are_those_of_the_definition() {
    rule(async |world| {
        let path = define(&world).await;
        world.works("POST", &path, typed(&world, "v1", widget(json!({"size": 7})))).await;
        let accept = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json")];
        let table = world.send("GET", &path, &accept, "").await.json();
        assert_eq!(table["columnDefinitions"][1]["name"], "Size");
        assert_eq!(table["rows"][0]["cells"], json!(["w", 7]));
        undefine(&world).await;
    })
    .await;
}

#[tokio::test]
async fn a_definition_that_goes_takes_its_objects_along() {
    rule(async |world| {
        let path = define(&world).await;
        let held = json!({"metadata": {"name": "w", "finalizers": ["example.com/hold"]}, "spec": {"size": 1}});
        world.works("POST", &path, typed(&world, "v1", held)).await;
        undefine(&world).await;
        let name = format!("{DEFINITIONS}/widgets.{}.example.com", world.namespace);
        let waiting = world.works("GET", &name, Value::Null).await;
        assert!(waiting["metadata"]["deletionTimestamp"].is_string());
        world.patch("merge", &format!("{path}/w"), json!({"metadata": {"finalizers": null}})).await;
        while world.call("GET", &name, Value::Null).await.code != 404 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
