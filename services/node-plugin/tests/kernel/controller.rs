use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::Arc;

use nix::mount::{MsFlags, mount};
use node_plugin::args::PoolOption;
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::volume_capability::{AccessType, BlockVolume, MountVolume};
use stowage_csi::v1::*;
use stowage_mount::LinuxMounter;
use tonic::Code;

use crate::world::{MIB, SIZE, World, capability, refused, request, test, unmount};

fn parameters(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

#[test]
fn creating_twice_gives_one_volume_and_deleting_twice_leaves_nothing() {
    test(async |world| {
        let client = world.node("a").await;
        let first = client.create(request("pvc-1")).await.unwrap();
        let second = client.create(request("pvc-1")).await.unwrap();
        assert_eq!(first, second);
        assert_eq!(first.capacity_bytes, SIZE);
        let image = fs::metadata(world.only_image()).unwrap();
        assert_eq!(image.len() as i64, SIZE);
        assert!(image.blocks() * 512 < 1 << 20, "the image is not sparse");
        client.delete(&first.volume_id).await.unwrap();
        client.delete(&first.volume_id).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn the_same_name_with_other_wishes_exists_already() {
    test(async |world| {
        let client = world.node("a").await;
        client.create(request("pvc-1")).await.unwrap();
        let exact = |bytes| {
            let capacity_range = Some(CapacityRange { required_bytes: bytes, limit_bytes: bytes });
            CreateVolumeRequest { capacity_range, ..request("pvc-1") }
        };
        client.create(exact(SIZE)).await.unwrap();
        assert_eq!(refused(client.create(exact(2 * SIZE)).await, &["bytes"]), Code::AlreadyExists);
    });
}

#[test]
fn the_same_name_in_another_pool_exists_already() {
    test(async |world| {
        let mut options = world.options("a");
        fs::create_dir(world.root.join("second")).unwrap();
        options.pools.push(PoolOption { name: "second".into(), path: world.root.join("second") });
        let client = world.start(options, Arc::new(LinuxMounter));
        let of = |pool| CreateVolumeRequest { parameters: parameters(&[("pool", pool)]), ..request("pvc-1") };
        assert_eq!(refused(client.create(request("pvc-1")).await, &["main, second"]), Code::InvalidArgument);
        client.create(of("second")).await.unwrap();
        assert_eq!(refused(client.create(of("main")).await, &["\"second\""]), Code::AlreadyExists);
    });
}

#[test]
fn a_bad_request_is_refused_with_the_field_and_the_way_out() {
    test(async |world| {
        let client = world.node("a").await;
        let ntfs = VolumeCapability {
            access_type: Some(AccessType::Mount(MountVolume { fs_type: "ntfs".into(), ..Default::default() })),
            ..capability(AccessMode::SingleNodeWriter)
        };
        let block = VolumeCapability {
            access_type: Some(AccessType::Block(BlockVolume {})),
            ..capability(AccessMode::SingleNodeWriter)
        };
        let block_with = |key, value| CreateVolumeRequest {
            parameters: parameters(&[(key, value)]),
            volume_capabilities: vec![block.clone()],
            ..request("v")
        };
        let sized = |required_bytes, limit_bytes| CreateVolumeRequest {
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes }),
            ..request("v")
        };
        let with = |key, value| CreateVolumeRequest { parameters: parameters(&[(key, value)]), ..request("v") };
        let used = |capability| CreateVolumeRequest { volume_capabilities: vec![capability], ..request("v") };
        let source = VolumeContentSource {
            r#type: Some(volume_content_source::Type::Volume(volume_content_source::VolumeSource {
                volume_id: "x".into(),
            })),
        };
        let cases = [
            (request(""), Code::InvalidArgument, "name"),
            (request(&"x".repeat(129)), Code::InvalidArgument, "128 bytes"),
            (request("a\u{7}b"), Code::InvalidArgument, "control"),
            (
                CreateVolumeRequest { volume_capabilities: vec![], ..request("v") },
                Code::InvalidArgument,
                "capabilities",
            ),
            (block_with("backend", "directory"), Code::InvalidArgument, "Filesystem"),
            (block_with("fsType", "ext4"), Code::InvalidArgument, "fsType is not for block volumes"),
            (used(ntfs), Code::InvalidArgument, "\"ntfs\" is not supported; use ext4, xfs or btrfs"),
            (with("thin", "perhaps"), Code::InvalidArgument, "thin is \"perhaps\""),
            (with("mkfsOptions", "-d etc"), Code::InvalidArgument, "\"-d\""),
            (
                CreateVolumeRequest { mutable_parameters: parameters(&[("XXX_FakeKey", "1")]), ..request("v") },
                Code::InvalidArgument,
                "\"XXX_FakeKey\"",
            ),
            (used(capability(AccessMode::MultiNodeMultiWriter)), Code::InvalidArgument, "MULTI_NODE_MULTI_WRITER"),
            (with("colour", "blue"), Code::InvalidArgument, "\"colour\""),
            (with("fsType", "ntfs"), Code::InvalidArgument, "\"ntfs\""),
            (with("pool", "gold"), Code::InvalidArgument, "\"gold\" is unknown; choose one of: main"),
            (sized(-1, 0), Code::InvalidArgument, "required_bytes is -1"),
            (sized(2 * SIZE, SIZE), Code::InvalidArgument, "above limit_bytes"),
            (sized(i64::MAX, 0), Code::OutOfRange, "9223372036854775807"),
            (sized(0, 1), Code::OutOfRange, "between 0 and 1 bytes"),
            (
                CreateVolumeRequest { volume_content_source: Some(source), ..request("v") },
                Code::NotFound,
                "volume_id \"x\"",
            ),
        ];
        for (request, code, word) in cases {
            let shown = format!("{request:?}");
            assert_eq!(refused(client.create(request).await, &[word]), code, "{shown}");
        }
        assert_eq!(world.files(), Vec::<String>::new());
    });
}

#[test]
fn a_pool_promises_no_more_than_it_has() {
    test(async |world| {
        let client = small_pool(&world).await;
        client.create(request("one")).await.unwrap();
        client.create(request("two")).await.unwrap();
        assert_eq!(
            refused(client.create(request("three")).await, &["\"main\"", "--overcommit"]),
            Code::ResourceExhausted
        );
        let free = client.controller().get_capacity(GetCapacityRequest::default()).await.unwrap().into_inner();
        assert!(free.available_capacity < SIZE && free.available_capacity > 0, "{free:?}");
        let smaller = CapacityRange { required_bytes: free.available_capacity, limit_bytes: 0 };
        let refusal = client.create(CreateVolumeRequest { capacity_range: Some(smaller), ..request("three") }).await;
        // What is left after rounding up to whole blocks may be a block too little.
        assert!(refusal.is_ok() || refusal.unwrap_err().code() == Code::ResourceExhausted);
        drop(client);
        unmount(&world.pool());
    });
}

async fn small_pool(world: &World) -> crate::world::Client {
    let size = format!("size={}", 80 * MIB);
    mount(Some("none"), &world.pool(), Some("tmpfs"), MsFlags::empty(), Some(size.as_str())).unwrap();
    world.node("a").await
}

#[test]
fn a_full_disk_refuses_creation_leaves_nothing_and_still_deletes() {
    test(async |world| {
        let client = small_pool(&world).await;
        let volume = client.create(request("one")).await.unwrap();
        let filler = world.pool().join("filler");
        let full = (0..).find_map(|count| fs::write(&filler, vec![1u8; count * MIB as usize]).err()).unwrap();
        assert_eq!(full.raw_os_error(), Some(nix::libc::ENOSPC));
        let before = world.files();
        assert_eq!(client.create(request("two")).await.unwrap_err().code(), Code::ResourceExhausted);
        assert_eq!(world.files(), before);
        client.delete(&volume.volume_id).await.unwrap();
        assert_eq!(world.files(), Vec::<String>::new());
        drop(client);
        unmount(&world.pool());
    });
}

#[test]
fn deleting_what_was_never_ours_is_fine_but_not_what_we_cannot_see() {
    test(async |world| {
        let client = world.node("a").await;
        client.delete("fake-vol-id").await.unwrap();
        client.delete("main.../../etc/passwd").await.unwrap();
        assert_eq!(refused(client.delete("").await, &["volume_id"]), Code::InvalidArgument);
        let elsewhere = format!("gone.{}", "0".repeat(32));
        assert_eq!(refused(client.delete(&elsewhere).await, &["--pool gone=PATH"]), Code::FailedPrecondition);
    });
}

#[test]
fn listing_pages_through_all_volumes_once() {
    test(async |world| {
        let client = world.node("a").await;
        let mut ids = Vec::new();
        for number in 0..5 {
            ids.push(client.create(request(&format!("v{number}"))).await.unwrap().volume_id);
        }
        ids.sort();
        client.attach(&ids[0], "a").await.unwrap();
        let list = async |max_entries, token: &str| {
            let request = ListVolumesRequest { max_entries, starting_token: token.into() };
            client.controller().list_volumes(request).await.map(|answer| answer.into_inner())
        };
        let (mut seen, mut token) = (Vec::new(), String::new());
        loop {
            let page = list(2, &token).await.unwrap();
            assert!(page.entries.len() <= 2);
            seen.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
            token = page.next_token;
            if token.is_empty() {
                break;
            }
        }
        assert_eq!(seen, ids);
        let all = list(0, "").await.unwrap();
        assert_eq!(all.entries[0].status.as_ref().unwrap().published_node_ids, ["a"]);
        assert_eq!(all.entries.len(), 5);
        assert_eq!(refused(list(0, "invalid-token").await, &["invalid-token"]), Code::Aborted);
        assert_eq!(refused(list(-1, "").await, &["max_entries"]), Code::InvalidArgument);
    });
}

#[test]
fn capabilities_are_confirmed_only_if_all_can_be_honoured() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let validate = async |volume_id: &str, volume_capabilities| {
            let volume_id = volume_id.to_owned();
            let request = ValidateVolumeCapabilitiesRequest { volume_id, volume_capabilities, ..Default::default() };
            client.controller().validate_volume_capabilities(request).await.map(|answer| answer.into_inner())
        };
        let good = capability(AccessMode::SingleNodeWriter);
        let confirmed = validate(&volume, vec![good.clone()]).await.unwrap().confirmed.unwrap();
        assert_eq!(confirmed.volume_capabilities, std::slice::from_ref(&good));
        let mixed = validate(&volume, vec![good.clone(), capability(AccessMode::MultiNodeMultiWriter)]).await.unwrap();
        assert!(mixed.confirmed.is_none() && mixed.message.contains("MULTI_NODE_MULTI_WRITER"));
        assert_eq!(refused(validate(&volume, vec![]).await, &[]), Code::InvalidArgument);
        assert_eq!(refused(validate("", vec![good.clone()]).await, &[]), Code::InvalidArgument);
        assert_eq!(refused(validate("main.none", vec![good]).await, &["main.none"]), Code::NotFound);
    });
}

#[test]
fn a_record_of_a_newer_driver_or_a_damaged_one_is_refused_and_kept() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let record = world.only_image().with_extension("json");
        let whole = fs::read_to_string(&record).unwrap();
        fs::write(&record, whole.replace("\"version\": 3", "\"version\": 4")).unwrap();
        assert_eq!(refused(client.delete(&volume).await, &["version 4", "newer driver"]), Code::FailedPrecondition);
        fs::write(&record, "{}").unwrap();
        assert_eq!(refused(client.create(request("v")).await, &["damaged"]), Code::DataLoss);
        let list = client.controller().list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
        assert_eq!(list.entries, []);
        assert_eq!(world.files().len(), 2);
    });
}

#[test]
fn links_in_the_pool_lead_nowhere() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let victim = world.root.join("victim");
        fs::write(&victim, "precious").unwrap();
        let image = world.only_image();
        fs::remove_file(&image).unwrap();
        symlink(&victim, &image).unwrap();
        assert_eq!(refused(client.attach(&volume, "a").await, &["CreateVolume"]), Code::FailedPrecondition);
        client.delete(&volume).await.unwrap();
        assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    });
}

#[test]
fn calls_for_one_volume_do_not_overlap_and_others_go_on() {
    test(async |world| {
        let client = world.node("a").await;
        let (mut one, mut two, mut other) = (client.controller(), client.controller(), client.controller());
        let (first, second, third) = tokio::join!(
            one.create_volume(request("same")),
            two.create_volume(request("same")),
            other.create_volume(request("other")),
        );
        first.unwrap();
        assert_eq!(refused(second, &["in progress"]), Code::Aborted);
        third.unwrap();
    });
}
