//! Volumes from snapshots and claims, and what becomes of these meanwhile.

use http::Method;
use serde_json::{Value, json};
use stowage_csi::v1::volume_content_source::{SnapshotSource, Type, VolumeSource};
use tonic::Code;

use crate::driver::{DRIVER, Driver, Next};
use crate::world::World;
use provisioner::{NodeDeployment, Options};

const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";
const SNAPSHOTS: &str = "/apis/snapshot.storage.k8s.io/v1/namespaces/default/volumesnapshots";
const CONTENTS: &str = "/apis/snapshot.storage.k8s.io/v1/volumesnapshotcontents";
const HELD: &str = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection";
const CLONED: &str = "provisioner.storage.kubernetes.io/cloning-protection";

async fn world() -> World {
    let mut world = World::new();
    world.driver = Driver::default().filling();
    world.make_class(json!({}), "Delete").await;
    world
}

async fn install(world: &World) {
    fn strip_rules(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                fields.remove("x-kubernetes-validations");
                fields.values_mut().for_each(strip_rules);
            }
            Value::Array(items) => items.iter_mut().for_each(strip_rules),
            _ => {}
        }
    }
    for definition in stowage_crds::definitions() {
        let mut object = definition.object();
        strip_rules(&mut object);
        object["apiVersion"] = "apiextensions.k8s.io/v1".into();
        object["kind"] = "CustomResourceDefinition".into();
        world.send(Method::POST, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", object).await;
    }
}

/// A snapshot and its content, bound to each other.
async fn make_snapshot(world: &World, is_ready: bool, finalizers: &[&str], labels: Value) {
    let body = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": { "name": "nightly", "finalizers": finalizers },
        "spec": { "source": { "persistentVolumeClaimName": "old" } },
    });
    let snapshot = world.send(Method::POST, SNAPSHOTS, body).await;
    let body = json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotContent",
        "metadata": { "name": "content", "labels": labels },
        "spec": {
            "volumeSnapshotRef": { "namespace": "default", "name": "nightly", "uid": snapshot["metadata"]["uid"] },
            "driver": DRIVER, "deletionPolicy": "Delete", "source": { "volumeHandle": "v" },
            "sourceVolumeMode": "Filesystem",
        },
    });
    world.send(Method::POST, CONTENTS, body).await;
    let status = json!({ "status": { "snapshotHandle": "s1", "readyToUse": is_ready } });
    world.send(Method::PATCH, &format!("{CONTENTS}/content/status"), status).await;
    set_ready(world, is_ready).await;
}

async fn set_ready(world: &World, is_ready: bool) {
    let status = json!({ "boundVolumeSnapshotContentName": "content", "readyToUse": is_ready, "restoreSize": "1Gi" });
    world.send(Method::PATCH, &format!("{SNAPSHOTS}/nightly/status"), json!({ "status": status })).await;
}

async fn finalizers(world: &World, path: &str) -> Vec<String> {
    let object = world.get(path).await;
    let list = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
    list.iter().map(|finalizer| finalizer.as_str().unwrap().to_owned()).collect()
}

async fn is_held(world: &World) -> bool {
    finalizers(world, &format!("{SNAPSHOTS}/nightly")).await == [HELD]
}

async fn fill(world: &World, name: &str, size: &str, source: Value) -> String {
    let body = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": name, "annotations": { "volume.kubernetes.io/storage-provisioner": DRIVER } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": size } }, "dataSourceRef": source,
        },
    });
    let claim = world.send(Method::POST, CLAIMS, body).await;
    format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap())
}

fn from_snapshot() -> Value {
    json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "nightly" })
}

fn from_claim() -> Value {
    json!({ "kind": "PersistentVolumeClaim", "name": "old" })
}

async fn said(world: &World, part: &str) -> bool {
    world.events("ProvisioningFailed").await.iter().any(|message| message.contains(part))
}

fn asked_for(driver: &Driver) -> Vec<Option<Type>> {
    driver
        .requests()
        .into_iter()
        .map(|request| request.volume_content_source.and_then(|source| source.r#type))
        .collect()
}

fn snapshot_source() -> Option<Type> {
    Some(Type::Snapshot(SnapshotSource { snapshot_id: "s1".into() }))
}

/// What the pv-controller does with a claim and its volume.
async fn bind(world: &World, claim: &str, volume: &str) {
    world.send(Method::PATCH, &format!("{CLAIMS}/{claim}"), json!({ "spec": { "volumeName": volume } })).await;
    let path = format!("/api/v1/persistentvolumes/{volume}/status");
    world.send(Method::PATCH, &path, json!({ "status": { "phase": "Bound" } })).await;
    world.send(Method::PATCH, &format!("{CLAIMS}/{claim}/status"), json!({ "status": { "phase": "Bound" } })).await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_waits_for_its_snapshot_and_goes_on_when_it_is_ready_without_time_passing() {
    let world = world().await;
    install(&world).await;
    make_snapshot(&world, false, &[], json!({})).await;
    let running = world.start(Options::default());
    world.ready(&running).await;
    let begin = tokio::time::Instant::now();
    let name = fill(&world, "db", "1Gi", from_snapshot()).await;
    world.until("the word", async || said(&world, "status.readyToUse of VolumeSnapshot default/nightly").await).await;
    assert!(world.driver.calls().is_empty());
    world.take_writes();
    set_ready(&world, true).await;
    world.until("the event", async || !world.events("ProvisioningSucceeded").await.is_empty()).await;
    world.until("its freedom", async || !is_held(&world).await).await;
    assert!(world.volume(&name).await.is_object());
    assert_eq!(asked_for(&world.driver), [snapshot_source()]);
    assert_eq!(begin.elapsed().as_millis(), 0);
    let writes = world.take_writes();
    println!("writes for a restore: {writes:?}");
    assert_eq!((writes["PUT volumesnapshots"], writes["PUT leases"]), (2, 2), "{writes:?}");
    // Two resyncs find nothing that no event had told.
    tokio::time::sleep(std::time::Duration::from_secs(1500)).await;
    assert_eq!(running.context.metrics.missed_wakeups("provisioner").get(), 0);
    running.drain().await.unwrap();
}

/// With the roles of the original before 6.1, which let snapshots be read, or read and listed, what came after the start was
/// never seen.
#[tokio::test(start_paused = true)]
async fn a_snapshot_that_comes_later_is_restored_where_snapshots_may_not_be_watched() {
    for (forbidden, role) in [("/volumesnapshots?watch", "get and list"), ("/volumesnapshots?", "get")] {
        let world = world().await;
        install(&world).await;
        world.forbid(Some(Method::GET), forbidden);
        let running = world.start(Options::default());
        world.ready(&running).await;
        let name = fill(&world, "db", "1Gi", from_snapshot()).await;
        world
            .until("the word", async || said(&world, "VolumeSnapshot default/nightly, which does not exist").await)
            .await;
        make_snapshot(&world, false, &[], json!({})).await;
        tokio::time::sleep(std::time::Duration::from_secs(31)).await;
        world.until("a second word", async || said(&world, "status.readyToUse of VolumeSnapshot").await).await;
        set_ready(&world, true).await;
        tokio::time::sleep(std::time::Duration::from_secs(31)).await;
        world.until(role, async || world.volume(&name).await.is_object()).await;
        assert_eq!(asked_for(&world.driver), [snapshot_source()], "{role}");
        running.drain().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn the_definitions_of_snapshots_may_come_after_the_claim() {
    let world = world().await;
    let running = world.start(Options::default());
    let name = fill(&world, "db", "1Gi", from_snapshot()).await;
    world.until("the word", async || said(&world, "its kind is not served").await).await;
    install(&world).await;
    make_snapshot(&world, true, &[], json!({})).await;
    tokio::time::sleep(std::time::Duration::from_secs(40)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_held_while_it_is_cloned_and_free_afterwards_whether_it_is_deleted_or_not() {
    let world = world().await;
    let running = world.start(Options::default());
    let old = world.make_claim("old", "1Gi").await;
    world.until("the source", async || world.volume(&old).await.is_object()).await;
    let name = fill(&world, "new", "2Gi", from_claim()).await;
    world.until("the word", async || said(&world, "status.phase of PersistentVolumeClaim default/old").await).await;
    world.driver.next(Next::DoneAndSilent);
    bind(&world, "old", &old).await;
    world.until("the call", async || world.driver.requests().len() == 2).await;
    assert_eq!(asked_for(&world.driver)[1], Some(Type::Volume(VolumeSource { volume_id: old.clone() })));
    let path = format!("{CLAIMS}/old");
    assert!(finalizers(&world, &path).await.contains(&CLONED.to_owned()));

    // Its user deletes it, and nobody but us has anything against that.
    world.send(Method::PATCH, &path, json!({ "metadata": { "finalizers": [CLONED] } })).await;
    world.send(Method::DELETE, &path, Value::Null).await;
    world.settle().await;
    assert!(world.get(&path).await.is_object(), "the source went while a clone of it was made");
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    world.until("the clone", async || world.volume(&name).await.is_object()).await;
    world.until("the end of the source", async || world.get(&path).await.is_null()).await;
    let requests = world.driver.requests();
    assert_eq!(requests[1], requests[2]);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_request_is_replayed_as_it_was_after_a_crash_also_when_its_snapshot_is_gone() {
    for is_claim_gone in [false, true] {
        let world = world().await;
        install(&world).await;
        make_snapshot(&world, true, &[], json!({})).await;
        world.driver.next(Next::DoneAndSilent);
        let running = world.start(Options::default());
        let name = fill(&world, "db", "1Gi", from_snapshot()).await;
        world.until("the call", async || world.driver.volumes() == [name.clone()]).await;
        assert!(is_held(&world).await && world.journal().await.len() == 1);
        running.crash();
        // Somebody who knows better frees and deletes them by hand.
        let path = format!("{SNAPSHOTS}/nightly");
        world.send(Method::PATCH, &path, json!({ "metadata": { "finalizers": null } })).await;
        world.send(Method::DELETE, &path, Value::Null).await;
        world.send(Method::DELETE, &format!("{CONTENTS}/content"), Value::Null).await;
        if is_claim_gone {
            world.delete_claim("db").await;
        }
        let running = world.start(Options::default());
        match is_claim_gone {
            false => world.until("the volume", async || world.volume(&name).await.is_object()).await,
            true => world.until("the cleanup", async || world.driver.volumes().is_empty()).await,
        }
        let requests = world.driver.requests();
        assert_eq!((requests.len(), &requests[0]), (2, &requests[1]));
        running.drain().await.unwrap();
        assert!(world.journal().await.is_empty());
    }
}

/// Deletes what nobody but us has anything against.
async fn delete(world: &World, path: &str, kept: &[&str]) {
    world.send(Method::PATCH, path, json!({ "metadata": { "finalizers": kept } })).await;
    world.send(Method::DELETE, path, Value::Null).await;
}

/// The driver looks at the source before the name, and the snapshot-controller of the original deletes the content whatever our
/// finalizer says: the VolumeSnapshot and its namespace stayed for ever.
#[tokio::test(start_paused = true)]
async fn a_snapshot_is_let_go_when_its_claim_is_gone_and_the_driver_misses_it() {
    let world = world().await;
    install(&world).await;
    make_snapshot(&world, true, &[], json!({})).await;
    world.driver.next(Next::DoneAndSilent);
    (0..3).for_each(|_| world.driver.next(Next::Fails(Code::NotFound, "there is no such snapshot")));
    let running = world.start(Options::default());
    let name = fill(&world, "db", "1Gi", from_snapshot()).await;
    world.until("the call", async || world.driver.volumes() == [name.clone()]).await;
    world.delete_claim("db").await;
    let path = format!("{SNAPSHOTS}/nightly");
    delete(&world, &path, &[HELD]).await;
    world.send(Method::DELETE, &format!("{CONTENTS}/content"), Value::Null).await;
    world.until("the word", async || !world.events("SourceInUse").await.is_empty()).await;
    assert!(world.events("SourceInUse").await[0].contains("for default/db"));
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    world.until("the snapshot's end", async || world.get(&path).await.is_null()).await;
    let said = world.events("SourceReleased").await.remove(0);
    assert!(said.contains("VolumeSnapshot default/nightly is let go") && said.contains("(NotFound)"), "{said}");
    // It is asked on, also after a crash, until the driver tells.
    assert_eq!(world.journal().await.len(), 1);
    running.crash();
    let running = world.start(Options::default());
    world.ready(&running).await;
    tokio::time::sleep(std::time::Duration::from_secs(1000)).await;
    world.until("the cleanup", async || world.driver.volumes().is_empty()).await;
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
}

/// `kubectl delete ns` during a clone whose secret is in the claim's namespace.
#[tokio::test(start_paused = true)]
async fn a_cloned_claim_is_let_go_when_the_new_one_and_its_secret_are_gone() {
    let world = world().await;
    let running = world.start(Options::default());
    let old = world.make_claim("old", "1Gi").await;
    world.until("the source", async || world.volume(&old).await.is_object()).await;
    bind(&world, "old", &old).await;
    world.send(Method::DELETE, "/apis/storage.k8s.io/v1/storageclasses/fast", Value::Null).await;
    let secret = json!({
        "csi.storage.k8s.io/provisioner-secret-name": "keys",
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
    });
    world.make_class(secret, "Delete").await;
    let keys = json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "keys" } });
    world.send(Method::POST, "/api/v1/namespaces/default/secrets", keys).await;
    world.driver.next(Next::DoneAndSilent);
    fill(&world, "new", "1Gi", from_claim()).await;
    world.until("the call", async || world.driver.volumes().len() == 2).await;
    world.send(Method::DELETE, "/api/v1/namespaces/default/secrets/keys", Value::Null).await;
    world.delete_claim("new").await;
    let path = format!("{CLAIMS}/old");
    delete(&world, &path, &[CLONED]).await;
    world.settle().await;
    assert!(world.get(&path).await.is_object(), "the call may still be under way");
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    world.until("the source's end", async || world.get(&path).await.is_null()).await;
    assert!(world.events("SourceReleased").await[0].contains("PersistentVolumeClaim default/old is let go"));
    assert_eq!(world.journal().await.len(), 1);
    running.drain().await.unwrap();
}

/// Another driver's Go sidecar takes our finalizer away. The record was forgotten, and the volume had no owner.
#[tokio::test(start_paused = true)]
async fn a_volume_is_found_though_its_snapshot_lost_our_finalizer_and_the_driver_missed_it_for_a_while() {
    for crashes in [false, true] {
        let world = world().await;
        install(&world).await;
        make_snapshot(&world, true, &[], json!({})).await;
        world.driver.next(Next::DoneAndSilent);
        (0..2).for_each(|_| world.driver.next(Next::Fails(Code::NotFound, "there is no such snapshot")));
        let mut running = world.start(Options::default());
        let name = fill(&world, "db", "1Gi", from_snapshot()).await;
        world.until("the call", async || world.driver.volumes() == [name.clone()]).await;
        world.delete_claim("db").await;
        delete(&world, &format!("{SNAPSHOTS}/nightly"), &[]).await;
        world.send(Method::DELETE, &format!("{CONTENTS}/content"), Value::Null).await;
        if crashes {
            running.crash();
            running = world.start(Options::default());
        }
        let missed = "VolumeSnapshot default/nightly is gone; it is asked again";
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        world.until("the word", async || said(&world, missed).await).await;
        tokio::time::sleep(std::time::Duration::from_secs(1000)).await;
        world.until("the cleanup", async || world.driver.volumes().is_empty()).await;
        running.drain().await.unwrap();
        assert!(world.journal().await.is_empty(), "{crashes}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_crash_between_finalizer_and_call_and_between_call_and_object_leaves_the_snapshot_free_in_the_end() {
    let world = world().await;
    install(&world).await;
    make_snapshot(&world, true, &[], json!({})).await;
    // The record and the finalizer are written, and the fresh read before the call never comes back.
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.forbid(Some(Method::GET), "/persistentvolumeclaims/db");
    let name = fill(&world, "db", "1Gi", from_snapshot()).await;
    world.until("the finalizer", async || is_held(&world).await).await;
    assert!(world.driver.calls().is_empty());
    running.crash();
    world.permit_all();
    world.driver.next(Next::DoneAndSilent);
    let running = world.start(Options::default());
    world.until("the call", async || !world.driver.volumes().is_empty()).await;
    assert!(is_held(&world).await);
    running.crash();
    let running = world.start(Options::default());
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.until("its freedom", async || !is_held(&world).await).await;
    assert_eq!(world.driver.volumes(), [name]);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_somebody_left_held_is_freed_at_the_start_unless_the_sweep_is_off() {
    for sweep_snapshots in [true, false] {
        let world = world().await;
        install(&world).await;
        make_snapshot(&world, true, &[HELD], json!({})).await;
        let running = world.start(Options { sweep_snapshots, ..Options::default() });
        world.ready(&running).await;
        world.settle().await;
        assert_eq!(is_held(&world).await, !sweep_snapshots);
        running.drain().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_without_its_content_is_deleted_and_asked_for_again() {
    let world = world().await;
    install(&world).await;
    make_snapshot(&world, true, &[], json!({})).await;
    world.driver.next(Next::Unfilled);
    let running = world.start(Options::default());
    let name = fill(&world, "db", "1Gi", from_snapshot()).await;
    world
        .until("the word", async || said(&world, "without a content source where VolumeSnapshot default/nightly").await)
        .await;
    assert!(world.driver.volumes().is_empty() && world.volume(&name).await.is_null());
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.driver.calls(), ["CreateVolume", "DeleteVolume", "CreateVolume"]);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn whatever_the_driver_answers_first_the_volume_is_made_in_the_end_and_the_snapshot_free() {
    for code in (1..=16).map(Code::from_i32) {
        let world = world().await;
        install(&world).await;
        make_snapshot(&world, true, &[], json!({})).await;
        world.driver.next(Next::Fails(code, "not now"));
        let running = world.start(Options::default());
        let name = fill(&world, "db", "1Gi", from_snapshot()).await;
        world.until("the word", async || said(&world, "not now").await).await;
        assert!(is_held(&world).await, "{code:?}: it is tried again");
        tokio::time::sleep(std::time::Duration::from_secs(301)).await;
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        world.until("its freedom", async || !is_held(&world).await).await;
        assert_eq!(asked_for(&world.driver), [snapshot_source(), snapshot_source()], "{code:?}");
        running.drain().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_hold_snapshots_they_are_used_all_the_same() {
    let world = world().await;
    install(&world).await;
    make_snapshot(&world, true, &[], json!({})).await;
    world.forbid(Some(Method::PUT), "/volumesnapshots");
    let running = world.start(Options::default());
    for claim in ["db", "web"] {
        let name = fill(&world, claim, "1Gi", from_snapshot()).await;
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
    }
    assert_eq!(world.take_writes()["PUT volumesnapshots"], 1);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_being_made_from_a_snapshot_goes_on_when_the_snapshot_is_deleted() {
    let world = world().await;
    install(&world).await;
    make_snapshot(&world, true, &[], json!({})).await;
    world.driver.next(Next::Fails(Code::Internal, "not now"));
    let running = world.start(Options::default());
    let name = fill(&world, "db", "1Gi", from_snapshot()).await;
    world.until("the word", async || said(&world, "not now").await).await;
    let path = format!("{SNAPSHOTS}/nightly");
    world.send(Method::DELETE, &path, Value::Null).await;
    let late = fill(&world, "late", "1Gi", from_snapshot()).await;
    world.until("the word", async || said(&world, "which is being deleted").await).await;
    tokio::time::sleep(std::time::Duration::from_secs(3)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.until("the end of the snapshot", async || world.get(&path).await.is_null()).await;
    assert!(world.volume(&late).await.is_null());
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_source_in_another_namespace_is_used_once_a_grant_permits_it() {
    let world = world().await;
    install(&world).await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": "referencegrants.gateway.networking.k8s.io",
            "annotations": { "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/gateway-api" },
        },
        "spec": {
            "group": "gateway.networking.k8s.io", "scope": "Namespaced",
            "names": { "kind": "ReferenceGrant", "listKind": "ReferenceGrantList", "plural": "referencegrants", "singular": "referencegrant" },
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } },
            }],
        },
    });
    world.send(Method::POST, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    make_snapshot(&world, true, &[], json!({})).await;
    let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "dev" } });
    world.send(Method::POST, "/api/v1/namespaces", namespace).await;
    let running = world.start(Options { cross_namespace: true, ..Options::default() });
    world.ready(&running).await;
    let mut source = from_snapshot();
    source["namespace"] = "default".into();
    let body = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "db", "annotations": { "volume.kubernetes.io/storage-provisioner": DRIVER } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "dataSourceRef": source,
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let claim = world.send(Method::POST, "/api/v1/namespaces/dev/persistentvolumeclaims", body).await;
    let name = format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap());
    let told = async || {
        let events = world.get("/api/v1/namespaces/dev/events").await.to_string();
        events.contains("no ReferenceGrant in namespace")
    };
    world.until("the word", told).await;
    let grant = json!({
        "apiVersion": "gateway.networking.k8s.io/v1beta1", "kind": "ReferenceGrant", "metadata": { "name": "g" },
        "spec": {
            "from": [{ "group": "", "kind": "PersistentVolumeClaim", "namespace": "dev" }],
            "to": [{ "group": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot" }],
        },
    });
    world.send(Method::POST, "/apis/gateway.networking.k8s.io/v1beta1/namespaces/default/referencegrants", grant).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.until("its freedom", async || !is_held(&world).await).await;
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn of_many_nodes_the_one_with_the_data_takes_the_claim() {
    let world = world().await;
    install(&world).await;
    let label = json!({ "snapshot.storage.kubernetes.io/managed-by": "b" });
    make_snapshot(&world, true, &[], label).await;
    let drivers = ["a", "b", "c"].map(|node| (node, Driver::on(node).filling()));
    let running: Vec<_> = drivers
        .iter()
        .map(|(node, driver)| {
            let node_deployment = Some(NodeDeployment { node: (*node).into(), ..NodeDeployment::default() });
            world.start_beside(driver.clone(), Options { node_deployment, ..Options::default() })
        })
        .collect();
    let name = fill(&world, "db", "1Gi", from_snapshot()).await;
    tokio::time::sleep(std::time::Duration::from_secs(61)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.selected_node("db").await, "b");
    for (node, driver) in &drivers {
        assert_eq!(driver.volumes().len(), usize::from(*node == "b"), "{node}");
    }
    world.until("its freedom", async || !is_held(&world).await).await;
    for running in running {
        running.drain().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn many_restores_of_one_snapshot_hold_it_together() {
    let world = world().await;
    install(&world).await;
    make_snapshot(&world, true, &[], json!({})).await;
    for number in 0..50 {
        fill(&world, &format!("db-{number}"), "1Gi", from_snapshot()).await;
    }
    world.take_writes();
    let running = world.start(Options::default());
    world.until("all volumes", async || world.driver.volumes().len() == 50).await;
    world.until("its freedom", async || !is_held(&world).await).await;
    world.until("all events", async || world.events("ProvisioningSucceeded").await.len() == 50).await;
    let writes = world.take_writes();
    println!("writes for 50 restores of one snapshot: {writes:?}");
    assert_eq!(writes["POST persistentvolumes"], 50);
    assert!(writes["PUT volumesnapshots"] <= 10, "{writes:?}");
    running.drain().await.unwrap();
}
