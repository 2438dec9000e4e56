//! The numbers over a volume's life, under upstream's names.

use serde_json::json;

use stowage_model::object::kinds;
use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_runtime::api::{Deletion, Target};

use crate::world::{World, until, until_gone};

impl World {
    async fn provision(&self) {
        let class =
            json!({ "metadata": { "name": "fast" }, "provisioner": "d.example", "volumeBindingMode": "Immediate" });
        self.api.create_raw(kinds::STORAGE_CLASS, class).await.unwrap();
        let claim = json!({
            "metadata": { "namespace": "default", "name": "c" },
            "spec": {
                "storageClassName": "fast", "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        self.api.create_raw(kinds::CLAIM, claim).await.unwrap();
        let claim = until(&self.claims, |claim| claim.storage_provisioner() == Some("d.example")).await;
        let volume = json!({
            "metadata": { "name": "v", "annotations": { "pv.kubernetes.io/provisioned-by": "d.example" } },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
                "persistentVolumeReclaimPolicy": "Delete", "csi": { "driver": "d.example", "volumeHandle": "h" },
                "claimRef": { "namespace": "default", "name": "c", "uid": claim.meta.uid },
            },
        });
        self.api.create_raw(kinds::VOLUME, volume).await.unwrap();
        until(&self.claims, |claim| claim.status.phase == ClaimPhase::Bound).await;
        until(&self.volumes, |volume| volume.status.phase == VolumePhase::Bound).await;
    }
}

#[tokio::test]
async fn provisioning_and_deleting_by_others_are_timed_and_the_queues_show_their_work() {
    let world = World::start().await;
    world.provision().await;
    let volume = until(&world.volumes, |_| true).await;
    world
        .shows("pv_collector_total_pv_count{plugin_name=\"kubernetes.io/csi:d.example\",volume_mode=\"Filesystem\"} 1");

    let claim = until(&world.claims, |_| true).await;
    world.api.delete(&world.claims, &Target::any_version(&claim.meta), Deletion::default()).await.unwrap();
    until(&world.volumes, |volume| volume.status.phase == VolumePhase::Released).await;
    world.api.delete(&world.volumes, &Target::any_version(&volume.meta), Deletion::default()).await.unwrap();
    until_gone(&world.volumes, "v").await;
    // The service may see its own answer a moment before or after we see the event; its next work comes after both.
    let claim = json!({
        "metadata": { "namespace": "default", "name": "later" },
        "spec": {
            "storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    world.api.create_raw(kinds::CLAIM, claim).await.unwrap();
    until(&world.events, |event| event.message.contains("no volumes")).await;

    for operation in ["provision", "delete"] {
        let labels = format!("plugin_name=\"d.example\",operation_name=\"{operation}\"");
        world.shows(&format!("volume_operation_total_seconds_count{{{labels}}} 1"));
    }
    let text = world.metrics.encode();
    for name in ["claims", "volumes"] {
        for family in ["adds_total", "queue_duration_seconds_count", "work_duration_seconds_count"] {
            let start = format!("workqueue_{family}{{name=\"{name}\"}} ");
            let line =
                text.lines().find(|line| line.starts_with(&start)).unwrap_or_else(|| panic!("no {start}\n{text}"));
            assert!(line[start.len()..].parse::<u64>().unwrap() > 1, "{line}");
        }
        for family in ["depth", "unfinished_work_seconds", "longest_running_processor_seconds"] {
            let start = format!("workqueue_{family}{{name=\"{name}\"}} ");
            assert!(text.lines().any(|line| line.starts_with(&start)), "no {start}\n{text}");
        }
    }
}

#[tokio::test]
async fn claims_of_pods_are_counted_and_so_is_the_one_that_somebody_else_made_first() {
    let world = World::start().await;
    let pod = |name: &str| {
        let template = json!({ "spec": {
            "storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        } });
        json!({
            "metadata": { "namespace": "default", "name": name },
            "spec": {
                "containers": [{ "name": "x", "image": "x" }],
                "volumes": [{ "name": "data", "ephemeral": { "volumeClaimTemplate": template } }],
            },
        })
    };
    world.api.create_raw(kinds::POD, pod("p")).await.unwrap();
    until(&world.claims, |claim| claim.meta.name == "p-data").await;
    world.shows("ephemeral_volume_controller_create_total 1");
    world.shows("ephemeral_volume_controller_create_failures_total 0");

    world.wire.hold("WATCH", "/persistentvolumeclaims");
    let foreign = json!({
        "metadata": { "namespace": "default", "name": "q-data" },
        "spec": {
            "storageClassName": "", "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    world.api.create_raw(kinds::CLAIM, foreign).await.unwrap();
    world.api.create_raw(kinds::POD, pod("q")).await.unwrap();
    until(&world.events, |event| event.message.contains("q-data")).await;
    world.shows("ephemeral_volume_controller_create_total 2");
    world.shows("ephemeral_volume_controller_create_failures_total 1");
}

#[tokio::test]
async fn a_volume_that_the_plugin_cannot_make_is_a_provisioning_that_failed() {
    let options = pv_controller::Options { host_path_provisioner: true, ..Default::default() };
    let world = World::start_with(options).await;
    let class = json!({ "metadata": { "name": "gold" }, "provisioner": "kubernetes.io/host-path" });
    world.api.create_raw(kinds::STORAGE_CLASS, class).await.unwrap();
    let claim = json!({
        "metadata": { "namespace": "default", "name": "c" },
        "spec": {
            "storageClassName": "gold", "accessModes": ["ReadWriteOnce"],
            "resources": { "requests": { "storage": "1Gi" } },
            "dataSource": { "kind": "PersistentVolumeClaim", "name": "other" },
        },
    });
    world.api.create_raw(kinds::CLAIM, claim).await.unwrap();
    until(&world.events, |event| event.message.contains("spec.dataSource")).await;
    let labels = "plugin_name=\"kubernetes.io/host-path\",operation_name=\"provision\"";
    world.shows(&format!("volume_operation_errors_total{{{labels}}} 1"));
}
