//! The provisioner against the embedded API server and a driver in memory: one thread, virtual time, no sockets.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "life/capacity.rs"]
mod capacity;
#[path = "life/driver.rs"]
mod driver;
#[path = "life/library.rs"]
mod library;
#[path = "life/sources.rs"]
mod sources;
#[path = "life/world.rs"]
mod world;

use http::Method;
use serde_json::{Value, json};
use tonic::Code;

use driver::Next;
use provisioner::Options;
use stowage_runtime::Stop;
use world::World;

async fn plain_world() -> World {
    let world = World::new();
    world.make_class(json!({ "pool": "a" }), "Delete").await;
    world
}

#[tokio::test(start_paused = true)]
async fn a_claim_gets_its_volume_and_a_released_volume_goes_without_time_passing() {
    let world = plain_world().await;
    let begin = tokio::time::Instant::now();
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    let volume = world.volume(&name).await;
    assert_eq!(volume["spec"]["csi"]["volumeHandle"], name.as_str());
    assert_eq!(volume["spec"]["claimRef"]["name"], "db");
    world.until("the event", async || !world.events("ProvisioningSucceeded").await.is_empty()).await;
    assert!(world.events("Provisioning").await.is_empty(), "what is done at once is told once");

    world.delete_claim("db").await;
    world.release(&name).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    assert_eq!(world.driver.calls(), ["CreateVolume", "DeleteVolume"]);
    assert!(world.driver.volumes().is_empty());
    assert_eq!(begin.elapsed().as_millis(), 0);
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_lone_claim_costs_two_journal_writes_and_many_share_theirs() {
    let world = plain_world().await;
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.take_writes();
    let name = world.make_claim("lone", "1Gi").await;
    world.until("the event", async || !world.events("ProvisioningSucceeded").await.is_empty()).await;
    world.settle().await;
    let lone = world.take_writes();
    println!("writes for one claim: {lone:?}");
    // Nothing follows on which the removal of the record could ride.
    assert_eq!((lone["PUT leases"], lone["POST persistentvolumes"]), (2, 1));
    assert_eq!(lone.len(), 3, "{lone:?}");
    world.delete_claim("lone").await;
    world.release(&name).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    let deletion = world.take_writes();
    println!("writes for its deletion: {deletion:?}");
    assert_eq!(deletion.values().sum::<usize>(), 2, "{deletion:?}");

    running.drain().await.unwrap();

    for n in 0..200 {
        world.make_claim(&format!("claim-{n}"), "1Gi").await;
    }
    world.take_writes();
    let running = world.start(Options::default());
    world.until("all events", async || world.events("ProvisioningSucceeded").await.len() == 201).await;
    let many = world.take_writes();
    println!("writes for 200 claims at once: {many:?}");
    assert_eq!(many["POST persistentvolumes"], 200);
    assert!(many["PUT leases"] <= 20, "{many:?}");
    running.drain().await.unwrap();
}

/// Stops the provisioner while CreateVolume is done and unanswered, deletes the claim, starts it again.
async fn crash_and_lose_the_claim(options: Options) -> World {
    let world = plain_world().await;
    world.driver.next(Next::DoneAndSilent);
    let running = world.start(options.clone());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the call", async || world.driver.volumes() == [name.clone()]).await;
    running.crash();
    world.delete_claim("db").await;
    let running = world.start(options);
    world.ready(&running).await;
    world.settle().await;
    running.drain().await.unwrap();
    world
}

#[tokio::test(start_paused = true)]
async fn a_volume_made_before_a_crash_whose_claim_is_gone_is_found_and_deleted() {
    let world = crash_and_lose_the_claim(Options::default()).await;
    assert!(world.driver.volumes().is_empty());
    assert_eq!(world.driver.calls(), ["CreateVolume", "CreateVolume", "DeleteVolume"]);
    assert!(world.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn without_the_journal_the_same_crash_leaks_the_volume() {
    let world = crash_and_lose_the_claim(Options { journal: false, ..Options::default() }).await;
    assert_eq!(world.driver.volumes().len(), 1);
    assert!(world.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_volume_made_before_a_crash_whose_claim_waits_gets_its_object_once() {
    let world = plain_world().await;
    world.driver.next(Next::DoneAndSilent);
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the call", async || !world.driver.volumes().is_empty()).await;
    assert_eq!(world.journal().await.len(), 1);
    running.crash();
    let running = world.start(Options::default());
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.driver.volumes(), [name]);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_deleted_while_its_call_runs_leaves_nothing() {
    let world = plain_world().await;
    world.driver.next(Next::DoneAndSilent);
    let running = world.start(Options::default());
    world.make_claim("db", "1Gi").await;
    world.until("the call", async || !world.driver.volumes().is_empty()).await;
    world.delete_claim("db").await;
    // The first call ends at its deadline; the record keeps the operation alive.
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    world.until("the cleanup", async || world.driver.volumes().is_empty()).await;
    assert_eq!(world.driver.calls(), ["CreateVolume", "CreateVolume", "DeleteVolume"]);
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_bad_parameter_is_shown_and_a_corrected_class_is_used_at_once() {
    let world = plain_world().await;
    world.driver.next(Next::Fails(Code::InvalidArgument, "parameter pool \"a\" is unknown, use b"));
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    let message = world.events("ProvisioningFailed").await.remove(0);
    for part in
        ["StorageClass \"fast\"", "InvalidArgument", "parameter pool \"a\" is unknown, use b", "creating it anew"]
    {
        assert!(message.contains(part), "{message}");
    }
    world.send(Method::DELETE, "/apis/storage.k8s.io/v1/storageclasses/fast", Value::Null).await;
    world.make_class(json!({ "pool": "b" }), "Delete").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_9ei_bytes_is_refused_with_the_way_out() {
    let world = plain_world().await;
    let running = world.start(Options::default());
    world.make_claim("db", "9Ei").await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    let message = world.events("ProvisioningFailed").await.remove(0);
    assert!(message.contains("spec.resources.requests.storage") && message.contains("9Ei"), "{message}");
    assert!(world.driver.calls().is_empty());
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_too_small_is_deleted_and_made_again() {
    let world = plain_world().await;
    world.driver.next(Next::TooSmall(1));
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.driver.calls(), ["CreateVolume", "DeleteVolume", "CreateVolume"]);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn secrets_reach_the_driver_and_neither_the_journal_nor_an_event() {
    let world = World::new();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "keys" }, "data": { "password": "aHVudGVyMg==" },
    });
    let parameters = json!({
        "csi.storage.k8s.io/provisioner-secret-name": "keys",
        "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
    });
    world.make_class(parameters, "Delete").await;
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    assert!(world.events("ProvisioningFailed").await[0].contains("secret default/keys does not exist"));
    assert!(world.driver.calls().is_empty());
    let leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let recorded = world.get(leases).await.to_string();
    assert!(recorded.contains("\\\"name\\\":\\\"keys\\\""), "{recorded}");
    world.send(Method::POST, "/api/v1/namespaces/default/secrets", secret).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.driver.seen_secrets()["password"], "hunter2");
    let leases = world.get(leases).await.to_string();
    let events = world.get("/api/v1/namespaces/default/events").await.to_string();
    assert!(
        ![recorded, leases, events, world.volume(&name).await.to_string()].iter().any(|text| text.contains("hunter2"))
    );
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn without_the_right_to_write_leases_it_works_as_the_original_does() {
    let world = plain_world().await;
    world.forbid_leases();
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_second_run_deposes_the_first_before_it_can_call_the_driver() {
    let world = plain_world().await;
    let first = world.start(Options::default());
    world.ready(&first).await;
    let second = world.start(Options::default());
    world.ready(&second).await;
    let name = world.make_claim("db", "1Gi").await;
    let Err(Stop::Unable { reason }) = first.ended().await else { panic!("the first run goes on") };
    assert!(reason.contains("was taken over by") && reason.contains("--leader-election"), "{reason}");
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.driver.calls(), ["CreateVolume"]);
    second.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_retained_volume_survives_its_object_and_a_restart() {
    let world = World::new();
    world.make_class(json!({}), "Retain").await;
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.delete_claim("db").await;
    let path = format!("/api/v1/persistentvolumes/{name}");
    world.send(Method::PATCH, &path, json!({ "metadata": { "finalizers": [world::FINALIZER] } })).await;
    world.send(Method::DELETE, &path, Value::Null).await;
    world.until("the object's end", async || world.volume(&name).await.is_null()).await;
    running.crash();
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.settle().await;
    running.drain().await.unwrap();
    assert_eq!(world.driver.volumes(), [name]);
    assert_eq!(world.driver.calls(), ["CreateVolume"]);
}

/// A volume of a class that retains, made, its claim deleted and its claim reference cleared so that it can be used again.
/// The end of its record is not written where that is asked for.
async fn reused_volume(record_stays: bool) -> (World, world::Running, String) {
    let world = World::new();
    world.make_class(json!({}), "Retain").await;
    if record_stays {
        world.driver.next(Next::DoneAndSilent);
    }
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    if record_stays {
        world.until("the call", async || world.driver.volumes() == [name.clone()]).await;
        world.forbid(Some(Method::PUT), "/leases");
        // No answer comes, and it is called for again.
        tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    }
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.delete_claim("db").await;
    world.release(&name).await;
    let path = format!("/api/v1/persistentvolumes/{name}");
    world.send(Method::PATCH, &path, json!({ "spec": { "claimRef": null } })).await;
    world.settle().await;
    (world, running, name)
}

/// The record of its making was looked up by the claim its object names, so the finalizer went before the record did.
#[tokio::test(start_paused = true)]
async fn a_retained_volume_without_its_claim_reference_survives_its_object_and_a_crash() {
    let (world, running, name) = reused_volume(false).await;
    world.send(Method::DELETE, &format!("/api/v1/persistentvolumes/{name}"), Value::Null).await;
    world.until("the object's end", async || world.volume(&name).await.is_null()).await;
    running.crash();
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.settle().await;
    running.drain().await.unwrap();
    assert_eq!(world.driver.volumes(), [name]);
    assert_eq!(world.driver.calls(), ["CreateVolume"]);
}

/// Neither forgotten nor cleaned up, the record was decided on at every backoff for ever.
#[tokio::test(start_paused = true)]
async fn the_record_of_a_retained_volume_without_its_claim_reference_ends_after_a_restart() {
    let (world, running, name) = reused_volume(true).await;
    running.crash();
    world.permit_all();
    assert_eq!(world.journal().await.len(), 1);
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.settle().await;
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
    assert_eq!(world.driver.volumes(), [name]);
    assert_eq!(world.driver.calls(), ["CreateVolume", "CreateVolume"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_made_before_a_crash_that_somebody_imported_under_another_name_is_kept() {
    let world = plain_world().await;
    world.driver.next(Next::DoneAndSilent);
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the call", async || !world.driver.volumes().is_empty()).await;
    running.crash();
    world.delete_claim("db").await;
    let imported = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "imported" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "csi": { "driver": driver::DRIVER, "volumeHandle": name },
        },
    });
    world.send(Method::POST, "/api/v1/persistentvolumes", imported).await;
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.settle().await;
    running.drain().await.unwrap();
    assert_eq!(world.driver.volumes(), [name]);
    assert!(world.journal().await.is_empty());
}

/// A page that did not exist yet carried no signature, so the deposed run could still record and then call the driver.
#[tokio::test(start_paused = true)]
async fn a_deposed_run_cannot_record_on_a_page_that_does_not_exist_yet() {
    let world = World::new();
    // Two records of this size do not share a page.
    world.make_class(json!({ "note": "x".repeat(150_000) }), "Delete").await;
    world.driver.next(Next::DoneAndSilent);
    world.driver.next(Next::DoneAndSilent);
    let first = world.start(Options::default());
    world.make_claim("one", "1Gi").await;
    world.until("the call", async || world.driver.calls().len() == 1).await;
    let second = world.start(Options::default());
    world.until("the replay", async || world.driver.calls().len() == 2).await;
    let name = world.make_claim("two", "1Gi").await;
    let Err(Stop::Unable { reason }) = first.ended().await else { panic!("the first run goes on") };
    assert!(reason.contains("was taken over by"), "{reason}");
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.driver.calls().len(), 3, "the deposed run called the driver");
    second.drain().await.unwrap();
}

/// The claim's uid was guessed from the volume's name, which flags may shorten.
#[tokio::test(start_paused = true)]
async fn a_claim_whose_short_volume_name_was_taken_gets_its_volume_when_the_name_is_free() {
    let world = plain_world().await;
    let uid = world.make_claim("db", "1Gi").await.replace("pvc-", "");
    let name = format!("pvc-{}", uid.replace('-', "").get(..8).unwrap());
    let foreign = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
            "csi": { "driver": "other.example", "volumeHandle": "x" },
        },
    });
    world.send(Method::POST, "/api/v1/persistentvolumes", foreign).await;
    let running = world.start(Options { volume_name_uuid_length: Some(8), ..Options::default() });
    world.until("the refusal", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    let path = format!("/api/v1/persistentvolumes/{name}");
    world.send(Method::PATCH, &path, json!({ "metadata": { "finalizers": null } })).await;
    world.send(Method::DELETE, &path, Value::Null).await;
    world.until("the volume", async || world.volume(&name).await["spec"]["csi"]["driver"] == driver::DRIVER).await;
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_after_an_unanswered_call_does_not_end_the_search_for_the_volume() {
    let world = plain_world().await;
    world.driver.next(Next::DoneAndSilent);
    for _ in 0..3 {
        world.driver.next(Next::Fails(Code::Internal, "the backend is confused"));
    }
    let running = world.start(Options::default());
    world.make_claim("db", "1Gi").await;
    world.until("the call", async || !world.driver.volumes().is_empty()).await;
    world.delete_claim("db").await;
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    world.settle().await;
    assert_eq!(world.journal().await.len(), 1, "the record was dropped while the volume may exist");
    let metrics = running.context.metrics.encode();
    assert!(metrics.contains("stowage_provisioner_unsettled_answers_total 1"), "{metrics}");
    // Asked rarely, but until the driver tells.
    tokio::time::sleep(std::time::Duration::from_secs(1200)).await;
    world.until("the cleanup", async || world.driver.volumes().is_empty()).await;
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn the_six_metrics_of_the_original_count_tries_by_class_and_source() {
    let world = plain_world().await;
    world.driver.next(Next::Fails(Code::Internal, "no"));
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.driver.will_not_delete(Code::FailedPrecondition);
    world.delete_claim("db").await;
    world.release(&name).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    let metrics = running.context.metrics.encode();
    for line in [
        "controller_persistentvolumeclaim_provision_total{class=\"fast\",source=\"\"} 1",
        "controller_persistentvolumeclaim_provision_failed_total{class=\"fast\",source=\"\"} 1",
        "controller_persistentvolumeclaim_provision_duration_seconds_count{class=\"fast\",source=\"\"} 1",
        "controller_persistentvolume_delete_total{class=\"fast\"} 1",
        "controller_persistentvolume_delete_failed_total{class=\"fast\"} 1",
        "controller_persistentvolume_delete_duration_seconds_count{class=\"fast\"} 1",
        "controller_persistentvolume_delete_duration_seconds_bucket{le=\"0.005\",class=\"fast\"} 1",
        "workqueue_depth{name=\"claims\"} 0",
        "workqueue_depth{name=\"volumes\"} 0",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    running.drain().await.unwrap();
}

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
    let codes = [
        Code::Cancelled,
        Code::Unknown,
        Code::InvalidArgument,
        Code::DeadlineExceeded,
        Code::NotFound,
        Code::AlreadyExists,
        Code::PermissionDenied,
        Code::ResourceExhausted,
        Code::FailedPrecondition,
        Code::Aborted,
        Code::OutOfRange,
        Code::Unimplemented,
        Code::Internal,
        Code::Unavailable,
        Code::DataLoss,
        Code::Unauthenticated,
    ];
    for code in codes {
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

#[tokio::test(start_paused = true)]
async fn a_volume_attributes_class_is_told_to_the_driver_and_kept_in_the_volume() {
    let world = plain_world().await;
    let driver = world.driver.clone().modifying();
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttributesClass", "metadata": { "name": "gold" },
        "driverName": driver::DRIVER, "parameters": { "iops": "9000" },
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "db", "annotations": { "volume.kubernetes.io/storage-provisioner": driver::DRIVER } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeAttributesClassName": "gold",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let running = world.start(Options::default());
    let claim = world.send(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", claim).await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    assert!(world.events("ProvisioningFailed").await[0].contains("\"gold\" does not exist"));
    world.send(Method::POST, "/apis/storage.k8s.io/v1/volumeattributesclasses", class).await;
    tokio::time::sleep(std::time::Duration::from_secs(31)).await;
    let name = format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap());
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(driver.requests()[0].mutable_parameters, [("iops".to_owned(), "9000".to_owned())].into());
    assert_eq!(driver.requests()[0].parameters, [("pool".to_owned(), "a".to_owned())].into());
    assert_eq!(world.volume(&name).await["spec"]["volumeAttributesClassName"], "gold");
    assert_eq!(running.context.metrics.missed_wakeups("provisioner").get(), 0);
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_class_of_an_in_tree_plugin_is_served_by_the_driver_that_took_over_and_its_volume_is_the_plugins() {
    const EBS: &str = "ebs.csi.aws.com";
    let world = World::new();
    let driver = world.driver.clone().named(EBS);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "fast" },
        "provisioner": "kubernetes.io/aws-ebs", "parameters": { "fsType": "xfs", "type": "gp3", "iopsPerGB": "10" },
    });
    world.send(Method::POST, "/apis/storage.k8s.io/v1/storageclasses", class).await;
    let running = world.start(Options::default());
    // As the pv-controller leaves such a claim.
    let annotations = json!({
        "volume.kubernetes.io/storage-provisioner": EBS, "pv.kubernetes.io/migrated-to": EBS,
    });
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "db", "annotations": annotations },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let claim = world.send(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", claim).await;
    let name = format!("pvc-{}", claim["metadata"]["uid"].as_str().unwrap());
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    let request = driver.requests().remove(0);
    let wanted = [("type", "gp3"), ("iopsPerGB", "10"), ("allowautoiopspergbincrease", "true")];
    assert_eq!(request.parameters, wanted.map(|(key, value)| (key.to_owned(), value.to_owned())).into());
    let volume = world.volume(&name).await;
    assert_eq!(volume["spec"]["awsElasticBlockStore"], json!({ "volumeID": name, "fsType": "xfs" }));
    assert_eq!(volume["spec"]["csi"], Value::Null);
    assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], "kubernetes.io/aws-ebs");
    world.settle().await;
    assert_eq!(driver.calls(), ["CreateVolume"], "what was made stays");
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());

    // Before the pv-controller has marked it the plugin may be the one to delete it.
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.delete_claim("db").await;
    world.release(&name).await;
    world.settle().await;
    assert_eq!(driver.calls(), ["CreateVolume"]);
    let migrated = json!({ "metadata": { "annotations": { "pv.kubernetes.io/migrated-to": EBS } } });
    world.send(Method::PATCH, &format!("/api/v1/persistentvolumes/{name}"), migrated).await;
    world.until("the end", async || world.volume(&name).await.is_null()).await;
    assert_eq!(driver.calls(), ["CreateVolume", "DeleteVolume"]);
    assert!(driver.volumes().is_empty());
    let metrics = running.context.metrics.encode();
    let call = "method_name=\"/csi.v1.Controller/DeleteVolume\",grpc_status_code=\"OK\",migrated=\"true\"";
    assert!(metrics.contains(call), "{metrics}");
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_the_plugin_could_not_name_is_deleted_again_and_told() {
    const GCE: &str = "pd.csi.storage.gke.io";
    let world = World::new();
    let driver = world.driver.clone().named(GCE);
    let class = json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "fast" },
        "provisioner": "kubernetes.io/gce-pd",
    });
    world.send(Method::POST, "/apis/storage.k8s.io/v1/storageclasses", class).await;
    let running = world.start(Options::default());
    let claim = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "db", "annotations": { "volume.kubernetes.io/storage-provisioner": GCE } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    world.send(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", claim).await;
    world.until("the event", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    let told = world.events("ProvisioningFailed").await.remove(0);
    assert!(told.contains("projects/PROJECT/zones/ZONE/disks/NAME") && told.contains("deleted again"), "{told}");
    assert!(driver.volumes().is_empty());
    running.drain().await.unwrap();
}

mod on_several_nodes {
    use std::sync::Arc;
    use std::time::Duration;

    use provisioner::NodeDeployment;
    use tokio::sync::Barrier;

    use super::*;
    use crate::driver::{Driver, KEY};
    use crate::world::Running;

    const NODES: [&str; 3] = ["n1", "n2", "n3"];

    fn options(node: &str) -> Options {
        let node_deployment = Some(NodeDeployment { node: node.into(), ..NodeDeployment::default() });
        Options { node_deployment, ..Options::default() }
    }

    async fn start(world: &World) -> Vec<(Driver, Running)> {
        let mut nodes = Vec::new();
        for node in NODES {
            let driver = Driver::on(node);
            let running = world.start_beside(driver.clone(), options(node));
            world.ready(&running).await;
            nodes.push((driver, running));
        }
        nodes
    }

    fn holders(nodes: &[(Driver, Running)]) -> Vec<&'static str> {
        let holds =
            |(index, (driver, _)): (usize, &(Driver, Running))| (!driver.volumes().is_empty()).then_some(NODES[index]);
        nodes.iter().enumerate().filter_map(holds).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_served_and_deleted_by_the_selected_node_alone() {
        let world = plain_world().await;
        let nodes = start(&world).await;
        let name = world.make_claim("db", "1Gi").await;
        world.select_node("db", "n2".into()).await;
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        assert_eq!(holders(&nodes), ["n2"]);
        assert_eq!(nodes[1].0.asked_for(), ["n2"]);
        let affinity = &world.volume(&name).await["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"];
        assert_eq!(affinity[0]["matchExpressions"][0], json!({ "key": KEY, "operator": "In", "values": ["n2"] }));
        world.delete_claim("db").await;
        world.release(&name).await;
        world.until("the end", async || world.volume(&name).await.is_null()).await;
        for (index, (driver, _)) in nodes.iter().enumerate() {
            let expected: &[&str] = if index == 1 { &["CreateVolume", "DeleteVolume"] } else { &[] };
            assert_eq!(driver.calls(), expected);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_binds_at_once_is_taken_by_exactly_one_node() {
        let world = plain_world().await;
        let nodes = start(&world).await;
        let name = world.make_claim("db", "1Gi").await;
        world.settle().await;
        assert_eq!(holders(&nodes), Vec::<&str>::new(), "nobody waited");
        tokio::time::sleep(Duration::from_secs(60)).await;
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        world.settle().await;
        let holders = holders(&nodes);
        assert_eq!(holders.len(), 1, "{holders:?}");
        assert_eq!(world.selected_node("db").await, holders[0]);
    }

    #[tokio::test(start_paused = true)]
    async fn of_nodes_that_take_a_claim_at_the_same_moment_one_makes_the_volume() {
        let world = plain_world().await;
        let mut nodes = start(&world).await;
        nodes.pop().unwrap().1.crash();
        let together = Arc::new(Barrier::new(nodes.len()));
        for (driver, _) in &nodes {
            driver.has_room(i64::MAX, Some(Arc::clone(&together)));
        }
        world.race_for_a_claim();
        let name = world.make_claim("db", "1Gi").await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        world.settle().await;
        let holders = holders(&nodes);
        assert_eq!(holders.len(), 1, "{holders:?}");
        assert_eq!(world.selected_node("db").await, holders[0]);
        assert_eq!(world.claim_updates(), 1, "who was second wrote over the first");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_without_room_leaves_the_claim_to_one_that_has_it() {
        let world = plain_world().await;
        let nodes = start(&world).await;
        nodes[0].0.has_room(1 << 20, None);
        nodes[1].0.has_room(1 << 40, None);
        nodes[2].0.has_room(1 << 20, None);
        let name = world.make_claim("db", "1Gi").await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        assert_eq!(holders(&nodes), ["n2"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_node_gives_the_claim_back_and_another_takes_it() {
        let world = plain_world().await;
        let nodes = start(&world).await;
        nodes[0].0.next(Next::Fails(Code::ResourceExhausted, "the pool is full"));
        let name = world.make_claim("db", "1Gi").await;
        world.select_node("db", "n1".into()).await;
        world.until("the refusal", async || world.selected_node("db").await != "n1").await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        assert_eq!(holders(&nodes).len(), 1);
        for (_, running) in nodes {
            running.drain().await.unwrap();
        }
        assert!(world.journal().await.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_journal_of_a_node_goes_with_it_unless_it_has_a_record() {
        let world = plain_world().await;
        let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "n1" } });
        let node = world.send(Method::POST, "/api/v1/nodes", node).await;
        let driver = Driver::on("n1");
        let running = world.start_beside(driver.clone(), options("n1"));
        world.ready(&running).await;
        let owners = async || {
            let leases = world.get("/apis/coordination.k8s.io/v1/namespaces/default/leases").await;
            leases["items"][0]["metadata"]["ownerReferences"].clone()
        };
        let uid = &node["metadata"]["uid"];
        let owned = json!([{ "apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid }]);
        assert_eq!(owners().await, owned);
        driver.next(Next::DoneAndSilent);
        let name = world.make_claim("db", "1Gi").await;
        world.select_node("db", "n1".into()).await;
        world.until("the call", async || driver.volumes().len() == 1).await;
        let nobody = owners().await;
        assert!(nobody.as_array().is_none_or(Vec::is_empty), "a record must not go with the node: {nobody}");
        tokio::time::sleep(Duration::from_secs(30)).await;
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        world.until("the record's end", async || world.journal().await.is_empty()).await;
        assert_eq!(owners().await, owned);
        running.drain().await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_node_that_may_have_made_the_volume_gives_the_claim_back_and_deletes_what_it_made() {
        let world = plain_world().await;
        // Else a third node may take the claim between the refusal and the scheduler's next choice.
        world.wait_for_consumers().await;
        let nodes = start(&world).await;
        nodes[0].0.next(Next::DoneAndSilent);
        nodes[0].0.next(Next::Fails(Code::ResourceExhausted, "the pool is full"));
        let name = world.make_claim("db", "1Gi").await;
        world.select_node("db", "n1".into()).await;
        world.until("the call", async || nodes[0].0.volumes().len() == 1).await;
        tokio::time::sleep(Duration::from_secs(15)).await;
        world.until("the refusal", async || world.selected_node("db").await != "n1").await;
        world.select_node("db", "n2".into()).await;
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        assert_eq!(world.volume(&name).await["spec"]["csi"]["volumeHandle"], format!("n2/{name}"));
        assert_eq!(holders(&nodes), ["n1", "n2"]);
        tokio::time::sleep(Duration::from_secs(600)).await;
        world.until("the cleanup", async || holders(&nodes) == ["n2"]).await;
        for (_, running) in nodes {
            running.drain().await.unwrap();
        }
        assert!(world.journal().await.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_driver_with_places_is_told_where_the_selected_node_is() {
    let world = plain_world().await;
    for node in ["n1", "n2"] {
        let labels = json!({ driver::KEY: node });
        let body = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": node, "labels": labels } });
        world.send(Method::POST, "/api/v1/nodes", body).await;
        let drivers = json!([{ "name": driver::DRIVER, "nodeID": node, "topologyKeys": [driver::KEY] }]);
        let body = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "CSINode", "metadata": { "name": node },
            "spec": { "drivers": drivers },
        });
        world.send(Method::POST, "/apis/storage.k8s.io/v1/csinodes", body).await;
    }
    let driver = driver::Driver::on("n2");
    let running = world.start_beside(driver.clone(), Options::default());
    world.ready(&running).await;
    let name = world.make_claim("db", "1Gi").await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(driver.asked_for().len(), 2);
    let strict = Options { strict_topology: true, ..Options::default() };
    running.drain().await.unwrap();
    let running = world.start_beside(driver.clone(), strict);
    world.ready(&running).await;
    let body = json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "name": "web", "annotations": {
            "volume.kubernetes.io/storage-provisioner": driver::DRIVER,
            "volume.kubernetes.io/selected-node": "n2",
        } },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    world.send(Method::POST, "/api/v1/namespaces/default/persistentvolumeclaims", body).await;
    world.until("the second volume", async || driver.volumes().len() == 2).await;
    assert_eq!(driver.asked_for(), ["n2"]);
    running.drain().await.unwrap();
}
