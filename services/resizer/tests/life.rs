//! The resizer against the embedded API server and the driver in memory: one thread, virtual time, no sockets.
//! Sections 4.2 to 4.7 of reference/sidecars-and-csi.md.
#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "life/classes.rs"]
mod classes;
#[path = "life/stage.rs"]
mod stage;

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tonic::Code;

use resizer::{Gates, Options};
use stowage_csi::UnixConnector;
use stowage_csi::server::{Socket, SocketMode};
use stowage_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode};
use stowage_csi::v1::{CapacityRange, ControllerExpandVolumeRequest, ControllerModifyVolumeRequest, VolumeCapability};
use stowage_model::annotations::{
    MODIFY_SECRET_NAME, MODIFY_SECRET_NAMESPACE, NODE_EXPANSION_NOT_REQUIRED, PRE_RESIZE_CAPACITY,
};
use stowage_model::object::{Key, kinds};
use stowage_runtime::Context;
use stowage_testing::driver::{Abilities, Growth, LARGEST, Step};
use stowage_testing::{Changes, Driver, Fault, Mode as Way};

use stage::{GI, Stage, claim_key, in_world, options};

const FOR_NODE: Growth = Growth { for_node: true, offline_only: false, lies: None };

#[tokio::test(start_paused = true)]
async fn an_expansion_costs_three_writes_and_no_time() {
    let stage = Stage::set().await;
    in_world(&stage, options(), async {
        stage.ask_for("5Gi").await;
        stage.until_capacity("5Gi").await;
        stage.world.settle().await;
        assert_eq!(stage.acts(), ["claim", "ControllerExpandVolume", "volume", "claim"]);
        let claim = stage.claim();
        assert_eq!(claim["metadata"]["annotations"][NODE_EXPANSION_NOT_REQUIRED], "true");
        assert_eq!(claim["status"]["allocatedResources"]["storage"], "5Gi");
        assert_eq!((stage.resize_status(), stage.conditions()), (String::new(), Vec::new()));
        let volume = stage.volume();
        assert_eq!(volume["spec"]["capacity"]["storage"], "5Gi");
        assert_eq!(volume["metadata"]["annotations"]["other.example/newer"], "kept");
        assert!(volume["metadata"]["annotations"][PRE_RESIZE_CAPACITY].is_null());
    })
    .await;
    assert_eq!(stage.world.driver().snapshot().volumes[&stage.handle].bytes, 5 * GI);
    assert_eq!(stage.world.elapsed(), Duration::from_millis(1), "only the one look of the test itself");
    assert_eq!(stage.reasons().len(), 2);
    let numbers = &stage.world.numbers()["resizer"];
    assert_eq!(numbers.missed_wakeups, 0);
}

#[tokio::test(start_paused = true)]
async fn an_expansion_of_what_was_an_in_tree_plugins_is_counted_as_migrated_and_queues_have_the_drivers_name() {
    const EBS: &str = "ebs.csi.aws.com";
    let stage = Stage::set().await;
    let (admin, driver) = (stage.world.admin(), Driver::new(EBS, Changes::default()));
    driver.enable(Abilities::default());
    driver.grow(Growth::default());
    let _listening = stage.world.sockets().listen("/ebs.sock", driver.routes("b", stage.world.node("b")));
    let claim = json!({
        "metadata": {
            "namespace": "shop", "name": "old", "annotations": { "volume.kubernetes.io/storage-resizer": EBS },
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "storageClassName": "fast", "volumeName": "old",
            "resources": { "requests": { "storage": "1Gi" } },
        },
    });
    let made = admin.create(kinds::CLAIM, claim).await.unwrap();
    let volume = json!({
        "metadata": { "name": "old" },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "fast",
            "claimRef": { "namespace": "shop", "name": "old", "uid": made["metadata"]["uid"] },
            "awsElasticBlockStore": { "volumeID": "vol-1" },
        },
    });
    admin.create(kinds::VOLUME, volume).await.unwrap();
    let key = Key::namespaced("shop", "old");
    let status = json!({ "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } } });
    admin.patch(kinds::CLAIM, &key, "/status", &status).await.unwrap();
    let larger = json!({ "spec": { "resources": { "requests": { "storage": "2Gi" } } } });
    admin.patch(kinds::CLAIM, &key, "", &larger).await.unwrap();
    let mut options = options();
    options.driver.csi_address = "/ebs.sock".into();
    let life = stage.world.life("resizer");
    let metrics = &life.context.metrics;
    // The driver does not know the volume; the call counts all the same.
    let is_counted = |line: &str| line.contains("ControllerExpandVolume") && line.contains("migrated=\"true\"");
    tokio::select! {
        biased;
        ended = resizer::run(life.context.clone(), options) => panic!("{ended:?}"),
        () = stage.until("the call", || metrics.encode().lines().any(is_counted)) => {}
    }
    assert!(metrics.encode().contains("workqueue_depth{name=\"ebs.csi.aws.com-pvc\"}"), "{}", metrics.encode());
}

#[tokio::test(start_paused = true)]
async fn the_request_is_the_originals_field_by_field() {
    let stage = Stage::set().await;
    in_world(&stage, options(), async {
        stage.ask_for("2500M").await;
        stage.until("expanded", || stage.world.driver().snapshot().count("ControllerExpandVolume") == 1).await;
    })
    .await;
    let mount = MountVolume { fs_type: "ext4".into(), mount_flags: vec!["noatime".into()], ..MountVolume::default() };
    let expected = ControllerExpandVolumeRequest {
        volume_id: stage.handle.clone(),
        capacity_range: Some(CapacityRange { required_bytes: 2_500_000_000, limit_bytes: 0 }),
        secrets: [("password".to_owned(), "p".to_owned())].into(),
        volume_capability: Some(VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            access_type: Some(AccessType::Mount(mount)),
        }),
    };
    assert_eq!(stage.world.driver().snapshot().expansions, [expected]);
}

#[tokio::test(start_paused = true)]
async fn the_node_is_handed_its_part_and_the_volumes_note_goes_after_it() {
    let stage = Stage::with(Abilities::default(), FOR_NODE).await;
    in_world(&stage, options(), async {
        stage.ask_for("5Gi").await;
        stage.until_status("NodeResizePending").await;
        assert_eq!(stage.conditions(), ["Resizing", "FileSystemResizePending"]);
        assert_eq!(stage.claim()["status"]["capacity"]["storage"], "1Gi");
        assert_eq!(stage.volume()["metadata"]["annotations"][PRE_RESIZE_CAPACITY], "1Gi");
        // Nothing more until the node has done it, also when the user asks for more meanwhile.
        stage.ask_for("9Gi").await;
        stage.world.settle().await;
        assert_eq!(stage.world.driver().snapshot().count("ControllerExpandVolume"), 1);
        stage.grow_on_node("5Gi").await;
        stage.until_status("NodeResizePending").await;
        stage.grow_on_node("9Gi").await;
        stage.until("no note", || stage.volume()["metadata"]["annotations"][PRE_RESIZE_CAPACITY].is_null()).await;
        assert_eq!(stage.volume()["spec"]["capacity"]["storage"], "9Gi");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_impossible_request_is_tried_once_and_seldom_and_can_be_taken_back() {
    let stage = Stage::set().await;
    in_world(&stage, options(), async {
        stage.ask_for(&(LARGEST + 1).to_string()).await;
        stage.until_status("ControllerResizeInfeasible").await;
        assert_eq!(stage.conditions(), ["Resizing", "ControllerResizeError"]);
        tokio::time::sleep(Duration::from_secs(299)).await;
        assert_eq!(stage.world.driver().snapshot().count("ControllerExpandVolume"), 1);
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(stage.world.driver().snapshot().count("ControllerExpandVolume"), 2);
        stage.until_status("ControllerResizeInfeasible").await;
        let before = stage.world.elapsed();
        stage.ask_for("2Gi").await;
        stage.until_capacity("2Gi").await;
        assert_eq!(stage.world.elapsed(), before, "at once");
        assert!(stage.conditions().is_empty());
        stage.world.settle().await;
    })
    .await;
    let reasons = stage.reasons();
    for reason in ["Resizing", "VolumeResizeFailed", "VolumeResizeSuccessful"] {
        assert!(reasons.contains(&reason.to_owned()), "{reasons:?}");
    }
}

/// external-resizer#474, #392: success after success only, and nothing for a conflict.
#[tokio::test(start_paused = true)]
async fn a_conflict_is_nobodys_business_and_a_success_is_said_once() {
    let stage = Stage::set().await;
    in_world(&stage, options(), async {
        stage.world.driver().script("ControllerExpandVolume", [Step::Slow(Duration::from_secs(5))]);
        stage.ask_for("5Gi").await;
        stage.until_status("ControllerResizeInProgress").await;
        // Somebody else writes both objects while the call is under way.
        let label = json!({ "metadata": { "labels": { "a": "b" } } });
        let unused = json!([{ "type": "Unused", "status": "True", "newer": "field" }]);
        stage.world.admin().patch(kinds::CLAIM, &claim_key(), "", &label).await.unwrap();
        stage.world.admin().patch(kinds::VOLUME, &Key::cluster("pv"), "", &label).await.unwrap();
        let list = stage.claim()["status"]["conditions"].as_array().unwrap().clone();
        let list: Vec<_> = list.into_iter().chain(unused.as_array().unwrap().clone()).collect();
        stage.status(json!({ "conditions": list })).await;
        stage.until_capacity("5Gi").await;
        assert_eq!(stage.conditions(), ["Unused"], "not ours, and kept");
        assert_eq!(stage.claim()["metadata"]["labels"]["a"], "b");
        stage.world.settle().await;
    })
    .await;
    let mut reasons = stage.reasons();
    reasons.sort();
    assert_eq!(reasons, ["Resizing", "VolumeResizeSuccessful"]);
}

/// Section 1.8, column "resizer expand", over the wire.
#[tokio::test(start_paused = true)]
async fn every_code_of_an_expansion_leads_to_its_state_and_then_to_the_size() {
    for number in 1..=16 {
        let code = Code::from_i32(number);
        let stage = Stage::set().await;
        stage.world.driver().script("ControllerExpandVolume", [Step::fail(code, "no")]);
        in_world(&stage, options(), async {
            stage.ask_for("5Gi").await;
            let told = || stage.reasons().contains(&"VolumeResizeFailed".to_owned());
            stage.until("told", told).await;
            stage.world.settle().await;
            let (status, conditions, wait) = match code {
                Code::InvalidArgument | Code::OutOfRange | Code::NotFound => ("ControllerResizeInfeasible", 2, 300),
                Code::Cancelled
                | Code::DeadlineExceeded
                | Code::Unavailable
                | Code::Aborted
                | Code::ResourceExhausted => ("ControllerResizeInProgress", 1, 1),
                _ => ("ControllerResizeInProgress", 2, 1),
            };
            assert_eq!((stage.resize_status().as_str(), stage.conditions().len()), (status, conditions), "{code:?}");
            assert_eq!(stage.claim()["status"]["capacity"]["storage"], "1Gi", "{code:?}");
            stage.until_capacity("5Gi").await;
            assert!(stage.conditions().is_empty(), "{code:?}");
            let waited = stage.world.elapsed().as_secs();
            assert!((wait..wait + 2).contains(&waited), "{code:?} after {waited} s");
        })
        .await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_lost_is_repeated_until_its_end_is_known() {
    let stage = Stage::set().await;
    stage.world.driver().script("ControllerExpandVolume", [Step::DoneThenHang]);
    in_world(&stage, options(), async {
        stage.ask_for("5Gi").await;
        stage.until_status("ControllerResizeInProgress").await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        stage.ask_for("2Gi").await;
        stage.until_capacity("5Gi").await;
    })
    .await;
    let asked: Vec<i64> = stage
        .world
        .driver()
        .snapshot()
        .expansions
        .iter()
        .map(|request| request.capacity_range.as_ref().unwrap().required_bytes)
        .collect();
    assert_eq!(asked, [5 * GI, 5 * GI], "what may be growing is not given up");
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_answers_less_than_was_asked_for_shrinks_nothing() {
    for lies in [0, GI / 2] {
        let growth = Growth { lies: Some(lies), ..Growth::default() };
        let stage = Stage::with(Abilities::default(), growth).await;
        in_world(&stage, options(), async {
            stage.ask_for("5Gi").await;
            stage.until("shown", || stage.conditions().contains(&"ControllerResizeError".to_owned())).await;
            assert_eq!(stage.volume()["spec"]["capacity"]["storage"], "1Gi");
            assert_eq!(stage.claim()["status"]["capacity"]["storage"], "1Gi");
            stage.world.driver().grow(Growth::default());
            stage.until_capacity("5Gi").await;
        })
        .await;
    }
}

fn sizes_asked_for(stage: &Stage) -> Vec<i64> {
    let asked = stage.world.driver().snapshot().expansions;
    asked.iter().map(|request| request.capacity_range.as_ref().unwrap().required_bytes).collect()
}

/// It used to count as uncertain after a call that was, so that a smaller request was never honoured.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_small_is_the_last_word_also_after_one_that_never_came() {
    let stage = Stage::with(Abilities::default(), Growth { lies: Some(0), ..Growth::default() }).await;
    stage.world.driver().script("ControllerExpandVolume", [Step::Hang]);
    in_world(&stage, options(), async {
        stage.ask_for("5Gi").await;
        stage.until("shown", || stage.conditions().contains(&"ControllerResizeError".to_owned())).await;
        stage.ask_for("2Gi").await;
        stage.until("asked for less", || sizes_asked_for(&stage).contains(&(2 * GI))).await;
    })
    .await;
    assert_eq!(sizes_asked_for(&stage)[..2], [5 * GI, 5 * GI]);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_is_too_small_is_the_last_word_also_after_a_restart() {
    let stage = Stage::with(Abilities::default(), Growth { lies: Some(0), ..Growth::default() }).await;
    in_world(&stage, options(), async {
        stage.ask_for("5Gi").await;
        stage.until("shown", || stage.conditions().contains(&"ControllerResizeError".to_owned())).await;
    })
    .await;
    stage.ask_for("2Gi").await;
    let before = sizes_asked_for(&stage).len();
    in_world(&stage, options(), async {
        stage.until("asked for less", || sizes_asked_for(&stage).len() > before).await;
    })
    .await;
    assert_eq!(sizes_asked_for(&stage)[before..], [2 * GI]);
}

/// The driver used to be asked for it all the same once the call's turn had come.
#[tokio::test(start_paused = true)]
async fn a_size_that_is_taken_back_in_line_is_never_asked_for_and_the_line_is_shown() {
    let stage = Stage::set().await;
    let mut options = options();
    options.driver.workers = 1;
    stage.world.driver().script("ControllerExpandVolume", [Step::Slow(Duration::from_secs(9))]);
    stage.another_claim("first").await;
    let life = stage.world.life("resizer");
    let metrics = life.context.metrics.clone();
    let shown = |line: &str| assert!(metrics.encode().lines().any(|l| l == line), "no {line} in {}", metrics.encode());
    tokio::select! {
        biased;
        ended = resizer::run(life.context.clone(), options) => panic!("{ended:?}"),
        () = async {
            stage.ask_another_for("first", "3Gi").await;
            stage.world.settle().await;
            assert_eq!(sizes_asked_for(&stage), [3 * GI]);
            stage.ask_for("100Gi").await;
            stage.until_status("ControllerResizeInProgress").await;
            tokio::time::sleep(Duration::from_secs(4)).await;
            shown("stowage_resizer_backlog{call=\"expand\"} 1");
            shown("stowage_resizer_backlog_age_seconds{call=\"expand\"} 4.0");
            shown("stowage_resizer_backlog{call=\"modify\"} 0");
            stage.ask_for("2Gi").await;
            stage.until_capacity("2Gi").await;
            shown("stowage_resizer_backlog{call=\"expand\"} 0");
        } => {}
    }
    assert!(!sizes_asked_for(&stage).contains(&(100 * GI)), "{:?}", sizes_asked_for(&stage));
}

/// A claim whose writes are refused used to hang without a word.
#[tokio::test(start_paused = true)]
async fn a_write_that_the_server_refuses_is_told() {
    let stage = Stage::set().await;
    let mut life = stage.world.life("resizer");
    life.forbid("PATCH", "/persistentvolumes/");
    let told = |reason: &str| stage.reasons().iter().filter(|told| *told == reason).count();
    tokio::select! {
        biased;
        ended = resizer::run(life.context.clone(), options()) => panic!("{ended:?}"),
        () = async {
            stage.ask_for("5Gi").await;
            stage.until("told", || told("VolumeResizeFailed") == 1).await;
            tokio::time::sleep(Duration::from_secs(1200)).await;
            assert_eq!(told("VolumeResizeFailed"), 1, "once, however often it is tried");
        } => {}
    }
    let stage = Stage::set().await;
    let mut life = stage.world.life("resizer");
    life.forbid("PATCH", "/persistentvolumes/");
    tokio::select! {
        biased;
        ended = resizer::run(life.context.clone(), options()) => panic!("{ended:?}"),
        () = async {
            stage.ask_for_class("gold").await;
            stage.until("told", || stage.reasons().contains(&"VolumeModifyFailed".to_owned())).await;
        } => {}
    }
}

/// Found by the crash sweep: it was taken for a call that was never sent, so nobody was told, and less was never tried.
#[tokio::test(start_paused = true)]
async fn too_small_an_answer_is_the_drivers_last_word_also_after_a_call_that_was_lost() {
    let stage = Stage::with(Abilities::default(), Growth { lies: Some(GI / 2), ..Growth::default() }).await;
    stage.world.driver().script("ControllerExpandVolume", [Step::Hang]);
    in_world(&stage, options(), async {
        stage.ask_for("5Gi").await;
        stage.until("shown", || stage.conditions().contains(&"ControllerResizeError".to_owned())).await;
        stage.world.driver().grow(Growth::default());
        stage.ask_for("3Gi").await;
        // It had grown to that.
        stage.until_capacity("5Gi").await;
    })
    .await;
    let asked = stage.world.driver().snapshot().expansions;
    let last = asked.last().and_then(|request| request.capacity_range.as_ref()).map(|range| range.required_bytes);
    assert_eq!(last, Some(3 * GI));
}

#[tokio::test(start_paused = true)]
async fn a_volume_in_use_is_expanded_once_its_pod_has_ended_and_no_pod_is_looked_at_before() {
    let offline = Growth { offline_only: true, ..Growth::default() };
    let stage = Stage::with(Abilities::default(), offline).await;
    let pods = || {
        let rights = stage.world.trace().rights();
        rights.iter().any(|(service, right)| service == "resizer" && right.resource == "pods")
    };
    stage.attach().await;
    stage.pod("web").await;
    in_world(&stage, options(), async {
        stage.world.settle().await;
        assert!(!pods(), "pods of the cluster are nobody's business");
        stage.ask_for("5Gi").await;
        stage.until("shown", || stage.conditions().contains(&"ControllerResizeError".to_owned())).await;
        tokio::time::sleep(Duration::from_secs(3600)).await;
        assert!(pods());
        let calls = stage.world.driver().snapshot().count("ControllerExpandVolume");
        assert_eq!(calls, 1, "not while the pod uses it");
        stage.detach().await;
        let before = stage.world.elapsed();
        let ended = json!({ "status": { "phase": "Succeeded" } });
        stage.world.admin().patch(kinds::POD, &Key::namespaced("shop", "web"), "/status", &ended).await.unwrap();
        stage.until_capacity("5Gi").await;
        assert_eq!(stage.world.elapsed(), before, "woken by the pod, not by a timer");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_secret_that_is_missing_is_told_and_waited_for() {
    let stage = Stage::set().await;
    stage.world.admin().delete(kinds::SECRET, &Key::namespaced("shop", "key")).await.unwrap();
    in_world(&stage, options(), async {
        stage.ask_for("5Gi").await;
        stage.until("told", || stage.reasons().contains(&"VolumeResizeFailed".to_owned())).await;
        assert_eq!(stage.world.driver().snapshot().count("ControllerExpandVolume"), 0);
        let secret = json!({ "metadata": { "namespace": "shop", "name": "key" }, "data": { "a": "Yg==" } });
        stage.world.admin().create(kinds::SECRET, secret).await.unwrap();
        stage.until_capacity("5Gi").await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn without_recovery_the_claim_tells_by_conditions_only() {
    let stage = Stage::with(Abilities::default(), FOR_NODE).await;
    let gates = Gates { recover_volume_expansion_failure: false, ..Gates::default() };
    in_world(&stage, Options { gates, ..options() }, async {
        stage.ask_for("5Gi").await;
        stage.until("pending", || stage.conditions() == ["FileSystemResizePending"]).await;
        let status = stage.claim()["status"].clone();
        assert!(status["allocatedResources"].is_null() && status["allocatedResourceStatuses"].is_null());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_can_do_neither_is_refused_with_the_way_out() {
    let stage =
        Stage::with(Abilities { expansion: false, modification: false, ..Abilities::default() }, Growth::default())
            .await;
    let life = stage.world.life("resizer");
    let stop = resizer::run(life.context.clone(), options()).await.unwrap_err().to_string();
    assert!(stop.contains("EXPAND_VOLUME") && stop.contains("remove this sidecar"), "{stop}");
}

/// As the original: a chart that switches the gate off gets no pod that starts again and again.
#[tokio::test(start_paused = true)]
async fn a_driver_that_only_changes_volumes_is_served_with_the_gate_off_and_nothing_is_done() {
    let stage = Stage::with(Abilities { expansion: false, ..Abilities::default() }, Growth::default()).await;
    let gates = Gates { volume_attributes_class: false, ..Gates::default() };
    in_world(&stage, Options { gates, ..options() }, async {
        stage.ask_for_class("gold").await;
        stage.world.settle().await;
        assert!(stage.claim()["status"]["modifyVolumeStatus"].is_null() && stage.reasons().is_empty());
    })
    .await;
}

/// Real sockets and real time: it is their connections that end. No call is made meanwhile.
#[tokio::test]
async fn a_driver_that_comes_back_with_other_nodes_ends_the_service() {
    let stage = Stage::with(Abilities { expansion: false, ..Abilities::default() }, Growth::default()).await;
    let (world, folder) = (&stage.world, tempfile::tempdir().unwrap());
    world.driver().be_local();
    let path = folder.path().join("csi.sock");
    let serve = |node: &str| {
        let socket = Socket::bind(&path, SocketMode::default()).unwrap();
        let routes = world.driver().routes(node, world.node(node));
        tokio::spawn(async move { socket.serve(routes, std::future::pending()).await.unwrap() })
    };
    for in_node_deployment in [false, true] {
        world.driver().grow(Growth::default());
        let first = serve("a");
        let context = Context { csi: Arc::new(UnixConnector), ..world.life("resizer").context };
        // As the resizer will, once it has met the driver.
        context.readiness.handle("resizer");
        let mut options = Options { node: in_node_deployment.then(|| "a".to_owned()), ..options() };
        options.driver.csi_address = path.display().to_string();
        let mut second = None;
        let restarted = async {
            context.readiness.wait().await;
            first.abort();
            drop(first.await);
            if !in_node_deployment {
                world.driver().grow(FOR_NODE);
            }
            second = Some(serve(if in_node_deployment { "b" } else { "a" }));
        };
        let both = async { tokio::join!(resizer::run(context.clone(), options), restarted).0 };
        let ended = tokio::time::timeout(Duration::from_secs(60), both).await.expect("it ends");
        let stop = ended.unwrap_err().to_string();
        assert!(stop.contains("was restarted and has another way to expand volumes or place of this node"), "{stop}");
        let numbers = context.metrics.encode();
        let asked = |method: &str| numbers.contains(&format!("method_name=\"/csi.v1.Node/{method}\""));
        assert_eq!((asked("NodeGetCapabilities"), asked("NodeGetInfo")), (true, in_node_deployment), "{numbers}");
        let second = second.unwrap();
        second.abort();
        drop(second.await);
    }
}

/// 4.7, each write and call in each way, online and for the node.
#[tokio::test(start_paused = true)]
async fn stopped_at_any_write_or_call_it_finds_its_way() {
    let mut swept = 0;
    for growth in [Growth::default(), FOR_NODE] {
        let recording = Stage::with(Abilities::default(), growth).await;
        in_world(&recording, options(), play(&recording, growth)).await;
        let points = recording.world.trace().points().iter().filter(|point| point.service == "resizer").count();
        for number in 1..=points {
            for mode in Way::ALL {
                let stage = Stage::with(Abilities::default(), growth).await;
                let fault = Fault { service: "resizer".into(), number, mode };
                stage.world.arm(fault.clone(), None);
                in_world(&stage, options(), play(&stage, growth)).await;
                assert!(!stage.world.is_armed(), "{fault} was missed");
                swept += 1;
            }
        }
    }
    stowage_testing::tell(&format!("{swept} points swept"));
    assert!(swept > 100, "{swept}");
}

/// A claim grows and gets another class; its size is never more than its device's, and nothing shrinks.
async fn play(stage: &Stage, growth: Growth) {
    stage.ask_for("5Gi").await;
    if growth.for_node {
        stage.until_status("NodeResizePending").await;
        stage.grow_on_node("5Gi").await;
    }
    stage.until_capacity("5Gi").await;
    stage.ask_for_class("gold").await;
    stage.until("gold", || stage.claim()["status"]["currentVolumeAttributesClassName"] == "gold").await;
    stage.until("no note", || stage.volume()["metadata"]["annotations"][PRE_RESIZE_CAPACITY].is_null()).await;
    stage.world.settle().await;
    let state = stage.world.driver().snapshot();
    assert_eq!(state.volumes[&stage.handle].bytes, 5 * GI);
    assert_eq!(state.attributes[&stage.handle]["iops"], "gold");
    assert_eq!(stage.volume()["spec"]["capacity"]["storage"], "5Gi");
    assert!(stage.conditions().is_empty(), "{:?}", stage.conditions());
    assert!(!stage.reasons().contains(&"VolumeModifyCanceled".to_owned()));
}
