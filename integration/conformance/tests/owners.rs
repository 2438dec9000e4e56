//! Owners and dependents: what goes with whom, and in which order.

#![allow(clippy::unwrap_used, clippy::panic)]

use conformance_suite::{World, rule};
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/{ns}/configmaps";

async fn owned(world: &World, name: &str, owner: &Value, more: Value) -> Value {
    let mut metadata = json!({
        "name": name,
        "ownerReferences": [{
            "apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"],
            "uid": owner["metadata"]["uid"], "blockOwnerDeletion": true,
        }],
    });
    for (name, value) in more.as_object().into_iter().flatten() {
        metadata[name] = value.clone();
    }
    world.works("POST", MAPS, json!({"metadata": metadata})).await
}

async fn delete(world: &World, name: &str, policy: &str) {
    world.works("DELETE", &format!("{MAPS}/{name}"), json!({"propagationPolicy": policy})).await;
}

/// The names of what is deleted, until `last` is.
async fn deletions(world: &World, since: &Value, last: &str) -> Vec<String> {
    let version = since["metadata"]["resourceVersion"].as_str().unwrap();
    let mut watch = world.watch(&format!("{MAPS}?watch=1&timeoutSeconds=60&resourceVersion={version}")).await;
    let mut names = Vec::new();
    while names.last().map(String::as_str) != Some(last) {
        let (event, object) = watch.next().await.expect("it is deleted before the watch ends");
        if event == "DELETED" {
            names.push(object["metadata"]["name"].as_str().unwrap().to_owned());
        }
    }
    names
}

#[tokio::test]
async fn a_dependent_goes_after_its_owner() {
    rule(async |world| {
        let owner = world.map("owner").await;
        let dependent = owned(&world, "dependent", &owner, Value::Null).await;
        delete(&world, "owner", "Background").await;
        assert_eq!(deletions(&world, &dependent, "dependent").await, ["owner", "dependent"]);
    })
    .await;
}

#[tokio::test]
async fn an_owner_deleted_in_the_foreground_goes_after_its_dependents() {
    rule(async |world| {
        let owner = world.map("owner").await;
        let held = owned(&world, "held", &owner, json!({"finalizers": ["example.com/hold"]})).await;
        delete(&world, "owner", "Foreground").await;
        let waiting = world.works("GET", &format!("{MAPS}/owner"), Value::Null).await;
        assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]));
        assert!(waiting["metadata"]["deletionTimestamp"].is_string());
        let release = json!({"metadata": {"finalizers": null}});
        // The dependent is marked by whoever collects garbage; releasing it earlier would be another rule.
        let version = held["metadata"]["resourceVersion"].as_str().unwrap();
        let path =
            format!("{MAPS}?watch=1&timeoutSeconds=60&resourceVersion={version}&fieldSelector=metadata.name%3Dheld");
        let mut watch = world.watch(&path).await;
        while !watch.next().await.expect("it is marked before the watch ends").1["metadata"]["deletionTimestamp"]
            .is_string()
        {}
        assert_eq!(world.patch("merge", &format!("{MAPS}/held"), release).await.code, 200);
        assert_eq!(deletions(&world, &held, "owner").await, ["held", "owner"]);
    })
    .await;
}

#[tokio::test]
async fn orphans_stay_without_their_owner() {
    rule(async |world| {
        let owner = world.map("owner").await;
        let orphan = owned(&world, "orphan", &owner, Value::Null).await;
        delete(&world, "owner", "Orphan").await;
        deletions(&world, &orphan, "owner").await;
        let left = world.works("GET", &format!("{MAPS}/orphan"), Value::Null).await;
        assert!(left["metadata"].get("ownerReferences").is_none());
    })
    .await;
}

#[tokio::test]
async fn an_unknown_policy_is_refused() {
    rule(async |world| {
        world.map("a").await;
        let answer = world.call("DELETE", &format!("{MAPS}/a"), json!({"propagationPolicy": "Sideways"})).await;
        assert!(matches!(answer.code, 400 | 422), "{:?}", answer.bytes);
    })
    .await;
}
