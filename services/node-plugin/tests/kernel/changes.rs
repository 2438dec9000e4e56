use std::fs;
use std::path::Path;

use stowage_csi::v1::*;
use stowage_mount::{Host, LinuxMounter};
use tonic::Code;

use crate::world::{SIZE, block, refused, request, request_with, test};

#[test]
fn a_volume_grows_and_never_shrinks() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        let grown = client.expand(&volume, 2 * SIZE).await.unwrap();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (2 * SIZE, true));
        assert_eq!(fs::metadata(world.only_image()).unwrap().len() as i64, 2 * SIZE);
        assert_eq!(client.expand(&volume, SIZE).await.unwrap().capacity_bytes, 2 * SIZE);
        let unknown = format!("main.{}", "0".repeat(32));
        assert_eq!(refused(client.expand(&unknown, SIZE).await, &[&unknown]), Code::NotFound);
        assert_eq!(refused(client.expand("", SIZE).await, &["volume_id"]), Code::InvalidArgument);
        assert_eq!(refused(client.expand(&volume, 0).await, &["capacity_range"]), Code::InvalidArgument);
        assert_eq!(refused(client.expand(&volume, -1).await, &["required_bytes"]), Code::InvalidArgument);
        assert_eq!(refused(client.expand(&volume, i64::MAX).await, &[]), Code::OutOfRange);
        let directory = client.create(request_with("dir", &[("backend", "directory")])).await.unwrap().volume_id;
        assert_eq!(refused(client.expand(&directory, SIZE).await, &["backend=image"]), Code::InvalidArgument);
    });
}

fn read_ahead(device: &Path) -> String {
    let name = device.file_name().unwrap().to_str().unwrap();
    fs::read_to_string(format!("/sys/block/{name}/queue/read_ahead_kb")).unwrap().trim().to_owned()
}

async fn is_direct(device: &Path) -> bool {
    LinuxMounter.loops().await.unwrap().into_iter().find(|found| found.path == device).unwrap().direct_io
}

fn available(path: &Path) -> u64 {
    let usage = nix::sys::statvfs::statvfs(path).unwrap();
    usage.blocks_available() * usage.fragment_size()
}

#[test]
fn read_ahead_stays_as_it_is_where_the_kernel_cannot_be_told() {
    use nix::mount::{MsFlags, mount};
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        // As in a container that is not privileged; nobody else sees this.
        mount(Some("/sys"), "/sys", None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
        let read_only = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
        mount(None::<&str>, "/sys", None::<&str>, read_only, None::<&str>).unwrap();
        client.modify(&volume, &[("readAheadKb", "64")]).await.unwrap();
        client.unstage(&volume).await.unwrap();
        client.stage(&volume, &context).await.unwrap();
        client.remove(&volume).await;
    });
}

#[test]
fn mutable_parameters_change_the_device_and_the_file_system_at_once_and_again_when_staged() {
    test(async |world| {
        let client = world.node("a").await;
        let (volume, context) = client.staged("v", "a").await;
        let device = world.loops().remove(0);
        let before = available(&client.staging());
        let direct = is_direct(&device).await;
        client.modify(&volume, &[("readAheadKb", "64"), ("reservedPercent", "20")]).await.unwrap();
        assert_eq!(read_ahead(&device), "64");
        assert!(available(&client.staging()) < before * 9 / 10, "nothing was reserved");
        assert_eq!(is_direct(&device).await, direct, "what was not named changed");
        client.modify(&volume, &[("directIo", "false"), ("reservedPercent", "0")]).await.unwrap();
        assert!(!is_direct(&device).await);
        assert_eq!(read_ahead(&device), "64", "what was not named changed");
        assert!(available(&client.staging()) >= before * 9 / 10);

        client.unstage(&volume).await.unwrap();
        client.modify(&volume, &[("readAheadKb", "256")]).await.unwrap();
        client.stage(&volume, &context).await.unwrap();
        let device = world.loops().remove(0);
        assert_eq!(read_ahead(&device), "256");
        assert!(!is_direct(&device).await);
        client.remove(&volume).await;
    });
}

#[test]
fn mutable_parameters_that_would_do_nothing_are_refused_and_change_nothing() {
    test(async |world| {
        let client = world.node("a").await;
        let tuned = CreateVolumeRequest {
            mutable_parameters: [("readAheadKb".to_owned(), "32".to_owned())].into(),
            ..request("v")
        };
        let volume = client.create(tuned).await.unwrap().volume_id;
        let record = world.only_image().with_extension("json");
        let before = fs::read_to_string(&record).unwrap();
        let both = client.modify(&volume, &[("readAheadKb", "64"), ("XXX_FakeKey", "1")]).await;
        assert_eq!(refused(both, &["\"XXX_FakeKey\"", "readAheadKb"]), Code::InvalidArgument);
        assert_eq!(fs::read_to_string(&record).unwrap(), before);
        let raw = CreateVolumeRequest { volume_capabilities: vec![block()], ..request("raw") };
        let raw = client.create(raw).await.unwrap().volume_id;
        let refusal = client.modify(&raw, &[("reservedPercent", "5")]).await;
        assert_eq!(refused(refusal, &["reservedPercent"]), Code::InvalidArgument);
        assert_eq!(refused(client.modify("", &[]).await, &["volume_id"]), Code::InvalidArgument);
        assert_eq!(refused(client.modify(&volume, &[]).await, &["mutable_parameters"]), Code::InvalidArgument);
        let unknown = format!("main.{}", "0".repeat(32));
        assert_eq!(refused(client.modify(&unknown, &[]).await, &[&unknown]), Code::NotFound);
    });
}

#[test]
fn a_volume_tells_its_condition() {
    test(async |world| {
        let client = world.node("a").await;
        let volume = client.create(request("v")).await.unwrap().volume_id;
        client.attach(&volume, "a").await.unwrap();
        let get = async |volume: &str| {
            let request = ControllerGetVolumeRequest { volume_id: volume.into() };
            client.controller().controller_get_volume(request).await.map(|answer| answer.into_inner())
        };
        let whole = get(&volume).await.unwrap();
        let status = whole.status.unwrap();
        assert_eq!(status.published_node_ids, ["a"]);
        assert!(!status.volume_condition.unwrap().abnormal);
        let cut = fs::OpenOptions::new().write(true).open(world.only_image()).unwrap();
        cut.set_len(SIZE as u64 / 2).unwrap();
        let condition = get(&volume).await.unwrap().status.unwrap().volume_condition.unwrap();
        assert!(condition.abnormal && condition.message.contains("instead of 33554432"), "{condition:?}");
        fs::remove_file(world.only_image()).unwrap();
        let condition = get(&volume).await.unwrap().status.unwrap().volume_condition.unwrap();
        assert!(condition.abnormal && condition.message.contains("CreateVolume"), "{condition:?}");
        assert_eq!(refused(get("").await, &["volume_id"]), Code::InvalidArgument);
        assert_eq!(refused(get("fake-vol-id").await, &["fake-vol-id"]), Code::NotFound);
    });
}
