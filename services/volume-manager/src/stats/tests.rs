use serde_json::json;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

use stowage_csi::Channel;
use stowage_csi::v1::node_server::{Node, NodeServer};
use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_csi::v1::volume_usage::Unit;
use stowage_csi::v1::{NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage};
use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::NodeVolume;

use super::*;
use crate::actual_state::MountedVolume;
use crate::controller::Controller;
use crate::controller::tests::controller;
use crate::decide::tests::{driver, mounted, pod};
use crate::drivers::{Driver, DriverInfo, Plugin};

/// Answers for every volume but `hung`.
struct Answering;

#[tonic::async_trait]
impl Node for Answering {
    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        let request = request.into_inner();
        match request.volume_id.as_str() {
            "hung" => std::future::pending().await,
            "lost" => return Err(Status::not_found("no such volume")),
            _ => {}
        }
        assert!(request.volume_path.contains("/pods/"), "{request:?}");
        let bytes = VolumeUsage { unit: Unit::Bytes.into(), total: 100, used: 30, available: 70 };
        let inodes = VolumeUsage { unit: Unit::Inodes.into(), total: 9, used: 2, available: 7 };
        let condition = VolumeCondition { abnormal: true, message: "the disk hums".into() };
        Ok(Response::new(NodeGetVolumeStatsResponse { usage: vec![bytes, inodes], volume_condition: Some(condition) }))
    }
}

fn spec(handle: &str, claim: &str) -> Arc<VolumeSpec> {
    let object = json!({
        "metadata": { "name": handle },
        "spec": {
            "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" }, "volumeMode": "Filesystem",
            "csi": { "driver": "driver", "volumeHandle": handle },
        },
    });
    let volume: NodeVolume = serde_json::from_value(object).unwrap();
    Arc::new(VolumeSpec::persistent(&volume, Key::namespaced("default", claim), false).unwrap())
}

/// Mounts a claim's volume for a pod that is there.
fn mount(controller: &Controller, uid: &str, handle: &str, claim: &str) {
    controller.caches.pods.observe_shared(pod(uid, json!({ "status": { "phase": "Running" } })));
    let name: UniqueVolumeName = format!("kubernetes.io/csi/driver^{handle}").into();
    let is = MountedVolume { spec: spec(handle, claim), ..mounted(MountState::Mounted) };
    controller.state.with(|states| states.actual.set_pod(&name, &spec(handle, claim), uid, Some(is)));
}

async fn asker(capabilities: &[Capability]) -> (Controller, Asker) {
    let controller = controller().await;
    let info = DriverInfo { capabilities: capabilities.iter().copied().collect(), ..driver() };
    let channel = Channel::in_process(Routes::new(NodeServer::new(Answering)));
    let registered = Some(Driver { info, channel });
    controller.state.with_drivers(|drivers| {
        drivers.plugins.insert("/socket".into(), Plugin { registered, ..Plugin::default() });
    });
    let asker = Asker::new(
        controller.host.clone(),
        Arc::clone(&controller.plugins),
        controller.caches.pods.clone(),
        Arc::clone(&controller.state),
        controller.metrics.usages.clone(),
        Duration::from_secs(60),
    );
    (controller, asker)
}

fn figure(controller: &Controller, claim: &str) -> Option<i64> {
    let text = controller.context.metrics.encode();
    let line = format!(r#"kubelet_volume_stats_used_bytes{{namespace="default",persistentvolumeclaim="{claim}"}} "#);
    text.lines().find_map(|shown| shown.strip_prefix(&line)?.parse().ok())
}

#[tokio::test(start_paused = true)]
async fn one_driver_that_does_not_answer_for_a_volume_keeps_no_other_from_being_told() {
    let (controller, mut asker) = asker(&[Capability::GetVolumeStats, Capability::VolumeCondition]).await;
    mount(&controller, "p", "well", "a");
    mount(&controller, "q", "hung", "b");
    mount(&controller, "r", "lost", "c");
    let begin = tokio::time::Instant::now();
    asker.round().await;
    assert!(begin.elapsed() <= Duration::from_secs(61), "a round takes no longer than a period");
    assert_eq!([figure(&controller, "a"), figure(&controller, "b"), figure(&controller, "c")], [Some(30), None, None]);
    assert_eq!(asker.told, BTreeMap::from([(Key::namespaced("default", "a"), "the disk hums".to_owned())]));
    let text = controller.context.metrics.encode();
    assert!(text.contains(r#"collection_duration_seconds_count{metric_source="driver"} 1"#), "{text}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_of_two_pods_is_asked_once_and_one_of_a_pod_that_has_ended_not_at_all() {
    let (controller, mut asker) = asker(&[Capability::GetVolumeStats]).await;
    mount(&controller, "p", "well", "a");
    mount(&controller, "q", "well", "a");
    mount(&controller, "r", "other", "b");
    controller.caches.pods.observe_shared(pod(
        "r",
        json!({
            "metadata": { "resourceVersion": "8" }, "status": { "phase": "Succeeded" },
        }),
    ));
    assert_eq!(asker.questions().len(), 1);
    asker.round().await;
    assert_eq!(figure(&controller, "b"), None);
    assert!(asker.told.is_empty(), "a condition counts only from a driver that says it has them");
}

/// In real time: a file system is asked in a thread of its own, for which the paused clock would not wait.
#[tokio::test]
async fn a_driver_without_figures_leaves_that_to_the_file_system() {
    let (controller, mut asker) = asker(&[]).await;
    let root = tempfile::tempdir().unwrap();
    asker.host.layout = stowage_plugins::Layout::new(root.path());
    mount(&controller, "p", "well", "a");
    asker.round().await;
    assert_eq!(figure(&controller, "a"), None, "nothing is there");
    let path = &asker.questions()[0].path;
    std::fs::create_dir_all(path).unwrap();
    asker.round().await;
    assert!(figure(&controller, "a").is_some_and(|used| used > 0));
}

#[test]
fn s91_what_is_wrong_with_a_volume_is_told_once_and_so_is_its_end() {
    let (mut told, claim) = (BTreeMap::new(), Key::namespaced("default", "a"));
    let is = |abnormal, message: &str| Condition { abnormal, message: message.into() };
    let mut reason = |condition: Option<Condition>| {
        news(&mut told, &claim, condition.as_ref()).map(|note| (note.reason, note.message))
    };
    assert_eq!(reason(Some(is(false, "fine"))), None);
    let (first, message) = reason(Some(is(true, "the disk hums"))).unwrap();
    assert_eq!((first, message.contains("the disk hums")), ("VolumeConditionAbnormal", true));
    assert_eq!(reason(Some(is(true, "the disk hums"))), None);
    assert!(reason(Some(is(true, "the disk screams"))).is_some());
    assert_eq!(reason(None).unwrap().0, "VolumeConditionNormal");
    assert_eq!(reason(None), None);
}

#[tokio::test(start_paused = true)]
async fn s91_a_condition_that_cannot_be_asked_for_stays_what_it_was_and_one_that_is_not_offered_is_none() {
    let (controller, mut asker) = asker(&[Capability::GetVolumeStats, Capability::VolumeCondition]).await;
    mount(&controller, "p", "well", "a");
    asker.round().await;
    let told = BTreeMap::from([(Key::namespaced("default", "a"), "the disk hums".to_owned())]);
    assert_eq!(asker.told, told);
    mount(&controller, "p", "lost", "a");
    let well: UniqueVolumeName = "kubernetes.io/csi/driver^well".into();
    controller.state.with(|states| states.actual.set_pod(&well, &spec("well", "a"), "p", None));
    asker.round().await;
    assert_eq!(asker.told, told, "an error of the call says nothing of the volume");
    controller.state.with_drivers(|drivers| {
        let driver = drivers.plugins.get_mut("/socket").unwrap().registered.as_mut().unwrap();
        driver.info.capabilities = [Capability::GetVolumeStats].into();
    });
    mount(&controller, "p", "well", "a");
    let lost: UniqueVolumeName = "kubernetes.io/csi/driver^lost".into();
    controller.state.with(|states| states.actual.set_pod(&lost, &spec("lost", "a"), "p", None));
    asker.round().await;
    assert!(asker.told.is_empty(), "{:?}", asker.told);
}

#[tokio::test(start_paused = true)]
async fn s122_a_driver_without_figures_says_so_for_good_and_one_that_is_away_for_now() {
    let (controller, asker) = asker(&[]).await;
    let (plugin, path) = (controller.plugins.by_spec(&spec("well", "a")).unwrap(), std::path::Path::new("/pods/p"));
    let metrics = plugin.metrics().unwrap();
    let fault = metrics.stats(&asker.host, &spec("well", "a"), path).await.unwrap_err();
    assert_eq!((fault.certainty, fault.outcome), (Certainty::Final, None), "{fault}");
    controller.state.with_drivers(|drivers| drivers.plugins.clear());
    let fault = metrics.stats(&asker.host, &spec("well", "a"), path).await.unwrap_err();
    assert_eq!(fault.certainty, Certainty::Transient, "{fault}");
}
