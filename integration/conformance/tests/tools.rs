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

/// kubectl validates a List by the document of version 2, which it reads as protobuf, where the server validates all else.
#[tokio::test]
async fn a_list_is_created_and_applied() {
    rule(async |world| {
        let list = |name: &str, data: &str| {
            format!(
                "apiVersion: v1\nkind: List\nitems:\n\
                 - {{apiVersion: v1, kind: ConfigMap, metadata: {{name: {name}}}, data: {{a: {data}}}}}\n\
                 - {{apiVersion: v1, kind: Secret, metadata: {{name: {name}}}, stringData: {{a: {data}}}}}\n"
            )
        };
        let Some(created) = works(&world, "create -f -", &list("made", "x")).await else { return };
        assert_eq!(created, "configmap/made created\nsecret/made created\n");
        let applied = works(&world, "apply -f -", &list("applied", "x")).await.unwrap();
        assert_eq!(applied, "configmap/applied created\nsecret/applied created\n");
        let again = works(&world, "apply -f -", &list("applied", "x")).await.unwrap();
        assert!(again.contains("configmap/applied unchanged"), "{again}");
        let changed = works(&world, "apply -f -", &list("applied", "z")).await.unwrap();
        assert!(changed.contains("configmap/applied configured"), "{changed}");
        assert_eq!(works(&world, "get configmap applied -o jsonpath={.data.a}", "").await.unwrap(), "z");
        let deleted = works(&world, "delete -f -", &list("applied", "z")).await.unwrap();
        assert!(deleted.contains("configmap \"applied\" deleted"), "{deleted}");
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
        works(&world, "wait --for=jsonpath={.status.phase}=Pending pvc/data --timeout=120s", "").await;
        works(&world, "delete pod web --grace-period=0 --force", "").await;
        works(&world, "wait --for=delete pod/web --timeout=120s", "").await;
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

/// One object of each kind that people look at.
const LOOKED_AT: &str = "
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: NAME}
provisioner: example.com
---
apiVersion: v1
kind: PersistentVolume
metadata: {name: NAME}
spec:
  capacity: {storage: 1Gi}
  accessModes: [ReadWriteOnce, ReadOnlyMany]
  csi: {driver: example.com, volumeHandle: h}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttachment
metadata: {name: NAME}
spec: {attacher: example.com, nodeName: node1, source: {persistentVolumeName: v}}
---
apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: NAME}
spec: {drivers: [{name: example.com, nodeID: node1}]}
---
apiVersion: storage.k8s.io/v1
kind: CSIDriver
metadata: {name: NAME}
---
apiVersion: v1
kind: Node
metadata: {name: NAME, labels: {node-role.kubernetes.io/worker: \"\"}}
---
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: lease}
spec: {holderIdentity: me}
---
apiVersion: v1
kind: Event
metadata: {name: event}
involvedObject: {apiVersion: v1, kind: PersistentVolumeClaim, name: data, namespace: NS}
type: Normal
reason: Tested
message: it was looked at
source: {component: suite}
";

/// The words of a table's line, cut where two blanks or more are.
fn words(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|word| !word.is_empty()).collect()
}

#[tokio::test]
async fn tables_have_the_usual_columns() {
    rule(async |world| {
        let name = format!("{}-looked-at", world.namespace);
        let objects = LOOKED_AT.replace("NAME", &name).replace("NS", &world.namespace);
        if works(&world, "create -f -", &objects).await.is_none() {
            return;
        }
        works(&world, "create -f -", OBJECTS).await;
        let mut wrong = Vec::new();
        for (kind, object, header, row) in [
            (
                "pvc",
                "data",
                "NAME STATUS VOLUME CAPACITY ACCESS-MODES STORAGECLASS VOLUMEATTRIBUTESCLASS AGE",
                "data Pending none <unset>",
            ),
            ("pods", "web", "NAME READY STATUS RESTARTS AGE", "web 0/1 Pending 0"),
            (
                "pv",
                &name,
                "NAME CAPACITY ACCESS-MODES RECLAIM-POLICY STATUS CLAIM STORAGECLASS VOLUMEATTRIBUTESCLASS REASON AGE",
                "* 1Gi RWO,ROX Retain *",
            ),
            (
                "sc",
                &name,
                "NAME PROVISIONER RECLAIMPOLICY VOLUMEBINDINGMODE ALLOWVOLUMEEXPANSION AGE",
                "* example.com Delete Immediate false",
            ),
            ("volumeattachments", &name, "NAME ATTACHER PV NODE ATTACHED AGE", "* example.com v node1 false"),
            ("csinodes", &name, "NAME DRIVERS AGE", "* 1"),
            (
                "csidrivers",
                &name,
                "NAME ATTACHREQUIRED PODINFOONMOUNT STORAGECAPACITY TOKENREQUESTS REQUIRESREPUBLISH MODES AGE",
                "* true false false <unset> false Persistent",
            ),
            ("nodes", &name, "NAME STATUS ROLES AGE VERSION", "* * worker"),
            ("leases", "lease", "NAME HOLDER AGE", "lease me"),
            (
                "events",
                "event",
                "LAST-SEEN TYPE REASON OBJECT MESSAGE",
                "<unknown> Normal Tested persistentvolumeclaim/data it-was-looked-at",
            ),
        ] {
            let table = works(&world, &format!("get {kind} {object}"), "").await.unwrap();
            let mut lines = table.lines();
            let (found, cells) = (words(lines.next().unwrap()), words(lines.next().unwrap()));
            let spaced: Vec<String> = header
                .split(' ')
                .map(|word| {
                    word.replace("ACCESS-MODES", "ACCESS MODES")
                        .replace("RECLAIM-POLICY", "RECLAIM POLICY")
                        .replace("LAST-SEEN", "LAST SEEN")
                })
                .collect();
            let same =
                row.split(' ').zip(&cells).all(|(wanted, cell)| wanted == "*" || wanted == cell.replace(' ', "-"));
            if found != spaced || !same {
                wrong.push(table);
            }
        }
        let gone =
            ["sc", "pv", "volumeattachment", "csinode", "csidriver", "node"].map(|kind| format!("{kind}/{name}"));
        works(&world, &format!("patch pv {name} --type=merge -p {{\"metadata\":{{\"finalizers\":null}}}}"), "").await;
        works(&world, &format!("delete --wait=false {}", gone.join(" ")), "").await;
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    })
    .await;
}

#[tokio::test]
async fn describe_knows_every_kind() {
    rule(async |world| {
        let name = format!("{}-described", world.namespace);
        let objects = LOOKED_AT.replace("NAME", &name).replace("NS", &world.namespace);
        if works(&world, "create -f -", &objects).await.is_none() {
            return;
        }
        for (kind, line) in [
            ("sc", "VolumeBindingMode:"),
            ("pv", "VolumeHandle:"),
            ("volumeattachment", "Persistent Volume Name:"),
            ("csinode", "Node ID:"),
            ("csidriver", "Attach Required:"),
            ("node", "Unschedulable:"),
        ] {
            let described = works(&world, &format!("describe {kind} {name}"), "").await.unwrap();
            assert!(described.contains(line), "{described}");
        }
        let gone =
            ["sc", "pv", "volumeattachment", "csinode", "csidriver", "node"].map(|kind| format!("{kind}/{name}"));
        works(&world, &format!("patch pv {name} --type=merge -p {{\"metadata\":{{\"finalizers\":null}}}}"), "").await;
        works(&world, &format!("delete --wait=false {}", gone.join(" ")), "").await;
    })
    .await;
}

#[tokio::test]
async fn delete_cascades_as_told() {
    rule(async |world| {
        for (mode, stays) in [("background", false), ("foreground", false), ("orphan", true)] {
            if works(&world, "create configmap owner", "").await.is_none() {
                return;
            }
            let uid = works(&world, "get configmap owner -o jsonpath={.metadata.uid}", "").await.unwrap();
            let owner =
                format!("{{apiVersion: v1, kind: ConfigMap, name: owner, uid: {uid}, blockOwnerDeletion: true}}");
            let dependent =
                format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: dependent, ownerReferences: [{owner}]}}\n");
            works(&world, "create -f -", &dependent).await;
            works(&world, &format!("delete configmap owner --cascade={mode}"), "").await;
            if stays {
                works(&world, "get configmap dependent", "").await;
                works(&world, "delete configmap dependent", "").await;
            } else {
                works(&world, "wait --for=delete configmap/dependent --timeout=60s", "").await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn patch_replace_and_diff() {
    rule(async |world| {
        if works(&world, "create -f -", OBJECTS).await.is_none() {
            return;
        }
        works(&world, r#"patch pvc data -p {"metadata":{"labels":{"a":"strategic"}}}"#, "").await;
        works(&world, r#"patch pvc data --type=merge -p {"metadata":{"labels":{"b":"merge"}}}"#, "").await;
        let add = r#"[{"op":"add","path":"/metadata/labels/c","value":"json"}]"#;
        works(&world, &format!("patch pvc data --type=json -p {add}"), "").await;
        works(&world, r#"patch pvc data --subresource=status --type=merge -p {"status":{"phase":"Lost"}}"#, "").await;
        let seen = works(&world, "get pvc data -o jsonpath={.metadata.labels}{.status.phase}", "").await.unwrap();
        assert_eq!(seen, r#"{"a":"strategic","b":"merge","c":"json"}Lost"#);
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: m}\ndata: {a: before}\n";
        works(&world, "apply -f -", map).await;
        let changed = map.replace("before", "after");
        let (same, difference) = world.kubectl(&["diff", "-f", "-"], &changed).await.unwrap();
        assert!(!same && difference.contains("+  a: after"), "{difference}");
        works(&world, "replace -f -", &changed).await;
        assert_eq!(works(&world, "get configmap m -o jsonpath={.data.a}", "").await.unwrap(), "after");
        let dry = works(&world, "create configmap dry --dry-run=server", "").await.unwrap();
        assert!(dry.contains("configmap/dry created (server dry run)"), "{dry}");
        assert!(!works(&world, "get configmaps", "").await.unwrap().contains("dry"));
    })
    .await;
}

#[tokio::test]
async fn documents_of_the_api() {
    rule(async |world| {
        for path in ["/openapi/v3", "/openapi/v3/api/v1", "/openapi/v3/apis/storage.k8s.io/v1"] {
            let Some(document) = works(&world, &format!("get --raw {path}"), "").await else { return };
            assert!(serde_json::from_str::<Value>(&document).unwrap()["paths"].is_object(), "{path}");
        }
        let index = works(&world, "get --raw /openapi/v3", "").await.unwrap();
        assert!(index.contains("apis/storage.k8s.io/v1"), "{index}");
        let checks = works(&world, "get --raw /readyz?verbose", "").await.unwrap();
        assert!(checks.contains("[+]ping ok") && checks.contains("readyz check passed"), "{checks}");
    })
    .await;
}
