//! Reading is only reading, whatever state pods, plugins and volumes are in.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;
use tonic::service::Routes;

use stowage_csi::Channel;
use stowage_model::object::Projection as _;
use stowage_mount::LinuxMounter;
use stowage_runtime::engine::{Controller as _, assert_quiet};
use stowage_runtime::operation::{Ended, Failure};
use stowage_runtime::tasks::Tasks;

use super::*;
use crate::decide::tests::{driver, later, now, pod, usage};
use crate::desired::{Resolution, Use, VolumeId};
use crate::world::{Driver, Hold, Published, Staged, World};

fn context() -> Context {
    let silence = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, tower::BoxError>>()
    });
    let connector = Arc::new(stowage_csi::UnixConnector);
    Context::real(kube::Client::new(silence, "default"), connector, "node")
}

fn uses(handle: &str) -> (VolumeId, Use) {
    let volume = VolumeId::new("driver", handle);
    (volume.clone(), Use { volume, ..usage() })
}

fn published(hold: Hold) -> Option<Published> {
    Some(Published { spec_name: "pv".into(), hold, reconstructed: false })
}

fn staged(hold: Hold) -> Option<Staged> {
    Some(Staged { hold, reconstructed: hold == Hold::Uncertain })
}

fn populate_caches(caches: &Caches) {
    let volume = |handle: &str| VolumeId::new("driver", handle).unique_name();
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

fn populate_world(world: &mut World) {
    let found = |info| Driver { info, channel: Channel::in_process(Routes::default()) };
    for socket in ["/new", "/greeted", "/twin", "/registered", "/refused"] {
        world.socket_appeared(socket);
    }
    let greeted = |name: &str| Some(found(crate::world::DriverInfo { name: name.into(), ..driver() }));
    world.plugins.get_mut("/greeted").unwrap().greeted = greeted("other");
    world.plugins.get_mut("/twin").unwrap().greeted = greeted("driver");
    world.plugins.get_mut("/registered").unwrap().registered = Some(found(driver()));
    world.plugins.get_mut("/registered").unwrap().notified = true;
    world.plugins.get_mut("/refused").unwrap().refused = Some("no".into());
    world.dismissed.insert("former".into());

    for uid in ["mounted", "waiting", "leaving", "unanswered", "gone"] {
        let resolution = Resolution { uses: BTreeMap::from([uses(uid)]), problems: Vec::new() };
        world.resolutions.insert(uid.into(), resolution);
    }
    let local = VolumeId::new("local", "without-driver");
    let (_, usage) = uses("without-driver");
    let resolution = Resolution { uses: [(local.clone(), Use { volume: local, ..usage })].into(), problems: vec![] };
    world.resolutions.insert("without-driver".into(), resolution);
    let problems = vec!["source emptyDir is not supported".to_owned()];
    world.resolutions.insert("unsupported".into(), Resolution { uses: BTreeMap::new(), problems });
    world.told.note("unsupported".into(), "something else".into(), (), true, now());

    for (handle, hold) in [("mounted", Hold::Mounted), ("leaving", Hold::Uncertain)] {
        let volume = VolumeId::new("driver", handle);
        world.set_staged(&volume, staged(hold));
        world.set_published(&volume, handle, published(hold));
        world.pod_dirs.insert(handle.into());
    }
    world.set_staged(&VolumeId::new("driver", "idle"), staged(Hold::Mounted));
    world.pod_dirs.extend(["gone".to_owned(), "unmounted".to_owned()]);
    world.kept_in_use.insert("kubernetes.io/csi/driver^puzzle".into());
    world.heartbeat = Some(now());
}

#[tokio::test(start_paused = true)]
async fn looking_at_a_node_in_the_midst_of_everything_changes_nothing() {
    let root = tempfile::tempdir().unwrap();
    let mut tasks = Tasks::new();
    let setup = Setup::new(context(), tasks.spawner());
    let options = Options { node_name: "node".into(), root: root.path().to_owned(), ..Options::default() };
    let controller = Controller::new(&setup, Arc::new(LinuxMounter), options).await.unwrap();
    populate_caches(&controller.caches);
    controller.state.with(populate_world);
    let failed = async || Ended::Failed(Failure { code: "Internal".into(), message: "no".into() });
    controller.operations.start(Operation::Resolve("unresolved".into()), failed());
    controller.operations.start(Operation::Publish(VolumeId::new("driver", "gone"), "gone".into()), failed());
    controller.operations.start(Operation::Unpublish(VolumeId::new("driver", "leaving"), "leaving".into()), failed());
    controller.operations.start(Operation::Greet("/new".into()), std::future::pending());
    // What has ended wakes its keys, and they wait where nobody takes them.
    let _ = tokio::time::timeout(std::time::Duration::from_secs(1), tasks.supervise()).await;

    let looks = || {
        let idle: Vec<bool> = controller.keys().iter().map(|key| controller.queue.is_idle(key)).collect();
        let records: Vec<_> =
            controller.operations.keys().iter().map(|key| controller.operations.record(key)).collect();
        (controller.state.read(|world| format!("{world:?}")), idle, records, controller.options.occupancy.mounts())
    };
    let before = looks();
    assert_quiet(&controller, now());
    assert_quiet(&controller, later(3600));
    assert_eq!(before, looks());

    let decide = |key: &Key| decide::decide(&controller.snapshot(key), now());
    // A fixture in which nothing is up would prove nothing.
    let reasons: BTreeSet<String> = controller.keys().iter().map(|key| format!("{:?}", decide(key).why)).collect();
    assert!(reasons.len() > 20, "the node is not in the midst of everything: {reasons:?}");
}
