//! Secrets and the values of mount flags stay out of the log, however much is logged.

use std::collections::BTreeMap;
use std::fs;

use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::volume_capability::{AccessType, MountVolume};
use stowage_csi::v1::*;

use crate::killed::Process;
use crate::world::{Client, MIB, SIZE, World, capability, map, request, test, text};

const SECRET: &str = "hush-hush-0815";

fn secrets() -> BTreeMap<String, String> {
    map(&[("password", SECRET)])
}

/// A life in which every call that takes secrets gets some; `volume` is one that is there, or none.
async fn live(client: &Client, name: &str, node: &str) {
    let created = client.create(CreateVolumeRequest { secrets: secrets(), ..request(name) }).await;
    let volume_id = created.map_or_else(|_| "nowhere".to_owned(), |volume| volume.volume_id);
    let good = Some(capability(AccessMode::SingleNodeWriter));
    let mut controller = client.controller();
    let attach = ControllerPublishVolumeRequest {
        volume_id: volume_id.clone(),
        node_id: node.into(),
        volume_capability: good.clone(),
        secrets: secrets(),
        ..Default::default()
    };
    let attached = controller.controller_publish_volume(attach).await;
    let context = attached.map(|answer| answer.into_inner().publish_context).unwrap_or_default();
    let validate = ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.clone(),
        volume_capabilities: good.iter().cloned().collect(),
        secrets: secrets(),
        ..Default::default()
    };
    let _ = controller.validate_volume_capabilities(validate).await;
    let mutable_parameters = map(&[("readAheadKb", "64")]);
    let modify = ControllerModifyVolumeRequest { volume_id: volume_id.clone(), secrets: secrets(), mutable_parameters };
    let _ = controller.controller_modify_volume(modify).await;
    let capacity_range = Some(CapacityRange { required_bytes: SIZE + MIB, limit_bytes: 0 });
    let expand = ControllerExpandVolumeRequest {
        volume_id: volume_id.clone(),
        capacity_range,
        secrets: secrets(),
        ..Default::default()
    };
    let _ = controller.controller_expand_volume(expand).await;
    let (source_volume_id, snapshot) = (volume_id.clone(), format!("snapshot of {name}"));
    let cut = CreateSnapshotRequest { source_volume_id, name: snapshot, secrets: secrets(), ..Default::default() };
    let cut = controller.create_snapshot(cut).await;
    let snapshot_id = cut.map_or_else(|_| "nowhere".to_owned(), |cut| cut.into_inner().snapshot.unwrap().snapshot_id);
    let list = ListSnapshotsRequest { secrets: secrets(), ..Default::default() };
    let _ = controller.list_snapshots(list).await;
    let _ = controller.get_snapshot(GetSnapshotRequest { snapshot_id: snapshot_id.clone(), secrets: secrets() }).await;
    let mut metadata = client.metadata();
    let allocated =
        GetMetadataAllocatedRequest { snapshot_id: snapshot_id.clone(), secrets: secrets(), ..Default::default() };
    let _ = metadata.get_metadata_allocated(allocated).await;
    let delta = GetMetadataDeltaRequest {
        base_snapshot_id: snapshot_id.clone(),
        target_snapshot_id: snapshot_id.clone(),
        secrets: secrets(),
        ..Default::default()
    };
    let _ = metadata.get_metadata_delta(delta).await;
    let _ = controller.delete_snapshot(DeleteSnapshotRequest { snapshot_id, secrets: secrets() }).await;
    group(client, name, &volume_id).await;
    use_on_node(client, &volume_id, &context).await;
    let detach =
        ControllerUnpublishVolumeRequest { volume_id: volume_id.clone(), node_id: node.into(), secrets: secrets() };
    let _ = controller.controller_unpublish_volume(detach).await;
    let _ = controller.delete_volume(DeleteVolumeRequest { volume_id, secrets: secrets() }).await;
}

async fn group(client: &Client, name: &str, volume: &str) {
    let mut groups = client.groups();
    let cut = CreateVolumeGroupSnapshotRequest {
        name: format!("group of {name}"),
        source_volume_ids: vec![volume.to_owned()],
        secrets: secrets(),
        ..Default::default()
    };
    let cut = groups.create_volume_group_snapshot(cut).await;
    let group = cut.map(|cut| cut.into_inner().group_snapshot.unwrap()).unwrap_or_default();
    let snapshot_ids: Vec<_> = group.snapshots.into_iter().map(|snapshot| snapshot.snapshot_id).collect();
    let group_snapshot_id = group.group_snapshot_id;
    let get = GetVolumeGroupSnapshotRequest {
        group_snapshot_id: group_snapshot_id.clone(),
        snapshot_ids: snapshot_ids.clone(),
        secrets: secrets(),
    };
    let _ = groups.get_volume_group_snapshot(get).await;
    let delete = DeleteVolumeGroupSnapshotRequest { group_snapshot_id, snapshot_ids, secrets: secrets() };
    let _ = groups.delete_volume_group_snapshot(delete).await;
}

async fn use_on_node(client: &Client, volume: &str, context: &BTreeMap<String, String>) {
    let mut node = client.node();
    for flag in [format!("password={SECRET}"), format!("password=/{SECRET}")] {
        let mount = MountVolume { mount_flags: vec![flag], ..Default::default() };
        let access_type = Some(AccessType::Mount(mount));
        let volume_capability = Some(VolumeCapability { access_type, ..capability(AccessMode::SingleNodeWriter) });
        let stage = NodeStageVolumeRequest {
            volume_capability: volume_capability.clone(),
            ..client.stage_request(volume, context)
        };
        let _ = node.node_stage_volume(stage).await;
        let publish = NodePublishVolumeRequest { volume_capability, ..client.publish_request(volume, context, "pod") };
        let _ = node.node_publish_volume(publish).await;
    }
    let stage = NodeStageVolumeRequest { secrets: secrets(), ..client.stage_request(volume, context) };
    let _ = node.node_stage_volume(stage).await;
    let publish = NodePublishVolumeRequest { secrets: secrets(), ..client.publish_request(volume, context, "pod") };
    let _ = node.node_publish_volume(publish).await;
    let expand = NodeExpandVolumeRequest {
        volume_id: volume.into(),
        volume_path: text(&client.target("pod")),
        secrets: secrets(),
        ..Default::default()
    };
    let _ = node.node_expand_volume(expand).await;
    let _ = client.unpublish(volume, "pod").await;
    let _ = client.unstage(volume).await;
}

#[test]
fn no_call_brings_a_secret_or_the_value_of_a_mount_flag_into_the_log() {
    test(async |world: World| {
        let path = world.root.join("log");
        let (process, client) = Process::spawn(&world, Process::command(&world).arg("-v=10"), Some(&path)).await;
        client.info().await.unwrap();
        live(&client, "good", "a").await;
        // Refused from the second call on, and from the first.
        live(&client, "homeless", "nobody").await;
        live(&client, "", "a").await;
        drop(process);
        let log = fs::read_to_string(path).unwrap();
        for word in ["NodeStageVolume", "CreateSnapshot", "staged", "published", "refused"] {
            assert!(log.contains(word), "nothing is said about {word}: {log}");
        }
        let told: Vec<_> = log.lines().filter(|line| line.contains(SECRET)).collect();
        assert_eq!(told, Vec::<&str>::new());
        assert_eq!(world.files(), Vec::<String>::new());
    });
}
