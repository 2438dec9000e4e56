//! The snapshotter against the embedded API server and the driver in memory: one thread, virtual time, no sockets.
//! Sections 5.8, 5.9 and 5.13 of reference/sidecars-and-csi.md.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "life/listener.rs"]
mod listener;
#[path = "life/stage.rs"]
mod stage;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::FutureExt;
use futures::future::BoxFuture;
use serde_json::{Value, json};
use tonic::Code;

use snapshotter::{Names, Options};
use stowage_csi::code;
use stowage_csi::v1::{
    CreateSnapshotRequest, CreateVolumeGroupSnapshotRequest, DeleteSnapshotRequest, DeleteVolumeGroupSnapshotRequest,
    GetVolumeGroupSnapshotRequest, ListSnapshotsRequest,
};
use stowage_model::object::{Key, kinds};
use stowage_model::{annotations, finalizers};
use stowage_runtime::Stop;
use stowage_testing::driver::{Abilities, Step};
use stowage_testing::{Admin, Fault, Mode};

use listener::{Heard, Listener};
use stage::{DEFINITION, DRIVER, GROUP, NAME, SOCKET, Stage, in_world, options};

const CONTENT: stowage_model::object::Kind = kinds::VOLUME_SNAPSHOT_CONTENT;
const GROUP_CONTENT: stowage_model::object::Kind = kinds::VOLUME_GROUP_SNAPSHOT_CONTENT;

#[tokio::test(start_paused = true)]
async fn a_snapshot_costs_one_write_to_be_made_and_one_to_go_and_no_time() {
    let stage = Stage::set().await;
    in_world(&stage, options(), async {
        stage.make(|_| {}).await;
        stage.until_ready().await;
        let content = stage.content();
        let [(id, cut)] = stage.world.driver().snapshot().snapshots.into_iter().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!((cut.name.as_str(), &cut.volume), ("snapshot-u", &stage.volumes[0]));
        let status = json!({
            "snapshotHandle": id, "readyToUse": true, "restoreSize": cut.bytes,
            "creationTime": i64::try_from(cut.created.as_nanosecond()).unwrap(),
        });
        assert_eq!(content["status"], status);
        stage.world.settle().await;
        assert_eq!(stage.acts(), ["CreateSnapshot", "write status"]);
        stage.let_go(CONTENT, NAME).await;
        stage.until_gone().await;
        assert_eq!(stage.acts(), ["CreateSnapshot", "write status", "DeleteSnapshot", "write"]);
    })
    .await;
    // Only the one look of the test itself.
    assert_eq!(stage.world.elapsed(), Duration::from_millis(1));
    assert!(stage.events().is_empty(), "{:?}", stage.events());
}

/// The whole life of a snapshot and a group.
async fn play(stage: &Stage) {
    stage.make(|_| {}).await;
    stage.make_group(|_| {}).await;
    let is_over = |content: Value| {
        content["status"]["readyToUse"] == true
            || content.is_null()
            || content["metadata"]["deletionTimestamp"].is_string()
    };
    stage.until("made", || is_over(stage.content()) && is_over(stage.group())).await;
    stage.world.settle().await;
    stage.let_go(CONTENT, NAME).await;
    stage.let_go(GROUP_CONTENT, GROUP).await;
    stage.until_gone().await;
}

type AtFault = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// The users' objects go while the snapshotter stands still.
async fn let_all_go(admin: Admin) {
    for (kind, name, key) in [
        (CONTENT, NAME, annotations::SNAPSHOT_BEING_DELETED),
        (GROUP_CONTENT, GROUP, annotations::GROUP_SNAPSHOT_BEING_DELETED),
    ] {
        let mark = json!({ "metadata": { "annotations": { key: "yes" } } });
        // One that lives on may have let it go already.
        match admin.patch(kind, &Key::cluster(name), "", &mark).await {
            Ok(_) => admin.delete(kind, &Key::cluster(name)).await.unwrap(),
            Err(error) => assert!(!admin.exists(kind, &Key::cluster(name)), "{error}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn stopped_at_any_write_or_call_it_finds_its_way_and_leaks_nothing() {
    let recording = Stage::set().await;
    in_world(&recording, options(), play(&recording)).await;
    let points = recording.world.trace().points().iter().filter(|point| point.service == "snapshotter").count();
    let mut swept = 0;
    for number in 1..=points {
        for mode in Mode::ALL {
            for meanwhile in [false, true] {
                let stage = Stage::set().await;
                let fault = Fault { service: "snapshotter".into(), number, mode };
                let admin = stage.world.admin().clone();
                let at_fault: AtFault = Arc::new(move || let_all_go(admin.clone()).boxed());
                stage.world.arm(fault.clone(), Some(at_fault).filter(|_| meanwhile));
                in_world(&stage, options(), play(&stage)).await;
                assert!(!stage.world.is_armed(), "{fault} was missed");
                swept += 1;
            }
        }
    }
    stowage_testing::tell(&format!("{swept} points swept"));
    assert!(swept > 100, "{swept}");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_takes_long_is_looked_at_with_growing_delays() {
    let stage = Stage::set().await;
    stage.world.driver().ready_after(3);
    in_world(&stage, options(), async {
        stage.make(|_| {}).await;
        stage.until_ready().await;
    })
    .await;
    // One second, then two, then four.
    assert_eq!(stage.world.elapsed(), Duration::from_secs(7));
    let calls =
        ["CreateSnapshot", "write status", "CreateSnapshot", "CreateSnapshot", "CreateSnapshot", "write status"];
    assert_eq!(stage.acts(), calls);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_takes_long_is_marked_as_the_original_marks_every_one() {
    let stage = Stage::set().await;
    stage.world.driver().script("CreateSnapshot", [Step::Slow(Duration::from_secs(20))]);
    in_world(&stage, options(), async {
        stage.make(|_| {}).await;
        stage.until("the mark", || stage.is_marked()).await;
        assert_eq!(stage.world.elapsed(), Duration::from_secs(5));
        stage.until_ready().await;
        stage.until("no mark", || !stage.is_marked()).await;
    })
    .await;
    assert_eq!(stage.acts(), ["CreateSnapshot", "write", "write status", "write"]);
}

#[tokio::test(start_paused = true)]
async fn a_creation_without_an_answer_is_marked_shown_and_asked_for_again() {
    let stage = Stage::set().await;
    stage.world.driver().script("CreateSnapshot", [Step::DoneThenHang]);
    in_world(&stage, options(), async {
        stage.make(|_| {}).await;
        stage.until("the error", || stage.content()["status"]["error"].is_object()).await;
        assert!(stage.is_marked());
        stage.until_ready().await;
        stage.until("no mark", || !stage.is_marked()).await;
    })
    .await;
    assert!(stage.content()["status"]["error"].is_null());
    assert_eq!(stage.world.driver().snapshot().snapshots.len(), 1);
    let [(reason, message)] = stage.events().try_into().unwrap();
    assert_eq!(reason, "SnapshotCreationFailed");
    assert!(message.contains("CreateSnapshot") && message.contains("(DeadlineExceeded)"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_whose_handle_is_not_known_goes_with_its_content() {
    let stage = Stage::set().await;
    stage.world.driver().script("CreateSnapshot", [Step::DoneThenHang]);
    in_world(&stage, options(), async {
        stage.make(|_| {}).await;
        stage.until("the call", || !stage.world.driver().snapshot().snapshots.is_empty()).await;
        stage.let_go(CONTENT, NAME).await;
        stage.until_gone().await;
    })
    .await;
    let state = stage.world.driver().snapshot();
    assert_eq!((state.count("CreateSnapshot"), state.count("DeleteSnapshot")), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_stop_in_the_middle_of_a_call_leaves_a_mark_for_the_original() {
    let stage = Stage::set().await;
    stage.world.driver().script("CreateSnapshot", [Step::DoneThenHang]);
    let life = stage.world.life("snapshotter");
    let run = snapshotter::run(life.context.clone(), options());
    let story = async {
        stage.make(|_| {}).await;
        stage.until("the call", || !stage.world.driver().snapshot().snapshots.is_empty()).await;
        life.context.shutdown.trigger();
    };
    let (ended, ()) = tokio::join!(run, story);
    assert!(matches!(ended, Err(Stop::Undrained { .. })), "{ended:?}");
    assert!(stage.is_marked(), "{}", stage.content());
}

#[tokio::test(start_paused = true)]
async fn every_code_is_shown_and_a_later_success_takes_it_back() {
    for number in 1..17 {
        let code = Code::from_i32(number);
        let stage = Stage::set().await;
        stage.world.driver().script("CreateSnapshot", [Step::fail(code, "no way")]);
        in_world(&stage, options(), async {
            stage.make(|_| {}).await;
            stage.until("the error", || stage.content()["status"]["error"].is_object()).await;
            let content = stage.content();
            let message = format!("CreateSnapshot: no way ({})", code::name(code));
            assert_eq!(
                (&content["status"]["error"]["message"], &content["status"]["readyToUse"]),
                (&json!(message), &json!(false))
            );
            stage.until_ready().await;
            stage.until("no mark", || !stage.is_marked()).await;
            assert!(stage.content()["status"]["error"].is_null());
            stage.let_go(CONTENT, NAME).await;
            stage.until_gone().await;
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn every_code_of_a_deletion_is_told_and_tried_again() {
    for number in 1..17 {
        let code = Code::from_i32(number);
        let stage = Stage::set().await;
        stage.world.driver().script("DeleteSnapshot", [Step::fail(code, "no way")]);
        in_world(&stage, options(), async {
            stage.make(|_| {}).await;
            stage.until_ready().await;
            stage.let_go(CONTENT, NAME).await;
            stage.until_gone().await;
        })
        .await;
        assert_eq!(stage.world.elapsed(), Duration::from_secs(1), "{code:?}");
        let [(reason, message)] = stage.events().try_into().unwrap();
        assert_eq!(reason, "SnapshotDeleteError");
        assert!(message.contains(&format!("DeleteSnapshot: no way ({})", code::name(code))), "{message}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failure_that_is_final_lets_the_content_go_without_another_call() {
    let stage = Stage::set().await;
    stage.world.driver().script("CreateSnapshot", [Step::fail(Code::InvalidArgument, "no way")]);
    in_world(&stage, options(), async {
        stage.make(|_| {}).await;
        stage.until("the error", || stage.content()["status"]["error"].is_object()).await;
        stage.let_go(CONTENT, NAME).await;
        stage.until_gone().await;
    })
    .await;
    let acts = stage.acts();
    let count = |word: &str| acts.iter().filter(|act| *act == word).count();
    assert_eq!((count("CreateSnapshot"), count("write status"), count("write")), (1, 1, 1), "{acts:?}");
}

/// Killed in the middle of CreateSnapshot, and everything that the call needs is gone when it starts again.
#[tokio::test(start_paused = true)]
async fn a_creation_in_doubt_whose_volume_class_and_secret_are_gone_still_ends() {
    for (step, is_made) in [(Step::DoneThenHang, true), (Step::Hang, false)] {
        let stage = Stage::set().await;
        stage.world.driver().script("CreateSnapshot", [step]);
        let life = stage.world.life("snapshotter");
        let secret = |content: &mut Value| {
            content["metadata"]["annotations"] = json!({
                annotations::SNAPSHOT_SECRET_NAME: "key", annotations::SNAPSHOT_SECRET_NAMESPACE: "shop",
            });
        };
        let data = json!({ "metadata": { "name": "key", "namespace": "shop" }, "data": {} });
        stage.world.admin().create(kinds::NAMESPACE, json!({ "metadata": { "name": "shop" } })).await.unwrap();
        stage.world.admin().create(kinds::SECRET, data).await.unwrap();
        let story = async {
            stage.make(secret).await;
            stage.until("the call", || stage.acts().contains(&"CreateSnapshot".to_owned())).await;
            stage.world.settle().await;
            life.gate.stop();
        };
        tokio::select! {
            biased;
            _ = snapshotter::run(life.context.clone(), options()) => panic!("ended"),
            () = story => {}
        }
        assert_eq!(stage.world.driver().snapshot().snapshots.len(), usize::from(is_made));
        let admin = stage.world.admin();
        admin.delete(kinds::SECRET, &Key::namespaced("shop", "key")).await.unwrap();
        admin.delete(kinds::VOLUME_SNAPSHOT_CLASS, &Key::cluster("fast")).await.unwrap();
        stage.remove_volume().await;
        stage.let_go(CONTENT, NAME).await;
        in_world(&stage, options(), stage.until_gone()).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_original_snapshot_controller_puts_the_finalizer_on_later() {
    let stage = Stage::set().await;
    in_world(&stage, options(), async {
        stage.make(|content| content["metadata"]["finalizers"] = json!([])).await;
        stage.world.settle().await;
        assert_eq!(stage.acts(), Vec::<String>::new());
        let own = json!({ "metadata": { "finalizers": [finalizers::SNAPSHOT_CONTENT_BOUND] } });
        stage.world.admin().patch(CONTENT, &Key::cluster(NAME), "", &own).await.unwrap();
        stage.until_ready().await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_content_that_an_original_left_marked_is_finished_and_the_mark_goes() {
    let stage = Stage::set().await;
    stage
        .make(|content| content["metadata"]["annotations"] = json!({ annotations::SNAPSHOT_BEING_CREATED: "yes" }))
        .await;
    in_world(&stage, options(), async {
        stage.until_ready().await;
        stage.until("no mark", || !stage.is_marked()).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_exists_is_found_or_its_handle_is_said_to_be_wrong() {
    let stage = Stage::set().await;
    let id = stage.world.driver().cut(&stage.volumes[0]).unwrap();
    in_world(&stage, options(), async {
        stage.make(|content| content["spec"]["source"] = json!({ "snapshotHandle": id })).await;
        stage.until_ready().await;
        assert_eq!(stage.content()["status"]["snapshotHandle"], id.as_str());
    })
    .await;
    assert_eq!(stage.acts(), ["ListSnapshots", "write status"]);

    let stage = Stage::set().await;
    in_world(&stage, options(), async {
        stage.make(|content| content["spec"]["source"] = json!({ "snapshotHandle": "nowhere" })).await;
        stage.until("the error", || stage.content()["status"]["error"].is_object()).await;
        stage.until("the event", || !stage.events().is_empty()).await;
    })
    .await;
    assert_eq!(stage.events()[0].0, "SnapshotContentCheckandUpdateFailed");
    assert!(stage.events()[0].1.contains("no snapshot \"nowhere\""), "{:?}", stage.events());

    let stage = Stage::with(Abilities { list_snapshots: false, ..Abilities::ALL }).await;
    in_world(&stage, options(), async {
        stage.make(|content| content["spec"]["source"] = json!({ "snapshotHandle": "believed" })).await;
        stage.until_ready().await;
    })
    .await;
    assert_eq!(stage.acts(), ["write status"]);
}

#[tokio::test(start_paused = true)]
async fn a_class_that_comes_later_is_used_at_once() {
    let stage = Stage::set().await;
    in_world(&stage, options(), async {
        stage.make(|content| content["spec"]["volumeSnapshotClassName"] = json!("slow")).await;
        stage.until("the error", || stage.content()["status"]["error"].is_object()).await;
        let class = json!({ "metadata": { "name": "slow" }, "driver": DRIVER, "deletionPolicy": "Delete" });
        stage.world.admin().create(kinds::VOLUME_SNAPSHOT_CLASS, class).await.unwrap();
        stage.until_ready().await;
    })
    .await;
    assert_eq!(stage.world.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn others_contents_and_those_of_other_nodes_are_left_alone() {
    let stage = Stage::set().await;
    in_world(&stage, Options { node: Some("a".into()), ..options() }, async {
        stage.make(|content| content["spec"]["driver"] = json!("other.test")).await;
        for (name, node) in [("mine", "a"), ("theirs", "b")] {
            stage
                .make(|content| {
                    content["metadata"]["name"] = json!(name);
                    content["metadata"]["labels"] = json!({ "snapshot.storage.kubernetes.io/managed-by": node });
                    content["spec"]["volumeSnapshotRef"]["uid"] = json!(name);
                })
                .await;
        }
        let ready =
            || stage.world.admin().get_raw(CONTENT, &Key::cluster("mine")).unwrap()["status"]["readyToUse"] == true;
        stage.until("mine", ready).await;
        stage.world.settle().await;
        let snapshots = stage.world.driver().snapshot().snapshots;
        assert_eq!(snapshots.values().map(|cut| cut.name.as_str()).collect::<Vec<_>>(), ["snapshot-mine"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_driver_without_snapshots_is_named() {
    let stage = Stage::with(Abilities::default()).await;
    let life = stage.world.life("snapshotter");
    let ended = snapshotter::run(life.context.clone(), options()).await;
    let Err(Stop::Unable { reason }) = ended else { panic!("{ended:?}") };
    assert!(reason.contains("\"driver.test\"") && reason.contains("CREATE_DELETE_SNAPSHOT"), "{reason}");
}

#[tokio::test(start_paused = true)]
async fn a_group_is_made_with_one_write_and_goes_with_one() {
    let stage = Stage::set().await;
    in_world(&stage, options(), async {
        stage.make_group(|_| {}).await;
        stage.until("the group", || stage.group()["status"]["readyToUse"] == true).await;
        let state = stage.world.driver().snapshot();
        let [(id, made)] = state.groups.iter().collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(made.name, "groupsnapshot-u");
        let status = &stage.group()["status"];
        assert_eq!(status["volumeGroupSnapshotHandle"], id.as_str());
        let infos = made.members.iter().map(|member| {
            let cut = &state.snapshots[member];
            json!({
                "snapshotHandle": member, "volumeHandle": cut.volume, "readyToUse": true, "restoreSize": cut.bytes,
                "creationTime": i64::try_from(cut.created.as_nanosecond()).unwrap(),
            })
        });
        assert_eq!(status["volumeSnapshotInfoList"], infos.collect::<Value>());
        stage.world.settle().await;
        stage.let_go(GROUP_CONTENT, GROUP).await;
        stage.until_gone().await;
    })
    .await;
    let acts = ["CreateVolumeGroupSnapshot", "write status", "DeleteVolumeGroupSnapshot", "write"];
    assert_eq!(stage.acts(), acts);
}

#[tokio::test(start_paused = true)]
async fn a_group_that_exists_is_looked_at() {
    let stage = Stage::set().await;
    let id = stage.world.driver().cut_group(&stage.volumes).unwrap();
    let members = stage.world.driver().snapshot().groups[&id].members.clone();
    in_world(&stage, options(), async {
        let handles = json!({ "volumeGroupSnapshotHandle": id, "volumeSnapshotHandles": members });
        stage.make_group(|content| content["spec"]["source"] = json!({ "groupSnapshotHandles": handles })).await;
        stage.until("the group", || stage.group()["status"]["readyToUse"] == true).await;
    })
    .await;
    assert_eq!(stage.group()["status"]["volumeGroupSnapshotHandle"], id.as_str());
    assert_eq!(stage.acts(), ["GetVolumeGroupSnapshot", "write status"]);
}

#[tokio::test(start_paused = true)]
async fn without_definitions_of_groups_snapshots_are_made_and_groups_once_they_come() {
    let stage = Stage::set().await;
    let definitions = stage.take_definitions("groupsnapshot").await;
    in_world(&stage, options(), async {
        stage.make(|_| {}).await;
        stage.until_ready().await;
        for definition in definitions {
            stage.world.admin().create(DEFINITION, definition).await.unwrap();
        }
        let class = json!({ "metadata": { "name": "fast" }, "driver": DRIVER, "deletionPolicy": "Delete" });
        stage.world.admin().create(kinds::VOLUME_GROUP_SNAPSHOT_CLASS, class).await.unwrap();
        stage.make_group(|_| {}).await;
        stage.until("the group", || stage.group()["status"]["readyToUse"] == true).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_driver_hears_exactly_what_class_content_and_secrets_say() {
    let stage = Stage::set().await;
    let listener = Listener::default();
    let _listening = stage.world.sockets().listen(SOCKET, listener.routes());
    let admin = stage.world.admin();
    admin.create(kinds::NAMESPACE, json!({ "metadata": { "name": "keys" } })).await.unwrap();
    for name in ["make", "list-exists", "get-exists"] {
        let data =
            json!({ "metadata": { "name": name, "namespace": "keys" }, "data": { "for": STANDARD.encode(name) } });
        admin.create(kinds::SECRET, data).await.unwrap();
    }
    let classes = [
        (kinds::VOLUME_SNAPSHOT_CLASS, "snapshotter-list", "list-${volumesnapshotcontent.name}"),
        (kinds::VOLUME_GROUP_SNAPSHOT_CLASS, "group-snapshotter-get", "get-${volumegroupsnapshotcontent.name}"),
    ];
    for (kind, used, template) in classes {
        let parameters = json!({
            "pool": "a",
            "csi.storage.k8s.io/snapshotter-secret-name": "make",
            "csi.storage.k8s.io/snapshotter-secret-namespace": "keys",
            format!("csi.storage.k8s.io/{used}-secret-name"): template,
            format!("csi.storage.k8s.io/{used}-secret-namespace"): "keys",
        });
        let class = json!({
            "metadata": { "name": "secret" }, "driver": DRIVER, "deletionPolicy": "Delete", "parameters": parameters,
        });
        admin.create(kind, class).await.unwrap();
    }
    let names = Names { prefix: "s".into(), uuid_length: Some(3) };
    let options = Options { extra_create_metadata: true, snapshots: names.clone(), groups: names, ..options() };
    in_world(&stage, options, async {
        stage
            .make(|content| {
                content["metadata"]["annotations"] = json!({
                    annotations::SNAPSHOT_SECRET_NAME: "make", annotations::SNAPSHOT_SECRET_NAMESPACE: "keys",
                });
                content["spec"]["volumeSnapshotClassName"] = json!("secret");
                content["spec"]["volumeSnapshotRef"]["uid"] = json!("ab-cd");
            })
            .await;
        stage.until_ready().await;
        stage.let_go(CONTENT, NAME).await;
        stage.until("gone", || stage.content().is_null()).await;
        stage
            .make(|content| {
                content["metadata"]["name"] = json!("exists");
                content["spec"]["volumeSnapshotClassName"] = json!("secret");
                content["spec"]["source"] = json!({ "snapshotHandle": "snap-9" });
            })
            .await;
        let is_ready = |kind, name| stage.world.admin().get_raw(kind, &Key::cluster(name)).unwrap()["status"]["readyToUse"] == true;
        stage.until("listed", || is_ready(CONTENT, "exists")).await;
        stage
            .make_group(|content| {
                content["metadata"]["annotations"] = json!({
                    annotations::GROUP_SNAPSHOT_SECRET_NAME: "make", annotations::GROUP_SNAPSHOT_SECRET_NAMESPACE: "keys",
                });
                content["spec"]["volumeGroupSnapshotClassName"] = json!("secret");
                content["spec"]["volumeGroupSnapshotRef"]["uid"] = json!("ab-cd");
            })
            .await;
        stage.until("the group", || is_ready(GROUP_CONTENT, GROUP)).await;
        stage.let_go(GROUP_CONTENT, GROUP).await;
        stage.until("gone", || stage.group().is_null()).await;
        stage
            .make_group(|content| {
                content["metadata"]["name"] = json!("exists");
                content["spec"]["volumeGroupSnapshotClassName"] = json!("secret");
                let handles = json!({ "volumeGroupSnapshotHandle": "group-9", "volumeSnapshotHandles": ["m1", "m2"] });
                content["spec"]["source"] = json!({ "groupSnapshotHandles": handles });
            })
            .await;
        stage.until("looked at", || is_ready(GROUP_CONTENT, "exists")).await;
    })
    .await;
    let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    };
    let heard = Heard {
        create: vec![CreateSnapshotRequest {
            source_volume_id: stage.volumes[0].clone(),
            name: "s-abc".into(),
            secrets: map(&[("for", "make")]),
            parameters: map(&[
                ("pool", "a"),
                ("csi.storage.k8s.io/volumesnapshot/name", "monday"),
                ("csi.storage.k8s.io/volumesnapshot/namespace", "shop"),
                ("csi.storage.k8s.io/volumesnapshotcontent/name", NAME),
            ]),
        }],
        delete: vec![DeleteSnapshotRequest { snapshot_id: "snap-1".into(), secrets: map(&[("for", "make")]) }],
        list: vec![ListSnapshotsRequest {
            max_entries: 0,
            starting_token: String::new(),
            source_volume_id: String::new(),
            snapshot_id: "snap-9".into(),
            secrets: map(&[("for", "list-exists")]),
        }],
        create_group: vec![CreateVolumeGroupSnapshotRequest {
            name: "s-abc".into(),
            source_volume_ids: stage.volumes.clone(),
            secrets: map(&[("for", "make")]),
            parameters: map(&[
                ("pool", "a"),
                ("csi.storage.k8s.io/volumegroupsnapshot/name", "monday"),
                ("csi.storage.k8s.io/volumegroupsnapshot/namespace", "shop"),
                ("csi.storage.k8s.io/volumegroupsnapshotcontent/name", GROUP),
            ]),
        }],
        delete_group: vec![DeleteVolumeGroupSnapshotRequest {
            group_snapshot_id: "group-1".into(),
            snapshot_ids: vec!["m1".into(), "m2".into()],
            secrets: map(&[("for", "make")]),
        }],
        get_group: vec![GetVolumeGroupSnapshotRequest {
            group_snapshot_id: "group-9".into(),
            snapshot_ids: vec!["m1".into(), "m2".into()],
            secrets: map(&[("for", "get-exists")]),
        }],
    };
    assert_eq!(listener.heard(), heard);
}

/// The rows of docs/rights.md are what the original's role gives at most.
#[tokio::test(start_paused = true)]
async fn no_right_is_used_that_the_page_of_rights_does_not_name() {
    let stage = Stage::set().await;
    stage.world.driver().script("CreateSnapshot", [Step::fail(Code::Aborted, "later")]);
    in_world(&stage, options(), play(&stage)).await;
    let page = include_str!("../../../docs/rights.md");
    for (service, right) in stage.world.trace().rights() {
        if service == "snapshotter" {
            let row = page.lines().find(|line| line.starts_with(&format!("| snapshotter | {} |", right.resource)));
            let row = row.unwrap_or_else(|| panic!("no row for {right:?}"));
            assert!(row.split([' ', '|']).any(|verb| verb == right.verb), "{right:?} in {row}");
        }
    }
}
