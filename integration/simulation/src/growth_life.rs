//! The lives of a claim that asks for more, or for another VolumeAttributesClass.
//!
//! Where the node has a part in it, a pod has the volume and the volume manager grows it; else nobody has it.

use std::time::Duration;

use serde_json::{Value, json};

use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::{ControllerPublishVolumeRequest, ControllerUnpublishVolumeRequest, VolumeCapability};
use stowage_model::annotations::PRE_RESIZE_CAPACITY;
use stowage_model::claim::Claim;
use stowage_model::object::{Key, kinds};
use stowage_model::volume::Volume;
use stowage_testing::driver::{Growth, LARGEST};
use stowage_testing::world::DRIVER;
use stowage_testing::{Hang, World};

use crate::claim_life::is_running;
use crate::life::{self, LIMIT, Life, Report, Sample};
use crate::manifests::{self, Binding, key};
use crate::pipeline::{self, DRIVER_SOCKET, NODE, Pipeline};

const CLAIM: &str = "data";
const POD: &str = "app";
/// The driver's id of the claim's volume.
const VOLUME: &str = "vol-1";
const GOLD: &str = "gold";

/// Which life is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// The driver alone makes it larger.
    Offline,
    /// The node has to do its part, while a pod has the volume.
    Online,
    /// The same, and the driver says that the volume has more than it has.
    Boasted,
    /// The driver says that it has less than was asked for, until it is put right.
    Belittled,
    /// The driver refuses while the volume is in use, and its pod goes.
    InUse,
    /// More than there can be is asked for, then less.
    TakenBack,
    /// Another class of attributes.
    Modified,
    /// Both at once.
    Both,
}

impl Life for Kind {
    const ALL: &'static [Self] = &[
        Self::Offline,
        Self::Online,
        Self::Boasted,
        Self::Belittled,
        Self::InUse,
        Self::TakenBack,
        Self::Modified,
        Self::Both,
    ];

    fn sweeps(self, service: &str) -> bool {
        service == "resizer" || (self.has_pod() && service == "volume-manager")
    }

    fn options(self) -> pipeline::Options {
        let services: &'static [&'static str] = match self.has_pod() {
            true => &pipeline::GROWTH_IN_USE,
            false => &pipeline::GROWTH,
        };
        pipeline::Options { services: Some(services), ..pipeline::Options::default() }
    }

    fn sample(self) -> Sample {
        let sample = if matches!(self, Self::Boasted | Self::Belittled) { Sample::WORST } else { Sample::ALL };
        Sample { watched: true, ..sample }
    }

    async fn live(world: &World, script: &Script, report: &mut Report) -> Result<(), Hang> {
        Stage { world, script }.live_all(report).await
    }
}

type Script = life::Script<Kind>;

impl Kind {
    fn growth(self) -> Growth {
        let lies = match self {
            Self::Boasted => Some(6 << 30),
            Self::Belittled => Some(1 << 29),
            _ => None,
        };
        Growth { for_node: self.has_pod(), offline_only: self == Self::InUse, lies }
    }

    /// Whether a pod runs with the volume.
    fn has_pod(self) -> bool {
        matches!(self, Self::Online | Self::Boasted)
    }

    fn grows(self) -> bool {
        self != Self::Modified
    }

    fn changes(self) -> bool {
        matches!(self, Self::Modified | Self::Both)
    }
}

struct Stage<'a> {
    world: &'a World,
    script: &'a Script,
}

impl Stage<'_> {
    async fn live_all(&self, report: &mut Report) -> Result<(), Hang> {
        let (world, kind) = (self.world, self.script.kind);
        self.set().await;
        let pipeline = Pipeline::start(world, self.script.options);
        if kind.has_pod() {
            pipeline.ready(LIMIT).await?;
            world.admin().create(kinds::POD, manifests::pod(POD, CLAIM)).await.expect("the pod is valid");
            world.until("the pod Running", LIMIT, || is_running(world, POD)).await?;
            // Until here it is the life of any claim, and so is its end.
            report.own.start = world.trace().len();
        }
        world.until("the claim Bound", LIMIT, || is_bound(world)).await?;
        if kind == Kind::InUse {
            self.publish(true).await;
            let mut pod = manifests::pod(POD, CLAIM);
            // On a node, so that it keeps the claim.
            pod["spec"]["nodeName"] = NODE.into();
            world.admin().create(kinds::POD, pod).await.expect("the pod is valid");
        }
        // So that each life begins alike, whoever is faster.
        world.settle().await;
        report.asked = world.trace().len();
        self.ask().await;
        self.live().await?;
        report.deleted = world.trace().len();
        if kind.has_pod() {
            report.own.end = report.deleted;
        }
        self.delete().await;
        world.until("the end of everything", LIMIT, || is_all_gone(world)).await?;
        report.end(world, self.script, &pipeline).await;
        Ok(())
    }

    async fn set(&self) {
        let (world, admin, made) = (self.world, self.world.admin(), "the manifests of a life are valid");
        world.driver().grow(self.script.kind.growth());
        admin.create(kinds::CSI_DRIVER, manifests::csi_driver()).await.expect(made);
        let mut class = manifests::class(Binding::Immediate);
        class["allowVolumeExpansion"] = true.into();
        admin.create(kinds::STORAGE_CLASS, class).await.expect(made);
        let gold = json!({ "metadata": { "name": GOLD }, "driverName": DRIVER, "parameters": { "iops": "9" } });
        admin.create(kinds::ATTRIBUTES_CLASS, gold).await.expect(made);
        admin.create(kinds::CLAIM, manifests::claim(CLAIM, "1Gi")).await.expect(made);
        self.script.arm(world, |world| async move {
            world.admin().delete(kinds::CLAIM, &key(CLAIM)).await.expect("a claim can be deleted");
        });
    }

    async fn ask(&self) {
        let size = match self.script.kind {
            Kind::TakenBack => (LARGEST + 1).to_string(),
            _ => "5Gi".to_owned(),
        };
        let mut spec = json!({});
        if self.script.kind.grows() {
            spec["resources"]["requests"]["storage"] = size.into();
        }
        if self.script.kind.changes() {
            spec["volumeAttributesClassName"] = GOLD.into();
        }
        self.patch("", json!({ "spec": spec })).await;
    }

    /// From the wish to its fulfilment, unless the claim goes.
    async fn live(&self) -> Result<(), Hang> {
        let (world, kind) = (self.world, self.script.kind);
        let status = |pointer: &'static str| {
            let claim = world.admin().get_raw(kinds::CLAIM, &key(CLAIM)).unwrap_or_default();
            claim.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
        };
        let resize = "/status/allocatedResourceStatuses/storage";
        match kind {
            Kind::TakenBack => {
                let refused = || self.gave_up() || status(resize) == "ControllerResizeInfeasible";
                world.until("the refusal", LIMIT, refused).await?;
                if !self.gave_up() {
                    self.patch("", json!({ "spec": { "resources": { "requests": { "storage": "5Gi" } } } })).await;
                }
            }
            Kind::InUse => {
                let refused = || self.gave_up() || world.driver().snapshot().count("ControllerExpandVolume") > 0;
                world.until("the refusal", LIMIT, refused).await?;
                tokio::time::sleep(Duration::from_secs(2)).await;
                self.end_pod().await;
            }
            Kind::Belittled => {
                let claim = || world.admin().get_raw(kinds::CLAIM, &key(CLAIM)).unwrap_or_default();
                let shown = || claim()["status"]["conditions"].to_string().contains("ControllerResizeError");
                world.until("the lie found out", LIMIT, || self.gave_up() || shown()).await?;
                world.driver().grow(Growth::default());
            }
            Kind::Online | Kind::Boasted | Kind::Offline | Kind::Modified | Kind::Both => {}
        }
        let is_grown = || !kind.grows() || status("/status/capacity/storage") == "5Gi";
        let has_class = || !kind.changes() || status("/status/currentVolumeAttributesClassName") == GOLD;
        world.until("what was asked for", LIMIT, || self.gave_up() || (is_grown() && has_class())).await?;
        // The last word is said when the volume agrees; it never does where the driver has said too much.
        let agrees = || {
            if kind == Kind::Boasted {
                return true;
            }
            let volumes = world.admin().list::<Volume>();
            volumes.iter().all(|volume| volume.meta.annotation(PRE_RESIZE_CAPACITY).is_none())
        };
        world.until("the volume's note gone", LIMIT, || self.gave_up() || agrees()).await
    }

    async fn delete(&self) {
        match self.script.kind {
            Kind::InUse => self.end_pod().await,
            Kind::Online | Kind::Boasted => {
                self.world.admin().delete(kinds::POD, &key(POD)).await.expect("a pod can be deleted");
            }
            _ => {}
        }
        self.world.admin().delete(kinds::CLAIM, &key(CLAIM)).await.expect("what a user made can be deleted");
    }

    /// As the kubelet ends a pod: the volume is taken off the node first.
    async fn end_pod(&self) {
        let admin = self.world.admin();
        self.publish(false).await;
        if admin.exists(kinds::POD, &key(POD)) {
            let ended = json!({ "status": { "phase": "Succeeded" } });
            admin.patch(kinds::POD, &key(POD), "/status", &ended).await.expect("the pod is there");
            admin.delete(kinds::POD, &key(POD)).await.expect("what has ended can be deleted");
        }
    }

    /// A claim that went at the fault is not asked for anything any more.
    async fn patch(&self, part: &str, body: Value) {
        let patched = self.world.admin().patch(kinds::CLAIM, &key(CLAIM), part, &body).await;
        assert!(patched.is_ok() || self.gave_up(), "{patched:?}");
    }

    async fn publish(&self, there: bool) {
        let channel = self.world.life("kubelet").context.csi.connect(DRIVER_SOCKET).expect("the driver listens");
        let (volume_id, node_id) = (VOLUME.to_owned(), NODE.to_owned());
        if there {
            let volume_capability = Some(VolumeCapability::default());
            let request =
                ControllerPublishVolumeRequest { volume_id, node_id, volume_capability, ..Default::default() };
            ControllerClient::new(channel).controller_publish_volume(request).await.expect("the volume is there");
        } else {
            let request = ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
            ControllerClient::new(channel).controller_unpublish_volume(request).await.expect("it can be taken away");
        }
    }

    /// Whether the claim was deleted at the fault, so that nobody waits for it.
    fn gave_up(&self) -> bool {
        self.script.gave_up(self.world)
    }
}

fn is_bound(world: &World) -> bool {
    let claim: Option<Claim> = world.admin().get(&key(CLAIM));
    claim.is_some_and(|claim| claim.is_fully_bound() && claim.status.capacity.storage.is_some())
}

fn is_all_gone(world: &World) -> bool {
    let admin = world.admin();
    world.driver().snapshot().is_empty()
        && admin.list_raw(kinds::VOLUME).is_empty()
        && !admin.exists(kinds::CLAIM, &Key::namespaced(manifests::NAMESPACE, CLAIM))
        && !admin.exists(kinds::POD, &key(POD))
        && world.observe().leftovers().is_empty()
}
