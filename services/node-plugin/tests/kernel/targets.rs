//! Paths from callers never lead out of the target roots.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag, makedev, mknod};
use node_plugin::Options;
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::*;
use stowage_mount::MountTable;
use tonic::Code;

use crate::world::{Client, World, capability, refused, request, test, text};

/// Everything below a directory, with what each file holds.
fn tree(root: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let about = fs::symlink_metadata(&path).unwrap();
            if about.is_dir() {
                folders.push(path.clone());
            }
            // An image in use changes by itself.
            let read = about.is_file() && path.extension().is_none_or(|ending| ending != "img");
            let contents = if read { fs::read_to_string(&path).unwrap() } else { String::new() };
            found.push((path, format!("{:?} {contents}", about.file_type())));
        }
    }
    found.sort();
    found
}

fn prepare_tricks(world: &World, client: &Client) -> Vec<PathBuf> {
    let (kubelet, outside) = (client.kubelet.clone(), world.root.join("outside"));
    fs::create_dir_all(kubelet.join("pods")).unwrap();
    fs::create_dir_all(outside.join("inner")).unwrap();
    fs::write(outside.join("file"), "precious").unwrap();
    let null = makedev(1, 3);
    mknod(&kubelet.join("null"), SFlag::S_IFCHR, Mode::S_IRUSR, null).unwrap();
    fs::write(kubelet.join("file"), "precious").unwrap();
    symlink(&outside, kubelet.join("link")).unwrap();
    symlink("../..", kubelet.join("up")).unwrap();
    symlink("/nowhere/at/all", kubelet.join("lost")).unwrap();
    symlink("circle", kubelet.join("circle")).unwrap();
    symlink(world.pool(), kubelet.join("pool")).unwrap();
    vec![
        outside.join("inner"),
        outside.join("new"),
        world.root.clone(),
        world.root.join("kubelet"),
        world.pool().join("volumes"),
        PathBuf::from("/"),
        PathBuf::from("/etc/stowage-never"),
        kubelet.join("link/inner"),
        kubelet.join("link/new/deep"),
        kubelet.join("up/outside/inner"),
        kubelet.join("up/new"),
        kubelet.join("pods/../../../outside/inner"),
        kubelet.join("lost/a"),
        kubelet.join("circle/a"),
        kubelet.join("file/a"),
        kubelet.join("null/a"),
        kubelet.join("pool/volumes"),
        kubelet.join("pool/volumes/new"),
        kubelet.join("zero\0byte"),
        kubelet.join("n".repeat(256)),
        kubelet.join("deep/".repeat(1000)),
        PathBuf::from("relative/path"),
    ]
}

#[test]
fn no_call_follows_a_path_out_of_the_target_root() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        let other = client.create(request("other")).await.unwrap().volume_id;
        let theirs = client.attach(&other, "a").await.unwrap();
        let tricks = prepare_tricks(&world, &client);
        let (before, mounts) = (tree(&world.root), MountTable::read().unwrap());
        let mut node = client.node();
        for path in &tricks {
            let path = text(path);
            let stage =
                NodeStageVolumeRequest { staging_target_path: path.clone(), ..client.stage_request(&other, &theirs) };
            let publish =
                NodePublishVolumeRequest { target_path: path.clone(), ..client.publish_request(&volume, &context, "") };
            let from = NodePublishVolumeRequest {
                staging_target_path: path.clone(),
                ..client.publish_request(&volume, &context, "pod")
            };
            let inline = NodePublishVolumeRequest {
                volume_id: format!("csi-{}", "a".repeat(64)),
                target_path: path.clone(),
                volume_capability: Some(capability(AccessMode::SingleNodeWriter)),
                volume_context: BTreeMap::from([("csi.storage.k8s.io/ephemeral".into(), "true".into())]),
                ..Default::default()
            };
            let (volume_id, target_path) = (volume.clone(), path.clone());
            let unpublish = NodeUnpublishVolumeRequest { volume_id, target_path };
            let forget = NodeUnpublishVolumeRequest { volume_id: inline.volume_id.clone(), ..unpublish.clone() };
            let unstage = NodeUnstageVolumeRequest { volume_id: volume.clone(), staging_target_path: path.clone() };
            let answers = [
                node.node_stage_volume(stage).await.map(drop),
                node.node_unstage_volume(unstage).await.map(drop),
                node.node_publish_volume(publish).await.map(drop),
                node.node_publish_volume(from).await.map(drop),
                node.node_unpublish_volume(unpublish).await.map(drop),
                node.node_publish_volume(inline).await.map(drop),
                node.node_unpublish_volume(forget).await.map(drop),
            ];
            for (number, answer) in answers.into_iter().enumerate() {
                assert_eq!(refused(answer, &["_path"]), Code::InvalidArgument, "call {number} with {path:?}");
            }
            let stats = NodeGetVolumeStatsRequest {
                volume_id: volume.clone(),
                volume_path: path.clone(),
                ..Default::default()
            };
            assert_eq!(refused(node.node_get_volume_stats(stats).await, &[]), Code::NotFound, "{path:?}");
            let (volume_id, volume_path) = (volume.clone(), path.clone());
            let grow = NodeExpandVolumeRequest { volume_id, volume_path, ..Default::default() };
            assert_eq!(refused(node.node_expand_volume(grow).await, &[]), Code::NotFound, "{path:?}");
            assert_eq!(tree(&world.root), before, "{path:?}");
        }
        assert_eq!(MountTable::read().unwrap(), mounts);
        assert!(!Path::new("/etc/stowage-never").try_exists().unwrap());
        client.remove(&volume).await;
    });
}

#[test]
fn what_stands_at_a_staging_path_and_is_no_directory_is_left_alone() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        prepare_tricks(&world, &client);
        let before = tree(&world.root);
        for name in ["null", "file", "link", "lost", "circle"] {
            let staging_target_path = text(&client.kubelet.join(name));
            let request = NodeStageVolumeRequest { staging_target_path, ..client.stage_request(&volume, &context) };
            let answer = client.node().node_stage_volume(request).await;
            assert_eq!(refused(answer, &["staging_target_path", "not a directory"]), Code::InvalidArgument, "{name}");
            assert_eq!(tree(&world.root), before, "{name}");
        }
        assert_eq!(world.loops(), Vec::<PathBuf>::new());
    });
}

#[test]
fn a_target_root_may_be_a_link_and_there_may_be_several() {
    test(async |world| {
        let (real, alias, second) = (world.root.join("data"), world.root.join("alias"), world.root.join("second"));
        fs::create_dir(&real).unwrap();
        symlink(&real, &alias).unwrap();
        let options = Options { target_roots: vec![alias.clone(), second.clone()], ..world.options("a") };
        let client = world.introduced(options).await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let context = client.attach(&volume, "a").await.unwrap();
        let refusal = client.stage(&volume, &context).await;
        let words = ["staging_target_path", "alias", "second", "--target-root"];
        assert_eq!(refused(refusal, &words), Code::InvalidArgument);
        let stage = NodeStageVolumeRequest {
            staging_target_path: text(&alias.join("stage")),
            ..client.stage_request(&volume, &context)
        };
        client.node().node_stage_volume(stage.clone()).await.unwrap();
        assert!(world.mount_at(&real.join("stage")).is_some());
        // The second root is made when it is first needed, as the kubelet may not have been there yet.
        let publish = NodePublishVolumeRequest {
            staging_target_path: stage.staging_target_path.clone(),
            target_path: text(&second.join("pods/pod")),
            ..client.publish_request(&volume, &context, "pod")
        };
        client.node().node_publish_volume(publish.clone()).await.unwrap();
        let target_path = publish.target_path;
        let unpublish = NodeUnpublishVolumeRequest { volume_id: volume.clone(), target_path };
        client.node().node_unpublish_volume(unpublish).await.unwrap();
        let staging_target_path = stage.staging_target_path;
        let unstage = NodeUnstageVolumeRequest { volume_id: volume, staging_target_path };
        client.node().node_unstage_volume(unstage).await.unwrap();
    });
}
