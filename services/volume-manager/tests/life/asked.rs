//! What programs of the machine are told of pods: at once where nothing more can come of it, and over the socket.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::net::UnixStream;

use stowage_model::Claim;
use stowage_model::object::Key;
use stowage_model::pod::Pod;
use stowage_mount::{Hold, Holder, MountOptions};
use stowage_runtime::api::Part;
use volume_manager::api::{self, Error, PATIENCE, RUN_LABEL};

use crate::stage::{Cluster, POD, Stage, UNIQUE, unattached, within};

async fn wait(stage: &Stage, pod: &str) -> Result<(), Error> {
    let uid = stage.uid_of(pod).await;
    stage.manager().await.wait_for_attach_and_mount(&uid, PATIENCE).await
}

/// It was waited for during two minutes, and then said to be on its way.
#[tokio::test(start_paused = true)]
async fn waiting_for_a_volume_that_is_refused_ends_at_once_and_says_why() {
    for (source, cause) in [
        (json!({ "gitRepo": { "repository": "x" } }), "gitRepo is disabled"),
        (json!({ "iscsi": { "targetPortal": "p", "iqn": "i", "lun": 0 } }), "iscsi is not mounted by this node"),
        (json!({ "fc": { "targetWWNs": ["w"], "lun": 0 } }), "fc is not mounted by this node"),
    ] {
        let stage = Stage::set().await;
        let _node = stage.start();
        let mut volume = source;
        volume["name"] = "data".into();
        stage.create_pod_with(POD, json!([volume])).await;
        let Err(Error::Missing(missing)) = wait(&stage, POD).await else { panic!("{cause}: it is there") };
        assert!(missing[0].is_final && missing[0].cause.contains(cause), "{missing:?}");
        assert_eq!(stage.elapsed(), Duration::ZERO);
    }
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_pod_that_is_over_ends_at_once() {
    let stage = Stage::set().await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    let failed = json!({ "status": { "phase": "Failed", "reason": "Evicted" } });
    stage.patch::<Pod>(POD, Part::Status, failed).await;
    let error = wait(&stage, POD).await.unwrap_err();
    assert!(error.to_string().contains("Failed (Evicted)"), "{error}");
    assert_eq!(stage.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn s74_waiting_for_a_claim_that_is_missing_or_not_bound_ends_in_a_moment() {
    let stage = Stage::set().await;
    let _node = stage.start();
    let missing = json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "other" } }]);
    stage.create_pod_with("first", missing).await;
    let error = wait(&stage, "first").await.unwrap_err();
    assert!(error.to_string().contains("claim other does not exist"), "{error}");
    stage.patch::<Claim>("claim", Part::Main, json!({ "metadata": { "annotations": null } })).await;
    stage.create_pod("second").await;
    let error = wait(&stage, "second").await.unwrap_err();
    assert!(error.to_string().contains("claim claim is not bound yet"), "{error}");
    assert!(stage.elapsed() < Duration::from_secs(5), "{:?}", stage.elapsed());
}

/// A driver's final answer says that nothing is mounted; the next may be better.
#[tokio::test(start_paused = true)]
async fn a_driver_that_refuses_once_is_waited_for() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    stage.driver.fail("stage", tonic::Status::invalid_argument("no"));
    let _node = stage.start();
    stage.create_pod(POD).await;
    within(wait(&stage, POD)).await.unwrap();
    assert_eq!(stage.driver.calls(), ["stage", "stage", "publish"]);
}

/// The socket of a running service, and requests to it.
struct Socket<'a> {
    stage: &'a Stage,
    served: tokio::task::JoinHandle<()>,
}

impl Drop for Socket<'_> {
    fn drop(&mut self) {
        self.served.abort();
    }
}

impl<'a> Socket<'a> {
    async fn of(stage: &'a Stage) -> Self {
        let (manager, path) = (stage.manager().await, stage.root().join("asked.sock"));
        let served = tokio::spawn(async move { api::serve(manager, &path).await.unwrap() });
        while UnixStream::connect(stage.root().join("asked.sock")).await.is_err() {
            tokio::task::yield_now().await;
        }
        Self { stage, served }
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let stream = UnixStream::connect(self.stage.root().join("asked.sock")).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let answered = async {
            let request = http::Request::get(path).header("host", "node").body(Empty::<Bytes>::new()).unwrap();
            let response = sender.send_request(request).await.unwrap();
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.unwrap().to_bytes();
            (status, serde_json::from_slice(&body).unwrap_or_default())
        };
        tokio::select! {
            biased;
            answer = answered => answer,
            _ = connection => panic!("the connection ended"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_socket_answers_for_pods_and_volumes_and_does_not_know_what_it_does_not_know() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.create_pod_with("refused", json!([{ "name": "data", "gitRepo": { "repository": "x" } }])).await;
    let (pod, refused) = (stage.uid_of(POD).await, stage.uid_of("refused").await);
    let socket = Socket::of(&stage).await;

    let (status, body) = socket.get(&format!("/v1/pods/{pod}/wait")).await;
    assert_eq!((status, &body["mounted"]), (200, &json!([UNIQUE])), "{body}");
    assert_eq!(socket.get(&format!("/v1/pods/{pod}/volumes")).await.0, 200);
    let (status, body) = socket.get(&format!("/v1/pods/{refused}/wait")).await;
    assert_eq!((status, &body["missing"][0]["isFinal"]), (409, &json!(true)), "{body}");
    let (status, body) = socket.get("/v1/pods/nobody/volumes").await;
    assert_eq!(status, 404, "{body}");
    assert_eq!(socket.get("/v1/pods/nobody/wait?seconds=0").await.0, 404);
    assert_eq!(socket.get("/v1/pods/nobody/wait?seconds=soon").await.0, 400);

    let name = UNIQUE.replace('^', "%5E");
    for path in [name.clone(), name.replace('/', "%2F")] {
        let (status, body) = socket.get(&format!("/v1/volumes/{path}")).await;
        assert_eq!((status, &body["operationPending"]), (200, &json!(false)), "{body}");
    }
    let (status, body) = socket.get(&format!("/v1/pods/{pod}/waitUnmount?seconds=0")).await;
    assert_eq!(status, 504, "{body}");
    stage.delete_pod(POD).await;
    assert_eq!(socket.get(&format!("/v1/pods/{pod}/waitUnmount")).await.0, 200);
}

/// Any pod was deleted by whoever asked for it and went away.
#[tokio::test(start_paused = true)]
async fn only_a_pod_that_stands_for_a_process_goes_with_who_holds_it() {
    let stage = Stage::set_in(unattached(json!({}))).await;
    let _node = stage.start();
    let held = stage.manager().await.hold(Key::namespaced("default", "run"));
    stage.create_labelled_pod("run", json!({ RUN_LABEL: "x" })).await;
    stage.create_pod(POD).await;
    let socket = Socket::of(&stage).await;
    for pod in [POD, "run"] {
        let path = format!("/v1/pods/default/{pod}/hold");
        let stream = UnixStream::connect(stage.root().join("asked.sock")).await.unwrap();
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
        let connection = tokio::spawn(async move { drop(connection.await) });
        let request = http::Request::get(path).header("host", "node").body(Empty::<Bytes>::new()).unwrap();
        let mut answer = sender.send_request(request).await.unwrap().into_body();
        within(async {
            while let Some(Ok(frame)) = answer.frame().await {
                if String::from_utf8_lossy(frame.data_ref().unwrap()).contains("ready") {
                    break;
                }
            }
        })
        .await;
        connection.abort();
    }
    drop((held, socket));
    stage.server_has_no_pod("run").await;
    stage.settle().await;
    assert!(!stage.get::<Pod>(POD).await.meta.is_deleting());
}

/// A busy target was told as a bare error number.
#[tokio::test(start_paused = true)]
async fn who_waits_for_an_unmount_that_fails_is_told_who_holds_the_volume() {
    let stage = Stage::set_in(Cluster { in_memory: true, ..unattached(json!({})) }).await;
    let _node = stage.start();
    stage.create_pod(POD).await;
    stage.pod_is_running(POD).await;
    let (manager, uid) = (stage.manager().await, stage.uid(POD));
    let target = stage.volume_dir(POD, "pv").join("mount");
    let editor = Holder { pid: 7, name: "editor".into(), how: Hold::WorkingDirectory };
    stage.memory.with(|tree| {
        tree.mount("vol-1", &target, "ext4", &MountOptions::default()).unwrap();
        tree.hold(&target, editor);
    });
    stage.driver.fail("unpublish", tonic::Status::internal("target is busy"));
    stage.delete_pod(POD).await;
    within(stage.driver.called(3)).await;
    stage.settle().await;
    let error = manager.wait_for_unmount(&uid, Duration::ZERO).await.unwrap_err().to_string();
    assert!(error.contains("target is busy") && error.contains("editor"), "{error}");
    stage.memory.with(|tree| tree.unmount_lazily(&target)).unwrap();
    within(manager.wait_for_unmount(&uid, PATIENCE)).await.unwrap();
}
