//! The same specs for the driver for NFS servers. Left out is what it does not offer, and what its original skips too: a
//! directory has no size, so 15 (another size under the same name) cannot be told.

use stowage_csi::v1::*;
use tonic::Code;

use crate::nfs_world::{publish, test};
use crate::world::{MIB, of_snapshot, of_volume, text};
use crate::{UNKNOWN, code};

#[test]
fn identity_1_to_3_and_capabilities_4_and_67() {
    test(async |world| {
        let client = world.client().await;
        let services = client.identity().get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
        assert_eq!(services.into_inner().capabilities.len(), 1, "1");
        client.identity().probe(ProbeRequest {}).await.expect("2");
        let info = client.identity().get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
        assert_eq!(info.name, "nfs.csi.k8s.io", "3");
        let rpcs = client.controller().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await;
        assert_eq!(rpcs.unwrap().into_inner().capabilities.len(), 5, "4");
        let rpcs = client.node().node_get_capabilities(NodeGetCapabilitiesRequest {}).await;
        assert_eq!(rpcs.unwrap().into_inner().capabilities.len(), 2, "67");
        let info = client.info().await.unwrap();
        assert_eq!((info.node_id.as_str(), info.accessible_topology), ("a", None), "68");
        let capacity = client.controller().get_capacity(GetCapacityRequest::default()).await;
        assert_eq!(code(5, capacity), Code::Unimplemented);
        let list = client.controller().list_volumes(ListVolumesRequest::default()).await;
        assert_eq!(code(6, list), Code::Unimplemented);
    });
}

#[test]
fn create_and_delete_volume_10_to_25() {
    test(async |world| {
        let client = world.client().await;
        assert_eq!(code(10, client.create(world.request("", &[])).await), Code::InvalidArgument);
        let bare = CreateVolumeRequest { volume_capabilities: vec![], ..world.request("v", &[]) };
        assert_eq!(code(11, client.create(bare).await), Code::InvalidArgument);
        let volume = client.create(world.request("v", &[])).await.expect("12").volume_id;
        assert_eq!(client.create(world.request("v", &[])).await.unwrap().volume_id, volume, "14");
        let long = client.create(world.request(&"n".repeat(128), &[])).await.expect("16").volume_id;
        let snapshot = client.snapshot(&volume, "s").await.unwrap().snapshot_id;
        let restored = client.create(world.request_from("r", of_snapshot(&snapshot))).await.expect("17");
        assert!(restored.content_source.is_some(), "17");
        let missing = client.create(world.request_from("m", of_snapshot("non-existing-snapshot-id"))).await;
        assert_eq!(code(18, missing), Code::NotFound);
        let cloned = client.create(world.request_from("c", of_volume(&volume))).await.expect("19").volume_id;
        assert_eq!(code(20, client.create(world.request_from("m", of_volume(UNKNOWN))).await), Code::NotFound);
        assert_eq!(code(23, client.delete("").await), Code::InvalidArgument);
        client.delete("fake-vol-id").await.expect("24");
        client.delete_snapshot(&snapshot).await.unwrap();
        for id in [volume, long, restored.volume_id, cloned] {
            client.delete(&id).await.expect("25");
        }
    });
}

#[test]
fn validate_26_to_29_and_expand_58_to_60() {
    test(async |world| {
        let client = world.client().await;
        let volume = client.create(world.request("v", &[])).await.unwrap().volume_id;
        let good = || world.request("v", &[]).volume_capabilities;
        let validate = async |volume: &str, volume_capabilities: Vec<VolumeCapability>| {
            let volume_id = volume.to_owned();
            let request = ValidateVolumeCapabilitiesRequest { volume_id, volume_capabilities, ..Default::default() };
            client.controller().validate_volume_capabilities(request).await.map(tonic::Response::into_inner)
        };
        assert_eq!(code(26, validate("", good()).await), Code::InvalidArgument);
        assert_eq!(code(27, validate(&volume, vec![]).await), Code::InvalidArgument);
        assert!(validate(&volume, good()).await.unwrap().confirmed.is_some(), "28");
        assert!(validate(&volume, vec![crate::world::block()]).await.unwrap().confirmed.is_none(), "28");
        assert_eq!(code(29, validate(UNKNOWN, good()).await), Code::NotFound);
        assert_eq!(code(29, validate(&world.id("gone##"), good()).await), Code::NotFound);
        assert_eq!(code(58, client.expand("", MIB).await), Code::InvalidArgument);
        let bare = ControllerExpandVolumeRequest { volume_id: volume.clone(), ..Default::default() };
        assert_eq!(code(59, client.controller().controller_expand_volume(bare).await), Code::InvalidArgument);
        assert_eq!(client.expand(&volume, MIB).await.expect("60").capacity_bytes, MIB);
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn snapshots_50_to_57() {
    test(async |world| {
        let client = world.client().await;
        let one = client.create(world.request("one", &[])).await.unwrap().volume_id;
        let two = client.create(world.request("two", &[])).await.unwrap().volume_id;
        assert_eq!(code(50, client.delete_snapshot("").await), Code::InvalidArgument);
        client.delete_snapshot("reallyfakesnapshotid").await.expect("51");
        assert_eq!(code(53, client.snapshot(&one, "").await), Code::InvalidArgument);
        assert_eq!(code(54, client.snapshot("", "x").await), Code::InvalidArgument);
        let snapshot = client.snapshot(&one, "s0").await.unwrap();
        assert_eq!(client.snapshot(&one, "s0").await.expect("55"), snapshot);
        assert_eq!(code(56, client.snapshot(&two, "s0").await), Code::AlreadyExists);
        let long = client.snapshot(&one, &"n".repeat(128)).await.expect("57");
        for id in [&snapshot.snapshot_id, &long.snapshot_id] {
            client.delete_snapshot(id).await.expect("52");
        }
        for id in [one, two] {
            client.delete(&id).await.unwrap();
        }
    });
}

#[test]
fn node_69_to_90() {
    test(async |world| {
        let client = world.client().await;
        let volume = client.create(world.request("v", &[])).await.unwrap();
        let good = || world.publish_request(&client, &volume, "pod");
        let request = NodePublishVolumeRequest { volume_id: String::new(), ..good() };
        assert_eq!(code(69, publish(&client, request).await), Code::InvalidArgument);
        let request = NodePublishVolumeRequest { target_path: String::new(), ..good() };
        assert_eq!(code(70, publish(&client, request).await), Code::InvalidArgument);
        let request = NodePublishVolumeRequest { volume_capability: None, ..good() };
        assert_eq!(code(71, publish(&client, request).await), Code::InvalidArgument);
        assert_eq!(code(73, client.unpublish("", "pod").await), Code::InvalidArgument);
        let nowhere = NodeUnpublishVolumeRequest { volume_id: volume.volume_id.clone(), target_path: String::new() };
        assert_eq!(code(74, client.node().node_unpublish_volume(nowhere).await), Code::InvalidArgument);
        client.unpublish(UNKNOWN, "never-there").await.expect("75");
        let stats = async |volume: &str, path: &str| {
            let (volume_id, volume_path) = (volume.into(), path.into());
            let request = NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
            client.node().node_get_volume_stats(request).await
        };
        publish(&client, good()).await.unwrap();
        let target = text(&client.target("pod"));
        assert_eq!(code(81, stats("", &target).await), Code::InvalidArgument);
        assert_eq!(code(82, stats(&volume.volume_id, "").await), Code::InvalidArgument);
        assert_eq!(code(83, stats(UNKNOWN, "some/path").await), Code::NotFound);
        assert_eq!(code(84, stats(&volume.volume_id, "some/path").await), Code::NotFound);
        stats(&volume.volume_id, &target).await.expect("90");
        client.unpublish(&volume.volume_id, "pod").await.expect("89");
        client.delete(&volume.volume_id).await.unwrap();
    });
}
