//! The provisioner against the embedded API server and a driver in memory: one thread, virtual time, no sockets but for one test.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "life/capacity.rs"]
mod capacity;
#[path = "life/codes.rs"]
mod codes;
#[path = "life/driver.rs"]
mod driver;
#[path = "life/large_clusters.rs"]
mod large_clusters;
#[path = "life/library.rs"]
mod library;
#[path = "life/on_several_nodes.rs"]
mod on_several_nodes;
#[path = "life/recovery.rs"]
mod recovery;
#[path = "life/sources.rs"]
mod sources;
#[path = "life/wire.rs"]
mod wire;
#[path = "life/world.rs"]
mod world;

use http::Method;
use serde_json::{Value, json};
use tonic::Code;

use driver::Next;
use provisioner::Options;
use stowage_runtime::Stop;
use world::World;

async fn plain_world() -> World {
    let world = World::new();
    world.make_class(json!({ "pool": "a" }), "Delete").await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_claim_gets_its_volume_and_a_released_volume_goes_without_time_passing() {
    let world = plain_world().await;
    let begin = tokio::time::Instant::now();
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    let volume = world.volume(&name).await;
    assert_eq!(volume["spec"]["csi"]["volumeHandle"], name.as_str());
    assert_eq!(volume["spec"]["claimRef"]["name"], "db");
    world.until("the event", async || !world.events("ProvisioningSucceeded").await.is_empty()).await;
    assert!(world.events("Provisioning").await.is_empty(), "what is done at once is told once");

    world.delete_claim("db").await;
    world.release(&name).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    assert_eq!(world.driver.calls(), ["CreateVolume", "DeleteVolume"]);
    assert!(world.driver.volumes().is_empty());
    assert_eq!(begin.elapsed().as_millis(), 0);
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lone_claim_costs_two_journal_writes_and_many_share_theirs() {
    let world = plain_world().await;
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.take_writes();
    let name = world.make_claim("lone", "1Gi").await;
    world.until("the event", async || !world.events("ProvisioningSucceeded").await.is_empty()).await;
    world.settle().await;
    let lone = world.take_writes();
    println!("writes for one claim: {lone:?}");
    // Nothing follows on which the removal of the record could ride.
    assert_eq!((lone["PUT leases"], lone["POST persistentvolumes"]), (2, 1));
    assert_eq!(lone.len(), 3, "{lone:?}");
    world.delete_claim("lone").await;
    world.release(&name).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    let deletion = world.take_writes();
    println!("writes for its deletion: {deletion:?}");
    assert_eq!(deletion.values().sum::<usize>(), 2, "{deletion:?}");

    running.drain().await.unwrap();

    for n in 0..200 {
        world.make_claim(&format!("claim-{n}"), "1Gi").await;
    }
    world.take_writes();
    let running = world.start(Options::default());
    world.until("all events", async || world.events("ProvisioningSucceeded").await.len() == 201).await;
    let many = world.take_writes();
    println!("writes for 200 claims at once: {many:?}");
    assert_eq!(many["POST persistentvolumes"], 200);
    assert!(many["PUT leases"] <= 20, "{many:?}");
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_bad_parameter_is_shown_and_a_corrected_class_is_used_at_once() {
    let world = plain_world().await;
    world.driver.next(Next::Fails(Code::InvalidArgument, "parameter pool \"a\" is unknown, use b"));
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    let message = world.events("ProvisioningFailed").await.remove(0);
    for part in
        ["StorageClass \"fast\"", "InvalidArgument", "parameter pool \"a\" is unknown, use b", "creating it anew"]
    {
        assert!(message.contains(part), "{message}");
    }
    world.send(Method::DELETE, "/apis/storage.k8s.io/v1/storageclasses/fast", Value::Null).await;
    world.make_class(json!({ "pool": "b" }), "Delete").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_9ei_bytes_is_refused_with_the_way_out() {
    let world = plain_world().await;
    let running = world.start(Options::default());
    world.make_claim("db", "9Ei").await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    let message = world.events("ProvisioningFailed").await.remove(0);
    assert!(message.contains("spec.resources.requests.storage") && message.contains("9Ei"), "{message}");
    assert!(world.driver.calls().is_empty());
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_too_small_is_deleted_and_made_again() {
    let world = plain_world().await;
    world.driver.next(Next::TooSmall(1));
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.driver.calls(), ["CreateVolume", "DeleteVolume", "CreateVolume"]);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn secrets_reach_the_driver_and_neither_the_journal_nor_an_event() {
    let world = World::new();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "keys" }, "data": { "password": "aHVudGVyMg==" },
    });
    let parameters = json!({
        "csi.storage.k8s.io/provisioner-secret-name": "keys",
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
    });
    world.make_class(parameters, "Delete").await;
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    assert!(world.events("ProvisioningFailed").await[0].contains("secret default/keys does not exist"));
    assert!(world.driver.calls().is_empty());
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let recorded = world.get(leases).await.to_string();
    assert!(recorded.contains("\\\"name\\\":\\\"keys\\\""), "{recorded}");
    world.send(Method::POST, "/api/v1/namespaces/default/secrets", secret).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.driver.seen_secrets()["password"], "hunter2");
    let leases = world.get(leases).await.to_string();
    let events = world.get("/api/v1/namespaces/default/events").await.to_string();
    assert!(
        ![recorded, leases, events, world.volume(&name).await.to_string()].iter().any(|text| text.contains("hunter2"))
    );
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_write_leases_it_works_as_the_original_does() {
    let world = plain_world().await;
    world.forbid_leases();
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    running.drain().await.unwrap();
}

/// The claim's uid was guessed from the volume's name, which flags may shorten.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_short_volume_name_was_taken_gets_its_volume_when_the_name_is_free() {
    let world = plain_world().await;
    let uid = world.make_claim("db", "1Gi").await.replace("pvc-", "");
    let name = format!("pvc-{}", uid.replace('-', "").get(..8).unwrap());
    let foreign = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "csi": { "driver": "other.example", "volumeHandle": "x" },
        },
    });
    world.send(Method::POST, "/api/v1/persistentvolumes", foreign).await;
    let running = world.start(Options { volume_name_uuid_length: Some(8), ..Options::default() });
    world.until("the refusal", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    let path = format!("/api/v1/persistentvolumes/{name}");
    world.send(Method::PATCH, &path, json!({ "metadata": { "finalizers": null } })).await;
    world.send(Method::DELETE, &path, Value::Null).await;
    world.until("the volume", async || world.volume(&name).await["spec"]["csi"]["driver"] == driver::DRIVER).await;
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn the_six_metrics_of_the_original_count_tries_by_class_and_source() {
    let world = plain_world().await;
    world.driver.next(Next::Fails(Code::Internal, "no"));
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.driver.will_not_delete(Code::FailedPrecondition);
    world.delete_claim("db").await;
    world.release(&name).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    let metrics = running.context.metrics.encode();
    for line in [
        "controller_persistentvolumeclaim_provision_total{class=\"fast\",source=\"\"} 1",
        "controller_persistentvolumeclaim_provision_failed_total{class=\"fast\",source=\"\"} 1",
        "controller_persistentvolumeclaim_provision_duration_seconds_count{class=\"fast\",source=\"\"} 1",
        "controller_persistentvolume_delete_total{class=\"fast\"} 1",
        "controller_persistentvolume_delete_failed_total{class=\"fast\"} 1",
        "controller_persistentvolume_delete_duration_seconds_count{class=\"fast\"} 1",
        "controller_persistentvolume_delete_duration_seconds_bucket{le=\"0.005\",class=\"fast\"} 1",
        "workqueue_depth{name=\"claims\"} 0",
        "workqueue_depth{name=\"volumes\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_attributes_class_is_told_to_the_driver_and_kept_in_the_volume() {
    let world = plain_world().await;
    let driver = world.driver.clone().modifying();
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": { "name": "gold" },
        "driverName": driver::DRIVER, "parameters": { "iops": "9000" },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "db", "annotations": { "volume.kubernetes.io/storage-provisioner": driver::DRIVER } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeAttributesClassName": "gold",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let running = world.start(Options::default());
    let claim = world.send(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", claim).await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    assert!(world.events("ProvisioningFailed").await[0].contains("\"gold\" does not exist"));
    world.send(Method::POST, "/apis/storage.k8s.io/v1/volumeattributesclasses", class).await;
    tokio::time::sleep(std::time::Duration::from_secs(31)).await;
    let name = format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap());
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(driver.requests()[0].mutable_parameters, [("iops".to_owned(), "9000".to_owned())].into());
    assert_eq!(driver.requests()[0].parameters, [("pool".to_owned(), "a".to_owned())].into());
    assert_eq!(world.volume(&name).await["spec"]["volumeAttributesClassName"], "gold");
    assert_eq!(running.context.metrics.missed_wakeups("provisioner").get(), 0);
    running.drain().await.unwrap();
}

/// The answer to a kind that is not served is a text, and no word of the server that there is no such object: the claim waited
/// without an event.
#[tokio::test(start_paused = true)]
async fn where_attributes_classes_are_not_served_the_volume_is_made_without_as_by_the_original() {
    for asked_for in [false, true] {
        let world = plain_world().await;
        world.take_away("volumeattributesclasses", "/apis/storage.k8s.io/v1");
        let mut options = Options::default();
        if asked_for {
            options.attributes_class = provisioner::AttributesClasses::On;
        }
        let driver = if asked_for { world.driver.clone().modifying() } else { world.driver.clone() };
        let running = world.start(options);
        let name =
            world.make_claim_with("db", |claim| claim["spec"]["volumeAttributesClassName"] = "gold".into()).await;
        if asked_for {
            world.until("the word", async || !world.events("ProvisioningFailed").await.is_empty()).await;
            let said = world.events("ProvisioningFailed").await.remove(0);
            assert!(said.contains("cannot read VolumeAttributesClass \"gold\" now") && said.contains("404"), "{said}");
        } else {
            world.until("the volume", async || world.volume(&name).await.is_object()).await;
            assert!(driver.requests()[0].mutable_parameters.is_empty());
        }
        running.drain().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn of_a_populator_people_are_told_under_the_name_that_the_original_has_for_it() {
    let world = plain_world().await;
    let running = world.start(Options::default());
    let source = json!({ "apiGroup": "hello.example", "kind": "Hello", "name": "a" });
    world.make_claim_with("db", |claim| claim["spec"]["dataSourceRef"] = source).await;
    world.until("the event", async || !world.events("Provisioning").await.is_empty()).await;
    let events = world.get("/api/v1/namespaces/default/events").await;
    assert_eq!(events["items"][0]["source"]["component"], "external-provisioner", "{events}");
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_class_of_an_in_tree_plugin_is_served_by_the_driver_that_took_over_and_its_volume_is_the_plugins() {
    const EBS: &str = "ebs.csi.aws.com";
    let world = World::new();
    let driver = world.driver.clone().named(EBS);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "fast" },
        "provisioner": "kubernetes.io/aws-ebs", "parameters": { "fsType": "xfs", "type": "gp3", "iopsPerGB": "10" },
    });
    world.send(Method::POST, "/apis/storage.k8s.io/v1/storageclasses", class).await;
    let running = world.start(Options::default());
    // As the pv-controller leaves such a claim.
    let annotations = json!({
        "volume.kubernetes.io/storage-provisioner": EBS, "pv.kubernetes.io/migrated-to": EBS,
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "db", "annotations": annotations },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let claim = world.send(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", claim).await;
    let name = format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap());
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    let request = driver.requests().remove(0);
    let wanted = [("type", "gp3"), ("iopsPerGB", "10"), ("allowautoiopspergbincrease", "true")];
    assert_eq!(request.parameters, wanted.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    let volume = world.volume(&name).await;
    assert_eq!(volume["spec"]["awsElasticBlockStore"], json!({ "volumeID": name, "fsType": "xfs" }));
    assert_eq!(volume["spec"]["csi"], Value::Null);
    assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], "kubernetes.io/aws-ebs");
    world.settle().await;
    assert_eq!(driver.calls(), ["CreateVolume"], "what was made stays");
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());

    // Before the pv-controller has marked it the plugin may be the one to delete it.
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.delete_claim("db").await;
    world.release(&name).await;
    world.settle().await;
    assert_eq!(driver.calls(), ["CreateVolume"]);
    let migrated = json!({ "metadata": { "annotations": { "pv.kubernetes.io/migrated-to": EBS } } });
    world.send(Method::PATCH, &format!("/api/v1/persistentvolumes/{name}"), migrated).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    assert_eq!(driver.calls(), ["CreateVolume", "DeleteVolume"]);
    assert!(driver.volumes().is_empty());
    let metrics = running.context.metrics.encode();
    let call = "method_name=\"/csi.v1.Controller/DeleteVolume\",grpc_status_code=\"OK\",migrated=\"true\"";
    assert!(metrics.contains(call), "{metrics}");
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_the_plugin_could_not_name_is_deleted_again_and_told() {
    const GCE: &str = "pd.csi.storage.gke.io";
    let world = World::new();
    let driver = world.driver.clone().named(GCE);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "fast" },
        "provisioner": "kubernetes.io/gce-pd",
    });
    world.send(Method::POST, "/apis/storage.k8s.io/v1/storageclasses", class).await;
    let running = world.start(Options::default());
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "db", "annotations": { "volume.kubernetes.io/storage-provisioner": GCE } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    world.send(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", claim).await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    let told = world.events("ProvisioningFailed").await.remove(0);
    assert!(told.contains("projects/PROJECT/zones/ZONE/disks/NAME") && told.contains("deleted again"), "{told}");
    assert!(driver.volumes().is_empty());
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_driver_with_places_is_told_where_the_selected_node_is() {
    let world = plain_world().await;
    for node in ["n1", "n2"] {
        let labels = json!({ driver::KEY: node });
        let body = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node, "labels": labels } });
        world.send(Method::POST, "/api/v1/nodes", body).await;
        let drivers = json!([{ "name": driver::DRIVER, "nodeID": node, "topologyKeys": [driver::KEY] }]);
        let body = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": node },
            "spec": { "drivers": drivers },
        });
        world.send(Method::POST, "/apis/storage.k8s.io/v1/csinodes", body).await;
    }
    let driver = driver::Driver::on("n2");
    let running = world.start_beside(driver.clone(), Options::default());
    world.ready(&running).await;
    let name = world.make_claim("db", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(driver.asked_for().len(), 2);
    let strict = Options { strict_topology: true, ..Options::default() };
    running.drain().await.unwrap();
    let running = world.start_beside(driver.clone(), strict);
    world.ready(&running).await;
    let body = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "web", "annotations": {
            "volume.kubernetes.io/storage-provisioner": driver::DRIVER,
            "volume.kubernetes.io/selected-node": "n2",
        } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    world.send(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", body).await;
    world.until("the second volume", async || driver.volumes().len() == 2).await;
    assert_eq!(driver.asked_for(), ["n2"]);
    running.drain().await.unwrap();
}
