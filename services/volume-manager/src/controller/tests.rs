//! Reading is only reading, whatever state pods, plugins and volumes are in.

use std::collections::BTreeSet;

use serde_json::json;
use tonic::service::Routes;

use stowage_csi::Channel;
use stowage_model::names::UniqueVolumeName;
use stowage_model::object::Projection as _;
use stowage_mount::LinuxMounter;
use stowage_runtime::engine::{Controller as _, assert_quiet};
use stowage_runtime::operation::{Ended, Failure};
use stowage_runtime::tasks::Tasks;

use super::*;
use crate::actual_state::MountState;
use crate::decide::tests::{driver, later, mount, mounted, now, pod, spec};
use crate::desired_state::{PodVolumes, Problem};
use crate::drivers::{Driver, Drivers};
use crate::executor::{OperationName, VolumeOperation};

/// A controller that nobody answers, of an empty node.
pub(crate) async fn controller() -> Controller {
    let setup = Setup::new(context(), Tasks::new().spawner());
    let options = Options { node_name: "node".into(), root: "/nonexistent".into(), ..Options::default() };
    Controller::new(&setup, Arc::new(LinuxMounter), options).await.unwrap().0
}

fn context() -> Context {
    let silence = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
    });
    let connector = Arc::new(stowage_csi::UnixConnector);
    Context::real(kube::Client::new(silence, "default"), connector, "node")
}

fn volume(handle: &str) -> UniqueVolumeName {
    format!("kubernetes.io/csi/driver^{handle}").into()
}

fn populate_caches(caches: &Caches) {
    let attached = ["mounted", "waiting"].map(|handle| json!({ "name": volume(handle), "devicePath": "" }));
    let in_use = ["mounted", "waiting", "leaving"].map(volume);
    let node = json!({
        "metadata": { "name": "node", "uid": "node-uid", "resourceVersion": "7" },
        "status": { "volumesAttached": attached, "volumesInUse": in_use },
    });
    caches.nodes.observe(serde_json::from_value(node).unwrap());
    let csi_driver = json!({
        "metadata": { "name": "local", "uid": "c", "resourceVersion": "7" }, "spec": { "attachRequired": false },
    });
    caches.csi_drivers.observe(serde_json::from_value(csi_driver).unwrap());
    let deleting = json!({ "metadata": { "deletionTimestamp": "2023-11-14T22:13:20Z" } });
    for (uid, rest) in [
        ("mounted", json!({ "status": { "phase": "Running" } })),
        ("waiting", json!({})),
        ("without-driver", json!({})),
        ("unsupported", json!({})),
        ("unresolved", json!({})),
        ("leaving", deleting.clone()),
        ("unmounted", deleting),
        ("finished", json!({ "status": { "phase": "Succeeded" } })),
        ("unanswered", json!({})),
    ] {
        caches.pods.observe_shared(pod(uid, rest));
    }
    caches.pods.mark_unknown(&pod("unanswered", json!({})).key());
}

fn populate_drivers(drivers: &mut Drivers) {
    let found = |info| Driver { info, channel: Channel::in_process(Routes::default()) };
    for socket in ["/new", "/greeted", "/twin", "/registered", "/refused"] {
        drivers.socket_appeared(socket);
    }
    let greeted = |name: &str| Some(found(crate::drivers::DriverInfo { name: name.into(), ..driver() }));
    drivers.plugins.get_mut("/greeted").unwrap().greeted = greeted("other");
    drivers.plugins.get_mut("/twin").unwrap().greeted = greeted("driver");
    drivers.plugins.get_mut("/registered").unwrap().registered = Some(found(driver()));
    drivers.plugins.get_mut("/registered").unwrap().notified = true;
    drivers.plugins.get_mut("/refused").unwrap().refused = Some("no".into());
    drivers.dismissed.insert("former".into());
}

fn populate_states(states: &mut States) {
    for uid in ["mounted", "waiting", "leaving", "unanswered", "gone", "without-driver"] {
        let volumes = PodVolumes { volumes: [(volume(uid), mount())].into(), problems: Vec::new() };
        states.desired.set(uid, volumes, now());
    }
    let problem = Problem {
        volume: "v".into(),
        message: "source x has no plugin".into(),
        is_waiting: false,
        labels_differ: None,
    };
    states.desired.set("unsupported", PodVolumes { problems: vec![problem], ..PodVolumes::default() }, now());
    states.told.note("unsupported".into(), "something else".into(), (), true, now());

    for (handle, state) in [("mounted", MountState::Mounted), ("leaving", MountState::Uncertain)] {
        states.actual.set_device(&volume(handle), &spec(), Some(state));
        states.actual.set_pod(&volume(handle), &spec(), handle, Some(mounted(state)));
        states.pod_dirs.insert(handle.into());
    }
    states.actual.set_device(&volume("idle"), &spec(), Some(MountState::Mounted));
    states.pod_dirs.extend(["gone".to_owned(), "unmounted".to_owned()]);
    states.report.kept_in_use.insert("kubernetes.io/csi/driver^puzzle".into());
    states.report.heartbeat = Some(now());
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_has_ended_keeps_its_volumes_until_it_is_deleted_where_that_was_asked_for() {
    let mut controller = controller().await;
    let ended = json!({ "status": { "phase": "Succeeded" } });
    controller.caches.pods.observe_shared(pod("p", ended.clone()));
    controller
        .state
        .with(|states| states.actual.set_pod(&volume("h"), &spec(), "p", Some(mounted(MountState::Mounted))));
    let leaves = |controller: &Controller| match controller.snapshot(&Key::Volume(volume("h"))) {
        Snapshot::Volume(snapshot) => snapshot.live.is_empty(),
        other => panic!("{other:?}"),
    };
    assert!(leaves(&controller));
    controller.options.keep_terminated_pod_volumes = true;
    assert!(!leaves(&controller));
    let deleting = json!({
        "metadata": { "resourceVersion": "8", "deletionTimestamp": "2023-11-14T22:13:20Z" }, "status": ended["status"],
    });
    controller.caches.pods.observe_shared(pod("p", deleting));
    assert!(leaves(&controller));
}

#[tokio::test(start_paused = true)]
async fn looking_at_a_node_in_the_midst_of_everything_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let mut tasks = Tasks::new();
    let setup = Setup::new(context(), tasks.spawner());
    let options = Options { node_name: "node".into(), root: root.path().to_owned(), ..Options::default() };
    let (controller, _) = Controller::new(&setup, Arc::new(LinuxMounter), options).await.unwrap();
    populate_caches(&controller.caches);
    controller.state.with_drivers(populate_drivers);
    controller.state.with(populate_states);
    let failed = async || Ended::Failed(Failure { code: "Internal".into(), message: "no".into() });
    let of = |handle: &str, name| VolumeOperation::of(&volume(handle), handle, name);
    controller.executor.start_on_volume(of("gone", OperationName::SetUp), failed());
    controller.executor.start_on_volume(of("leaving", OperationName::TearDown), failed());
    controller.executor.start(Operation::Greet("/new".into()), std::future::pending());
    // What has ended wakes its keys, and they wait where nobody takes them.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), tasks.supervise()).await;

    let looks = || {
        let idle: Vec<bool> = controller.keys().iter().map(|key| controller.queue.is_idle(key)).collect();
        let records: Vec<_> =
            ["gone", "leaving"].iter().map(|handle| controller.executor.of_volume(&volume(handle))).collect();
        (controller.state.read(|states| format!("{states:?}")), idle, records, controller.options.occupancy.mounts())
    };
    let before = looks();
    assert_quiet(&controller, now());
    assert_quiet(&controller, later(3600));
    assert_eq!(before, looks());

    let decide = |key: &Key| decide::decide(&controller.snapshot(key), now());
    // A fixture in which nothing is up would prove nothing.
    let reasons: BTreeSet<String> = controller.keys().iter().map(|key| format!("{:?}", decide(key).why)).collect();
    assert!(reasons.len() > 15, "the node is not in the midst of everything: {reasons:?}");
}
