//! The whole CreateVolume as a driver gets it, with everything set that a claim and its class can say: section 2.5.

use std::collections::BTreeMap;

use stowage_csi::v1::volume_capability::MountVolume;
use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::volume_content_source::{Type, VolumeSource};
use stowage_csi::v1::{
    CapacityRange, CreateVolumeRequest, Topology, TopologyRequirement, VolumeCapability, VolumeContentSource,
};

use super::*;
use crate::driver::{DRIVER, Driver, KEY};

const CLASSES: &str = "/apis/storage.k8s.io/v1/storageclasses";
const CLAIMS: &str = "/api/v1/namespaces/default/persistentvolumeclaims";

fn map(entries: &[(&str, &str)]) -> BTreeMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

async fn make_classes_and_secret(world: &World) {
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "whole" },
        "provisioner": DRIVER, "mountOptions": ["noatime", "nodev"],
        "parameters": {
            "pool": "a",
            "csi.storage.k8s.io/fstype": "xfs",
            "csi.storage.k8s.io/provisioner-secret-name": "keys-${pvc.name}",
            "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
        },
    });
    world.send(Method::POST, CLASSES, class).await;
    let attributes = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": { "name": "gold" },
        "driverName": DRIVER, "parameters": { "iops": "9000" },
    });
    world.send(Method::POST, "/apis/storage.k8s.io/v1/volumeattributesclasses", attributes).await;
    for claim in ["old", "new"] {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": format!("keys-{claim}") },
            "data": { "user": "dQ==", "password": "cA==" },
        });
        world.send(Method::POST, "/api/v1/namespaces/default/secrets", secret).await;
    }
}

/// A bound claim of the class, to be cloned; returns its volume's handle.
async fn make_source(world: &World) -> String {
    let volume = world.make_claim_with("old", |claim| claim["spec"]["storageClassName"] = "whole".into()).await;
    world.until("the source", async || world.volume(&volume).await.is_object()).await;
    world.send(Method::PATCH, &format!("{CLAIMS}/old"), json!({ "spec": { "volumeName": volume } })).await;
    let bound = json!({ "status": { "phase": "Bound" } });
    world.send(Method::PATCH, &format!("/api/v1/persistentvolumes/{volume}/status"), bound.clone()).await;
    world.send(Method::PATCH, &format!("{CLAIMS}/old/status"), bound).await;
    world.volume(&volume).await["spec"]["csi"]["volumeHandle"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn create_volume_carries_all_that_claim_class_node_and_source_say() {
    let world = World::new();
    make_classes_and_secret(&world).await;
    for node in ["n1", "n2"] {
        world.make_node(node, node).await;
    }
    let driver = Driver::on("n2").filling().modifying();
    let options = Options { strict_topology: true, extra_create_metadata: true, ..Options::default() };
    let running = world.start_beside(driver.clone(), options);
    world.ready(&running).await;
    let source = make_source(&world).await;
    let volume = world
        .make_claim_with("new", |claim| {
            claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = "n2".into();
            claim["spec"]["storageClassName"] = "whole".into();
            claim["spec"]["volumeAttributesClassName"] = "gold".into();
            claim["spec"]["accessModes"] = json!(["ReadWriteOnce", "ReadOnlyMany"]);
            claim["spec"]["resources"]["requests"]["storage"] = "2Gi".into();
            claim["spec"]["dataSource"] = json!({ "kind": "PersistentVolumeClaim", "name": "old" });
        })
        .await;
    world.until("the volume", async || world.volume(&volume).await.is_object()).await;

    let mount_flags = vec!["noatime".to_owned(), "nodev".to_owned()];
    let mount = MountVolume { fs_type: "xfs".into(), mount_flags, ..MountVolume::default() };
    let capability = |mode: Mode| VolumeCapability::new(mode.into(), Some(mount.clone()));
    let place = || vec![Topology { segments: map(&[(KEY, "n2")]) }];
    let expected = CreateVolumeRequest {
        name: volume.clone(),
        capacity_range: Some(CapacityRange { required_bytes: 2 << 30, limit_bytes: 0 }),
        volume_capabilities: vec![capability(Mode::SingleNodeWriter), capability(Mode::MultiNodeReaderOnly)],
        parameters: map(&[
            ("pool", "a"),
            ("csi.storage.k8s.io/pvc/name", "new"),
            ("csi.storage.k8s.io/pvc/namespace", "default"),
            ("csi.storage.k8s.io/pv/name", &volume),
        ]),
        // The driver of these tests keeps them apart.
        secrets: BTreeMap::new(),
        volume_content_source: Some(VolumeContentSource {
            r#type: Some(Type::Volume(VolumeSource { volume_id: source })),
        }),
        accessibility_requirements: Some(TopologyRequirement { requisite: place(), preferred: place() }),
        mutable_parameters: map(&[("iops", "9000")]),
    };
    assert_eq!(driver.requests().pop().unwrap(), expected);
    assert_eq!(driver.seen_secrets(), map(&[("password", "p"), ("user", "u")]));
    running.drain().await.unwrap();
}
