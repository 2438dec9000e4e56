//! kube-rs over the in-process service, as the services and the test world use it.

#![allow(clippy::unwrap_used)]

use futures::TryStreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, PersistentVolumeClaim, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use kube::{Api, Client};
use serde_json::json;
use stowage_apiserver::{Options, Server};

fn client() -> Client {
    Client::new(Server::in_memory(Options::system()).service(), "default")
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_created_patched_and_deleted_by_kube_rs() {
    let claims: Api<PersistentVolumeClaim> = Api::default_namespaced(client());
    let body = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "a"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    });
    let made = claims.create(&PostParams::default(), &serde_json::from_value(body).unwrap()).await.unwrap();
    let status = json!({"status": {"phase": "Bound"}});
    claims.patch_status("a", &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
    let mut stale = made.clone();
    stale.metadata.finalizers = None;
    let conflict = claims.replace("a", &PostParams::default(), &stale).await.unwrap_err();
    assert!(matches!(&conflict, kube::Error::Api(status) if status.code == 409 && status.reason == "Conflict"));
    assert!(claims.delete("a", &DeleteParams::default()).await.unwrap().is_left(), "its finalizer holds it");
    let release = json!({"metadata": {"finalizers": null, "uid": made.metadata.uid}});
    claims.patch("a", &PatchParams::default(), &Patch::Merge(&release)).await.unwrap();
    assert!(claims.get_opt("a").await.unwrap().is_none());
}

#[tokio::test(start_paused = true)]
async fn kube_rs_lists_and_watches_without_a_gap() {
    let client = client();
    let maps: Api<ConfigMap> = Api::default_namespaced(client.clone());
    let list = maps.list(&ListParams::default()).await.unwrap();
    let version = list.metadata.resource_version.unwrap();
    let map = |name: &str| serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    maps.create(&PostParams::default(), &map("a")).await.unwrap();
    let events = maps.watch(&WatchParams::default().timeout(5), &version).await.unwrap();
    maps.create(&PostParams::default(), &map("b")).await.unwrap();
    let seen: Vec<WatchEvent<ConfigMap>> = events.try_collect().await.unwrap();
    let names: Vec<String> = seen
        .into_iter()
        .filter_map(|event| match event {
            WatchEvent::Added(map) => map.metadata.name,
            _ => None,
        })
        .collect();
    assert_eq!(names, ["a", "b"]);
    let pods: Api<Pod> = Api::all(client);
    assert!(pods.list(&ListParams::default().fields("spec.nodeName=n")).await.unwrap().items.is_empty());
}
