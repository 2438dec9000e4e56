use tonic::Code;

use stowage_csi::Channel;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::{
    CapacityRange, CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest, Volume, VolumeCapability,
};

use crate::changes::Changes;
use crate::driver::{Abilities, Driver, Step};
use crate::mounter::MemoryMounter;

use super::*;

struct Fixture {
    driver: Driver,
    controller: ControllerClient<Channel>,
}

/// A driver with volume `vol-1`, to which 7 was written.
async fn fixture() -> Fixture {
    let changes = Changes::default();
    let driver = Driver::new("driver.test", changes.clone());
    driver.enable(Abilities::ALL);
    let routes = driver.routes("node-a", MemoryMounter::new(changes));
    let mut fixture = Fixture { driver, controller: ControllerClient::new(Channel::in_process(routes)) };
    fixture.volume("a", 10, None).await.unwrap();
    fixture.driver.write("vol-1", 7);
    fixture
}

impl Fixture {
    async fn volume(&mut self, name: &str, bytes: i64, source: Option<Source>) -> Result<Volume, Code> {
        let request = CreateVolumeRequest {
            name: name.into(),
            capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            volume_capabilities: vec![VolumeCapability::default()],
            volume_content_source: source.map(Into::into),
            ..Default::default()
        };
        let answer = self.controller.create_volume(request).await.map_err(|status| status.code())?;
        Ok(answer.into_inner().volume.unwrap())
    }

    async fn snapshot(&mut self, volume: &str, name: &str) -> Result<Snapshot, Code> {
        let request =
            CreateSnapshotRequest { source_volume_id: volume.into(), name: name.into(), ..Default::default() };
        let answer = self.controller.create_snapshot(request).await.map_err(|status| status.code())?;
        Ok(answer.into_inner().snapshot.unwrap())
    }

    async fn delete(&mut self, id: &str) -> Result<(), Code> {
        let request = DeleteSnapshotRequest { snapshot_id: id.into(), ..Default::default() };
        self.controller.delete_snapshot(request).await.map(|_| ()).map_err(|status| status.code())
    }

    async fn list(&mut self, request: ListSnapshotsRequest) -> Result<(Vec<String>, String), Code> {
        let answer = self.controller.list_snapshots(request).await.map_err(|status| status.code())?.into_inner();
        let id = |entry: Entry| entry.snapshot.unwrap().snapshot_id;
        Ok((answer.entries.into_iter().map(id).collect(), answer.next_token))
    }
}

#[tokio::test]
async fn a_snapshot_holds_what_was_written_before_it_and_outlives_its_source() {
    let mut f = fixture().await;
    let snapshot = f.snapshot("vol-1", "s").await.unwrap();
    f.driver.write("vol-1", 8);
    let delete = DeleteVolumeRequest { volume_id: "vol-1".into(), ..Default::default() };
    f.controller.delete_volume(delete).await.unwrap();
    let restored = f.volume("b", 20, Some(Source::Snapshot(snapshot.snapshot_id.clone()))).await.unwrap();
    let state = f.driver.snapshot();
    assert_eq!(state.volumes[&restored.volume_id].content, 7);
    let cut = &state.snapshots[&snapshot.snapshot_id];
    assert_eq!((cut.content, state.content_at("vol-1", cut.moment), cut.bytes), (7, 7, 10));
    assert_eq!(restored.content_source, Some(Source::Snapshot(snapshot.snapshot_id).into()));
}

#[tokio::test]
async fn making_a_snapshot_again_gives_the_same_one_and_a_different_wish_is_refused() {
    let mut f = fixture().await;
    let first = f.snapshot("vol-1", "s").await.unwrap();
    f.driver.write("vol-1", 8);
    assert_eq!(f.snapshot("vol-1", "s").await.unwrap(), first, "of the same moment too");
    let other = f.volume("b", 10, None).await.unwrap().volume_id;
    assert_eq!(f.snapshot(&other, "s").await, Err(Code::AlreadyExists));
    assert_eq!(f.snapshot("nowhere", "t").await, Err(Code::NotFound));
    assert_eq!(f.snapshot("", "t").await, Err(Code::InvalidArgument));
    assert_eq!(f.snapshot("vol-1", "").await, Err(Code::InvalidArgument));
    assert_eq!(f.driver.snapshot().snapshots.len(), 1);
}

#[tokio::test]
async fn deleting_a_snapshot_twice_is_fine() {
    let mut f = fixture().await;
    let id = f.snapshot("vol-1", "s").await.unwrap().snapshot_id;
    f.delete(&id).await.unwrap();
    f.delete(&id).await.unwrap();
    assert!(f.driver.snapshot().snapshots.is_empty());
    assert_eq!(f.delete("").await, Err(Code::InvalidArgument));
}

#[tokio::test]
async fn a_snapshot_is_ready_after_as_many_looks_as_the_test_says_and_not_used_before() {
    let mut f = fixture().await;
    f.driver.ready_after(3);
    let first = f.snapshot("vol-1", "s").await.unwrap();
    assert!(!first.ready_to_use);
    let from = || Some(Source::Snapshot(first.snapshot_id.clone()));
    assert_eq!(f.volume("b", 10, from()).await, Err(Code::Unavailable));
    let violations = f.driver.snapshot().violations;
    assert_eq!(
        violations,
        [format!("S1: asked to make a volume of snapshot {}, which is not ready", first.snapshot_id)]
    );
    f.list(ListSnapshotsRequest::default()).await.unwrap();
    assert!(!f.snapshot("vol-1", "s").await.unwrap().ready_to_use);
    assert!(f.snapshot("vol-1", "s").await.unwrap().ready_to_use);
    f.volume("b", 10, from()).await.unwrap();
}

#[tokio::test]
async fn snapshots_are_listed_in_pages_by_id_and_by_volume() {
    let mut f = fixture().await;
    let other = f.volume("b", 10, None).await.unwrap().volume_id;
    let mut ids = Vec::new();
    for number in 0..11 {
        ids.push(f.snapshot("vol-1", &format!("s{number}")).await.unwrap().snapshot_id);
    }
    let of_other = f.snapshot(&other, "t").await.unwrap().snapshot_id;
    let page = |token: &str| ListSnapshotsRequest {
        max_entries: 5,
        starting_token: token.into(),
        source_volume_id: "vol-1".into(),
        ..Default::default()
    };
    let (mut listed, mut token) = f.list(page("")).await.unwrap();
    // What the token stands for may be deleted meanwhile.
    f.delete(&ids[4]).await.unwrap();
    while !token.is_empty() {
        let (more, next) = f.list(page(&token)).await.unwrap();
        listed.extend(more);
        token = next;
    }
    assert_eq!(listed, ids);
    let by_id = ListSnapshotsRequest { snapshot_id: of_other.clone(), ..Default::default() };
    assert_eq!(f.list(by_id).await.unwrap(), (vec![of_other], String::new()));
    let unknown = ListSnapshotsRequest { snapshot_id: "snap-99".into(), ..Default::default() };
    assert_eq!(f.list(unknown).await.unwrap(), (vec![], String::new()));
    assert_eq!(f.list(page("5")).await, Err(Code::Aborted));
    let negative = ListSnapshotsRequest { max_entries: -1, ..Default::default() };
    assert_eq!(f.list(negative).await, Err(Code::InvalidArgument));
}

#[tokio::test]
async fn a_clone_holds_what_its_source_held_and_is_written_on_its_own() {
    let mut f = fixture().await;
    let clone = f.volume("b", 10, Some(Source::Volume("vol-1".into()))).await.unwrap();
    f.driver.write("vol-1", 8);
    assert_eq!(f.driver.snapshot().volumes[&clone.volume_id].content, 7);
    let again = f.volume("b", 10, Some(Source::Volume("vol-1".into()))).await.unwrap();
    assert_eq!(again, clone, "although its source was written to");
    let delete = DeleteVolumeRequest { volume_id: "vol-1".into(), ..Default::default() };
    f.controller.delete_volume(delete).await.unwrap();
    let again = f.volume("b", 10, Some(Source::Volume("vol-1".into()))).await.unwrap();
    assert_eq!(again, clone, "although its source is gone");
    assert_eq!(f.volume("b", 10, None).await, Err(Code::AlreadyExists), "the same name without a source");
    assert_eq!(f.volume("c", 9, Some(Source::Volume(clone.volume_id))).await, Err(Code::OutOfRange));
    assert_eq!(f.volume("c", 10, Some(Source::Volume("vol-9".into()))).await, Err(Code::NotFound));
    assert_eq!(f.volume("c", 10, Some(Source::Snapshot("snap-9".into()))).await, Err(Code::NotFound));
}

#[tokio::test]
async fn what_the_driver_cannot_do_is_refused_and_not_told_as_a_capability() {
    let mut f = fixture().await;
    f.driver.enable(Abilities::default());
    assert_eq!(f.snapshot("vol-1", "s").await, Err(Code::Unimplemented));
    assert_eq!(f.delete("s").await, Err(Code::Unimplemented));
    assert_eq!(f.list(ListSnapshotsRequest::default()).await, Err(Code::Unimplemented));
    assert_eq!(f.volume("c", 10, Some(Source::Volume("vol-1".into()))).await, Err(Code::InvalidArgument));
    assert_eq!(Abilities::default().types().len(), 4);
    assert_eq!(Abilities::ALL.types().len(), 10);
}

#[tokio::test]
async fn a_script_speaks_about_snapshots_too() {
    let mut f = fixture().await;
    f.driver.script("CreateSnapshot", [Step::DoneThenFail(Code::Aborted, "busy".into())]);
    assert_eq!(f.snapshot("vol-1", "s").await, Err(Code::Aborted));
    f.driver.write("vol-1", 8);
    let id = f.snapshot("vol-1", "s").await.unwrap().snapshot_id;
    assert_eq!(f.driver.snapshot().snapshots[&id].content, 7, "it was cut by the call that failed");
}

#[tokio::test]
async fn what_is_cut_by_hand_is_marked_and_can_be_discarded() {
    let f = fixture().await;
    let id = f.driver.cut("vol-1").unwrap();
    assert!(f.driver.snapshot().snapshots[&id].by_hand);
    assert_eq!(f.driver.cut("vol-9").unwrap_err().code(), Code::NotFound);
    f.driver.discard(&id);
    assert!(f.driver.snapshot().snapshots.is_empty());
}
