use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;

use node_plugin::args::{LOCAL_DRIVER_NAME, PoolOption, TOPOLOGY_KEY};
use node_plugin::{Kind, Options};
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::*;
use stowage_mount::LinuxMounter;
use tonic::Code;

use crate::world::{Client, World, capability, of_snapshot, refused, request, request_from, test};

/// The local driver of one node, with a pool that no other node sees.
fn options(world: &World, node: &str) -> Options {
    let path = world.pool().join(node);
    fs::create_dir_all(&path).unwrap();
    let pools = vec![PoolOption { name: "main".into(), path }];
    Options { kind: Kind::Local, driver_name: LOCAL_DRIVER_NAME.into(), pools, ..world.options(node) }
}

async fn driver(world: &World, node: &str) -> Client {
    world.introduced(options(world, node)).await
}

fn at(node: &str) -> Topology {
    Topology { segments: BTreeMap::from([(TOPOLOGY_KEY.to_owned(), node.to_owned())]) }
}

#[test]
fn volumes_of_the_local_driver_are_used_where_they_are_without_attachment() {
    test(async |world| {
        let client = driver(&world, "a").await;
        let info = client.info().await.unwrap();
        assert_eq!(info.accessible_topology, Some(at("a")));
        let shared = capability(AccessMode::MultiNodeMultiWriter);
        let wanted = CreateVolumeRequest {
            volume_capabilities: vec![shared, capability(AccessMode::SingleNodeWriter)],
            accessibility_requirements: Some(TopologyRequirement {
                requisite: vec![at("b"), at("a")],
                preferred: vec![at("b")],
            }),
            ..request("v")
        };
        let volume = client.create(wanted).await.unwrap();
        assert_eq!(volume.accessible_topology, [at("a")]);
        let attach = client.attach(&volume.volume_id, "a").await;
        assert_eq!(refused(attach, &["no attachments"]), Code::Unimplemented);
        client.stage(&volume.volume_id, &BTreeMap::new()).await.unwrap();
        client.publish(&volume.volume_id, &BTreeMap::new(), "pod").await.unwrap();
        fs::write(client.target("pod").join("file"), "data").unwrap();
        assert_eq!(refused(client.delete(&volume.volume_id).await, &["unstage it first"]), Code::FailedPrecondition);
        client.unpublish(&volume.volume_id, "pod").await.unwrap();
        client.unstage(&volume.volume_id).await.unwrap();
        client.delete(&volume.volume_id).await.unwrap();
        let services = client.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
        assert_eq!(services.into_inner().capabilities.len(), 5);
        let rpcs = client.controller().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await.unwrap();
        assert!(!format!("{:?}", rpcs.into_inner()).contains("PublishUnpublishVolume"));
    });
}

#[test]
fn a_volume_of_another_node_is_neither_made_nor_found_nor_deleted_here() {
    test(async |world| {
        let (a, b) = (driver(&world, "a").await, driver(&world, "b").await);
        let volume = a.create(request("v")).await.unwrap().volume_id;
        let snapshot = a.snapshot(&volume, "s").await.unwrap().snapshot_id;
        // Deleting it here must not be taken for "it is gone".
        assert_eq!(refused(b.delete(&volume).await, &["not of node b"]), Code::FailedPrecondition);
        assert_eq!(refused(b.delete_snapshot(&snapshot).await, &["not of node b"]), Code::FailedPrecondition);
        let elsewhere = CreateVolumeRequest {
            accessibility_requirements: Some(TopologyRequirement { requisite: vec![at("a")], preferred: vec![] }),
            ..request("w")
        };
        assert_eq!(refused(b.create(elsewhere).await, &[TOPOLOGY_KEY]), Code::ResourceExhausted);
        let restored = b.create(request_from("r", of_snapshot(&snapshot))).await;
        assert_eq!(refused(restored, &["another node"]), Code::ResourceExhausted);
        let free = async |topology| {
            let request = GetCapacityRequest { accessible_topology: topology, ..Default::default() };
            b.controller().get_capacity(request).await.unwrap().into_inner().available_capacity
        };
        assert_eq!(free(Some(at("a"))).await, 0);
        assert!(free(Some(at("b"))).await > 0 && free(None).await > 0);
        // The same name on two nodes is two volumes.
        assert_ne!(b.create(request("v")).await.unwrap().volume_id, volume);
        a.delete(&volume).await.unwrap();
        a.delete_snapshot(&snapshot).await.unwrap();
    });
}

#[test]
fn the_name_of_a_driver_can_be_changed() {
    test(async |world| {
        let options = Options { driver_name: "disks.example.org".into(), ..options(&world, "a") };
        let client = world.start(options, Arc::new(LinuxMounter));
        let info = client.identity().get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
        assert_eq!(info.name, "disks.example.org");
    });
}
