//! What each gRPC code of a call to the node leads to. A call that may still run leaves its metadata, and what it may have
//! made is taken down when nobody wants it; one that failed for good leaves nothing, and is not undone.

use std::time::Duration;

use serde_json::json;
use tonic::{Code, Status};

use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_model::Claim;
use stowage_model::claim::ResizeStatus;

use crate::devices::{claim_has_grown, grow};
use crate::requests::DATA;
use crate::rows::known;
use crate::stage::{POD, Stage, unattached, within};

/// As the kubelet reads them; every other code is final.
const UNCERTAIN: [Code; 5] =
    [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable, Code::ResourceExhausted, Code::Aborted];
const INFEASIBLE: [Code; 3] = [Code::InvalidArgument, Code::OutOfRange, Code::NotFound];

fn codes() -> impl Iterator<Item = (Code, bool)> {
    (1..=16).map(Code::from_i32).map(|code| (code, UNCERTAIN.contains(&code)))
}

async fn refusing(call: &'static str, code: Code) -> Stage {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.fail(call, Status::new(code, "not now"));
    stage
}

#[tokio::test(start_paused = true)]
async fn every_code_of_a_stage_is_told_and_says_whether_there_is_something_to_undo() {
    for (code, is_uncertain) in codes() {
        let stage = refusing("stage", code).await;
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.event_about(POD, "not now").await;
        assert_eq!(stage.staging_dir().join(DATA).try_exists().unwrap(), is_uncertain, "{code:?}");
        assert_eq!(known(&stage, POD).await, (0, 0), "{code:?}");
        stage.delete_pod(POD).await;
        stage.pod_is_gone(POD).await;
        stage.node_has_nothing().await;
        let undone: &[&str] = if is_uncertain { &["stage", "unstage"] } else { &["stage"] };
        assert_eq!(stage.driver.calls(), undone, "{code:?}");
        assert!(!stage.staging_dir().try_exists().unwrap(), "{code:?}");

        let stage = refusing("stage", code).await;
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.pod_is_running(POD).await;
        assert_eq!(stage.driver.calls(), ["stage", "stage", "publish"], "{code:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn every_code_of_a_publish_is_told_and_says_whether_there_is_something_to_undo() {
    for (code, is_uncertain) in codes() {
        let stage = refusing("publish", code).await;
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.event_about(POD, "not now").await;
        assert_eq!(stage.volume_dir(POD, "pv").join(DATA).try_exists().unwrap(), is_uncertain, "{code:?}");
        assert_eq!(known(&stage, POD).await, (0, usize::from(is_uncertain)), "{code:?}");
        stage.delete_pod(POD).await;
        stage.pod_is_gone(POD).await;
        stage.node_has_nothing().await;
        let undone: &[&str] = if is_uncertain { &["unpublish", "unstage"] } else { &["unstage"] };
        assert_eq!(stage.driver.calls()[2..], *undone, "{code:?}");

        let stage = refusing("publish", code).await;
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.pod_is_running(POD).await;
        assert_eq!(stage.driver.calls(), ["stage", "publish", "publish"], "{code:?}");
    }
}

/// Whether the claim says that its volume could not grow on the node.
fn says_error(claim: &Claim) -> bool {
    claim.status.conditions.iter().any(|condition| condition.kind == "NodeResizeError")
}

#[tokio::test(start_paused = true)]
async fn every_code_of_an_expansion_leads_to_its_state_and_to_the_size_unless_that_is_given_up() {
    for (code, is_uncertain) in codes() {
        let stage = refusing("expand", code).await;
        stage.driver.can(&[Capability::StageUnstageVolume, Capability::ExpandVolume]);
        let _node = stage.start();
        stage.create_pod(POD).await;
        stage.pod_is_running(POD).await;
        grow(&stage).await;
        stage.event(POD, "VolumeResizeFailed", "not now").await;
        let claim: Claim = stage.get("claim").await;
        let (is_infeasible, is_in_use) = (INFEASIBLE.contains(&code), code == Code::FailedPrecondition);
        let status = match is_infeasible {
            true => ResizeStatus::NodeResizeInfeasible,
            false => ResizeStatus::NodeResizeInProgress,
        };
        assert_eq!(claim.status.allocated_resource_statuses.storage, status, "{code:?}");
        assert_eq!(says_error(&claim), !is_uncertain && !is_in_use, "{code:?}");
        assert_eq!(known(&stage, POD).await, (1, 1), "{code:?}: it stays mounted");
        if is_infeasible || is_in_use {
            tokio::time::sleep(Duration::from_secs(600)).await;
            assert_eq!(stage.driver.calls(), ["stage", "publish", "expand"], "{code:?}: asked again");
        } else {
            within(stage.driver.called(4)).await;
            claim_has_grown(&stage).await;
            assert!(!says_error(&stage.get("claim").await), "{code:?}");
            assert_eq!(stage.driver.calls(), ["stage", "publish", "expand", "expand"], "{code:?}");
        }
    }
}
