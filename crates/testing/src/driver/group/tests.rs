use tonic::Code;

use stowage_csi::Channel;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::group_controller_client::GroupControllerClient;
use stowage_csi::v1::{CreateVolumeRequest, DeleteSnapshotRequest, VolumeCapability};

use crate::changes::Changes;
use crate::driver::{Abilities, Driver};
use crate::mounter::MemoryMounter;

use super::*;

struct Fixture {
    driver: Driver,
    controller: ControllerClient<Channel>,
    group: GroupControllerClient<Channel>,
}

/// A driver with the volumes `vol-1` and `vol-2`, to which 1 and 2 were written.
async fn fixture() -> Fixture {
    let changes = Changes::default();
    let driver = Driver::new("driver.test", changes.clone());
    driver.enable(Abilities::ALL);
    let channel = Channel::in_process(driver.routes("node-a", MemoryMounter::new(changes)));
    let (mut controller, group) = (ControllerClient::new(channel.clone()), GroupControllerClient::new(channel));
    for number in [1, 2] {
        let request = CreateVolumeRequest {
            name: format!("v{number}"),
            volume_capabilities: vec![VolumeCapability::default()],
            ..Default::default()
        };
        controller.create_volume(request).await.unwrap();
        driver.write(&format!("vol-{number}"), number);
    }
    Fixture { driver, controller, group }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Fixture {
    async fn create(&mut self, name: &str, volumes: &[&str]) -> Result<VolumeGroupSnapshot, Code> {
        let request = CreateVolumeGroupSnapshotRequest {
            name: name.into(),
            source_volume_ids: words(volumes),
            ..Default::default()
        };
        let answer = self.group.create_volume_group_snapshot(request).await.map_err(|status| status.code())?;
        Ok(answer.into_inner().group_snapshot.unwrap())
    }

    async fn get(&mut self, id: &str, members: &[&str]) -> Result<VolumeGroupSnapshot, Code> {
        let request = GetVolumeGroupSnapshotRequest {
            group_snapshot_id: id.into(),
            snapshot_ids: words(members),
            ..Default::default()
        };
        let answer = self.group.get_volume_group_snapshot(request).await.map_err(|status| status.code())?;
        Ok(answer.into_inner().group_snapshot.unwrap())
    }

    async fn delete(&mut self, id: &str, members: &[&str]) -> Result<(), Code> {
        let request = DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: id.into(),
            snapshot_ids: words(members),
            ..Default::default()
        };
        self.group.delete_volume_group_snapshot(request).await.map(|_| ()).map_err(|status| status.code())
    }
}

#[tokio::test]
async fn a_group_is_cut_at_one_moment_and_made_once() {
    let mut f = fixture().await;
    let group = f.create("g", &["vol-2", "vol-1"]).await.unwrap();
    f.driver.write("vol-1", 9);
    assert_eq!(f.create("g", &["vol-1", "vol-2"]).await.unwrap(), group, "in whatever order its volumes are named");
    assert_eq!(f.create("g", &["vol-1"]).await, Err(Code::AlreadyExists));
    assert_eq!(f.create("h", &["vol-1", "vol-9"]).await, Err(Code::NotFound));
    assert_eq!(f.create("h", &[]).await, Err(Code::InvalidArgument));
    assert_eq!(f.create("", &["vol-1"]).await, Err(Code::InvalidArgument));
    let state = f.driver.snapshot();
    let members: Vec<_> = state.snapshots.values().map(|cut| (cut.content, cut.moment)).collect();
    assert_eq!(members, [(1, 3), (2, 3)], "and nothing is left of what was refused");
}

#[tokio::test]
async fn a_group_is_got_and_deleted_by_its_id_and_all_its_members() {
    let mut f = fixture().await;
    let group = f.create("g", &["vol-1", "vol-2"]).await.unwrap();
    let id = group.group_snapshot_id.clone();
    assert_eq!(f.get(&id, &["snap-4", "snap-5"]).await.unwrap(), group);
    assert_eq!(f.get(&id, &["snap-4"]).await, Err(Code::InvalidArgument));
    assert_eq!(f.get("group-9", &[]).await, Err(Code::NotFound));
    let member = DeleteSnapshotRequest { snapshot_id: "snap-4".into(), ..Default::default() };
    assert_eq!(f.controller.delete_snapshot(member).await.unwrap_err().code(), Code::InvalidArgument);
    assert_eq!(f.delete(&id, &["snap-4"]).await, Err(Code::InvalidArgument));
    f.delete(&id, &["snap-5", "snap-4"]).await.unwrap();
    f.delete(&id, &["snap-5", "snap-4"]).await.unwrap();
    let state = f.driver.snapshot();
    assert!(state.groups.is_empty() && state.snapshots.is_empty(), "{state:?}");
}

#[tokio::test]
async fn a_group_is_ready_when_all_its_members_are() {
    let mut f = fixture().await;
    f.driver.ready_after(1);
    assert!(!f.create("g", &["vol-1", "vol-2"]).await.unwrap().ready_to_use);
    assert!(f.create("g", &["vol-1", "vol-2"]).await.unwrap().ready_to_use);
}

#[tokio::test]
async fn a_driver_without_groups_says_so() {
    let mut f = fixture().await;
    f.driver.enable(Abilities { group_snapshots: false, ..Abilities::ALL });
    assert_eq!(f.create("g", &["vol-1"]).await, Err(Code::Unimplemented));
    assert_eq!(f.get("g", &[]).await, Err(Code::Unimplemented));
    assert_eq!(f.delete("g", &[]).await, Err(Code::Unimplemented));
    let capabilities = f.group.group_controller_get_capabilities(GroupControllerGetCapabilitiesRequest {}).await;
    assert_eq!(capabilities.unwrap_err().code(), Code::Unimplemented);
}
