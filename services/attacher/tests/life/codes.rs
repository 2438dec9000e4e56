//! What each gRPC code of the two calls leads to. Section 1.8, column "attacher": none of them ends the matter, since a call
//! that failed for good is repeated too, and what may be published is unpublished whatever was said of it.

use std::time::Duration;

use serde_json::{Value, json};
use tonic::{Code, Status};

use stowage_csi::code;
use stowage_model::object::{Key, kinds};
use stowage_model::{VolumeAttachment, finalizers};

use crate::backend::{Backend, DRIVER};
use crate::{Stage, options};

fn codes() -> impl Iterator<Item = Code> {
    (1..=16).map(Code::from_i32)
}

async fn refusing(code: Code) -> Stage {
    let stage = Stage::set(Backend::default()).await;
    stage.backend.lock().refusals.push_back(Status::new(code, "not now"));
    stage
}

/// Calls that attach and calls that detach, so far.
fn asked(stage: &Stage) -> (usize, usize) {
    let state = stage.backend.lock();
    (state.publish_requests.len(), state.unpublish_requests.len())
}

fn status(stage: &Stage) -> Value {
    stage.world.admin().get_raw(kinds::VOLUME_ATTACHMENT, &Key::cluster("va-a")).unwrap()["status"].clone()
}

fn is_gone(stage: &Stage) -> bool {
    !stage.world.admin().exists(kinds::VOLUME_ATTACHMENT, &Key::cluster("va-a"))
}

/// How the trouble is shown, but for its time.
fn message(rpc: &str, code: Code) -> String {
    format!("{rpc}: not now ({})", code::name(code))
}

fn is_after_one_backoff(begin: Duration, now: Duration) -> bool {
    (Duration::from_secs(1)..Duration::from_secs(2)).contains(&(now - begin))
}

async fn until_told(stage: &Stage, told: impl Fn(&VolumeAttachment) -> bool) {
    stage.until("told", || told(&stage.attachment("a"))).await;
    stage.world.settle().await;
}

#[tokio::test(start_paused = true)]
async fn every_code_of_an_attach_is_shown_with_its_number_and_the_attach_repeated_after_its_backoff() {
    for code in codes() {
        let stage = refusing(code).await;
        stage.make_volume("a").await;
        stage
            .play(options(), async {
                let begin = stage.world.elapsed();
                stage.attach("a", json!({})).await;
                until_told(&stage, |attachment| attachment.status.attach_error.is_some()).await;
                let shown = status(&stage);
                assert_eq!(shown["attached"], false, "{code:?}");
                assert_eq!(shown["attachError"]["message"], message("ControllerPublishVolume", code));
                assert_eq!(shown["attachError"]["errorCode"], code as i32, "{code:?}");
                assert!(shown["attachError"]["time"].is_string() && shown["detachError"].is_null(), "{shown}");
                assert!(stage.attachment("a").meta.has_finalizer(&finalizers::attacher(DRIVER)), "{code:?}");
                assert_eq!(asked(&stage), (1, 0), "{code:?}");

                stage.until("attached", || stage.attachment("a").status.attached).await;
                assert!(is_after_one_backoff(begin, stage.world.elapsed()), "{code:?}: {:?}", stage.world.elapsed());
                stage.world.settle().await;
                assert!(status(&stage)["attachError"].is_null(), "{code:?}");
                assert_eq!(asked(&stage), (2, 0), "{code:?}");
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn after_every_code_of_an_attach_what_may_be_published_is_unpublished_before_the_attachment_goes() {
    for code in codes() {
        let stage = refusing(code).await;
        stage.make_volume("a").await;
        stage
            .play(options(), async {
                stage.attach("a", json!({})).await;
                until_told(&stage, |attachment| attachment.status.attach_error.is_some()).await;
                stage.world.admin().delete(kinds::VOLUME_ATTACHMENT, &Key::cluster("va-a")).await.unwrap();
                stage.until("gone", || is_gone(&stage)).await;
                stage.world.settle().await;
                assert_eq!(asked(&stage), (1, 1), "{code:?}");
            })
            .await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_code_of_a_detach_is_shown_keeps_the_attachment_and_is_repeated_after_its_backoff() {
    for code in codes() {
        let stage = refusing(code).await;
        stage.make_going("a").await;
        stage
            .play(options(), async {
                let begin = stage.world.elapsed();
                until_told(&stage, |attachment| attachment.status.detach_error.is_some()).await;
                let shown = status(&stage);
                assert_eq!(shown["attached"], true, "{code:?}: it may well be");
                assert_eq!(shown["detachError"]["message"], message("ControllerUnpublishVolume", code));
                assert!(shown["detachError"]["time"].is_string() && shown["attachError"].is_null(), "{shown}");
                assert!(shown["detachError"]["errorCode"].is_null(), "the API has a code for attaches only: {shown}");
                assert!(stage.attachment("a").meta.has_finalizer(&finalizers::attacher(DRIVER)), "{code:?}");
                assert_eq!(asked(&stage), (0, 1), "{code:?}");

                stage.until("gone", || is_gone(&stage)).await;
                assert!(is_after_one_backoff(begin, stage.world.elapsed()), "{code:?}: {:?}", stage.world.elapsed());
                assert_eq!(asked(&stage), (0, 2), "{code:?}");
            })
            .await;
    }
}
