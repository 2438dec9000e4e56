//! Copies of a volume in use, with the driver killed at every change on the way from their creation to a mount and back.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::volume_capability::{AccessType, MountVolume};
use stowage_csi::v1::*;
use stowage_mount::{Counting, LinuxMounter, Stop};

use crate::world::{
    Answer, Client, MIB, World, capability, map, of_snapshot, of_volume, request, request_from, test_on, text,
};

const FLAG: &str = "noatime";

/// The life of one copy, call by call; each is repeated until it is answered, as a cluster would.
struct Life {
    request: CreateVolumeRequest,
    kind: &'static str,
    copy: String,
    context: std::collections::BTreeMap<String, String>,
    done: usize,
}

impl Life {
    fn new(kind: &'static str, source: volume_content_source::Type) -> Self {
        let request = CreateVolumeRequest { parameters: map(&[("fsType", kind)]), ..request_from("copy", source) };
        Life { request, kind, copy: String::new(), context: Default::default(), done: 0 }
    }

    fn path(client: &Client) -> PathBuf {
        client.kubelet.join("copy")
    }

    async fn go_on(&mut self, world: &World, client: &Client, original: &[u8]) -> Answer<()> {
        loop {
            match self.done {
                0 => self.copy = client.create(self.request.clone()).await?.volume_id,
                1 => self.context = client.attach(&self.copy, "a").await?,
                2 => self.stage(client).await?,
                3 => self.check_mount(world, client),
                4 => {
                    let (volume_id, staging_target_path) = (self.copy.clone(), text(&Self::path(client)));
                    let request = NodeUnstageVolumeRequest { volume_id, staging_target_path };
                    client.node().node_unstage_volume(request).await?;
                }
                5 => {
                    let own = identity(&image_of(world, &self.copy), self.kind);
                    assert_ne!(own, original, "the copy has the identity of its source");
                }
                6 => client.detach(&self.copy, "a").await?,
                7 => client.delete(&self.copy).await?,
                _ => return Ok(()),
            }
            self.done += 1;
        }
    }

    async fn stage(&self, client: &Client) -> Answer<()> {
        let mount = MountVolume { mount_flags: vec![FLAG.into()], ..Default::default() };
        let volume_capability = VolumeCapability {
            access_type: Some(AccessType::Mount(mount)),
            ..capability(AccessMode::SingleNodeWriter)
        };
        let request = NodeStageVolumeRequest {
            staging_target_path: text(&Self::path(client)),
            volume_capability: Some(volume_capability),
            ..client.stage_request(&self.copy, &self.context)
        };
        client.node().node_stage_volume(request).await.map(drop)
    }

    fn check_mount(&self, world: &World, client: &Client) {
        let path = Self::path(client);
        assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "precious");
        let mount = world.mount_at(&path).unwrap();
        let words: Vec<_> = mount.options.iter().chain(&mount.super_options).map(String::as_str).collect();
        assert!(words.contains(&FLAG) && !words.contains(&"nouuid"), "{words:?}");
    }
}

fn image_of(world: &World, volume: &str) -> PathBuf {
    world.pool().join("volumes").join(volume.split('.').nth(1).unwrap()).with_extension("img")
}

/// The UUID in the superblock of an image.
fn identity(image: &std::path::Path, kind: &str) -> Vec<u8> {
    let at = match kind {
        "xfs" => 32,
        "btrfs" => 0x10020,
        _ => 0x468,
    };
    let mut uuid = vec![0; 16];
    fs::File::open(image).unwrap().read_exact_at(&mut uuid, at).unwrap();
    uuid
}

/// Killed after every change: that is before the next one, too.
async fn sweep(world: World, kind: &'static str, bytes: i64) {
    let client = world.node("a").await;
    let capacity_range = Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 });
    let parameters = map(&[("fsType", kind)]);
    let source = CreateVolumeRequest { capacity_range, parameters, ..request("source") };
    let source = client.create(source).await.unwrap().volume_id;
    let path = client.stage_beside(&source, "a").await;
    fs::write(path.join("file"), "precious").unwrap();
    let snapshot = client.snapshot(&source, "snap").await.unwrap().snapshot_id;
    let original = identity(&image_of(&world, &source), kind);
    let before = world.files();
    for origin in [of_snapshot(&snapshot), of_volume(&source)] {
        let counted = Arc::new(Counting::new(Arc::new(LinuxMounter)));
        let counting = world.node_on("a", counted.clone());
        Life::new(kind, origin.clone()).go_on(&world, &counting, &original).await.unwrap();
        let changes = counted.changes();
        assert!(changes.len() > 15, "{changes:#?}");
        for at in 1..=changes.len() {
            let change = &changes[at - 1];
            let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), Stop::After(at as u64)));
            let mut life = Life::new(kind, origin.clone());
            let refusal = life.go_on(&world, &world.node_on("a", dying.clone()), &original).await.unwrap_err();
            assert!(dying.is_dead(), "change {at} was not reached: {refusal}");
            assert_eq!(refusal.code(), tonic::Code::Unavailable, "{change}");
            let ended = life.go_on(&world, &world.node("a").await, &original).await;
            assert!(ended.is_ok(), "{kind}, killed after {change}: {ended:?}");
            assert_eq!(world.files(), before, "{kind}, killed after {change}");
        }
        println!("{kind}: {} changes, killed after each", changes.len());
    }
    assert_eq!(fs::read_to_string(path.join("file")).unwrap(), "precious");
    client.unstage_beside(&source).await;
}

#[test]
fn a_copy_of_ext4_gets_through_a_driver_killed_at_any_change() {
    test_on("xfs", 1 << 30, async |world| sweep(world, "ext4", 32 * MIB).await);
}

#[test]
fn a_copy_of_xfs_gets_through_a_driver_killed_at_any_change() {
    test_on("xfs", 2 << 30, async |world| sweep(world, "xfs", 300 * MIB).await);
}

#[test]
fn a_copy_of_btrfs_gets_through_a_driver_killed_at_any_change() {
    test_on("btrfs", 2 << 30, async |world| sweep(world, "btrfs", 128 * MIB).await);
}
