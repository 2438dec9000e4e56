//! Requests of any shape: each is answered or refused with a code of the contract, and nothing leaves the pool.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use node_plugin::args::PoolOption;
use node_plugin::{Driver, Kind, Mode, Options};
use proptest::prelude::*;
use stowage_csi::Channel;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::group_controller_client::GroupControllerClient;
use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::snapshot_metadata_client::SnapshotMetadataClient;
use stowage_csi::v1::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use stowage_csi::v1::*;
use stowage_mount::LinuxMounter;
use tonic::{Code, Status};

fn options(dir: &Path, kind: Kind) -> Options {
    Options {
        kind,
        driver_name: kind.driver_name().into(),
        endpoint: "unix:///unused.sock".parse().unwrap(),
        socket_mode: Default::default(),
        node_id: "a".into(),
        pools: vec![PoolOption { name: "main".into(), path: dir.join("pool") }],
        mode: Mode::All,
        prepare_pools: true,
        state_dir: dir.join("state"),
        overcommit: 1.0,
        max_volumes: 0,
        target_roots: vec![dir.join("kubelet")],
    }
}

/// Words that mean something, words that almost do, and any others.
fn word() -> impl Strategy<Value = String> {
    let known = "main|a|v|../x|/etc/passwd|main\\.\\.\\./\\.\\.|true|false|ext4|xfs|directory|image|4096|-1";
    let hostile = Just(format!("main.{}", "0".repeat(32)));
    prop_oneof![Just(String::new()), known, hostile, ".{0,12}", "[a-f0-9]{32}", Just("\0".to_owned())]
}

fn words() -> impl Strategy<Value = BTreeMap<String, String>> {
    let keys = "pool|fsType|thin|backend|mkfsOptions|freezeForCopy|readAheadKb|directIo|[a-z]{0,5}";
    prop::collection::btree_map(keys, word(), 0..3)
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(-1), Just(i64::MAX), Just(i64::MIN), 0i64..64 << 20]
}

prop_compose! {
    fn capability()(mode in prop::option::of(-1i32..9), block in any::<bool>(), fs_type in word(), group in word(), some in 0..8) -> VolumeCapability {
        let mount = MountVolume { fs_type, mount_flags: vec![], volume_mount_group: if some == 0 { group } else { String::new() } };
        let access = if block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(mount) };
        VolumeCapability { access_mode: mode.map(|mode| AccessMode { mode }), access_type: (some != 1).then_some(access) }
    }
}

prop_compose! {
    fn range()(required_bytes in number(), limit_bytes in number()) -> CapacityRange {
        CapacityRange { required_bytes, limit_bytes }
    }
}

fn check<T>(answer: Result<T, Status>) -> Option<T> {
    match answer {
        Ok(value) => Some(value),
        Err(status) => {
            let known = [
                Code::InvalidArgument,
                Code::NotFound,
                Code::AlreadyExists,
                Code::OutOfRange,
                Code::ResourceExhausted,
                Code::FailedPrecondition,
                Code::Unimplemented,
                Code::Aborted,
            ];
            assert!(known.contains(&status.code()), "{status:?}");
            assert!(!status.message().is_empty());
            None
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn any_request_is_answered_or_refused_by_the_contract(
        name in word(), id in word(), other in word(), parameters in words(), mutable in words(),
        capabilities in prop::collection::vec(capability(), 0..3), range in prop::option::of(range()),
        offset in number(), most in -2i32..4, local in any::<bool>(), source in 0..4,
    ) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("pool")).unwrap();
        let kind = if local { Kind::Local } else { Kind::Shared };
        let driver = Driver::new(&options(dir.path(), kind), Arc::new(LinuxMounter));
        let channel = Channel::in_process(driver.routes());
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut controller = ControllerClient::new(channel.clone());
            let source = match source {
                1 => Some(volume_content_source::Type::Volume(volume_content_source::VolumeSource { volume_id: other.clone() })),
                2 => Some(volume_content_source::Type::Snapshot(volume_content_source::SnapshotSource { snapshot_id: other.clone() })),
                _ => None,
            };
            let request = CreateVolumeRequest {
                name: name.clone(),
                capacity_range: range,
                volume_capabilities: capabilities.clone(),
                parameters: parameters.clone(),
                mutable_parameters: mutable.clone(),
                volume_content_source: source.map(|source| VolumeContentSource { r#type: Some(source) }),
                ..Default::default()
            };
            let made = check(controller.create_volume(request).await);
            // With a handle that exists if there is one, else with any words.
            let id = made.and_then(|made| made.into_inner().volume).map_or(id, |volume| volume.volume_id);
            let capability = capabilities.first().cloned();
            let publish = ControllerPublishVolumeRequest {
                volume_id: id.clone(), node_id: other.clone(), volume_capability: capability.clone(), ..Default::default()
            };
            check(controller.controller_publish_volume(publish).await);
            let validate = ValidateVolumeCapabilitiesRequest {
                volume_id: id.clone(), volume_capabilities: capabilities.clone(), parameters: parameters.clone(),
                mutable_parameters: mutable.clone(), ..Default::default()
            };
            check(controller.validate_volume_capabilities(validate).await);
            check(controller.get_capacity(GetCapacityRequest { parameters: parameters.clone(), volume_capabilities: capabilities.clone(), ..Default::default() }).await);
            check(controller.list_volumes(ListVolumesRequest { max_entries: most, starting_token: other.clone() }).await);
            check(controller.controller_get_volume(ControllerGetVolumeRequest { volume_id: id.clone() }).await);
            check(controller.controller_expand_volume(ControllerExpandVolumeRequest { volume_id: id.clone(), capacity_range: range, volume_capability: capability.clone(), ..Default::default() }).await);
            check(controller.controller_modify_volume(ControllerModifyVolumeRequest { volume_id: id.clone(), mutable_parameters: mutable, ..Default::default() }).await);
            let snapshot = CreateSnapshotRequest { source_volume_id: id.clone(), name: name.clone(), parameters: BTreeMap::new(), ..Default::default() };
            let snapshot = check(controller.create_snapshot(snapshot).await).and_then(|made| made.into_inner().snapshot);
            let snapshot = snapshot.map_or_else(|| other.clone(), |snapshot| snapshot.snapshot_id);
            check(controller.list_snapshots(ListSnapshotsRequest { max_entries: most, starting_token: other.clone(), source_volume_id: id.clone(), ..Default::default() }).await);
            check(controller.get_snapshot(GetSnapshotRequest { snapshot_id: snapshot.clone(), ..Default::default() }).await);
            let mut metadata = SnapshotMetadataClient::new(channel.clone());
            check(metadata.get_metadata_allocated(GetMetadataAllocatedRequest { snapshot_id: snapshot.clone(), starting_offset: offset, max_results: most, ..Default::default() }).await);
            check(metadata.get_metadata_delta(GetMetadataDeltaRequest { base_snapshot_id: snapshot.clone(), target_snapshot_id: other.clone(), starting_offset: offset, max_results: most, ..Default::default() }).await);
            let mut groups = GroupControllerClient::new(channel.clone());
            check(groups.create_volume_group_snapshot(CreateVolumeGroupSnapshotRequest { name: name.clone(), source_volume_ids: vec![id.clone(), other.clone()], parameters, ..Default::default() }).await);
            check(groups.get_volume_group_snapshot(GetVolumeGroupSnapshotRequest { group_snapshot_id: other.clone(), snapshot_ids: vec![snapshot.clone()], ..Default::default() }).await);
            check(groups.delete_volume_group_snapshot(DeleteVolumeGroupSnapshotRequest { group_snapshot_id: other.clone(), snapshot_ids: vec![snapshot.clone()], ..Default::default() }).await);
            let mut node = NodeClient::new(channel.clone());
            check(node.node_unpublish_volume(NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: other.clone() }).await);
            check(node.node_get_volume_stats(NodeGetVolumeStatsRequest { volume_id: id.clone(), volume_path: other.clone(), ..Default::default() }).await);
            check(controller.delete_snapshot(DeleteSnapshotRequest { snapshot_id: snapshot, ..Default::default() }).await);
            check(controller.controller_unpublish_volume(ControllerUnpublishVolumeRequest { volume_id: id.clone(), node_id: String::new(), ..Default::default() }).await);
            check(controller.delete_volume(DeleteVolumeRequest { volume_id: id, ..Default::default() }).await);
            driver.drain().await;
        });
        let outside: std::collections::BTreeSet<_> = std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        prop_assert_eq!(outside, ["pool".into(), "state".into()].into());
    }
}
