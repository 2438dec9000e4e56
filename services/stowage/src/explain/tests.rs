use std::path::Path;

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_apiserver::{Server, User};
use stowage_model::Kind;
use stowage_model::object::{ObjectId, kinds};

use super::*;

pub(super) fn server() -> (Server, Api) {
    let server = Server::in_memory(stowage_apiserver::Options::system());
    let api = Api::new(kube::Client::new(server.service(), "default"));
    (server, api)
}

pub(super) async fn create(api: &Api, kind: Kind, body: Value) {
    api.create_raw(kind, body).await.unwrap();
}

pub(super) async fn delete(api: &Api, kind: Kind, key: &Key) {
    let request = http::Request::delete(kind.object_path(key)).body(Vec::new()).unwrap();
    let _: Value = api.client().request(request).await.unwrap();
}

pub(super) async fn send(api: &Api, method: &str, path: &str, body: Value) {
    let media = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
    let request = http::Request::builder().method(method).uri(path).header("content-type", media);
    let _: Value = api.client().request(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
}

/// A claim of a class that is not there, and a pod that was put on a node whose driver never came.
async fn situations(api: &Api) {
    let claim = |name: &str, class: &str| {
        json!({
            "metadata": { "namespace": "default", "name": name },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                      "resources": { "requests": { "storage": "1Gi" } } },
        })
    };
    create(api, kinds::CLAIM, claim("lost", "gold")).await;
    let mut bound = claim("data", "");
    bound["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes" });
    bound["spec"]["volumeName"] = "pv-1".into();
    let made = api.create_raw(kinds::CLAIM, bound).await.unwrap();
    create(
        api,
        kinds::VOLUME,
        json!({
            "metadata": { "name": "pv-1" },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                      "csi": { "driver": "d.example.com", "volumeHandle": "v" },
                      "claimRef": { "namespace": "default", "name": "data", "uid": made["metadata"]["uid"] } },
        }),
    )
    .await;
    create(
        api,
        kinds::CSI_DRIVER,
        json!({ "metadata": { "name": "d.example.com" }, "spec": { "attachRequired": false } }),
    )
    .await;
    create(api, kinds::NODE, json!({ "metadata": { "name": "node-1" } })).await;
    create(
        api,
        kinds::POD,
        json!({
            "metadata": { "namespace": "default", "name": "web" },
            "spec": { "nodeName": "node-1", "containers": [{ "name": "c", "image": "i" }],
                      "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }] },
        }),
    )
    .await;
}

async fn ids(api: &Api, wanted: Wanted) -> Vec<&'static str> {
    let gathered = gather(api, wanted).await.unwrap();
    let report = diagnose(&gathered, Timestamp::now());
    report.stories.iter().flat_map(|story| &story.causes).map(|cause| cause.id).collect()
}

#[tokio::test(start_paused = true)]
async fn what_a_server_holds_is_read_and_explained() {
    let (_server, api) = server();
    situations(&api).await;
    assert_eq!(ids(&api, Wanted::Claim(Key::namespaced("default", "lost"))).await, ["class-missing"]);
    let of_pod = ids(&api, Wanted::Pod(Key::namespaced("default", "web"))).await;
    assert!(of_pod.contains(&"driver-not-on-node"), "{of_pod:?}");
    assert!(ids(&api, Wanted::Volume(Key::cluster("pv-1"))).await.iter().all(|id| *id != "volume-missing"));
    let all = ids(&api, Wanted::All { namespace: None }).await;
    assert!(all.contains(&"class-missing") && all.contains(&"driver-not-on-node"), "{all:?}");
    let elsewhere = ids(&api, Wanted::All { namespace: Some("shop".to_owned()) }).await;
    assert_eq!(elsewhere, Vec::<&str>::new());
}

#[tokio::test(start_paused = true)]
async fn the_claim_that_has_the_volume_another_names_is_read() {
    let (_server, api) = server();
    create(&api, kinds::NAMESPACE, json!({ "metadata": { "name": "shop" } })).await;
    let claim = |namespace: &str| {
        json!({
            "metadata": { "namespace": namespace, "name": "data" },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "", "volumeName": "pv-1",
                      "resources": { "requests": { "storage": "1Gi" } } },
        })
    };
    let owner = api.create_raw(kinds::CLAIM, claim("shop")).await.unwrap();
    create(&api, kinds::CLAIM, claim("default")).await;
    // The pv-controller was away, so that the phase is an old one: the claim alone tells.
    let volume = json!({
        "metadata": { "name": "pv-1" },
        "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                  "csi": { "driver": "d.example.com", "volumeHandle": "v" },
                  "claimRef": { "namespace": "shop", "name": "data", "uid": owner["metadata"]["uid"] } },
    });
    create(&api, kinds::VOLUME, volume).await;
    let path = format!("{}/status", kinds::VOLUME.object_path(&Key::cluster("pv-1")));
    send(&api, "PATCH", &path, json!({ "status": { "phase": "Available" } })).await;
    for wanted in [
        Wanted::Claim(Key::namespaced("default", "data")),
        Wanted::All { namespace: Some("default".to_owned()) },
        Wanted::All { namespace: None },
    ] {
        let report = diagnose(&gather(&api, wanted.clone()).await.unwrap(), Timestamp::now());
        let is_of_one = wanted != Wanted::All { namespace: None };
        assert!(!is_of_one || report.stories.iter().all(|story| story.key.namespace == "default"), "{report:#?}");
        let mut causes = report.stories.iter().flat_map(|story| &story.causes);
        let cause = causes.find(|cause| cause.id == "volume-taken");
        let way_out = &cause.unwrap_or_else(|| panic!("{report:#?}")).way_out;
        assert!(!way_out.contains("kubectl patch"), "{way_out}");
    }
}

pub(super) async fn tell(api: &Api, about: (&str, &str), severity: &str, reason: &str, at: &str) {
    let (kind, name) = about;
    create(
        api,
        kinds::EVENT,
        json!({
            "metadata": { "namespace": "default", "name": format!("{name}.{}", reason.to_lowercase()) },
            "involvedObject": { "kind": kind, "namespace": "default", "name": name },
            "type": severity, "reason": reason, "message": reason, "firstTimestamp": at, "lastTimestamp": at,
        }),
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_survey_hears_that_a_failure_is_settled() {
    let (_server, api) = server();
    situations(&api).await;
    let class =
        json!({ "metadata": { "name": "gold" }, "provisioner": "d.example.com", "volumeBindingMode": "Immediate" });
    create(&api, kinds::STORAGE_CLASS, class).await;
    let annotation =
        json!({ "metadata": { "annotations": { "volume.kubernetes.io/storage-provisioner": "d.example.com" } } });
    let id = ObjectId { kind: kinds::CLAIM, key: Key::namespaced("default", "lost") };
    api.patch_raw(&id, annotation).await.unwrap();
    let (claim, pod) = (("PersistentVolumeClaim", "lost"), ("Pod", "web"));
    tell(&api, claim, "Warning", "ProvisioningFailed", "2026-01-01T00:00:00Z").await;
    tell(&api, pod, "Warning", "FailedMount", "2026-01-01T00:00:00Z").await;
    let failed = ids(&api, Wanted::All { namespace: None }).await;
    assert!(failed.contains(&"provisioning-failed") && failed.contains(&"mount-failed"), "{failed:?}");
    tell(&api, claim, "Normal", "ProvisioningSucceeded", "2026-01-01T00:01:00Z").await;
    tell(&api, pod, "Normal", "Pulled", "2026-01-01T00:01:00Z").await;
    let settled = ids(&api, Wanted::All { namespace: None }).await;
    assert!(!settled.contains(&"provisioning-failed") && !settled.contains(&"mount-failed"), "{settled:?}");
}

/// Snapshots are served.
pub(super) async fn define(api: &Api) {
    for definition in stowage_crds::definitions() {
        create(api, kinds::DEFINITION, definition.object()).await;
    }
}

/// Claim `data`, snapshot `snap` of it that is not ready, and claim `restored` that is to be filled from that.
async fn a_restore(api: &Api) {
    define(api).await;
    let claim = |name: &str| {
        json!({
            "metadata": { "namespace": "default", "name": name },
            "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                      "resources": { "requests": { "storage": "1Gi" } } },
        })
    };
    create(
        api,
        kinds::STORAGE_CLASS,
        json!({ "metadata": { "name": "fast" }, "provisioner": "d.example.com", "volumeBindingMode": "Immediate" }),
    )
    .await;
    create(api, kinds::CLAIM, claim("data")).await;
    let finalizers = ["snapshot.storage.kubernetes.io/volumesnapshot-as-source-protection"];
    create(
        api,
        kinds::VOLUME_SNAPSHOT,
        json!({
            "metadata": { "namespace": "default", "name": "snap", "finalizers": finalizers },
            "spec": { "source": { "persistentVolumeClaimName": "data" } },
        }),
    )
    .await;
    let mut restored = claim("restored");
    restored["spec"]["dataSource"] =
        json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "snap" });
    create(api, kinds::CLAIM, restored).await;
}

#[tokio::test(start_paused = true)]
async fn the_claim_behind_the_snapshot_of_a_restore_is_read() {
    let (_server, api) = server();
    a_restore(&api).await;
    let wanted = Wanted::Claim(Key::namespaced("default", "restored"));
    let report = diagnose(&gather(&api, wanted).await.unwrap(), Timestamp::now());
    let cause = &report.stories[0].causes[0];
    assert_eq!(cause.id, "source-not-ready", "{report:#?}");
    assert!(cause.why.contains("is \"data\", whose phase is Pending"), "{cause:#?}");
}

#[tokio::test(start_paused = true)]
async fn a_deleted_snapshot_knows_the_claim_that_is_filled_from_it() {
    let (_server, api) = server();
    a_restore(&api).await;
    let key = Key::namespaced("default", "snap");
    delete(&api, kinds::VOLUME_SNAPSHOT, &key).await;
    assert_eq!(ids(&api, Wanted::Snapshot(key)).await, ["restore-under-way"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_not_there_is_refused_by_name() {
    let (_server, api) = server();
    let error = gather(&api, Wanted::Claim(Key::namespaced("default", "nope"))).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "there is no PersistentVolumeClaim default/nope; `kubectl get persistentvolumeclaims -A` lists them"
    );
}

/// What a user is shown who may do this to claims, pods and events of the namespace.
async fn allowed(server: &Server, api: &Api, verbs: &[&str]) -> Api {
    server.enable_rbac().await.unwrap();
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "namespace": "default", "name": "reader" },
        "rules": [{ "apiGroups": [""], "resources": ["persistentvolumeclaims", "pods", "events"], "verbs": verbs }],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
        "metadata": { "namespace": "default", "name": "reader" },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader" },
        "subjects": [{ "kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "jo" }],
    });
    for (plural, body) in [("roles", role), ("rolebindings", binding)] {
        send(api, "POST", &format!("/apis/rbac.authorization.k8s.io/v1/namespaces/default/{plural}"), body).await;
    }
    let user = User::new("jo", ["system:authenticated"]);
    Api::new(kube::Client::new(server.service_as(user), "default"))
}

#[tokio::test(start_paused = true)]
async fn whoever_may_not_list_claims_does_not_hear_that_nobody_copies_one() {
    let (server, api) = server();
    let finalizers = ["provisioner.storage.kubernetes.io/cloning-protection"];
    let source = json!({
        "metadata": { "namespace": "default", "name": "data", "finalizers": finalizers },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
    });
    create(&api, kinds::CLAIM, source).await;
    let key = Key::namespaced("default", "data");
    delete(&api, kinds::CLAIM, &key).await;
    let told = ids(&api, Wanted::Claim(key.clone())).await;
    assert!(told.contains(&"finalizer-not-released") && !told.contains(&"cannot-be-told"), "{told:?}");
    let own = allowed(&server, &api, &["get"]).await;
    let told = ids(&own, Wanted::Claim(key)).await;
    assert!(told.contains(&"cannot-be-told") && !told.contains(&"finalizer-not-released"), "{told:?}");
}

#[tokio::test(start_paused = true)]
async fn a_user_of_a_namespace_hears_of_the_claim_and_what_may_not_be_read() {
    let (server, api) = server();
    situations(&api).await;
    server.enable_rbac().await.unwrap();
    let own = allowed(&server, &api, &["get", "list"]).await;
    let key = Key::namespaced("default", "lost");
    let report = diagnose(&gather(&own, Wanted::Claim(key)).await.unwrap(), Timestamp::now());
    // Whether the class is there is not known: so nobody says that it is missing.
    assert!(report.stories[0].causes.iter().all(|cause| cause.id != "class-missing"), "{report:#?}");
    let unread: Vec<&str> = report.unread.iter().map(|unread| unread.kind.plural).collect();
    assert!(unread.contains(&"storageclasses") && unread.contains(&"leases"), "{unread:?}");
    let refused = gather(&own, Wanted::Volume(Key::cluster("pv-1"))).await.unwrap_err().to_string();
    assert!(refused.contains("ask for the right to get persistentvolumes"), "{refused}");
}

#[test]
fn the_stack_of_this_machine_is_meant_unless_another_cluster_is_named() {
    let root = tempfile::tempdir().unwrap();
    let own = root.path().join("kubeconfig");
    assert_eq!(kubeconfig(None, false, root.path()), None, "there is no stack");
    std::fs::write(&own, "").unwrap();
    assert_eq!(kubeconfig(None, false, root.path()).as_deref(), own.to_str());
    assert_eq!(kubeconfig(None, true, root.path()), None);
    assert_eq!(kubeconfig(Some("mine"), true, Path::new("/")).as_deref(), Some("mine"));
}
