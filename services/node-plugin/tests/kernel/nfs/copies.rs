use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use stowage_csi::v1::*;
use tonic::Code;

use crate::nfs_world::{NfsWorld, test};
use crate::world::{Client, map, of_snapshot, of_volume, refused, run};

/// A volume with something in it.
async fn filled(world: &NfsWorld, client: &Client, name: &str) -> String {
    let volume = client.create(world.request(name, &[])).await.unwrap().volume_id;
    let root = world.directory.join(name);
    fs::create_dir_all(root.join("folder")).unwrap();
    fs::write(root.join("folder/file"), format!("of {name}")).unwrap();
    fs::set_permissions(root.join("folder/file"), fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::chown(root.join("folder"), Some(1234), Some(5678)).unwrap();
    symlink("folder/file", root.join("link")).unwrap();
    volume
}

fn assert_filled(root: &Path, name: &str) {
    assert_eq!(fs::read_to_string(root.join("link")).unwrap(), format!("of {name}"));
    assert_eq!(fs::metadata(root.join("folder/file")).unwrap().mode() & 0o7777, 0o640);
    let folder = fs::metadata(root.join("folder")).unwrap();
    assert_eq!((folder.uid(), folder.gid()), (1234, 5678));
}

#[test]
fn a_snapshot_is_an_archive_with_the_originals_name_and_place_and_keeps_what_was() {
    test(async |world| {
        for (compress, pack_by_program, name) in
            [(true, false, "v.tar.gz"), (false, false, "v.tar"), (true, true, "v.tar.gz"), (false, true, "v.tar")]
        {
            let client = world
                .client_with(|options| (options.compress, options.pack_by_program) = (compress, pack_by_program))
                .await;
            let volume = filled(&world, &client, "v").await;
            let snapshot = client.snapshot(&volume, "snap").await.unwrap();
            assert_eq!(snapshot.snapshot_id, world.id("snap#snap#v"));
            assert_eq!(snapshot.source_volume_id, volume);
            let archive = world.directory.join("snap").join(name);
            assert_eq!(snapshot.size_bytes, fs::metadata(&archive).unwrap().len() as i64);
            assert!(snapshot.ready_to_use && snapshot.creation_time.is_some());
            // What is written later is not in it, not even if the answer was lost.
            fs::write(world.directory.join("v/folder/file"), "changed").unwrap();
            assert_eq!(client.snapshot(&volume, "snap").await.unwrap(), snapshot);
            client.delete(&volume).await.unwrap();

            // The flag may be another by then.
            let client = world.client().await;
            let restored = client.create(world.request_from("r", of_snapshot(&snapshot.snapshot_id))).await.unwrap();
            assert!(restored.content_source.is_some());
            assert_filled(&world.directory.join("r"), "v");
            client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
            client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
            client.delete(&restored.volume_id).await.unwrap();
            assert_eq!(world.tree(), Vec::<String>::new());
        }
    });
}

#[test]
fn a_volume_with_a_sub_directory_is_archived_by_its_name() {
    test(async |world| {
        let client = world.client().await;
        let volume = client.create(world.request("pvc-1", &[("subDir", "a/b")])).await.unwrap().volume_id;
        let snapshot = client.snapshot(&volume, "snap").await.unwrap().snapshot_id;
        assert_eq!(snapshot, world.id("snap#snap#pvc-1"));
        assert!(world.directory.join("snap/pvc-1.tar.gz").is_file());
        client.delete_snapshot(&snapshot).await.unwrap();
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn an_archive_that_gnu_tar_made_for_the_original_is_restored() {
    test(async |world| {
        let client = world.client().await;
        let volume = filled(&world, &client, "v").await;
        fs::hard_link(world.directory.join("v/folder/file"), world.directory.join("v/same")).unwrap();
        fs::create_dir(world.directory.join("snap")).unwrap();
        let archive = world.directory.join("snap/v.tar.gz");
        run(Command::new("tar").arg("-C").arg(world.directory.join("v")).arg("-czf").arg(archive).arg("."));
        let snapshot = world.id("snap#snap#v");
        assert_eq!(client.snapshot(&volume, "snap").await.unwrap().snapshot_id, snapshot);
        let restored = client.create(world.request_from("r", of_snapshot(&snapshot))).await.unwrap().volume_id;
        assert_filled(&world.directory.join("r"), "v");
        assert_eq!(fs::read_to_string(world.directory.join("r/same")).unwrap(), "of v");
        for id in [volume, restored] {
            client.delete(&id).await.unwrap();
        }
        client.delete_snapshot(&snapshot).await.unwrap();
    });
}

#[test]
fn an_archive_that_the_original_was_killed_over_is_made_anew() {
    test(async |world| {
        let client = world.client().await;
        let volume = filled(&world, &client, "v").await;
        let whole = client.snapshot(&volume, "whole").await.unwrap();
        let bytes = fs::read(world.directory.join("whole/v.tar.gz")).unwrap();
        fs::create_dir(world.directory.join("snap")).unwrap();
        fs::write(world.directory.join("snap/v.tar.gz"), &bytes[..bytes.len() / 2]).unwrap();
        let snapshot = client.snapshot(&volume, "snap").await.unwrap();
        assert_eq!(snapshot.size_bytes, whole.size_bytes);
        for id in [&whole.snapshot_id, &snapshot.snapshot_id] {
            client.delete_snapshot(id).await.unwrap();
        }
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn an_archive_that_nobody_can_read_is_left_and_the_snapshot_is_refused() {
    test(async |world| {
        let client = world.client().await;
        let volume = filled(&world, &client, "v").await;
        let place = world.directory.join("snap/v.tar.gz");
        fs::create_dir(world.directory.join("snap")).unwrap();
        let foreign = "not an archive at all ".repeat(100);
        fs::write(&place, &foreign).unwrap();
        let answer = client.snapshot(&volume, "snap").await;
        assert_eq!(refused(answer, &["snap/v.tar.gz", "by hand"]), Code::FailedPrecondition);
        assert_eq!(fs::read_to_string(&place).unwrap(), foreign);
        fs::remove_dir_all(world.directory.join("snap")).unwrap();
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn snapshots_that_cannot_be_are_refused_and_nobodys_directory_is_removed_as_one() {
    test(async |world| {
        let client = world.client().await;
        let (one, two) = (filled(&world, &client, "one").await, filled(&world, &client, "two").await);
        let snapshot = client.snapshot(&one, "snap").await.unwrap().snapshot_id;
        let again = client.snapshot(&two, "snap").await;
        assert_eq!(refused(again, &["snap", "one.tar.gz", "two.tar.gz"]), Code::AlreadyExists);
        assert_eq!(refused(client.snapshot(&world.id("gone##"), "s").await, &["gone"]), Code::NotFound);
        assert_eq!(refused(client.snapshot("nonsense", "s").await, &["nonsense"]), Code::NotFound);
        let strange = client.snapshot_with(&one, "s", &[("subDir", "x")]).await;
        assert_eq!(refused(strange, &["subDir"]), Code::InvalidArgument);
        // An id that names a volume's directory.
        let refusal = client.delete_snapshot(&world.id("two#two#one")).await;
        assert_eq!(refused(refusal, &["two", "look at it by hand"]), Code::FailedPrecondition);
        assert_filled(&world.directory.join("two"), "two");
        for strange in ["nonsense", &world.id("##one"), &world.id("..#..#one")] {
            client.delete_snapshot(strange).await.unwrap();
        }
        client.delete_snapshot(&snapshot).await.unwrap();
        for id in [one, two] {
            client.delete(&id).await.unwrap();
        }
    });
}

#[test]
fn snapshots_may_lie_on_another_share_and_volumes_be_copied_between_them() {
    test(async |world| {
        let client = world.client().await;
        for name in ["first", "second"] {
            fs::create_dir(world.directory.join(name)).unwrap();
        }
        let share = |name: &str| format!("{}/{name}", world.share());
        let volume = client.create(world.request("v", &[("share", &share("first"))])).await.unwrap().volume_id;
        fs::write(world.directory.join("first/v/file"), "contents").unwrap();
        let parameters = map(&[("share", &share("second")), ("mountOptions", "nfsvers=4.1")]);
        let (source_volume_id, name) = (volume.clone(), "snap".to_owned());
        let request = CreateSnapshotRequest { source_volume_id, name, parameters, ..Default::default() };
        let snapshot = client.controller().create_snapshot(request).await.unwrap().into_inner().snapshot.unwrap();
        assert!(world.directory.join("second/snap/v.tar.gz").is_file());
        let restored = client.create(world.request_from("r", of_snapshot(&snapshot.snapshot_id))).await.unwrap();
        let copied = client.create(world.request_from("c", of_volume(&volume))).await.unwrap();
        for name in ["r/file", "c/file"] {
            assert_eq!(fs::read_to_string(world.directory.join(name)).unwrap(), "contents");
        }
        client.delete_snapshot(&snapshot.snapshot_id).await.unwrap();
        for id in [volume, restored.volume_id, copied.volume_id] {
            client.delete(&id).await.unwrap();
        }
        for name in ["first", "second"] {
            fs::remove_dir(world.directory.join(name)).unwrap();
        }
    });
}

#[test]
fn a_clone_is_whole_or_not_there_and_is_not_filled_again_once_it_is_used() {
    test(async |world| {
        let client = world.client().await;
        let volume = filled(&world, &client, "v").await;
        // What a killed copy left.
        fs::create_dir(world.directory.join(".stowage-c")).unwrap();
        fs::write(world.directory.join(".stowage-c/half"), "x").unwrap();
        let request = world.request_from("c", of_volume(&volume));
        let clone = client.create(request.clone()).await.unwrap().volume_id;
        assert_filled(&world.directory.join("c"), "v");
        assert!(
            !world.directory.join("c/half").try_exists().unwrap()
                && !world.directory.join(".stowage-c").try_exists().unwrap()
        );
        fs::write(world.directory.join("c/folder/file"), "used").unwrap();
        assert_eq!(client.create(request).await.unwrap().volume_id, clone);
        assert_eq!(fs::read_to_string(world.directory.join("c/folder/file")).unwrap(), "used");
        for (source, word) in [(of_volume(&world.id("gone##")), "gone"), (of_snapshot("nonsense"), "nonsense")] {
            assert_eq!(refused(client.create(world.request_from("m", source)).await, &[word]), Code::NotFound);
        }
        let deep = CreateVolumeRequest {
            parameters: world.request("m", &[("subDir", "deep/down")]).parameters,
            ..world.request_from("m", of_snapshot(&world.id("s#s#gone")))
        };
        assert_eq!(refused(client.create(deep).await, &["s#s#gone"]), Code::NotFound);
        assert!(!world.directory.join("deep").try_exists().unwrap(), "what was begun is gone");
        for id in [volume, clone] {
            client.delete(&id).await.unwrap();
        }
    });
}

#[test]
fn a_directory_that_volumes_share_is_filled_over_what_is_there_as_the_original_does() {
    test(async |world| {
        let client = world.client().await;
        let volume = filled(&world, &client, "v").await;
        fs::create_dir(world.directory.join("common")).unwrap();
        fs::write(world.directory.join("common/kept"), "kept").unwrap();
        let request = CreateVolumeRequest {
            parameters: world.request("c", &[("subDir", "common")]).parameters,
            ..world.request_from("c", of_volume(&volume))
        };
        let clone = client.create(request).await.unwrap().volume_id;
        assert_filled(&world.directory.join("common"), "v");
        assert_eq!(fs::read_to_string(world.directory.join("common/kept")).unwrap(), "kept");
        for id in [volume, clone] {
            client.delete(&id).await.unwrap();
        }
    });
}
