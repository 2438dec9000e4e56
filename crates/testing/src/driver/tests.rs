use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use futures::FutureExt;
use tonic::Code;

use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::volume_capability::{AccessMode, access_mode::Mode};
use stowage_csi::v1::{
    CapacityRange, ControllerExpandVolumeRequest, ControllerModifyVolumeRequest, ControllerPublishVolumeRequest,
    ControllerUnpublishVolumeRequest, CreateVolumeRequest, NodePublishVolumeRequest, NodeStageVolumeRequest,
    NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, VolumeCapability,
};
use stowage_csi::{Channel, Deadline};

use super::*;

struct Fixture {
    driver: Driver,
    node: MemoryMounter,
    controller: ControllerClient<Channel>,
    kubelet: NodeClient<Channel>,
}

fn fixture() -> Fixture {
    let changes = Changes::default();
    let driver = Driver::new("driver.test", changes.clone());
    let node = MemoryMounter::new(changes.clone());
    driver.routes("node-b", MemoryMounter::new(changes));
    let channel = Channel::in_process(driver.routes("node-a", node.clone()));
    node.with(|tree| {
        tree.create_dir(Path::new("/stage")).unwrap();
        tree.create_dir(Path::new("/pod")).unwrap();
    });
    Fixture { driver, node, controller: ControllerClient::new(channel.clone()), kubelet: NodeClient::new(channel) }
}

fn capability() -> Option<VolumeCapability> {
    Some(VolumeCapability { access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }), access_type: None })
}

fn wish(name: &str, bytes: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        volume_capabilities: capability().into_iter().collect(),
        ..Default::default()
    }
}

fn attach(node: &str) -> ControllerPublishVolumeRequest {
    ControllerPublishVolumeRequest {
        volume_id: "vol-1".into(),
        node_id: node.into(),
        volume_capability: capability(),
        ..Default::default()
    }
}

fn publish() -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: "vol-1".into(),
        staging_target_path: "/stage".into(),
        target_path: "/pod/mount".into(),
        ..Default::default()
    }
}

fn unstage() -> NodeUnstageVolumeRequest {
    NodeUnstageVolumeRequest { volume_id: "vol-1".into(), staging_target_path: "/stage".into() }
}

impl Fixture {
    async fn mounted() -> Self {
        let mut fixture = fixture();
        fixture.controller.create_volume(wish("a", 10)).await.unwrap();
        let context: BTreeMap<String, String> =
            fixture.controller.controller_publish_volume(attach("node-a")).await.unwrap().into_inner().publish_context;
        let stage = NodeStageVolumeRequest {
            volume_id: "vol-1".into(),
            publish_context: context,
            staging_target_path: "/stage".into(),
            ..Default::default()
        };
        fixture.kubelet.node_stage_volume(stage).await.unwrap();
        fixture.kubelet.node_publish_volume(publish()).await.unwrap();
        fixture
    }
}

#[tokio::test]
async fn making_a_volume_again_gives_the_same_one_and_a_different_wish_is_refused() {
    let mut f = fixture();
    let first = f.controller.create_volume(wish("a", 10)).await.unwrap().into_inner();
    let again = f.controller.create_volume(wish("a", 10)).await.unwrap().into_inner();
    assert_eq!(first, again);
    assert_eq!(f.controller.create_volume(wish("a", 11)).await.unwrap_err().code(), Code::AlreadyExists);
    assert_eq!(f.controller.create_volume(wish("b", LARGEST + 1)).await.unwrap_err().code(), Code::OutOfRange);
    assert_eq!(f.driver.snapshot().volumes.len(), 1);
}

#[tokio::test]
async fn a_volume_goes_onto_a_node_and_back_without_a_trace() {
    let mut f = Fixture::mounted().await;
    assert_eq!(f.node.snapshot().mounts().at(Path::new("/pod/mount")).unwrap().source, "vol-1");
    let unpublish = NodeUnpublishVolumeRequest { volume_id: "vol-1".into(), target_path: "/pod/mount".into() };
    f.kubelet.node_unpublish_volume(unpublish).await.unwrap();
    f.kubelet.node_unstage_volume(unstage()).await.unwrap();
    let detach =
        ControllerUnpublishVolumeRequest { volume_id: "vol-1".into(), node_id: "node-a".into(), ..Default::default() };
    f.controller.controller_unpublish_volume(detach).await.unwrap();
    let delete = stowage_csi::v1::DeleteVolumeRequest { volume_id: "vol-1".into(), ..Default::default() };
    f.controller.delete_volume(delete).await.unwrap();
    let state = f.driver.snapshot();
    assert!(state.is_empty() && state.violations.is_empty(), "{state:?}");
    assert_eq!(f.node.snapshot().mounts().iter().count(), 0);
}

#[tokio::test]
async fn callers_that_break_the_order_are_refused_and_noted() {
    let mut f = Fixture::mounted().await;
    assert_eq!(
        f.controller.controller_publish_volume(attach("node-b")).await.unwrap_err().code(),
        Code::FailedPrecondition
    );
    assert_eq!(f.kubelet.node_unstage_volume(unstage()).await.unwrap_err().code(), Code::FailedPrecondition);
    let elsewhere = NodePublishVolumeRequest { staging_target_path: "/other".into(), ..publish() };
    assert_eq!(f.kubelet.node_publish_volume(elsewhere).await.unwrap_err().code(), Code::FailedPrecondition);
    let ids: Vec<String> = f.driver.snapshot().violations.iter().map(|text| text[..2].to_owned()).collect();
    assert_eq!(ids, ["A1", "M1", "M1"]);
}

#[tokio::test(start_paused = true)]
async fn a_script_says_how_calls_go_and_then_they_go_well() {
    let mut f = fixture();
    f.driver.script(
        "CreateVolume",
        [
            Step::Hang,
            Step::fail(Code::Aborted, "busy"),
            Step::DoneThenHang,
            Step::DoneThenFail(Code::Internal, "x".into()),
        ],
    );
    let mut codes = Vec::new();
    for _ in 0..5 {
        let call = Deadline(Duration::from_secs(1)).call(wish("a", 10), |r| f.controller.create_volume(r)).await;
        codes.push(call.err().map(|status| status.code()));
        codes.dedup();
    }
    assert_eq!(
        codes,
        [Some(Code::DeadlineExceeded), Some(Code::Aborted), Some(Code::DeadlineExceeded), Some(Code::Internal), None]
    );
    let state = f.driver.snapshot();
    assert_eq!((state.volumes.len(), state.count("CreateVolume")), (1, 3), "two calls never did anything");
}

#[tokio::test(start_paused = true)]
async fn a_slow_call_takes_its_time() {
    let mut f = fixture();
    f.driver.script("CreateVolume", [Step::Slow(Duration::from_secs(3))]);
    assert!(f.controller.create_volume(wish("a", 10)).now_or_never().is_none());
    assert!(f.driver.snapshot().volumes.is_empty());
}

#[tokio::test]
async fn a_volume_grows_and_never_shrinks_and_only_offline_where_that_is_said() {
    let mut f = fixture();
    f.controller.create_volume(wish("v", 10)).await.unwrap();
    let grow = |bytes| ControllerExpandVolumeRequest {
        volume_id: "vol-1".into(),
        capacity_range: Some(CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
        ..Default::default()
    };
    let answer = f.controller.controller_expand_volume(grow(20)).await.unwrap().into_inner();
    assert_eq!((answer.capacity_bytes, answer.node_expansion_required), (20, false));
    assert_eq!(f.controller.controller_expand_volume(grow(5)).await.unwrap().into_inner().capacity_bytes, 20);
    let refused = f.controller.controller_expand_volume(grow(LARGEST + 1)).await.unwrap_err();
    assert_eq!(refused.code(), Code::OutOfRange);
    f.controller.controller_publish_volume(attach("node-a")).await.unwrap();
    f.driver.grow(Growth { offline_only: true, ..Growth::default() });
    assert_eq!(f.controller.controller_expand_volume(grow(30)).await.unwrap_err().code(), Code::FailedPrecondition);
    assert_eq!(f.driver.snapshot().expansions.len(), 4);
    f.driver.enable(Abilities { expansion: false, ..Abilities::ALL });
    assert_eq!(f.controller.controller_expand_volume(grow(30)).await.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn a_volume_takes_the_attributes_it_knows() {
    let mut f = fixture();
    f.controller.create_volume(wish("v", 10)).await.unwrap();
    let change = |key: &str| ControllerModifyVolumeRequest {
        volume_id: "vol-1".into(),
        mutable_parameters: BTreeMap::from([(key.to_owned(), "9".to_owned())]),
        ..Default::default()
    };
    f.controller.controller_modify_volume(change("iops")).await.unwrap();
    assert_eq!(f.driver.snapshot().attributes["vol-1"]["iops"], "9");
    assert_eq!(
        f.controller.controller_modify_volume(change("colour")).await.unwrap_err().code(),
        Code::InvalidArgument
    );
}
