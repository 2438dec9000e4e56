use std::fs;
use std::path::Path;

use node_plugin::{Options, TOKEN_KEY};
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::{ControllerPublishVolumeRequest, NodeExpandVolumeRequest};
use stowage_mount::{Host, LinuxMounter};
use tonic::Code;

use crate::world::{MIB, SIZE, block, capability, refused, request, request_with, test, text};

#[test]
fn attaching_again_gives_the_same_token_and_detaching_twice_is_fine() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let first = client.attach(&volume, "a").await.unwrap();
        assert_eq!(client.attach(&volume, "a").await.unwrap(), first);
        client.detach(&volume, "a").await.unwrap();
        client.detach(&volume, "a").await.unwrap();
        assert_ne!(client.attach(&volume, "a").await.unwrap()[TOKEN_KEY], first[TOKEN_KEY]);
        client.detach("unknown", "a").await.unwrap();
    });
}

#[test]
fn a_held_volume_is_refused_to_a_second_node_and_to_deletion_by_the_holders_name() {
    test(async |world| {
        let (a, b) = (world.node("a").await, world.node("b").await);
        let volume = a.create(request("v")).await.unwrap().volume_id;
        a.attach(&volume, "a").await.unwrap();
        assert_eq!(refused(b.attach(&volume, "b").await, &["attached to node a"]), Code::FailedPrecondition);
        assert_eq!(refused(b.delete(&volume).await, &["attached to node a"]), Code::FailedPrecondition);
        b.detach(&volume, "b").await.unwrap();
        assert_eq!(b.attach(&volume, "b").await.unwrap_err().code(), Code::FailedPrecondition);
        b.detach(&volume, "").await.unwrap();
        b.attach(&volume, "b").await.unwrap();
    });
}

#[test]
fn unknown_volumes_and_nodes_are_not_found_and_missing_fields_are_named() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        assert_eq!(refused(client.attach("nothing", "a").await, &["nothing"]), Code::NotFound);
        assert_eq!(refused(client.attach(&volume, "b").await, &["\"b\""]), Code::NotFound);
        assert_eq!(refused(client.attach(&volume, "../nodes/a").await, &["node_id"]), Code::NotFound);
        assert_eq!(refused(client.attach("", "a").await, &["volume_id"]), Code::InvalidArgument);
        assert_eq!(refused(client.attach(&volume, "").await, &["node_id"]), Code::InvalidArgument);
        assert_eq!(refused(client.detach("", "a").await, &["volume_id"]), Code::InvalidArgument);
        let good = ControllerPublishVolumeRequest {
            volume_id: volume,
            node_id: "a".into(),
            volume_capability: Some(capability(AccessMode::SingleNodeWriter)),
            ..Default::default()
        };
        let bare = ControllerPublishVolumeRequest { volume_capability: None, ..good.clone() };
        let answer = client.controller().controller_publish_volume(bare).await;
        assert_eq!(refused(answer, &["volume_capability"]), Code::InvalidArgument);
    });
}

#[test]
fn a_volume_attached_for_reading_is_read_by_its_pods_and_nothing_else() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let attach = async |readonly| {
            let request = ControllerPublishVolumeRequest {
                volume_id: volume.clone(),
                node_id: "a".into(),
                volume_capability: Some(capability(AccessMode::SingleNodeWriter)),
                readonly,
                ..Default::default()
            };
            let answer = client.controller().controller_publish_volume(request).await?;
            Ok(answer.into_inner().publish_context)
        };
        let context = attach(true).await.unwrap();
        assert_eq!(attach(true).await.unwrap(), context);
        assert_eq!(refused(attach(false).await, &["for reading only", "detach"]), Code::AlreadyExists);
        client.stage(&volume, &context).await.unwrap();
        client.publish(&volume, &context, "pod").await.unwrap();
        client.publish(&volume, &context, "pod").await.unwrap();
        let written = fs::write(client.target("pod").join("x"), "x").unwrap_err();
        assert_eq!(written.raw_os_error(), Some(nix::libc::EROFS));
        client.unpublish(&volume, "pod").await.unwrap();
        client.unstage(&volume).await.unwrap();
        client.detach(&volume, "a").await.unwrap();
        attach(false).await.unwrap();
        assert_eq!(refused(attach(true).await, &["for writing"]), Code::AlreadyExists);
    });
}

#[test]
fn a_node_gets_no_more_volumes_than_it_may_have() {
    test(async |world| {
        let client = world.introduced(Options { max_volumes: 2, ..world.options("a") }).await;
        world.node("b").await;
        assert_eq!(client.info().await.unwrap().max_volumes_per_node, 2);
        let mut volumes = Vec::new();
        for name in ["one", "two", "three"] {
            volumes.push(client.create(request(name)).await.unwrap().volume_id);
        }
        for volume in &volumes[..2] {
            client.attach(volume, "a").await.unwrap();
        }
        let refusal = client.attach(&volumes[2], "a").await;
        assert_eq!(refused(refusal, &["--max-volumes-per-node"]), Code::ResourceExhausted);
        client.attach(&volumes[1], "a").await.unwrap();
        client.attach(&volumes[2], "b").await.unwrap();
        client.detach(&volumes[0], "a").await.unwrap();
        client.detach(&volumes[2], "b").await.unwrap();
        client.attach(&volumes[2], "a").await.unwrap();
    });
}

#[test]
fn of_two_volumes_attached_at_once_only_one_gets_the_last_place() {
    test(async |world| {
        let client = world.introduced(Options { max_volumes: 1, ..world.options("a") }).await;
        let one = client.create(request("one")).await.unwrap().volume_id;
        let two = client.create(request("two")).await.unwrap().volume_id;
        for _ in 0..20 {
            let (first, second) = tokio::join!(client.attach(&one, "a"), client.attach(&two, "a"));
            assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
            let refusal = first.err().or_else(|| second.err()).unwrap();
            assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal}");
            for volume in [&one, &two] {
                client.detach(volume, "a").await.unwrap();
            }
        }
    });
}

#[test]
fn a_damaged_record_keeps_no_other_volume_from_its_node() {
    test(async |world| {
        let client = world.introduced(Options { max_volumes: 2, ..world.options("a") }).await;
        client.create(request("damaged")).await.unwrap();
        fs::write(world.only_image().with_extension("json"), "{").unwrap();
        let volume = client.create(request("good")).await.unwrap().volume_id;
        client.attach(&volume, "a").await.unwrap();
    });
}

#[test]
fn a_node_with_an_old_token_can_neither_stage_nor_publish() {
    test(async |world| {
        let (a, b) = (world.node("a").await, world.node("b").await);
        let (volume, old) = a.staged("v", "a").await;

        // Node a is cut off: the volume is taken from it without its help.
        a.detach(&volume, "a").await.unwrap();
        let new = b.attach(&volume, "b").await.unwrap();
        let publish = a.publish(&volume, &old, "pod").await;
        assert_eq!(refused(publish, &["attached to node b"]), Code::FailedPrecondition);
        assert_eq!(refused(a.stage(&volume, &old).await, &["attached to node b"]), Code::FailedPrecondition);
        // Both share this kernel, so b sees that a still has the image open.
        assert_eq!(refused(b.stage(&volume, &new).await, &["another node made"]), Code::FailedPrecondition);

        a.unstage(&volume).await.unwrap();
        b.stage(&volume, &new).await.unwrap();
        assert_eq!(refused(b.stage(&volume, &old).await, &["not the current one"]), Code::FailedPrecondition);
        b.remove(&volume).await;
    });
}

#[test]
fn a_node_that_gets_the_volume_back_starts_from_a_fresh_device() {
    test(async |world| {
        let a = world.node("a").await;
        let (volume, _) = a.staged("v", "a").await;
        let before = loop_tag(&world.loops()[0]).await;
        a.detach(&volume, "a").await.unwrap();
        let new = a.attach(&volume, "a").await.unwrap();
        a.stage(&volume, &new).await.unwrap();
        assert_eq!(world.loops().len(), 1);
        assert_ne!(loop_tag(&world.loops()[0]).await, before);
        assert_eq!(world.mount_at(&a.staging()).unwrap().source, world.loops()[0].to_str().unwrap());
        a.publish(&volume, &new, "pod").await.unwrap();
        a.unpublish(&volume, "pod").await.unwrap();
        a.remove(&volume).await;
    });
}

#[test]
fn a_shared_directory_is_unstaged_after_the_pods_of_its_own_node_are_gone() {
    test(async |world| {
        let (a, b) = (world.node("a").await, world.node("b").await);
        let volume = a.create(request_with("dir", &[("backend", "directory")])).await.unwrap().volume_id;
        for (client, node) in [(&a, "a"), (&b, "b")] {
            let context = client.attach_as(&volume, node, capability(AccessMode::MultiNodeMultiWriter)).await.unwrap();
            client.stage(&volume, &context).await.unwrap();
            client.publish(&volume, &context, "pod").await.unwrap();
        }
        assert_eq!(refused(a.unstage(&volume).await, &["kubelet/a/pods/pod"]), Code::FailedPrecondition);
        fs::write(a.target("pod").join("still"), "there").unwrap();
        assert_eq!(fs::read_to_string(b.target("pod").join("still")).unwrap(), "there");
        a.unpublish(&volume, "pod").await.unwrap();
        a.unstage(&volume).await.unwrap();
        fs::write(b.target("pod").join("still"), "here").unwrap();
        b.unpublish(&volume, "pod").await.unwrap();
        b.unstage(&volume).await.unwrap();
        a.detach(&volume, "").await.unwrap();
        a.delete(&volume).await.unwrap();
    });
}

#[test]
fn a_shared_directory_is_one_nodes_or_several_nodes_as_the_first_has_asked() {
    test(async |world| {
        let (a, b) = (world.node("a").await, world.node("b").await);
        let volume = a.create(request_with("dir", &[("backend", "directory")])).await.unwrap().volume_id;
        let (one, several) = (AccessMode::SingleNodeWriter, AccessMode::MultiNodeMultiWriter);
        for (first, second) in [(one, several), (several, one)] {
            let answer = a.attach_as(&volume, "a", capability(first)).await.unwrap();
            assert_eq!(a.attach_as(&volume, "a", capability(first)).await.unwrap(), answer);
            let refusal = b.attach_as(&volume, "b", capability(second)).await;
            assert_eq!(refused(refusal, &["attached to node a"]), Code::FailedPrecondition, "{first:?}");
            let differently = a.attach_as(&volume, "a", capability(second)).await;
            assert_eq!(refused(differently, &["detach it before"]), Code::AlreadyExists, "{first:?}");
            a.detach(&volume, "a").await.unwrap();
        }
        for (client, node) in [(&a, "a"), (&b, "b")] {
            client.attach_as(&volume, node, capability(several)).await.unwrap();
        }
        a.detach(&volume, "").await.unwrap();
        a.delete(&volume).await.unwrap();
    });
}

#[test]
fn a_volume_is_not_attached_as_what_it_is_not() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let answer = client.attach_as(&volume, "a", block()).await;
        assert_eq!(refused(answer, &["a file system", "a block device"]), Code::InvalidArgument);
        client.delete(&volume).await.unwrap();
    });
}

#[test]
fn an_attachment_that_an_older_driver_made_holds_until_it_is_taken_away() {
    test(async |world| {
        let (a, b) = (world.node("a").await, world.node("b").await);
        let volume = a.create(request("v")).await.unwrap().volume_id;
        let context = a.attach(&volume, "a").await.unwrap();
        // As it was before there were marks.
        let record = world.only_image().with_extension("json");
        let text = fs::read_to_string(&record).unwrap();
        assert!(text.contains("\"version\": 3"), "{text}");
        fs::write(&record, text.replace("\"version\": 3", "\"version\": 2")).unwrap();
        fs::remove_file(world.only_image().with_extension("attached.a.json")).unwrap();

        assert_eq!(refused(b.attach(&volume, "b").await, &["attached to node a"]), Code::FailedPrecondition);
        assert_eq!(a.attach(&volume, "a").await.unwrap(), context);
        a.stage(&volume, &context).await.unwrap();
        a.unstage(&volume).await.unwrap();
        a.expand(&volume, 2 * crate::world::SIZE).await.unwrap();
        assert_eq!(refused(b.delete(&volume).await, &["attached to node a"]), Code::FailedPrecondition);
        a.detach(&volume, "a").await.unwrap();
        b.attach(&volume, "b").await.unwrap();
        b.detach(&volume, "b").await.unwrap();
        b.delete(&volume).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

async fn loop_tag(device: &Path) -> String {
    LinuxMounter.loops().await.unwrap().into_iter().find(|found| found.path == device).unwrap().tag
}

#[test]
fn a_node_that_was_cut_off_does_not_let_a_volume_grow_that_another_has_now() {
    test(async |world| {
        let (a, b) = (world.node("a").await, world.node("b").await);
        let (volume, context) = a.staged("v", "a").await;
        a.publish(&volume, &context, "pod").await.unwrap();
        let grow = async || {
            let request = NodeExpandVolumeRequest {
                volume_id: volume.clone(),
                volume_path: text(&a.target("pod")),
                ..Default::default()
            };
            a.node().node_expand_volume(request).await
        };
        grow().await.unwrap();
        b.detach(&volume, "a").await.unwrap();
        assert_eq!(refused(grow().await, &["not attached"]), Code::FailedPrecondition);
        b.attach(&volume, "b").await.unwrap();
        b.expand(&volume, SIZE + MIB).await.unwrap();
        assert_eq!(refused(grow().await, &["attached to node b"]), Code::FailedPrecondition);
        b.detach(&volume, "b").await.unwrap();
        b.attach(&volume, "a").await.unwrap();
        assert_eq!(refused(grow().await, &["attached again", "unstage it"]), Code::FailedPrecondition);
        a.unpublish(&volume, "pod").await.unwrap();
        a.unstage(&volume).await.unwrap();
    });
}
