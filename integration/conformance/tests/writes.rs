//! Changing: create, update, patch, delete, and the parts of objects.

#![allow(clippy::unwrap_used, clippy::panic)]

use conformance_suite::rule;
use serde_json::{Value, json};

const MAPS: &str = "/api/v1/namespaces/{ns}/configmaps";
const PODS: &str = "/api/v1/namespaces/{ns}/pods";
const CLAIMS: &str = "/api/v1/namespaces/{ns}/persistentvolumeclaims";

fn pod(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "c", "image": "i"}], "automountServiceAccountToken": false},
    })
}

fn claim(name: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "none",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    })
}

#[tokio::test]
async fn a_generated_name_is_new_each_time() {
    rule(async |world| {
        let body = json!({"metadata": {"generateName": "a-"}});
        let first = world.works("POST", MAPS, body.clone()).await;
        let second = world.works("POST", MAPS, body).await;
        let name = |object: &Value| object["metadata"]["name"].as_str().unwrap().to_owned();
        assert!(name(&first).starts_with("a-") && name(&first).len() == 7, "{first}");
        assert_ne!(name(&first), name(&second));
    })
    .await;
}

#[tokio::test]
async fn a_dry_run_answers_and_keeps_nothing() {
    rule(async |world| {
        let made = world.works("POST", &format!("{MAPS}?dryRun=All"), json!({"metadata": {"name": "a"}})).await;
        assert!(made["metadata"]["uid"].is_string());
        world.refused(404, "GET", &format!("{MAPS}/a"), Value::Null).await;
        world.map("b").await;
        world.works("DELETE", &format!("{MAPS}/b?dryRun=All"), Value::Null).await;
        world.works("GET", &format!("{MAPS}/b"), Value::Null).await;
        world.refused(422, "POST", &format!("{MAPS}?dryRun=All"), json!({"metadata": {"name": "A"}})).await;
    })
    .await;
}

#[tokio::test]
async fn the_same_name_twice_is_refused() {
    rule(async |world| {
        world.map("a").await;
        let status = world.refused(409, "POST", MAPS, json!({"metadata": {"name": "a"}})).await;
        assert_eq!(status["reason"], "AlreadyExists");
        assert_eq!(status["message"], r#"configmaps "a" already exists"#);
    })
    .await;
}

#[tokio::test]
async fn an_update_of_an_old_version_is_a_conflict() {
    rule(async |world| {
        let made = world.map("a").await;
        let path = format!("{MAPS}/a");
        let mut newer = made.clone();
        newer["data"]["a"] = "c".into();
        world.works("PUT", &path, newer).await;
        let mut stale = made;
        stale["data"]["a"] = "d".into();
        let status = world.refused(409, "PUT", &path, stale.clone()).await;
        assert_eq!(status["reason"], "Conflict");
        let message = status["message"].as_str().unwrap();
        assert!(
            message.starts_with(r#"Operation cannot be fulfilled on configmaps "a": the object has been modified"#)
        );
        stale["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        world.works("PUT", &path, stale).await;
    })
    .await;
}

#[tokio::test]
async fn what_the_server_owns_stays_as_it_is() {
    rule(async |world| {
        let made = world.map("a").await;
        let mut changed = made.clone();
        changed["metadata"]["creationTimestamp"] = "2001-01-01T00:00:00Z".into();
        changed["data"]["a"] = "c".into();
        let updated = world.works("PUT", &format!("{MAPS}/a"), changed.clone()).await;
        assert_eq!(updated["metadata"]["creationTimestamp"], made["metadata"]["creationTimestamp"]);
        assert_eq!(updated["metadata"]["uid"], made["metadata"]["uid"]);
        changed["metadata"]["uid"] = "00000000-0000-4000-8000-000000000000".into();
        changed["metadata"].as_object_mut().unwrap().remove("resourceVersion");
        assert_eq!(world.refused(409, "PUT", &format!("{MAPS}/a"), changed).await["reason"], "Conflict");
    })
    .await;
}

#[tokio::test]
async fn a_json_patch_is_done_whole_or_not_at_all() {
    rule(async |world| {
        world.map("a").await;
        let path = format!("{MAPS}/a");
        let patch =
            json!([{"op": "test", "path": "/data/a", "value": "b"}, {"op": "add", "path": "/data/x", "value": "y"}]);
        assert_eq!(world.patch("json", &path, patch).await.json()["data"], json!({"a": "b", "x": "y"}));
        let patch = json!([{"op": "remove", "path": "/data/x"}, {"op": "test", "path": "/data/a", "value": "z"}]);
        assert_eq!(world.patch("json", &path, patch).await.code, 422);
        assert_eq!(world.works("GET", &path, Value::Null).await["data"], json!({"a": "b", "x": "y"}));
    })
    .await;
}

#[tokio::test]
async fn a_merge_patch_removes_with_null() {
    rule(async |world| {
        world.map("a").await;
        let patched = world.patch("merge", &format!("{MAPS}/a"), json!({"data": {"a": null, "x": "y"}})).await;
        assert_eq!(patched.json()["data"], json!({"x": "y"}));
        let old = json!({"metadata": {"resourceVersion": "1"}, "data": {"x": "z"}});
        assert_eq!(world.patch("merge", &format!("{MAPS}/a"), old).await.code, 409);
    })
    .await;
}

#[tokio::test]
async fn a_strategic_merge_patch_knows_the_keys_of_lists() {
    rule(async |world| {
        world.works("POST", PODS, pod("p")).await;
        let path = format!("{PODS}/p");
        let patch = json!({"spec": {"containers": [{"name": "c", "image": "other"}]}});
        let patched = world.patch("strategic-merge", &path, patch).await;
        assert_eq!(patched.code, 200, "{:?}", patched.bytes);
        assert_eq!(patched.json()["spec"]["containers"].as_array().unwrap().len(), 1);
        assert_eq!(patched.json()["spec"]["containers"][0]["image"], "other");
        let patch = json!({"metadata": {"finalizers": ["example.com/a"]}});
        world.patch("strategic-merge", &path, patch).await;
        let patch = json!({"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}});
        let patched = world.patch("strategic-merge", &path, patch).await.json();
        assert!(patched["metadata"]["finalizers"].is_null(), "{patched}");
    })
    .await;
}

#[tokio::test]
async fn a_deletion_with_a_wrong_precondition_is_a_conflict() {
    rule(async |world| {
        let made = world.map("a").await;
        let path = format!("{MAPS}/a");
        let wrong = json!({"preconditions": {"uid": "00000000-0000-4000-8000-000000000000"}});
        assert_eq!(world.refused(409, "DELETE", &path, wrong).await["reason"], "Conflict");
        let right = json!({"preconditions": {
            "uid": made["metadata"]["uid"], "resourceVersion": made["metadata"]["resourceVersion"],
        }});
        world.works("DELETE", &path, right).await;
        world.refused(404, "GET", &path, Value::Null).await;
    })
    .await;
}

#[tokio::test]
async fn an_object_with_a_finalizer_waits_for_it() {
    rule(async |world| {
        let body = json!({"metadata": {"name": "a", "finalizers": ["example.com/held"]}});
        world.works("POST", MAPS, body).await;
        let path = format!("{MAPS}/a");
        world.works("DELETE", &path, Value::Null).await;
        let waiting = world.works("GET", &path, Value::Null).await;
        assert!(waiting["metadata"]["deletionTimestamp"].is_string());
        let more = json!({"metadata": {"finalizers": ["example.com/held", "example.com/more"]}});
        assert_eq!(world.patch("merge", &path, more).await.code, 422, "no new finalizers while deleting");
        world.patch("merge", &path, json!({"metadata": {"finalizers": null}})).await;
        world.refused(404, "GET", &path, Value::Null).await;
    })
    .await;
}

#[tokio::test]
async fn a_bound_pod_gets_its_grace_period() {
    rule(async |world| {
        world.works("POST", PODS, pod("p")).await;
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "nowhere"},
        });
        assert_eq!(world.call("POST", &format!("{PODS}/p/binding"), binding.clone()).await.code, 201);
        let bound = world.works("GET", &format!("{PODS}/p"), Value::Null).await;
        assert_eq!(bound["spec"]["nodeName"], "nowhere");
        world.refused(409, "POST", &format!("{PODS}/p/binding"), binding).await;
        world.works("DELETE", &format!("{PODS}/p?gracePeriodSeconds=7"), Value::Null).await;
        let ending = world.works("GET", &format!("{PODS}/p"), Value::Null).await;
        assert_eq!(ending["metadata"]["deletionGracePeriodSeconds"], 7);
        world.works("DELETE", &format!("{PODS}/p?gracePeriodSeconds=0"), Value::Null).await;
        world.refused(404, "GET", &format!("{PODS}/p"), Value::Null).await;
    })
    .await;
}

#[tokio::test]
async fn a_collection_is_deleted_by_selector() {
    rule(async |world| {
        for name in ["a", "b", "c"] {
            world.map(name).await;
        }
        world.works("DELETE", &format!("{MAPS}?labelSelector=name%20in%20(a,b)"), Value::Null).await;
        let left = world.works("GET", &format!("{MAPS}?labelSelector=name"), Value::Null).await;
        assert_eq!(left["items"].as_array().unwrap().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn status_is_written_through_its_own_path_only() {
    rule(async |world| {
        world.works("POST", CLAIMS, claim("c")).await;
        let path = format!("{CLAIMS}/c");
        let both = json!({"metadata": {"labels": {"a": "b"}}, "status": {"phase": "Lost"}});
        let patched = world.patch("merge", &path, both).await.json();
        assert_eq!(
            (&patched["metadata"]["labels"]["a"], &patched["status"]["phase"]),
            (&json!("b"), &json!("Pending"))
        );
        let both = json!({"spec": {"volumeName": "v"}, "status": {"phase": "Lost"}});
        let patched = world.patch("merge", &format!("{path}/status"), both).await.json();
        assert_eq!((&patched["status"]["phase"], &patched["spec"]["volumeName"]), (&json!("Lost"), &Value::Null));
    })
    .await;
}

#[tokio::test]
async fn an_update_makes_a_lease_that_is_not_there_but_no_configmap() {
    rule(async |world| {
        let path = "/apis/coordination.k8s.io/v1/namespaces/{ns}/leases/l";
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
            "spec": {"holderIdentity": "me"},
        });
        let made = world.call("PUT", path, lease.clone()).await;
        assert_eq!(made.code, 201, "{:?}", made.bytes);
        world.refused(422, "PUT", path, lease).await;
        let made = made.json();
        world.works("PUT", path, made).await;
        let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}});
        world.refused(404, "PUT", &format!("{MAPS}/m"), map).await;
    })
    .await;
}

#[tokio::test]
async fn a_strategic_merge_patch_obeys_its_directives() {
    rule(async |world| {
        let mut pod = pod("p");
        pod["spec"]["volumes"] = json!([{"name": "a", "emptyDir": {}}, {"name": "b", "emptyDir": {}}]);
        let template = json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
            "spec": {
                "replicas": 0, "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": pod["spec"]},
            },
        });
        let path = "/apis/apps/v1/namespaces/{ns}/deployments";
        world.works("POST", path, template).await;
        let path = format!("{path}/d");
        let volumes = async |patch: Value| {
            let patch = json!({"spec": {"template": {"spec": patch}}});
            let patched = world.patch("strategic-merge", &path, patch).await;
            assert_eq!(patched.code, 200, "{:?}", patched.bytes);
            let volumes = patched.json()["spec"]["template"]["spec"]["volumes"].clone();
            volumes.as_array().into_iter().flatten().map(|v| v["name"].clone()).collect::<Vec<_>>()
        };
        let added = json!({"volumes": [{"name": "c", "emptyDir": {}}],
            "$setElementOrder/volumes": [{"name": "c"}, {"name": "a"}, {"name": "b"}]});
        assert_eq!(volumes(added).await, ["c", "a", "b"]);
        assert_eq!(volumes(json!({"volumes": [{"name": "a", "$patch": "delete"}]})).await, ["c", "b"]);
        let replaced = json!({"volumes": [{"$patch": "replace"}, {"name": "z", "emptyDir": {}}]});
        assert_eq!(volumes(replaced).await, ["z"]);
        let moved =
            json!({"volumes": [{"name": "z", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/z"}}]});
        assert_eq!(volumes(moved).await, ["z"]);
        let strategy = json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}});
        let patched = world.patch("strategic-merge", &path, strategy).await.json();
        assert_eq!(patched["spec"]["strategy"], json!({"type": "Recreate"}));
    })
    .await;
}

#[tokio::test]
async fn a_write_that_changes_nothing_makes_no_revision() {
    rule(async |world| {
        let made = world.map("a").await;
        let path = format!("{MAPS}/a");
        assert_eq!(world.works("PUT", &path, made.clone()).await, made);
        assert_eq!(world.patch("merge", &path, json!({"data": {"a": "b"}})).await.json(), made);
    })
    .await;
}

#[tokio::test]
async fn the_name_and_namespace_of_a_body_are_those_of_its_path() {
    rule(async |world| {
        world.map("a").await;
        world.refused(400, "PUT", &format!("{MAPS}/a"), json!({"metadata": {"name": "b"}})).await;
        world.refused(400, "POST", MAPS, json!({"metadata": {"name": "c", "namespace": "default"}})).await;
        world
            .refused(400, "POST", MAPS, json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "c"}}))
            .await;
        world.refused(405, "POST", "/api/v1/configmaps", json!({"metadata": {"name": "c"}})).await;
    })
    .await;
}
