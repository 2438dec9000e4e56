use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;

use node_plugin::nfs::OnDelete;
use stowage_csi::v1::*;
use stowage_mount::LinuxMounter;
use tonic::Code;

use crate::nfs_world::{NfsWorld, test};
use crate::world::{block, map, refused};

fn mode(world: &NfsWorld, way: &str) -> u32 {
    fs::metadata(world.directory.join(way)).unwrap().permissions().mode() & 0o7777
}

#[test]
fn a_volume_is_a_directory_of_its_own_name_and_its_id_and_context_are_the_originals() {
    test(async |world| {
        let client = world.client().await;
        let request = world.request("pvc-1", &[("mountPermissions", "0750")]);
        let volume = client.create(request.clone()).await.unwrap();
        assert_eq!(volume.volume_id, world.id("pvc-1##"));
        assert_eq!(volume.capacity_bytes, 0, "the provisioner takes what the claim asks for");
        let mut context = request.parameters.clone();
        context.insert("subdir".into(), "pvc-1".into());
        assert_eq!(volume.volume_context, context);
        assert_eq!((world.tree(), mode(&world, "pvc-1")), (vec!["pvc-1".to_owned()], 0o750));
        fs::write(world.directory.join("pvc-1/file"), "precious").unwrap();
        assert_eq!(client.create(request).await.unwrap(), volume);
        assert!(world.directory.join("pvc-1/file").is_file());
        client.delete(&volume.volume_id).await.unwrap();
        assert_eq!(world.tree(), Vec::<String>::new());
        client.delete(&volume.volume_id).await.unwrap();
    });
}

#[test]
fn a_sub_directory_is_named_by_claim_and_goes_with_the_last_volume_in_it() {
    test(async |world| {
        let client = world.client().await;
        let create = async |name: &str, claim: &str| {
            let parameters = [
                ("SubDir", "${pvc.metadata.namespace}/x/${pvc.metadata.name}"),
                ("csi.storage.k8s.io/pvc/name", claim),
                ("csi.storage.k8s.io/pvc/namespace", "space"),
                ("csi.storage.k8s.io/pv/name", name),
            ];
            client.create(world.request(name, &parameters)).await.unwrap()
        };
        let (one, two) = (create("pvc-1", "one").await, create("pvc-2", "two").await);
        assert_eq!(one.volume_id, world.id("space/x/one#pvc-1#"));
        assert_eq!(one.volume_context["SubDir"], "space/x/one");
        assert_eq!(world.tree(), ["space", "space/x", "space/x/one", "space/x/two"]);
        client.delete(&one.volume_id).await.unwrap();
        assert_eq!(world.tree(), ["space", "space/x", "space/x/two"]);
        client.delete(&two.volume_id).await.unwrap();
        assert_eq!(world.tree(), Vec::<String>::new());
        let untold = world.request("pvc-3", &[("subDir", "${pvc.metadata.name}")]);
        assert_eq!(refused(client.create(untold).await, &["--extra-create-metadata"]), Code::InvalidArgument);
    });
}

#[test]
fn what_becomes_of_a_directory_is_said_by_the_class_or_else_by_the_flag() {
    test(async |world| {
        for (class, flag, id, left) in [
            ("", OnDelete::Delete, "v##", &[][..]),
            ("delete", OnDelete::Delete, "v##", &[]),
            ("delete", OnDelete::Retain, "v##delete", &[]),
            ("", OnDelete::Retain, "v##retain", &["v", "v/file"]),
            ("Retain", OnDelete::Delete, "v##retain", &["v", "v/file"]),
            ("archive", OnDelete::Delete, "v##archive", &["archived-v", "archived-v/file"]),
            ("", OnDelete::Archive, "v##archive", &["archived-v", "archived-v/file"]),
        ] {
            let client = world.client_with(|options| options.on_delete = flag).await;
            let volume = client.create(world.request("v", &[("onDelete", class)])).await.unwrap().volume_id;
            assert_eq!(volume, world.id(id), "{class} {flag}");
            fs::write(world.directory.join("v/file"), "precious").unwrap();
            // The id says it, whatever the flag is by then; and twice, as after a lost answer.
            let later = world.client().await;
            later.delete(&volume).await.unwrap();
            later.delete(&volume).await.unwrap();
            assert_eq!(world.tree(), left, "{class} {flag}");
            for entry in fs::read_dir(&world.directory).unwrap() {
                fs::remove_dir_all(entry.unwrap().path()).unwrap();
            }
        }
        let bad = world.client().await.create(world.request("v", &[("onDelete", "shred")])).await;
        assert_eq!(refused(bad, &["onDelete", "shred"]), Code::InvalidArgument);
    });
}

#[test]
fn an_id_without_a_policy_follows_the_flag() {
    test(async |world| {
        fs::create_dir(world.directory.join("old")).unwrap();
        let old = format!("{}/{}/old", world.server, world.share().trim_matches('/'));
        world.client_with(|options| options.on_delete = OnDelete::Retain).await.delete(&old).await.unwrap();
        assert_eq!(world.tree(), ["old"]);
        world.client().await.delete(&old).await.unwrap();
    });
}

#[test]
fn an_archive_of_an_earlier_volume_is_kept_unless_it_is_to_make_room() {
    test(async |world| {
        let client = world.client().await;
        let request = world.request("pvc-1", &[("subDir", "a/b"), ("onDelete", "archive")]);
        let volume = client.create(request.clone()).await.unwrap().volume_id;
        fs::write(world.directory.join("a/b/first"), "").unwrap();
        client.delete(&volume).await.unwrap();
        assert_eq!(world.tree(), ["a", "archived-a", "archived-a/b", "archived-a/b/first"]);
        client.create(request).await.unwrap();
        fs::write(world.directory.join("a/b/second"), "").unwrap();
        let refusal = refused(client.delete(&volume).await, &["archived-a/b", "--remove-archived-volume-path"]);
        assert_eq!(refusal, Code::FailedPrecondition);
        assert!(world.directory.join("a/b/second").is_file() && world.directory.join("archived-a/b/first").is_file());
        let client = world.client_with(|options| options.remove_archived = true).await;
        client.delete(&volume).await.unwrap();
        // Again, as after a lost answer: what was archived is this volume's.
        client.delete(&volume).await.unwrap();
        assert_eq!(world.tree(), ["a", "archived-a", "archived-a/b", "archived-a/b/second"]);
        fs::remove_dir_all(world.directory.join("archived-a")).unwrap();
        fs::remove_dir(world.directory.join("a")).unwrap();
    });
}

#[test]
fn volumes_in_one_directory_come_and_go_at_the_same_time() {
    test(async |world| {
        let client = Arc::new(world.client().await);
        let calls = (0..16).map(|number| {
            let request = world.request(&format!("v{number}"), &[("subDir", &format!("same/parent/v{number}"))]);
            let client = client.clone();
            async move {
                for _ in 0..4 {
                    let volume = client.create(request.clone()).await.unwrap().volume_id;
                    client.delete(&volume).await.unwrap();
                }
            }
        });
        futures::future::join_all(calls).await;
        assert_eq!(world.tree(), Vec::<String>::new());
    });
}

#[test]
fn bad_requests_are_refused_by_field_and_value_and_leave_nothing() {
    test(async |world| {
        let client = world.client().await;
        for (parameters, words) in [
            (&[("server", "")][..], &["server", "missing"][..]),
            (&[("server", "a b")], &["server", "a b"]),
            (&[("server", "-o")], &["server"]),
            (&[("share", "/x/../y")], &["share", "/x/../y"]),
            (&[("share", "/x#y")], &["share", "#"]),
            (&[("subDir", "../x")], &["subDir", "../x"]),
            (&[("subDir", "a/../../x")], &["subDir"]),
            (&[("subDir", "/")], &["subDir"]),
            (&[("subDir", "a#b")], &["subDir", "#"]),
            (&[("subDir", "a\nb")], &["subDir"]),
            (&[("mountPermissions", "07ab")], &["mountPermissions", "07ab"]),
            (&[("unknown-parameter", "foo")], &["unknown-parameter"]),
        ] {
            assert_eq!(refused(client.create(world.request("v", parameters)).await, words), Code::InvalidArgument);
        }
        for name in ["", "a/b", "..", ".", "a#b", ".stowage-x", &"n".repeat(129)] {
            assert_eq!(refused(client.create(world.request(name, &[])).await, &["name"]), Code::InvalidArgument);
        }
        let device = CreateVolumeRequest { volume_capabilities: vec![block()], ..world.request("v", &[]) };
        assert_eq!(refused(client.create(device).await, &["block", "Filesystem"]), Code::InvalidArgument);
        let bare = CreateVolumeRequest { volume_capabilities: vec![], ..world.request("v", &[]) };
        assert_eq!(refused(client.create(bare).await, &["volume_capabilities"]), Code::InvalidArgument);
        for strange in ["nothing", "a#b", &world.id("..##"), &world.id("##"), &world.id("v##shred")] {
            client.delete(strange).await.unwrap();
        }
        fs::write(world.directory.join("file"), "").unwrap();
        let taken = client.create(world.request("file", &[])).await;
        assert_eq!(refused(taken, &["file", "not a directory"]), Code::FailedPrecondition);
        fs::remove_file(world.directory.join("file")).unwrap();
    });
}

#[test]
fn what_keeps_a_share_from_being_mounted_is_said_with_the_way_out() {
    test(async |world| {
        let client = world.client().await;
        let create = async |server: &str, flag: &str| {
            let mut request = world.request("v", &[("server", server)]);
            if let Some(volume_capability::AccessType::Mount(mount)) = &mut request.volume_capabilities[0].access_type {
                mount.mount_flags.push(flag.into());
            }
            client.create(request).await
        };
        assert_eq!(refused(create("denied", "nfsvers=4.1").await, &["access denied"]), Code::PermissionDenied);
        assert_eq!(refused(create("silent", "nfsvers=4.1").await, &["firewall"]), Code::Unavailable);
        assert_eq!(refused(create(&world.server, "bogus").await, &["mount option"]), Code::InvalidArgument);
        let missing = client.create(world.request("v", &[("share", "/never/there")])).await;
        assert_eq!(refused(missing, &["/never/there", "No such file"]), Code::Internal);
        if ["/sbin/mount.nfs", "/usr/sbin/mount.nfs"].iter().any(|path| fs::exists(path).unwrap()) {
            eprintln!("not tried without mount.nfs: it is installed here");
            return;
        }
        // The real port, on a machine without the helper.
        let driver = node_plugin::nfs::Driver::new(&world.options(), Arc::new(LinuxMounter));
        let channel = stowage_csi::Channel::in_process(driver.routes());
        let mut controller = controller_client::ControllerClient::new(channel);
        let answer = controller.create_volume(world.request("v", &[])).await;
        assert_eq!(refused(answer, &["mount.nfs", "install the package nfs-common"]), Code::Internal);
    });
}

#[test]
fn options_for_removing_come_from_a_secret_and_read_only_ones_do_not_keep_the_controller_from_writing() {
    test(async |world| {
        let client = world.client().await;
        let mut request = world.request("v", &[]);
        if let Some(volume_capability::AccessType::Mount(mount)) = &mut request.volume_capabilities[0].access_type {
            mount.mount_flags.push("ro,nfsvers=4.1".into());
        }
        let volume_id = client.create(request).await.unwrap().volume_id;
        let delete = async |options: &str| {
            let secrets = map(&[("mountOptions", options)]);
            let request = DeleteVolumeRequest { volume_id: volume_id.clone(), secrets };
            client.controller().delete_volume(request).await
        };
        assert_eq!(refused(delete("nfsvers=3,bogus").await, &[]), Code::InvalidArgument);
        delete("nfsvers=3").await.unwrap();
    });
}

#[test]
fn a_volume_grows_as_far_as_its_claim_says() {
    test(async |world| {
        let client = world.client().await;
        let answer = client.expand(&world.id("v##"), 5 << 30).await.unwrap();
        assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (5 << 30, false));
    });
}
