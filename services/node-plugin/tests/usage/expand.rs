//! Growth of volumes in use.

use std::fs;
use std::io::{Seek, SeekFrom};
use std::path::Path;

use stowage_csi::v1::*;
use tonic::Code;

use crate::volumes::{Made, ROOM, file_systems, may_grow};
use crate::world::{Answer, Client, MIB, refused, test, text};

pub const GROWN: i64 = ROOM + 128 * MIB;

pub async fn expand_controller(client: &Client, volume: &str, bytes: i64) -> Answer<ControllerExpandVolumeResponse> {
    let request = ControllerExpandVolumeRequest {
        volume_id: volume.into(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        ..Default::default()
    };
    Ok(client.controller().controller_expand_volume(request).await?.into_inner())
}

pub async fn expand_node(client: &Client, volume: &str, path: &Path, bytes: i64) -> Answer<i64> {
    let request = NodeExpandVolumeRequest {
        volume_id: volume.into(),
        volume_path: text(path),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        ..Default::default()
    };
    Ok(client.node().node_expand_volume(request).await?.into_inner().capacity_bytes)
}

#[test]
fn a_mounted_volume_grows_under_its_pod_and_again_changes_nothing() {
    test(async |world| {
        let client = world.local("a").await;
        for kind in file_systems() {
            let volume = Made::Of(kind).used(&client, kind).await;
            let target = client.target("pod");
            fs::write(target.join("data"), "kept").unwrap();
            let before = client.stats_of(&volume, &target).await.unwrap().usage[0].total;
            assert_eq!(expand_controller(&client, &volume, GROWN).await.unwrap().capacity_bytes, GROWN);
            if !may_grow(kind) {
                let answer = expand_node(&client, &volume, &target, GROWN).await;
                assert_eq!(
                    refused(answer, &["SYS_RESOURCE", "stop all its pods", "start its pod again"]),
                    Code::FailedPrecondition
                );
                client.unpublish(&volume, "pod").await.unwrap();
                client.unstage(&volume).await.unwrap();
                Made::Of(kind).stage(&client, &volume).await.unwrap();
                Made::Of(kind).publish(&client, &volume, "pod", false).await.unwrap();
            }
            for _ in 0..2 {
                assert_eq!(expand_node(&client, &volume, &target, GROWN).await.unwrap(), GROWN, "{kind}");
            }
            let after = client.stats_of(&volume, &target).await.unwrap().usage[0].total;
            assert!(after > before + 100 * MIB && after <= GROWN, "{kind}: {before} became {after}");
            assert_eq!(fs::read_to_string(target.join("data")).unwrap(), "kept");
            client.give_back(&volume).await;
        }
    });
}

#[test]
fn a_block_volume_grows_and_a_directory_has_no_size_to_grow() {
    test(async |world| {
        let client = world.local("a").await;
        let volume = Made::Block.used(&client, "v").await;
        expand_controller(&client, &volume, GROWN).await.unwrap();
        assert_eq!(expand_node(&client, &volume, &client.target("pod"), GROWN).await.unwrap(), GROWN);
        let stats = client.stats_of(&volume, &client.target("pod")).await.unwrap();
        assert_eq!(stats.usage[0].total, GROWN);
        client.give_back(&volume).await;

        // Readers have a device of their own, which grows with the writers'.
        let volume = Made::Block.used(&client, "read").await;
        Made::Block.publish(&client, &volume, "reader", true).await.unwrap();
        expand_controller(&client, &volume, GROWN).await.unwrap();
        expand_node(&client, &volume, &client.target("reader"), GROWN).await.unwrap();
        for pod in ["pod", "reader"] {
            let mut device = fs::File::open(client.target(pod)).unwrap();
            assert_eq!(device.seek(SeekFrom::End(0)).unwrap() as i64, GROWN, "{pod}");
        }
        client.unpublish(&volume, "reader").await.unwrap();
        client.give_back(&volume).await;

        let volume = Made::Directory.used(&client, "d").await;
        assert_eq!(expand_node(&client, &volume, &client.target("pod"), ROOM).await.unwrap(), ROOM);
        client.give_back(&volume).await;
    });
}

#[test]
fn a_volume_that_grew_while_it_was_away_is_whole_when_it_is_staged() {
    test(async |world| {
        let client = world.local("a").await;
        for kind in file_systems() {
            let made = Made::Of(kind);
            let volume = made.used(&client, kind).await;
            client.unpublish(&volume, "pod").await.unwrap();
            client.unstage(&volume).await.unwrap();
            expand_controller(&client, &volume, GROWN).await.unwrap();
            made.stage(&client, &volume).await.unwrap();
            let total = client.stats_of(&volume, &client.staging()).await.unwrap().usage[0].total;
            assert!(total > ROOM, "{kind}: {total}");
            client.unstage(&volume).await.unwrap();
            client.delete(&volume).await.unwrap();
        }
    });
}

#[test]
fn what_cannot_grow_is_refused_with_the_way_out() {
    test(async |world| {
        let client = world.local("a").await;
        let volume = Made::Of("ext4").used(&client, "v").await;
        let target = client.target("pod");
        let early = expand_node(&client, &volume, &target, GROWN).await;
        assert_eq!(refused(early, &["ControllerExpandVolume"]), Code::OutOfRange);
        assert_eq!(refused(expand_node(&client, "", &target, 1).await, &["volume_id"]), Code::InvalidArgument);
        assert_eq!(
            refused(expand_node(&client, &volume, Path::new(""), 1).await, &["volume_path"]),
            Code::InvalidArgument
        );
        assert_eq!(refused(expand_node(&client, "nobody", &target, 1).await, &["nobody"]), Code::NotFound);
        let elsewhere = expand_node(&client, &volume, &world.root, ROOM).await;
        assert_eq!(refused(elsewhere, &["not mounted"]), Code::NotFound);
        client.give_back(&volume).await;
    });
}

#[test]
fn a_volume_does_not_grow_as_what_it_is_not() {
    test(async |world| {
        let client = world.local("a").await;
        for (made, other) in [(Made::Of("ext4"), Made::Block), (Made::Block, Made::Of("ext4"))] {
            let volume = made.used(&client, &format!("{made:?}")).await;
            let capacity_range = Some(CapacityRange { required_bytes: GROWN, limit_bytes: 0 });
            let request = ControllerExpandVolumeRequest {
                volume_id: volume.clone(),
                capacity_range,
                volume_capability: Some(other.capability()),
                ..Default::default()
            };
            let answer = client.controller().controller_expand_volume(request).await;
            assert_eq!(refused(answer, &["a file system", "a block device"]), Code::InvalidArgument);
            let request = NodeExpandVolumeRequest {
                volume_id: volume.clone(),
                volume_path: text(&client.target("pod")),
                volume_capability: Some(other.capability()),
                ..Default::default()
            };
            let answer = client.node().node_expand_volume(request).await;
            assert_eq!(refused(answer, &["a file system", "a block device"]), Code::InvalidArgument);
            client.give_back(&volume).await;
        }
    });
}
