//! What each code of each call leads to.

use super::*;
use crate::driver::CODES;

/// The table of 1.8: for each code the state that it leads to.
#[tokio::test(start_paused = true)]
async fn each_code_of_create_volume_leads_to_the_state_of_the_table() {
    // Whether the same request may be running, so that a claim that goes meanwhile leaves a record; and the next try.
    let table = [
        (Code::Cancelled, true, 1),
        (Code::DeadlineExceeded, true, 1),
        (Code::Unavailable, true, 1),
        (Code::Aborted, true, 1),
        (Code::Unknown, false, 1),
        (Code::InvalidArgument, false, 300),
        (Code::NotFound, false, 1),
        (Code::AlreadyExists, false, 1),
        (Code::PermissionDenied, false, 1),
        (Code::ResourceExhausted, false, 1),
        (Code::FailedPrecondition, false, 1),
        (Code::OutOfRange, false, 1),
        (Code::Unimplemented, false, 1),
        (Code::Internal, false, 1),
        (Code::DataLoss, false, 1),
        (Code::Unauthenticated, false, 1),
    ];
    for (code, may_be_running, again_after) in table {
        let world = plain_world().await;
        world.driver.next(Next::Fails(code, "no"));
        let running = world.start(Options::default());
        let begin = tokio::time::Instant::now();
        let name = world.make_claim("db", "1Gi").await;
        world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
        assert!(world.volume(&name).await.is_null(), "{code:?}");
        // The claim waits, and the next try makes its volume.
        while world.driver.calls().len() < 2 {
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        let waited = begin.elapsed().as_secs();
        assert!((again_after..again_after + 2).contains(&waited), "{code:?} was tried again after {waited} s");
        running.drain().await.unwrap();

        // The claim goes right after the answer: only what may be running is asked for again, and deleted.
        let world = plain_world().await;
        world.driver.next(Next::Fails(code, "no"));
        let running = world.start(Options::default());
        world.make_claim("db", "1Gi").await;
        world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
        world.delete_claim("db").await;
        tokio::time::sleep(std::time::Duration::from_secs(400)).await;
        world.settle().await;
        let expected: &[&str] =
            if may_be_running { &["CreateVolume", "CreateVolume", "DeleteVolume"] } else { &["CreateVolume"] };
        assert_eq!(world.driver.calls(), expected, "{code:?}");
        running.drain().await.unwrap();
        assert!(world.journal().await.is_empty(), "{code:?}");
    }
}

/// An answer that leaves open what was made, then one that does not tell either, or does.
#[tokio::test(start_paused = true)]
async fn after_an_uncertain_answer_only_a_judgement_of_the_request_lets_it_change() {
    let second = [
        (Code::InvalidArgument, true),
        (Code::OutOfRange, true),
        (Code::Unknown, false),
        (Code::NotFound, false),
        (Code::AlreadyExists, false),
        (Code::PermissionDenied, false),
        (Code::ResourceExhausted, false),
        (Code::FailedPrecondition, false),
        (Code::Unimplemented, false),
        (Code::Internal, false),
        (Code::DataLoss, false),
        (Code::Unauthenticated, false),
    ];
    for first in [Code::Cancelled, Code::DeadlineExceeded, Code::Unavailable, Code::Aborted] {
        for (second, tells) in second {
            let row = format!("{first:?}, then {second:?}");
            let world = plain_world().await;
            world.driver.next(Next::Fails(first, "who knows"));
            world.driver.next(Next::Fails(second, "no"));
            let running = world.start(Options::default());
            let name = world.make_claim("db", "1Gi").await;
            while world.driver.calls().len() < 2 {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            let told = async || world.events("ProvisioningFailed").await;
            world.until("both events", async || told().await.len() == 2).await;
            let way_out = "to change the request, delete the claim and create it anew";
            assert_eq!(told().await.iter().any(|event| event.contains(way_out)), !tells, "{row}");

            // The class is made anew, with another parameter.
            world.send(Method::DELETE, "/apis/storage.k8s.io/v1/storageclasses/fast", Value::Null).await;
            world.make_class(json!({ "pool": "b" }), "Delete").await;
            tokio::time::sleep(std::time::Duration::from_secs(3)).await;
            world.until("the volume", async || world.volume(&name).await.is_object()).await;
            let pools: Vec<_> = world.driver.requests().iter().map(|sent| sent.parameters["pool"].clone()).collect();
            assert_eq!(pools, ["a", "a", if tells { "b" } else { "a" }], "{row}");
            running.drain().await.unwrap();

            // The claim goes: what is not known is asked for until it is, and deleted.
            let world = plain_world().await;
            world.driver.next(Next::Fails(first, "who knows"));
            world.driver.next(Next::Fails(second, "no"));
            let running = world.start(Options::default());
            world.make_claim("db", "1Gi").await;
            while world.driver.calls().len() < 2 {
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
            world.delete_claim("db").await;
            tokio::time::sleep(std::time::Duration::from_secs(400)).await;
            world.settle().await;
            let expected = ["CreateVolume", "CreateVolume", "CreateVolume", "DeleteVolume"];
            assert_eq!(world.driver.calls(), &expected[..if tells { 2 } else { 4 }], "{row}");
            running.drain().await.unwrap();
            assert!(world.journal().await.is_empty(), "{row}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn each_code_of_delete_volume_is_told_and_tried_again_and_the_object_stays_until_it_works() {
    for code in CODES {
        let world = plain_world().await;
        let running = world.start(Options::default());
        let name = world.make_claim("db", "1Gi").await;
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        world.driver.will_not_delete(code);
        world.delete_claim("db").await;
        world.release(&name).await;
        let told = async || !world.get("/api/v1/events").await["items"].to_string().contains("VolumeFailedDelete");
        world.until("the event", async || !told().await).await;
        assert!(world.volume(&name).await.is_object(), "{code:?}");
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        world.until("the end", async || world.volume(&name).await.is_null()).await;
        assert_eq!(world.driver.calls(), ["CreateVolume", "DeleteVolume", "DeleteVolume"], "{code:?}");
        running.drain().await.unwrap();
    }
}
