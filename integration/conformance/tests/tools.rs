//! kubectl, as people use it.

#![allow(clippy::unwrap_used, clippy::panic)]

use conformance_suite::{World, rule};
use serde_json::Value;

const OBJECTS: &str = "
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], storageClassName: none, resources: {requests: {storage: 1Gi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  automountServiceAccountToken: false
  containers: [{name: c, image: busybox, volumeMounts: [{name: v, mountPath: /data}]}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: data}}]
";

/// kubectl that must succeed; nothing where there is none.
async fn works(world: &World, arguments: &str, input: &str) -> Option<String> {
    let arguments: Vec<&str> = arguments.split(' ').collect();
    let (ok, output) = world.kubectl(&arguments, input).await?;
    assert!(ok, "kubectl {arguments:?}: {output}");
    Some(output)
}

#[tokio::test]
async fn discovery_and_version() {
    rule(async |world| {
        let groups = world.works("GET", "/apis", Value::Null).await;
        assert!(groups["groups"].as_array().unwrap().iter().any(|g| g["name"] == "storage.k8s.io"));
        assert_eq!(world.works("GET", "/version", Value::Null).await["major"], "1");
        let Some(resources) = works(&world, "api-resources", "").await else { return };
        for kind in ["PersistentVolumeClaim", "StorageClass", "Lease", "ClusterRole", "TokenReview"] {
            assert!(resources.contains(kind), "{kind} is not in {resources}");
        }
        works(&world, "version", "").await;
    })
    .await;
}

#[tokio::test]
async fn create_get_and_describe() {
    rule(async |world| {
        let Some(created) = works(&world, "create -f -", OBJECTS).await else { return };
        assert!(created.contains("pod/web created"));
        let claims = works(&world, "get pvc", "").await.unwrap();
        for column in ["NAME", "STATUS", "VOLUME", "CAPACITY", "ACCESS MODES", "STORAGECLASS", "AGE"] {
            assert!(claims.contains(column), "{claims}");
        }
        let pods = works(&world, "get pods -o wide", "").await.unwrap();
        for column in ["NAME", "READY", "STATUS", "RESTARTS", "NODE"] {
            assert!(pods.contains(column), "{pods}");
        }
        for kind in ["pv", "sc", "volumeattachments", "nodes", "csinodes", "leases", "events"] {
            works(&world, &format!("get {kind}"), "").await;
        }
        let described = works(&world, "describe pvc data", "").await.unwrap();
        assert!(described.contains("Used By:") && described.contains("web"), "{described}");
    })
    .await;
}

#[tokio::test]
async fn apply_changes_only_what_is_different() {
    rule(async |world| {
        if works(&world, "apply -f -", OBJECTS).await.is_none() {
            return;
        }
        assert!(works(&world, "apply -f -", OBJECTS).await.unwrap().contains("pod/web unchanged"));
        let changed = OBJECTS.replace("image: busybox", "image: busybox:2");
        assert!(works(&world, "apply -f -", &changed).await.unwrap().contains("pod/web configured"));
        let image = works(&world, "get pod web -o jsonpath={.spec.containers[0].image}", "").await.unwrap();
        assert_eq!(image, "busybox:2");
    })
    .await;
}

#[tokio::test]
async fn label_annotate_patch_edit_and_wait() {
    rule(async |world| {
        if works(&world, "create -f -", OBJECTS).await.is_none() {
            return;
        }
        works(&world, "label pvc data tier=gold", "").await;
        works(&world, "annotate pvc data note=before", "").await;
        works(&world, "edit pvc data", "").await;
        let note = works(&world, "get pvc data -o jsonpath={.metadata.annotations.note}", "").await.unwrap();
        assert_eq!(note, "after");
        assert!(
            works(&world, "get pvc -l tier=gold -o name", "").await.unwrap().contains("persistentvolumeclaim/data")
        );
        works(&world, r#"patch pvc data --type=merge -p {"metadata":{"labels":{"tier":"iron"}}}"#, "").await;
        works(&world, "wait --for=jsonpath={.status.phase}=Pending pvc/data --timeout=10s", "").await;
        works(&world, "delete pod web --grace-period=0 --force", "").await;
        works(&world, "wait --for=delete pod/web --timeout=10s", "").await;
    })
    .await;
}

#[tokio::test]
async fn what_is_wrong_is_said() {
    rule(async |world| {
        let wrong = OBJECTS.replace("spec: {access", "spec: {colour: red, access");
        let Some((ok, output)) = world.kubectl(&["create", "-f", "-"], &wrong).await else { return };
        assert!(!ok && output.contains(r#"unknown field "spec.colour""#), "{output}");
        let (ok, output) = world.kubectl(&["get", "pod", "none"], "").await.unwrap();
        assert!(!ok && output.contains(r#"pods "none" not found"#), "{output}");
    })
    .await;
}
