//! The specs of the upstream conformance suite (csi-sanity 5.5), by their numbers in the project's reference.
//!
//! 9 is pending upstream, and tested here all the same.
#![allow(clippy::unwrap_used)]

mod nfs;
#[path = "../kernel/nfs_world.rs"]
#[allow(dead_code)]
mod nfs_world;
#[path = "../kernel/world.rs"]
#[allow(dead_code)]
mod world;

use std::fs;

use node_plugin::Options;
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::volume_capability::{AccessType, MountVolume};
use stowage_csi::v1::*;
use tonic::Code;

use crate::world::{
    Answer, Client, MIB, SIZE, block, capability, map, of_snapshot, of_volume, refused, request, request_from, test,
    text,
};

const UNKNOWN: &str = "fake-vol-id-0123456789";

/// The code of a refusal, with the number of the spec that wants it.
fn code<T: std::fmt::Debug>(spec: u32, answer: Answer<T>) -> Code {
    println!("spec {spec}");
    refused(answer, &[])
}

#[test]
fn identity_1_to_3() {
    test(async |world| {
        let mut identity = world.node("a").await.identity();
        let services = identity.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.unwrap();
        let known = |capability: &PluginCapability| match &capability.r#type {
            Some(plugin_capability::Type::Service(service)) => (1..=4).contains(&service.r#type),
            Some(plugin_capability::Type::VolumeExpansion(expansion)) => (1..=2).contains(&expansion.r#type),
            None => false,
        };
        assert!(services.into_inner().capabilities.iter().all(known), "1");
        identity.probe(ProbeRequest {}).await.expect("2");
        let name = identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner().name;
        let ends = [name.chars().next().unwrap(), name.chars().last().unwrap()];
        assert!(name.len() <= 63 && ends.iter().all(char::is_ascii_alphabetic), "3");
    });
}

#[test]
fn controller_4_to_8() {
    test(async |world| {
        let client = world.node("a").await;
        let rpcs = client.controller().controller_get_capabilities(ControllerGetCapabilitiesRequest {}).await;
        let kind = |capability: &ControllerServiceCapability| match &capability.r#type {
            Some(controller_service_capability::Type::Rpc(rpc)) => (1..=15).contains(&rpc.r#type),
            None => false,
        };
        assert!(rpcs.unwrap().into_inner().capabilities.iter().all(kind), "4");
        client.controller().get_capacity(GetCapacityRequest::default()).await.expect("5");
        let list = async |starting_token: &str| {
            let request = ListVolumesRequest { starting_token: starting_token.into(), ..Default::default() };
            client.controller().list_volumes(request).await.map(|answer| answer.into_inner().entries)
        };
        assert_eq!(list("").await.unwrap().len(), 0, "6");
        assert_eq!(code(7, list("invalid-token").await), Code::Aborted);
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let listed = list("").await.unwrap();
        assert_eq!(listed.len(), 1, "8");
        assert!(listed.iter().all(|entry| !entry.volume.as_ref().unwrap().volume_id.is_empty()), "6");
        client.delete(&volume).await.unwrap();
        assert_eq!(list("").await.unwrap().len(), 0, "8");
    });
}

#[test]
fn list_volumes_in_pages_with_deletions_between_them_9() {
    test(async |world| {
        let client = world.node("a").await;
        let mut all = Vec::new();
        for number in 0..6 {
            all.push(client.create(request(&format!("v{number}"))).await.unwrap().volume_id);
        }
        let page = async |starting_token: String| {
            let request = ListVolumesRequest { max_entries: 2, starting_token };
            let answer = client.controller().list_volumes(request).await.unwrap().into_inner();
            let ids: Vec<_> = answer.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id).collect();
            (ids, answer.next_token)
        };
        let (first, token) = page(String::new()).await;
        assert_eq!(first.len(), 2, "9");
        // One that was listed, the one the token stands for, and one that is still to come.
        let gone: Vec<_> = all.iter().filter(|id| !first.contains(id)).take(1).chain(&first).cloned().collect();
        for volume in &gone {
            client.delete(volume).await.unwrap();
        }
        let (second, token) = page(token).await;
        let (third, end) = if token.is_empty() { (Vec::new(), token) } else { page(token).await };
        let rest: std::collections::BTreeSet<_> = second.iter().chain(&third).collect();
        let expected: std::collections::BTreeSet<_> = all.iter().filter(|id| !gone.contains(id)).collect();
        assert_eq!((rest, end.as_str()), (expected, ""), "9");
    });
}

#[test]
fn create_and_delete_volume_10_to_25() {
    test(async |world| {
        let client = world.node("a").await;
        let exact = |bytes| CreateVolumeRequest {
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: bytes }),
            ..request("exact")
        };
        assert_eq!(code(10, client.create(request("")).await), Code::InvalidArgument);
        let bare = CreateVolumeRequest { volume_capabilities: vec![], ..request("v") };
        assert_eq!(code(11, client.create(bare).await), Code::InvalidArgument);
        let volume = client.create(request("v")).await.expect("12");
        assert!(!volume.volume_id.is_empty() && volume.capacity_bytes >= SIZE, "12, 13");
        assert_eq!(client.create(request("v")).await.unwrap().volume_id, volume.volume_id, "14");
        assert_eq!(client.create(exact(SIZE)).await.unwrap().capacity_bytes, SIZE, "15");
        assert_eq!(code(15, client.create(exact(2 * SIZE)).await), Code::AlreadyExists);
        client.create(request(&"n".repeat(128))).await.expect("16");
        let snapshot = client.snapshot(&volume.volume_id, "s").await.unwrap().snapshot_id;
        let restored = client.create(request_from("r", of_snapshot(&snapshot))).await.expect("17");
        assert!(restored.content_source.is_some(), "17");
        let missing = client.create(request_from("m", of_snapshot("non-existing-snapshot-id"))).await;
        assert_eq!(code(18, missing), Code::NotFound);
        client.create(request_from("c", of_volume(&volume.volume_id))).await.expect("19");
        assert_eq!(code(20, client.create(request_from("m", of_volume(UNKNOWN))).await), Code::NotFound);
        let tuned = |key: &str| CreateVolumeRequest {
            mutable_parameters: [(key.to_owned(), "64".to_owned())].into(),
            ..request("tuned")
        };
        assert_eq!(code(22, client.create(tuned("XXX_FakeKey")).await), Code::InvalidArgument);
        client.create(tuned("readAheadKb")).await.expect("21");
        assert_eq!(code(23, client.delete("").await), Code::InvalidArgument);
        client.delete("fake-vol-id").await.expect("24");
        client.delete(&volume.volume_id).await.expect("25");
    });
}

#[test]
fn validate_and_publish_26_to_39() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let validate = async |volume_id: &str, volume_capabilities| {
            let volume_id = volume_id.to_owned();
            let request = ValidateVolumeCapabilitiesRequest { volume_id, volume_capabilities, ..Default::default() };
            client.controller().validate_volume_capabilities(request).await.map(|answer| answer.into_inner())
        };
        let good = || vec![capability(AccessMode::SingleNodeWriter)];
        assert_eq!(code(26, validate("", good()).await), Code::InvalidArgument);
        assert_eq!(code(27, validate(&volume, vec![]).await), Code::InvalidArgument);
        assert_eq!(validate(&volume, good()).await.unwrap().confirmed.unwrap().volume_capabilities, good(), "28");
        assert_eq!(code(29, validate(UNKNOWN, good()).await), Code::NotFound);
        assert_eq!(code(30, client.attach("", "a").await), Code::InvalidArgument);
        assert_eq!(code(31, client.attach(&volume, "").await), Code::InvalidArgument);
        let (volume_id, node_id) = (volume.clone(), "a".to_owned());
        let bare = ControllerPublishVolumeRequest { volume_id, node_id, ..Default::default() };
        assert_eq!(code(32, client.controller().controller_publish_volume(bare).await), Code::InvalidArgument);
        assert_eq!(code(34, client.attach(UNKNOWN, "fake-node-id").await), Code::NotFound);
        assert_eq!(code(35, client.attach(&volume, "fake-node-id-0123456789").await), Code::NotFound);
        for _ in 0..10 {
            client.attach(&volume, "a").await.expect("37, 38");
        }
        let read_only = ControllerPublishVolumeRequest {
            volume_id: volume.clone(),
            node_id: "a".into(),
            volume_capability: Some(capability(AccessMode::SingleNodeWriter)),
            readonly: true,
            ..Default::default()
        };
        assert_eq!(code(36, client.controller().controller_publish_volume(read_only).await), Code::AlreadyExists);
        client.detach(&volume, "a").await.expect("37, 38");
        let limited = world.introduced(Options { max_volumes: 1, ..world.options("a") }).await;
        limited.attach(&volume, "a").await.unwrap();
        let second = client.create(request("second")).await.unwrap().volume_id;
        assert_eq!(code(33, limited.attach(&second, "a").await), Code::ResourceExhausted);
        client.detach(&volume, "a").await.unwrap();
        assert_eq!(code(39, client.detach("", "a").await), Code::InvalidArgument);
    });
}

#[test]
fn snapshots_40_to_57() {
    test(async |world| {
        let client = world.node("a").await;
        let list = async |request: ListSnapshotsRequest| client.list_snapshots(request).await.unwrap();
        let all = ListSnapshotsRequest::default;
        let mut snapshots = Vec::new();
        for number in 0..5 {
            let volume = client.create(request(&format!("v{number}"))).await.unwrap().volume_id;
            let before = list(all()).await.entries.len();
            snapshots.push(client.snapshot(&volume, &format!("s{number}")).await.unwrap());
            assert_eq!(list(all()).await.entries.len(), before + 1, "45");
        }
        for entry in list(all()).await.entries {
            let snapshot = entry.snapshot.unwrap();
            let whole = !snapshot.snapshot_id.is_empty() && !snapshot.source_volume_id.is_empty();
            assert!(whole && snapshot.creation_time.is_some(), "40");
        }
        let third = &snapshots[2];
        let by_id = |id: &str| ListSnapshotsRequest { snapshot_id: id.into(), ..all() };
        let by_source = |id: &str| ListSnapshotsRequest { source_volume_id: id.into(), ..all() };
        assert_eq!(list(by_id(&third.snapshot_id)).await.entries[0].snapshot.as_ref(), Some(third), "41");
        assert_eq!(list(by_id("unknown")).await.entries.len(), 0, "42");
        assert_eq!(list(by_source(&third.source_volume_id)).await.entries.len(), 1, "43");
        assert_eq!(list(by_source("unknown")).await.entries.len(), 0, "44");
        let page = list(ListSnapshotsRequest { max_entries: 2, ..all() }).await;
        assert_eq!(page.entries.len(), 2, "46");
        let rest = list(ListSnapshotsRequest { starting_token: page.next_token, ..all() }).await;
        assert_eq!(rest.entries.len(), 3, "46");

        let get = async |id: &str| {
            let request = GetSnapshotRequest { snapshot_id: id.into(), ..Default::default() };
            client.controller().get_snapshot(request).await.map(|answer| answer.into_inner().snapshot.unwrap())
        };
        assert_eq!(code(47, get("").await), Code::InvalidArgument);
        assert_eq!(get(&third.snapshot_id).await.unwrap(), *third, "48");
        assert_eq!(code(49, get("unknown").await), Code::NotFound);
        assert_eq!(code(50, client.delete_snapshot("").await), Code::InvalidArgument);
        client.delete_snapshot("unknown").await.expect("51");
        client.delete_snapshot(&snapshots[4].snapshot_id).await.expect("52");
        assert_eq!(list(all()).await.entries.len(), 4, "45");
        let (one, two) = (&snapshots[0].source_volume_id, &snapshots[1].source_volume_id);
        assert_eq!(code(53, client.snapshot(one, "").await), Code::InvalidArgument);
        assert_eq!(code(54, client.snapshot("", "x").await), Code::InvalidArgument);
        assert_eq!(client.snapshot(one, "s0").await.unwrap(), snapshots[0], "55");
        assert_eq!(code(56, client.snapshot(two, "s0").await), Code::AlreadyExists);
        let long = "s".repeat(128);
        assert_eq!(client.snapshot(one, &long).await.unwrap(), client.snapshot(one, &long).await.unwrap(), "57");
    });
}

#[test]
fn expand_and_modify_58_to_66() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        assert_eq!(code(58, client.expand("", SIZE).await), Code::InvalidArgument);
        let bare = client.controller().controller_expand_volume(ControllerExpandVolumeRequest::default()).await;
        assert_eq!(code(59, bare), Code::InvalidArgument);
        assert_eq!(client.expand(&volume, 2 * SIZE).await.unwrap().capacity_bytes, 2 * SIZE, "60");
        let good = [("readAheadKb", "64")];
        assert_eq!(code(61, client.modify("", &good).await), Code::InvalidArgument);
        assert_eq!(code(62, client.modify(UNKNOWN, &good).await), Code::NotFound);
        assert_eq!(code(63, client.modify(&volume, &[("XXX_FakeKey", "1")]).await), Code::InvalidArgument);
        client.modify(&volume, &good).await.expect("64");
        let tuned = CreateVolumeRequest { mutable_parameters: map(&[("directIo", "false")]), ..request("tuned") };
        let tuned = client.create(tuned).await.unwrap().volume_id;
        client.modify(&tuned, &good).await.expect("65");
        assert_eq!(code(66, client.modify(&tuned, &[("XXX_FakeKey", "1")]).await), Code::InvalidArgument);
    });
}

#[test]
fn node_67_to_90() {
    test(async |world| {
        let client = world.node("a").await;
        let rpcs = client.node().node_get_capabilities(NodeGetCapabilitiesRequest {}).await.unwrap().into_inner();
        let known = |capability: &NodeServiceCapability| match &capability.r#type {
            Some(node_service_capability::Type::Rpc(rpc)) => (1..=6).contains(&rpc.r#type),
            None => false,
        };
        assert!(rpcs.capabilities.iter().all(known), "67");
        let info = client.info().await.unwrap();
        assert!(!info.node_id.is_empty() && info.max_volumes_per_node >= 0, "68");
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        let publish = async |request| client.node().node_publish_volume(request).await;
        let good = || client.publish_request(&volume, &context, "pod");
        let request = NodePublishVolumeRequest { volume_id: String::new(), ..good() };
        assert_eq!(code(69, publish(request).await), Code::InvalidArgument);
        let request = NodePublishVolumeRequest { target_path: String::new(), ..good() };
        assert_eq!(code(70, publish(request).await), Code::InvalidArgument);
        let request = NodePublishVolumeRequest { volume_capability: None, volume_id: UNKNOWN.into(), ..good() };
        assert_eq!(code(71, publish(request).await), Code::InvalidArgument);
        assert_eq!(code(73, client.unpublish("", "pod").await), Code::InvalidArgument);
        let nowhere = NodeUnpublishVolumeRequest { volume_id: volume.clone(), target_path: String::new() };
        assert_eq!(code(74, client.node().node_unpublish_volume(nowhere).await), Code::InvalidArgument);
        let stage = async |request| client.node().node_stage_volume(request).await;
        let staged = || client.stage_request(&volume, &context);
        let request = NodeStageVolumeRequest { volume_id: String::new(), ..staged() };
        assert_eq!(code(76, stage(request).await), Code::InvalidArgument);
        let request = NodeStageVolumeRequest { staging_target_path: String::new(), ..staged() };
        assert_eq!(code(77, stage(request).await), Code::InvalidArgument);
        let request = NodeStageVolumeRequest { volume_capability: None, ..staged() };
        assert_eq!(code(78, stage(request).await), Code::InvalidArgument);
        assert_eq!(code(79, client.unstage("").await), Code::InvalidArgument);
        let nowhere = NodeUnstageVolumeRequest { volume_id: volume.clone(), staging_target_path: String::new() };
        assert_eq!(code(80, client.node().node_unstage_volume(nowhere).await), Code::InvalidArgument);

        fs::create_dir_all(client.target("pod").parent().unwrap()).unwrap();
        let single = Some(capability(AccessMode::SingleNodeSingleWriter));
        for _ in 0..10 {
            let request = NodeStageVolumeRequest { volume_capability: single.clone(), ..staged() };
            stage(request).await.expect("89, 90");
            publish(NodePublishVolumeRequest { volume_capability: single.clone(), ..good() }).await.expect("89, 90");
        }
        let other = NodePublishVolumeRequest {
            target_path: text(&client.target("other")),
            volume_capability: single.clone(),
            ..good()
        };
        assert_eq!(code(72, publish(other).await), Code::FailedPrecondition);
        stats_and_growth(&client, &volume).await;
        assert!(client.target("pod").try_exists().unwrap(), "75");
        client.unpublish(&volume, "pod").await.unwrap();
        assert!(!client.target("pod").try_exists().unwrap(), "75");
        client.remove(&volume).await;
    });
}

/// 81 to 88, on a volume that is published at `pod`.
async fn stats_and_growth(client: &Client, volume: &str) {
    let target = text(&client.target("pod"));
    let stats = async |volume_id: &str, volume_path: &str| {
        let (volume_id, volume_path) = (volume_id.into(), volume_path.into());
        let request = NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        client.node().node_get_volume_stats(request).await.map(|answer| answer.into_inner())
    };
    assert_eq!(code(81, stats("", &target).await), Code::InvalidArgument);
    assert_eq!(code(82, stats(volume, "").await), Code::InvalidArgument);
    assert_eq!(code(83, stats(UNKNOWN, &target).await), Code::NotFound);
    assert_eq!(code(84, stats(volume, "some/path").await), Code::NotFound);
    assert!(!stats(volume, &target).await.unwrap().usage.is_empty(), "89");
    let grow = async |volume_id: &str, volume_path: &str| {
        let (volume_id, volume_path) = (volume_id.into(), volume_path.into());
        let request = NodeExpandVolumeRequest { volume_id, volume_path, ..Default::default() };
        client.node().node_expand_volume(request).await
    };
    assert_eq!(code(85, grow("", &target).await), Code::InvalidArgument);
    assert_eq!(code(86, grow(volume, "").await), Code::InvalidArgument);
    assert_eq!(code(87, grow(UNKNOWN, &target).await), Code::NotFound);
    grow(volume, &target).await.expect("88, without growth: for an ext4 that needs a right which a test may lack");
}

#[test]
fn node_expand_after_publish_88() {
    test(async |world| {
        let client = world.node("a").await;
        // A raw device grows without any right, as an xfs does.
        for (name, capability, bytes) in [("raw", block(), SIZE), ("xfs", xfs(), 300 * MIB)] {
            let create = CreateVolumeRequest {
                capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
                volume_capabilities: vec![capability.clone()],
                ..request(name)
            };
            let volume_id = client.create(create).await.unwrap().volume_id;
            let context = client.attach_as(&volume_id, "a", capability.clone()).await.unwrap();
            let volume_capability = Some(capability);
            let stage = client.stage_request(&volume_id, &context);
            let stage = NodeStageVolumeRequest { volume_capability: volume_capability.clone(), ..stage };
            client.node().node_stage_volume(stage).await.unwrap();
            let publish = client.publish_request(&volume_id, &context, "pod");
            let publish = NodePublishVolumeRequest { volume_capability: volume_capability.clone(), ..publish };
            client.node().node_publish_volume(publish).await.unwrap();
            let larger = bytes + 64 * MIB;
            assert_eq!(client.expand(&volume_id, larger).await.unwrap().capacity_bytes, larger, "88");
            let grow = NodeExpandVolumeRequest {
                volume_id: volume_id.clone(),
                volume_path: text(&client.target("pod")),
                capacity_range: Some(CapacityRange { required_bytes: larger, limit_bytes: 0 }),
                volume_capability,
                ..Default::default()
            };
            let grown = client.node().node_expand_volume(grow).await.expect("88").into_inner();
            assert_eq!(grown.capacity_bytes, larger, "88");
            client.unpublish(&volume_id, "pod").await.unwrap();
            client.remove(&volume_id).await;
        }
    });
}

fn xfs() -> VolumeCapability {
    let mount = MountVolume { fs_type: "xfs".into(), ..Default::default() };
    VolumeCapability { access_type: Some(AccessType::Mount(mount)), ..capability(AccessMode::SingleNodeWriter) }
}

#[test]
fn groups_91_to_96() {
    test(async |world| {
        let mut groups = world.node("a").await.groups();
        let rpcs = groups.group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest {}).await;
        let rpcs = rpcs.unwrap().into_inner().capabilities;
        let known = |capability: &GroupControllerServiceCapability| match &capability.r#type {
            Some(group_controller_service_capability::Type::Rpc(rpc)) => rpc.r#type == 1,
            None => false,
        };
        assert!(!rpcs.is_empty() && rpcs.iter().all(known), "91");
        let request =
            CreateVolumeGroupSnapshotRequest { source_volume_ids: vec![UNKNOWN.into()], ..Default::default() };
        assert_eq!(code(92, groups.create_volume_group_snapshot(request).await), Code::InvalidArgument);
        let get = |id: &str| GetVolumeGroupSnapshotRequest { group_snapshot_id: id.into(), ..Default::default() };
        assert_eq!(code(93, groups.get_volume_group_snapshot(get("")).await), Code::InvalidArgument);
        assert_eq!(code(94, groups.get_volume_group_snapshot(get(UNKNOWN)).await), Code::NotFound);
        let delete = |id: &str| DeleteVolumeGroupSnapshotRequest { group_snapshot_id: id.into(), ..Default::default() };
        assert_eq!(code(95, groups.delete_volume_group_snapshot(delete("")).await), Code::InvalidArgument);
        groups.delete_volume_group_snapshot(delete(UNKNOWN)).await.expect("96");
    });
}
