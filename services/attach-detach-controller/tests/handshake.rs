//! The attach-detach controller and the attacher together: a volume for one node moves from one to the other, the test
//! plays the nodes, and the services are stopped at every write and call.

// Helpers of a test are a test.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::future::Future;
use std::time::Duration;

use serde_json::json;

use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume, access_mode::Mode as CsiMode};
use stowage_csi::v1::{CreateVolumeRequest, VolumeCapability};
use stowage_model::object::{Key, kinds};
use stowage_model::{Node, VolumeAttachment, annotations, finalizers, names};
use stowage_runtime::{Context, Stop};
use stowage_testing::driver::Step;
use stowage_testing::{Fault, Mode, World};

const DRIVER: &str = "driver.test";
const SOCKET: &str = "/csi.sock";
const LIMIT: Duration = Duration::from_secs(3600);

struct Stage {
    world: World,
    handle: String,
}

impl Stage {
    /// Two nodes with the driver, and a claim bound to a volume that only one of them may have.
    async fn set() -> (Self, stowage_testing::Listening) {
        let world = World::new(3);
        let listening = world.sockets().listen(SOCKET, world.driver().routes("a", world.node("a")));
        drop(world.driver().routes("b", world.node("b")));
        let channel = world.life("test").context.csi.connect(SOCKET).unwrap();
        let request = CreateVolumeRequest {
            name: "pv".into(),
            volume_capabilities: vec![VolumeCapability {
                access_mode: Some(AccessMode { mode: CsiMode::SingleNodeWriter.into() }),
                access_type: Some(AccessType::Mount(MountVolume::default())),
            }],
            ..CreateVolumeRequest::default()
        };
        let made = ControllerClient::new(channel).create_volume(request).await.unwrap().into_inner();
        let handle = made.volume.unwrap().volume_id;
        let admin = world.admin();
        for node in ["a", "b"] {
            let drivers = json!([{ "name": DRIVER, "nodeID": node, "topologyKeys": [] }]);
            let csi_node = json!({ "metadata": { "name": node }, "spec": { "drivers": drivers } });
            admin.create(kinds::CSI_NODE, csi_node).await.unwrap();
            let managed = json!({ annotations::CONTROLLER_MANAGED_ATTACH: "true" });
            let body = json!({ "metadata": { "name": node, "annotations": managed } });
            admin.create(kinds::NODE, body).await.unwrap();
            let ready = json!([{ "type": "Ready", "status": "True" }]);
            let status = json!({ "status": { "conditions": ready } });
            admin.patch(kinds::NODE, &Key::cluster(node), "/status", &status).await.unwrap();
        }
        let claim = json!({
            "metadata": { "name": "data", "namespace": "default" },
            "spec": {
                "volumeName": "pv",
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": "1Gi" } },
            },
        });
        let claim = admin.create(kinds::CLAIM, claim).await.unwrap();
        let bound = json!({ "status": { "phase": "Bound" } });
        admin.patch(kinds::CLAIM, &Key::namespaced("default", "data"), "/status", &bound).await.unwrap();
        let volume = json!({
            "metadata": { "name": "pv" },
            "spec": {
                "capacity": { "storage": "1Gi" },
                "accessModes": ["ReadWriteOnce"],
                "claimRef": { "namespace": "default", "name": "data", "uid": claim["metadata"]["uid"] },
                "csi": { "driver": DRIVER, "volumeHandle": handle },
            },
        });
        admin.create(kinds::VOLUME, volume).await.unwrap();
        (Self { world, handle }, listening)
    }

    fn unique_name(&self) -> String {
        names::csi_volume(DRIVER, &self.handle)
    }

    async fn place_pod(&self, name: &str, node: &str) {
        let pod = json!({
            "metadata": { "name": name, "namespace": "default" },
            "spec": {
                "nodeName": node,
                "containers": [{ "name": "c", "image": "i" }],
                "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "data" } }],
            },
        });
        self.world.admin().create(kinds::POD, pod).await.unwrap();
    }

    async fn delete_pod(&self, name: &str) {
        self.world.admin().delete(kinds::POD, &Key::namespaced("default", name)).await.unwrap();
    }

    async fn use_on(&self, node: &str, used: bool) {
        let volumes = if used { vec![self.unique_name()] } else { Vec::new() };
        let status = json!({ "status": { "volumesInUse": volumes } });
        self.world.admin().patch(kinds::NODE, &Key::cluster(node), "/status", &status).await.unwrap();
    }

    fn is_listed(&self, node: &str) -> bool {
        let node: Node = self.world.admin().get(&Key::cluster(node)).unwrap();
        node.is_attached(&self.unique_name())
    }

    fn attached_to(&self) -> BTreeSet<String> {
        self.world.driver().snapshot().attached.get(&self.handle).cloned().unwrap_or_default()
    }

    async fn until_listed(&self, node: &str) {
        let listed = || self.is_listed(node) && self.attached_to() == BTreeSet::from([node.to_owned()]);
        self.world
            .until(&format!("attached to {node} alone"), LIMIT, listed)
            .await
            .unwrap_or_else(|hang| panic!("{hang}"));
    }

    async fn until_gone(&self) {
        let gone = || self.attached_to().is_empty() && self.world.admin().list::<VolumeAttachment>().is_empty();
        self.world.until("detached everywhere", LIMIT, gone).await.unwrap_or_else(|hang| panic!("{hang}"));
    }

    /// The whole story: attach to a, move to b, detach, release the volume.
    async fn play(&self) {
        self.place_pod("one", "a").await;
        self.use_on("a", true).await;
        self.until_listed("a").await;
        self.delete_pod("one").await;
        self.place_pod("two", "b").await;
        self.use_on("b", true).await;
        self.world.settle().await;
        assert_eq!(self.attached_to(), BTreeSet::from(["a".to_owned()]), "A2: the node still uses it");
        self.use_on("a", false).await;
        self.until_listed("b").await;
        assert!(!self.is_listed("a"));
        self.delete_pod("two").await;
        self.use_on("b", false).await;
        self.until_gone().await;
        let admin = self.world.admin();
        let own = json!({ "metadata": { "finalizers": [finalizers::attacher(DRIVER)] } });
        admin.patch(kinds::VOLUME, &Key::cluster("pv"), "", &own).await.unwrap();
        admin.delete(kinds::VOLUME, &Key::cluster("pv")).await.unwrap();
        let gone = || !self.world.admin().exists(kinds::VOLUME, &Key::cluster("pv"));
        self.world.until("released", LIMIT, gone).await.unwrap_or_else(|hang| panic!("{hang}"));
        assert_eq!(self.world.driver().snapshot().violations, Vec::<String>::new());
    }

    fn points(&self, service: &str) -> usize {
        self.world.trace().text().lines().filter(|line| line.starts_with(&format!("{service} #"))).count()
    }
}

/// Runs a service for ever, again after each time it was stopped or gave up, as its supervisor would.
async fn keep<F>(world: &World, name: &str, start: impl Fn(Context) -> F)
where
    F: Future<Output = Result<(), Stop>>,
{
    loop {
        let life = world.life(name);
        tokio::select! {
            biased;
            () = life.gate.stopped() => {}
            ended = start(life.context.clone()) => assert!(ended.is_err(), "{name} ended without being asked"),
        }
    }
}

async fn in_world(stage: &Stage, story: impl Future<Output = ()>) {
    let attacher = || {
        let mut options = attacher::Options::default();
        options.driver.csi_address = SOCKET.into();
        options
    };
    tokio::select! {
        biased;
        () = keep(&stage.world, "adc", |context| attach_detach_controller::run(context, Default::default())) => {}
        () = keep(&stage.world, "attacher", |context| attacher::run(context, attacher())) => {}
        () = story => {}
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_moves_between_nodes_without_any_time_passing() {
    let (stage, _listening) = Stage::set().await;
    in_world(&stage, stage.play()).await;
    // Only the one look of the test itself.
    assert_eq!(stage.world.elapsed(), Duration::from_millis(1), "{}", stage.world.trace().text());
    let events = stage.world.admin().list_raw(kinds::EVENT);
    let told = |pod: &str, reason: &str| {
        events.iter().any(|event| event["reason"] == reason && event["involvedObject"]["name"] == pod)
    };
    assert!(told("one", "SuccessfulAttachVolume") && told("two", "SuccessfulAttachVolume"), "{events:#?}");
    assert!(told("two", "FailedAttachVolume") && !told("one", "FailedAttachVolume"), "{events:#?}");
}

#[tokio::test(start_paused = true)]
async fn stopped_at_any_write_or_call_both_services_find_their_way() {
    let (recording, _listening) = Stage::set().await;
    in_world(&recording, recording.play()).await;
    let mut swept = 0;
    for service in ["adc", "attacher"] {
        for number in 1..=recording.points(service) {
            for mode in Mode::ALL {
                let (stage, _listening) = Stage::set().await;
                let fault = Fault { service: service.into(), number, mode };
                stage.world.arm(fault.clone(), None);
                in_world(&stage, stage.play()).await;
                assert!(!stage.world.is_armed(), "{fault} was missed");
                swept += 1;
            }
        }
    }
    stowage_testing::tell(&format!("{swept} points swept"));
    assert!(swept > 80, "{swept}");
}

#[tokio::test(start_paused = true)]
async fn a_publish_that_was_done_without_an_answer_is_undone_when_the_pod_is_gone() {
    let (stage, _listening) = Stage::set().await;
    stage.world.driver().script("ControllerPublishVolume", [Step::DoneThenHang]);
    in_world(&stage, async {
        stage.place_pod("one", "a").await;
        let done = || !stage.attached_to().is_empty();
        stage.world.until("published", LIMIT, done).await.unwrap_or_else(|hang| panic!("{hang}"));
        stage.delete_pod("one").await;
        stage.until_gone().await;
    })
    .await;
    assert_eq!(stage.world.driver().snapshot().count("ControllerUnpublishVolume"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_refuses_is_named_in_an_event_and_asked_again() {
    let (stage, _listening) = Stage::set().await;
    let refuse = Step::fail(tonic::Code::ResourceExhausted, "node is full");
    stage.world.driver().script("ControllerPublishVolume", [refuse.clone(), refuse]);
    in_world(&stage, async {
        stage.place_pod("one", "a").await;
        stage.until_listed("a").await;
    })
    .await;
    // One second, then two.
    assert_eq!(stage.world.elapsed(), Duration::from_secs(3));
    let events = stage.world.admin().list_raw(kinds::EVENT);
    let shown = events.iter().any(|event| {
        event["reason"] == "FailedAttachVolume"
            && event["message"].as_str().is_some_and(|message| message.contains("node is full (ResourceExhausted)"))
    });
    assert!(shown, "{events:#?}");
}
