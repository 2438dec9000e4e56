//! Bytes that are a request, are almost one, have its shape, or are nothing at all.

use std::collections::BTreeMap;

use proptest::prelude::*;
use proptest::strategy::BoxedStrategy;
use prost::Message;
use stowage_csi::v1::*;

use crate::world::{Client, MIB, capability, of_snapshot, of_volume, request, request_from, text};
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;

pub const METHODS: [&str; 32] = [
    "/csi.v1.Identity/GetPluginInfo",
    "/csi.v1.Identity/GetPluginCapabilities",
    "/csi.v1.Identity/Probe",
    "/csi.v1.Controller/CreateVolume",
    "/csi.v1.Controller/DeleteVolume",
    "/csi.v1.Controller/ControllerPublishVolume",
    "/csi.v1.Controller/ControllerUnpublishVolume",
    "/csi.v1.Controller/ValidateVolumeCapabilities",
    "/csi.v1.Controller/ListVolumes",
    "/csi.v1.Controller/GetCapacity",
    "/csi.v1.Controller/ControllerGetCapabilities",
    "/csi.v1.Controller/CreateSnapshot",
    "/csi.v1.Controller/DeleteSnapshot",
    "/csi.v1.Controller/ListSnapshots",
    "/csi.v1.Controller/GetSnapshot",
    "/csi.v1.Controller/ControllerExpandVolume",
    "/csi.v1.Controller/ControllerGetVolume",
    "/csi.v1.Controller/ControllerModifyVolume",
    "/csi.v1.GroupController/GroupControllerGetCapabilities",
    "/csi.v1.GroupController/CreateVolumeGroupSnapshot",
    "/csi.v1.GroupController/DeleteVolumeGroupSnapshot",
    "/csi.v1.GroupController/GetVolumeGroupSnapshot",
    "/csi.v1.SnapshotMetadata/GetMetadataAllocated",
    "/csi.v1.SnapshotMetadata/GetMetadataDelta",
    "/csi.v1.Node/NodeStageVolume",
    "/csi.v1.Node/NodeUnstageVolume",
    "/csi.v1.Node/NodePublishVolume",
    "/csi.v1.Node/NodeUnpublishVolume",
    "/csi.v1.Node/NodeGetVolumeStats",
    "/csi.v1.Node/NodeExpandVolume",
    "/csi.v1.Node/NodeGetInfo",
    "/csi.v1.Node/NodeGetCapabilities",
];

fn number_of(method: &str) -> usize {
    METHODS.iter().position(|known| known.ends_with(&format!("/{method}"))).unwrap()
}

/// One request of each kind that would be answered, by the number of its method.
pub fn good_requests(
    client: &Client,
    volume: &str,
    snapshot: &str,
    group: &VolumeGroupSnapshot,
    context: &BTreeMap<String, String>,
) -> Vec<(usize, Vec<u8>)> {
    let group_snapshot_id = group.group_snapshot_id.clone();
    let snapshot_ids: Vec<_> = group.snapshots.iter().map(|snapshot| snapshot.snapshot_id.clone()).collect();
    let (volume_id, snapshot_id) = (volume.to_owned(), snapshot.to_owned());
    let range = |bytes| Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 });
    let mut inline = client.publish_request(&format!("csi-{}", "b".repeat(64)), context, "inline");
    inline.volume_context.insert("csi.storage.k8s.io/ephemeral".into(), "true".into());
    inline.volume_context.insert("size".into(), "9Mi".into());
    let again = CreateSnapshotRequest { source_volume_id: volume_id.clone(), name: "s".into(), ..Default::default() };
    let hostile = |path: &str| text(&client.kubelet.join(path));
    let good: Vec<(&str, Vec<u8>)> = vec![
        // What is removed comes back.
        ("CreateVolume", request("v").encode_to_vec()),
        ("CreateVolume", request("v").encode_to_vec()),
        ("CreateSnapshot", again.encode_to_vec()),
        ("CreateSnapshot", again.encode_to_vec()),
        ("CreateVolume", request("w").encode_to_vec()),
        ("CreateVolume", request_from("x", of_snapshot(snapshot)).encode_to_vec()),
        ("CreateVolume", request_from("y", of_volume(volume)).encode_to_vec()),
        ("DeleteVolume", DeleteVolumeRequest { volume_id: volume_id.clone(), ..Default::default() }.encode_to_vec()),
        (
            "ControllerPublishVolume",
            ControllerPublishVolumeRequest {
                volume_id: volume_id.clone(),
                node_id: "a".into(),
                volume_capability: Some(capability(AccessMode::SingleNodeWriter)),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "ControllerUnpublishVolume",
            ControllerUnpublishVolumeRequest { volume_id: volume_id.clone(), ..Default::default() }.encode_to_vec(),
        ),
        (
            "ValidateVolumeCapabilities",
            ValidateVolumeCapabilitiesRequest {
                volume_id: volume_id.clone(),
                volume_capabilities: vec![capability(AccessMode::SingleNodeWriter)],
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        ("ListVolumes", ListVolumesRequest { max_entries: 1, starting_token: volume_id.clone() }.encode_to_vec()),
        (
            "ListSnapshots",
            ListSnapshotsRequest { snapshot_id: snapshot_id.clone(), ..Default::default() }.encode_to_vec(),
        ),
        ("GetSnapshot", GetSnapshotRequest { snapshot_id: snapshot_id.clone(), ..Default::default() }.encode_to_vec()),
        (
            "CreateSnapshot",
            CreateSnapshotRequest { source_volume_id: volume_id.clone(), name: "t".into(), ..Default::default() }
                .encode_to_vec(),
        ),
        (
            "DeleteSnapshot",
            DeleteSnapshotRequest { snapshot_id: snapshot_id.clone(), ..Default::default() }.encode_to_vec(),
        ),
        (
            "ControllerExpandVolume",
            ControllerExpandVolumeRequest {
                volume_id: volume_id.clone(),
                capacity_range: range(40 * MIB),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        ("ControllerGetVolume", ControllerGetVolumeRequest { volume_id: volume_id.clone() }.encode_to_vec()),
        (
            "ControllerModifyVolume",
            ControllerModifyVolumeRequest {
                volume_id: volume_id.clone(),
                mutable_parameters: [("readAheadKb".to_owned(), "64".to_owned())].into(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "CreateVolumeGroupSnapshot",
            CreateVolumeGroupSnapshotRequest {
                name: "g".into(),
                source_volume_ids: vec![volume_id.clone()],
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "GetVolumeGroupSnapshot",
            GetVolumeGroupSnapshotRequest {
                group_snapshot_id: group_snapshot_id.clone(),
                snapshot_ids: snapshot_ids.clone(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "DeleteVolumeGroupSnapshot",
            DeleteVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, ..Default::default() }.encode_to_vec(),
        ),
        (
            "GetCapacity",
            GetCapacityRequest {
                volume_capabilities: vec![capability(AccessMode::SingleNodeWriter)],
                parameters: [("thin".to_owned(), "false".to_owned())].into(),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "GetMetadataAllocated",
            GetMetadataAllocatedRequest { snapshot_id: snapshot_id.clone(), ..Default::default() }.encode_to_vec(),
        ),
        (
            "GetMetadataDelta",
            GetMetadataDeltaRequest {
                base_snapshot_id: snapshot_id.clone(),
                target_snapshot_id: snapshot_id,
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        ("NodeStageVolume", client.stage_request(volume, context).encode_to_vec()),
        (
            "NodeStageVolume",
            NodeStageVolumeRequest { staging_target_path: hostile("link/x"), ..client.stage_request(volume, context) }
                .encode_to_vec(),
        ),
        (
            "NodeUnstageVolume",
            NodeUnstageVolumeRequest { volume_id: volume_id.clone(), staging_target_path: text(&client.staging()) }
                .encode_to_vec(),
        ),
        ("NodePublishVolume", client.publish_request(volume, context, "pod").encode_to_vec()),
        ("NodePublishVolume", inline.encode_to_vec()),
        (
            "NodePublishVolume",
            NodePublishVolumeRequest {
                target_path: hostile("../../outside/x"),
                ..client.publish_request(volume, context, "pod")
            }
            .encode_to_vec(),
        ),
        (
            "NodeUnpublishVolume",
            NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path: text(&client.target("pod")) }
                .encode_to_vec(),
        ),
        (
            "NodeUnpublishVolume",
            NodeUnpublishVolumeRequest { volume_id: volume_id.clone(), target_path: hostile("link/file") }
                .encode_to_vec(),
        ),
        (
            "NodeGetVolumeStats",
            NodeGetVolumeStatsRequest {
                volume_id: volume_id.clone(),
                volume_path: text(&client.staging()),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
        (
            "NodeExpandVolume",
            NodeExpandVolumeRequest {
                volume_id,
                volume_path: text(&client.staging()),
                capacity_range: range(32 * MIB),
                ..Default::default()
            }
            .encode_to_vec(),
        ),
    ];
    good.into_iter().map(|(method, bytes)| (number_of(method), bytes)).collect()
}

fn varint(mut value: u64, target: &mut Vec<u8>) {
    while value > 0x7F {
        target.push(value as u8 | 0x80);
        value >>= 7;
    }
    target.push(value as u8);
}

/// Fields as protobuf writes them, of any number and kind, nested to any depth.
fn shaped() -> BoxedStrategy<Vec<u8>> {
    let leaf = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..24),
        Just(Vec::new()),
        "[a-z./\\x00]{0,20}".prop_map(String::into_bytes),
        Just(b"main.00000000000000000000000000000000".to_vec()),
        Just("x".repeat(70_000).into_bytes()),
    ];
    let fields = leaf.prop_recursive(4, 24, 5, |inner| {
        let field = (0u64..18, 0u64..6, any::<u64>(), inner).prop_map(|(number, kind, value, inner)| {
            let mut bytes = Vec::new();
            varint(number << 3 | kind, &mut bytes);
            match kind {
                0 => varint(value, &mut bytes),
                1 => bytes.extend(value.to_le_bytes()),
                2 => {
                    varint(inner.len() as u64, &mut bytes);
                    bytes.extend(inner);
                }
                5 => bytes.extend((value as u32).to_le_bytes()),
                _ => {}
            }
            bytes
        });
        prop::collection::vec(field, 0..6).prop_map(|fields| fields.concat())
    });
    fields.boxed()
}

/// These bytes with some changed, added, taken out or cut off.
pub fn spoiled(bytes: Vec<u8>) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..6);
    changes.prop_map(move |changes| {
        let mut bytes = bytes.clone();
        for (at, byte, kind) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = at.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => drop(bytes.remove(at)),
                _ => bytes.truncate(at),
            }
        }
        bytes
    })
}

/// A method and what is sent to it.
pub fn any_call(good: Vec<(usize, Vec<u8>)>) -> impl Strategy<Value = (usize, Vec<u8>)> {
    let noise = (0..METHODS.len(), prop::collection::vec(any::<u8>(), 0..80));
    let shape = (0..METHODS.len(), shaped());
    let whole = prop::sample::select(good.clone());
    let spoiled = prop::sample::select(good.clone()).prop_flat_map(|(method, bytes)| (Just(method), spoiled(bytes)));
    // What is right for one method is sent to another; fields appended to a message replace those in it.
    let mixed = (prop::sample::select(good.clone()), 0..METHODS.len()).prop_map(|((_, bytes), method)| (method, bytes));
    let longer = (prop::sample::select(good), shaped()).prop_map(|((method, mut bytes), more)| {
        bytes.extend(more);
        (method, bytes)
    });
    prop_oneof![1 => noise, 2 => shape, 3 => whole, 4 => spoiled, 1 => mixed, 2 => longer]
}
