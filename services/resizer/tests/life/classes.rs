//! Claims that ask for another VolumeAttributesClass.

use super::*;

/// The same, column "resizer modify".
#[tokio::test(start_paused = true)]
async fn every_code_of_a_modification_leads_to_its_state_and_then_to_the_class() {
    for number in 1..=16 {
        let code = Code::from_i32(number);
        let stage = Stage::set().await;
        stage.world.driver().script("ControllerModifyVolume", [Step::fail(code, "no")]);
        in_world(&stage, options(), async {
            stage.ask_for_class("gold").await;
            stage.until("shown", || stage.conditions().contains(&"ModifyVolumeError".to_owned())).await;
            let status = if code == Code::InvalidArgument { "Infeasible" } else { "InProgress" };
            let state = stage.claim()["status"]["modifyVolumeStatus"].clone();
            assert_eq!(state, json!({ "targetVolumeAttributesClassName": "gold", "status": status }), "{code:?}");
            stage.until("gold", || stage.claim()["status"]["currentVolumeAttributesClassName"] == "gold").await;
            assert!(stage.conditions().is_empty(), "{code:?}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_class_is_three_writes_and_the_originals_request() {
    let stage = Stage::set().await;
    let modify_key = json!({ "metadata": { "namespace": "shop", "name": "other" }, "data": { "token": "dA==" } });
    stage.world.admin().create(kinds::SECRET, modify_key).await.unwrap();
    let options = Options { extra_modify_metadata: true, ..options() };
    in_world(&stage, options, async {
        stage.ask_for_class("silver").await;
        stage.until("silver", || stage.claim()["status"]["currentVolumeAttributesClassName"] == "silver").await;
        stage.world.settle().await;
        assert_eq!(stage.acts(), ["claim", "ControllerModifyVolume", "volume", "claim"]);
        assert_eq!(stage.volume()["spec"]["volumeAttributesClassName"], "silver");
        assert!(stage.claim()["status"]["modifyVolumeStatus"].is_null() && stage.conditions().is_empty());
        let annotations = json!({ MODIFY_SECRET_NAME: "other", MODIFY_SECRET_NAMESPACE: "shop" });
        let body = json!({ "metadata": { "annotations": annotations } });
        stage.world.admin().patch(kinds::VOLUME, &Key::cluster("pv"), "", &body).await.unwrap();
        stage.ask_for_class("gold").await;
        stage.until("gold", || stage.claim()["status"]["currentVolumeAttributesClassName"] == "gold").await;
        stage.world.settle().await;
    })
    .await;
    let expected = |class: &str, secret: (&str, &str)| ControllerModifyVolumeRequest {
        volume_id: stage.handle.clone(),
        secrets: [(secret.0.to_owned(), secret.1.to_owned())].into(),
        mutable_parameters: [
            ("iops", class),
            ("csi.storage.k8s.io/pvc/name", "data"),
            ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ("csi.storage.k8s.io/pv/name", "pv"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into(),
    };
    let asked = stage.world.driver().snapshot().modifications;
    assert_eq!(asked, [expected("silver", ("password", "p")), expected("gold", ("token", "t"))]);
    assert_eq!(stage.reasons().iter().filter(|reason| *reason == "VolumeModifySuccessful").count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_class_that_is_refused_missing_or_foreign_gives_way_to_another() {
    for (class, status) in [("odd", "Infeasible"), ("missing", "Pending"), ("foreign", "Pending")] {
        let stage = Stage::set().await;
        in_world(&stage, options(), async {
            stage.ask_for_class(class).await;
            stage.until(status, || stage.claim()["status"]["modifyVolumeStatus"]["status"] == status).await;
            stage.ask_for_class("gold").await;
            stage.until("gold", || stage.claim()["status"]["currentVolumeAttributesClassName"] == "gold").await;
            assert!(stage.conditions().is_empty(), "{class}");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn another_class_does_not_wait_for_what_the_first_one_failed() {
    let stage = Stage::set().await;
    stage.world.driver().script("ControllerModifyVolume", vec![Step::fail(Code::Internal, "no"); 6]);
    in_world(&stage, options(), async {
        stage.ask_for_class("silver").await;
        // At once, and after 1, 2, 4 and 8 seconds.
        tokio::time::sleep(Duration::from_secs(16)).await;
        assert_eq!(stage.world.driver().snapshot().modifications.len(), 5);
        let before = stage.world.elapsed();
        stage.ask_for_class("gold").await;
        stage.until("gold", || stage.claim()["status"]["currentVolumeAttributesClassName"] == "gold").await;
        let waited = stage.world.elapsed() - before;
        assert!(waited < Duration::from_secs(3), "after one failure of its own: {waited:?}");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_class_that_comes_later_wakes_its_claims() {
    let stage = Stage::set().await;
    in_world(&stage, options(), async {
        stage.ask_for_class("late").await;
        stage.until("pending", || stage.claim()["status"]["modifyVolumeStatus"]["status"] == "Pending").await;
        let before = stage.world.elapsed();
        let class = json!({
            "metadata": { "name": "late" }, "driverName": stage::DRIVER, "parameters": { "iops": "7" },
        });
        stage.world.admin().create(kinds::ATTRIBUTES_CLASS, class).await.unwrap();
        stage.until("late", || stage.claim()["status"]["currentVolumeAttributesClassName"] == "late").await;
        assert_eq!(stage.world.elapsed(), before);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_grows_and_changes_at_once_gets_both_without_two_calls_at_a_time() {
    let stage = Stage::set().await;
    let slow = || [Step::Slow(Duration::from_secs(3))];
    stage.world.driver().script("ControllerExpandVolume", slow());
    stage.world.driver().script("ControllerModifyVolume", slow());
    in_world(&stage, options(), async {
        let body = json!({ "spec": {
            "resources": { "requests": { "storage": "5Gi" } }, "volumeAttributesClassName": "gold",
        } });
        stage.world.admin().patch(kinds::CLAIM, &claim_key(), "", &body).await.unwrap();
        stage
            .until("both", || {
                let status = stage.claim()["status"].clone();
                status["capacity"]["storage"] == "5Gi" && status["currentVolumeAttributesClassName"] == "gold"
            })
            .await;
        assert!(stage.conditions().is_empty());
    })
    .await;
    assert_eq!(stage.world.elapsed().as_secs(), 6, "one after the other");
    let expected =
        ["claim", "ControllerExpandVolume", "volume", "claim", "claim", "ControllerModifyVolume", "volume", "claim"];
    assert_eq!(stage.acts(), expected);
}

/// A volume that is full used to wait for its turn behind a rollout of classes.
#[tokio::test(start_paused = true)]
async fn a_claim_that_waits_to_be_changed_and_wants_to_grow_grows_at_once_and_is_changed_after_it() {
    let stage = Stage::set().await;
    let mut options = options();
    options.driver.workers = 1;
    stage.world.driver().script("ControllerModifyVolume", [Step::Slow(Duration::from_secs(9))]);
    stage.another_claim("first").await;
    in_world(&stage, options, async {
        let first = Key::namespaced("shop", "first");
        let class = json!({ "spec": { "volumeAttributesClassName": "gold" } });
        stage.world.admin().patch(kinds::CLAIM, &first, "", &class).await.unwrap();
        stage.world.settle().await;
        let begun = tokio::time::Instant::now();
        stage.ask_for_class("gold").await;
        stage.until("in line", || stage.claim()["status"]["modifyVolumeStatus"]["status"] == "InProgress").await;
        stage.ask_for("5Gi").await;
        stage.until_capacity("5Gi").await;
        assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
        stage.until("gold", || stage.claim()["status"]["currentVolumeAttributesClassName"] == "gold").await;
        let failed = stage.reasons().iter().filter(|told| *told == "VolumeModifyFailed").count();
        assert_eq!(failed, 1, "the driver does not know the first one's volume; nobody else failed");
    })
    .await;
}
