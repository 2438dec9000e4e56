//! What is found after a crash, a deposition or an answer that never came.

use super::*;

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

/// With the journal off, or the original in its place, a record stays that knows nothing of what became of the volume. The replay
/// found the volume whose object had been deleted to keep the data, and deleted it.
#[tokio::test(start_paused = true)]
async fn a_retained_volume_that_only_an_old_record_knows_is_kept_and_gets_its_object_again() {
    let world = World::new();
    world.make_class(json!({}), "Retain").await;
    world.driver.next(Next::DoneAndSilent);
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.until("the call", async || world.driver.volumes() == [name.clone()]).await;
    running.crash();
    let running = world.start(Options { journal: false, ..Options::default() });
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    world.delete_claim("db").await;
    world.release(&name).await;
    world.send(Method::DELETE, &format!("/api/v1/persistentvolumes/{name}"), Value::Null).await;
    world.until("the object's end", async || world.volume(&name).await.is_null()).await;
    running.drain().await.unwrap();
    assert_eq!(world.journal().await.len(), 1);
    let running = world.start(Options::default());
    world.until("the event", async || !world.events("VolumeRetained").await.is_empty()).await;
    world.settle().await;
    let said = world.events("VolumeRetained").await.remove(0);
    assert!(said.contains(&format!("volume \"{name}\" of driver")) && said.contains("it is kept"), "{said}");
    assert!(running.context.metrics.encode().contains("stowage_provisioner_retained_volumes_total 1"));
    running.drain().await.unwrap();
    let volume = world.volume(&name).await;
    assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain");
    assert_eq!(
        (&volume["spec"]["claimRef"]["name"], &volume["spec"]["csi"]["volumeHandle"]),
        (&json!("db"), &json!(name))
    );
    assert_eq!(world.driver.volumes(), [name]);
    assert!(world.journal().await.is_empty());
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

/// One refusal and memory forgot what its page kept: the object could go, and the next run deleted the data.
#[tokio::test(start_paused = true)]
async fn a_retained_volume_keeps_its_object_until_its_record_is_gone_also_while_leases_may_not_be_written() {
    let (world, running, name) = reused_volume(true).await;
    world.send(Method::DELETE, &format!("/api/v1/persistentvolumes/{name}"), Value::Null).await;
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    world.settle().await;
    assert!(world.volume(&name).await.is_object(), "its record is on its page still");
    assert_eq!(world.journal().await.len(), 1);
    world.permit_all();
    tokio::time::sleep(std::time::Duration::from_secs(120)).await;
    world.until("the object's end", async || world.volume(&name).await.is_null()).await;
    assert!(world.journal().await.is_empty());
    running.crash();
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.settle().await;
    running.drain().await.unwrap();
    assert_eq!(world.driver.volumes(), [name]);
    assert_eq!(world.driver.calls(), ["CreateVolume", "CreateVolume"]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_waits_while_its_record_may_not_be_written_and_is_told_why() {
    let world = plain_world().await;
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.forbid(Some(Method::PUT), "/leases");
    let name = world.make_claim("db", "1Gi").await;
    world.until("the word", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    let said = world.events("ProvisioningFailed").await.remove(0);
    assert!(said.contains("may not write the intent journal") && said.contains("grant get, list, create"), "{said}");
    assert!(world.driver.calls().is_empty());
    world.permit_all();
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    running.drain().await.unwrap();
}

/// A refusal at the start switched the journal off for the whole run.
#[tokio::test(start_paused = true)]
async fn a_right_that_comes_after_the_start_stores_what_is_at_work_and_finds_what_an_earlier_run_left() {
    let world = plain_world().await;
    world.driver.next(Next::DoneAndSilent);
    let running = world.start(Options::default());
    let lost = world.make_claim("lost", "1Gi").await;
    world.until("the call", async || world.driver.volumes() == [lost.clone()]).await;
    running.crash();
    world.delete_claim("lost").await;

    world.forbid_leases();
    let running = world.start(Options::default());
    world.ready(&running).await;
    let gauge = |value| format!("stowage_provisioner_intents_in_memory {value}");
    assert!(running.context.metrics.encode().contains(&gauge(1)));
    for _ in 0..30 {
        world.driver.next(Next::Fails(Code::Aborted, "still at it"));
    }
    let name = world.make_claim("db", "1Gi").await;
    world.until("the call", async || world.driver.calls().len() == 2).await;
    world.permit_all();
    tokio::time::sleep(std::time::Duration::from_secs(61)).await;
    world.until("its record", async || world.journal().await.contains(&name.replace("pvc-", ""))).await;
    assert!(running.context.metrics.encode().contains(&gauge(0)));
    while world.driver.takes_next().is_some() {}
    tokio::time::sleep(std::time::Duration::from_secs(600)).await;
    world.until("both ends", async || world.driver.volumes() == [name.clone()]).await;
    world.until("the journal's end", async || world.journal().await.is_empty()).await;
    assert!(world.volume(&name).await.is_object());
    running.drain().await.unwrap();
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

/// A restart found the record of a call that had failed for good, and asked for the same again for ever: correcting the class
/// had no effect any more, and who deleted the claim left the driver being called.
#[tokio::test(start_paused = true)]
async fn a_class_that_is_corrected_around_a_restart_is_used_after_it() {
    for ends_by_itself in [true, false] {
        let world = plain_world().await;
        for _ in 0..12 {
            world.driver.next(Next::Fails(Code::FailedPrecondition, "there is no pool a"));
        }
        let running = world.start(Options::default());
        let name = world.make_claim("db", "1Gi").await;
        world.until("the word", async || !world.events("ProvisioningFailed").await.is_empty()).await;
        match ends_by_itself {
            true => running.drain().await.unwrap(),
            false => {
                // The eighth try was at 127 s, the next is at 255 s: meanwhile the record is off its page.
                tokio::time::sleep(std::time::Duration::from_secs(200)).await;
                world.settle().await;
                running.crash();
            }
        }
        assert!(world.journal().await.is_empty(), "{ends_by_itself}");
        world.send(Method::DELETE, "/apis/storage.k8s.io/v1/storageclasses/fast", Value::Null).await;
        world.make_class(json!({ "pool": "b" }), "Delete").await;
        while world.driver.takes_next().is_some() {}
        let running = world.start(Options::default());
        world.until("the volume", async || world.volume(&name).await.is_object()).await;
        assert_eq!(world.driver.requests().last().unwrap().parameters["pool"], "b");
        running.drain().await.unwrap();
    }
}

/// It stayed until something else was written, which may be never.
#[tokio::test(start_paused = true)]
async fn a_record_of_a_call_that_made_nothing_is_taken_off_also_when_the_first_write_fails() {
    let world = plain_world().await;
    world.driver.next(Next::Fails(Code::InvalidArgument, "there is no such pool"));
    let running = world.start(Options::default());
    world.make_claim("db", "1Gi").await;
    world.until("the word", async || !world.events("ProvisioningFailed").await.is_empty()).await;
    world.fail(Method::PUT, "/leases");
    tokio::time::sleep(std::time::Duration::from_secs(80)).await;
    assert_eq!(world.journal().await.len(), 1);
    world.permit_all();
    // The next try is at 300 s.
    tokio::time::sleep(std::time::Duration::from_secs(80)).await;
    world.settle().await;
    assert!(world.journal().await.is_empty());
    assert_eq!(world.driver.calls(), ["CreateVolume"]);
    running.crash();
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_missing_keeps_no_record_over_a_restart() {
    let world = World::new();
    let secret = |name: &str| {
        json!({
            "csi.storage.k8s.io/provisioner-secret-name": name,
            "csi.storage.k8s.io/provisioner-secret-namespace": "gone",
        })
    };
    world.make_class(secret("wrong"), "Delete").await;
    let running = world.start(Options::default());
    let name = world.make_claim("db", "1Gi").await;
    world.make_claim("web", "1Gi").await;
    world.until("the words", async || world.events("ProvisioningFailed").await.len() == 2).await;
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
    world.delete_claim("web").await;
    world.send(Method::DELETE, "/apis/storage.k8s.io/v1/storageclasses/fast", Value::Null).await;
    world.make_class(json!({}), "Delete").await;
    let running = world.start(Options::default());
    world.until("the volume", async || world.volume(&name).await.is_object()).await;
    assert_eq!(world.driver.calls(), ["CreateVolume"], "nothing is called for the claim that is gone");
    running.drain().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_fails_again_and_again_costs_few_writes_of_the_journal() {
    let world = plain_world().await;
    for _ in 0..64 {
        world.driver.next(Next::Fails(Code::Internal, "not today"));
    }
    let running = world.start(Options::default());
    world.ready(&running).await;
    world.take_writes();
    world.make_claim("db", "1Gi").await;
    // Six tries come soon after each other, and have one record.
    tokio::time::sleep(std::time::Duration::from_secs(50)).await;
    let (early, writes) = (world.driver.calls().len(), world.take_writes());
    assert_eq!((early, writes["PUT leases"]), (6, 1), "{writes:?}");
    // From then on they are rare, and none leaves a record for whoever comes after a crash.
    tokio::time::sleep(std::time::Duration::from_secs(3550)).await;
    let (late, writes) = (world.driver.calls().len() - early, world.take_writes());
    println!("writes for {late} calls in an hour: {writes:?}");
    assert!(late >= 10 && writes["PUT leases"] <= 2 * late + 1, "{late} {writes:?}");
    running.drain().await.unwrap();
    assert!(world.journal().await.is_empty());
}
