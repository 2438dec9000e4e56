//! The lives of a claim that asks for more, or for another VolumeAttributesClass.
//!
//! The player is the kubelet: what the node has to do is done by hand, as node-and-attach.md 3.12 says it ends.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
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

use crate::life::LIMIT;
use crate::life_sweep::{self, Life, Report};
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
    /// The node has to do its part, while the volume is in use.
    Online,
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
    const ALL: &'static [Self] =
        &[Self::Offline, Self::Online, Self::InUse, Self::TakenBack, Self::Modified, Self::Both];

    fn swept(self) -> &'static [&'static str] {
        &["resizer"]
    }

    fn options(self) -> pipeline::Options {
        pipeline::Options { services: Some(&pipeline::GROWTH), ..pipeline::Options::default() }
    }

    async fn play(world: &World, script: &Script) -> Report {
        let mut stage = Stage { world, script, report: Report::default() };
        let seen: Arc<Mutex<Seen>> = Arc::default();
        let watcher = tokio::spawn(watch(world.clone(), Arc::clone(&seen)));
        let played = stage.play().await;
        watcher.abort();
        {
            let seen = seen.lock().expect("nobody panics while holding it");
            stage.report.wrong.extend(seen.broken.iter().cloned());
            stage.report.looks = seen.looks;
        }
        if let Err(hang) = played {
            stage.report.wrong.insert(0, hang.to_string());
        }
        stage.report.trace = world.trace().points();
        stage.report
    }
}

type Script = life_sweep::Script<Kind>;

impl Kind {
    fn growth(self) -> Growth {
        Growth { for_node: self == Self::Online, offline_only: self == Self::InUse, lies: None }
    }

    fn is_attached(self) -> bool {
        matches!(self, Self::Online | Self::InUse)
    }

    fn grows(self) -> bool {
        self != Self::Modified
    }

    fn changes(self) -> bool {
        matches!(self, Self::Modified | Self::Both)
    }
}

/// What was said before: sizes of claims and volumes by uid, never to be less again.
#[derive(Default)]
struct Seen {
    sizes: BTreeMap<String, i128>,
    broken: BTreeSet<String>,
    looks: u64,
}

impl Seen {
    fn look(&mut self, world: &World) {
        self.looks += 1;
        let observed = world.observe();
        self.broken.extend(observed.violations().iter().map(ToString::to_string));
        let claims = observed.claims.iter().map(|claim| {
            (&claim.meta.uid, claim.status.capacity.storage.unwrap_or_default().bytes(), &claim.meta.name)
        });
        let volumes =
            observed.volumes.iter().map(|volume| (&volume.meta.uid, volume.capacity().bytes(), &volume.meta.name));
        for (uid, bytes, name) in claims.chain(volumes) {
            let most = self.sizes.entry(uid.clone()).or_default();
            if bytes < *most {
                self.broken.insert(format!("R1: {name} shrank from {most} to {bytes} bytes"));
            }
            *most = bytes.max(*most);
        }
    }
}

async fn watch(world: World, seen: Arc<Mutex<Seen>>) {
    loop {
        let count = world.changes().count();
        seen.lock().expect("nobody panics while holding it").look(&world);
        world.changes().beyond(count).await;
    }
}

struct Stage<'a> {
    world: &'a World,
    script: &'a Script,
    report: Report,
}

impl Stage<'_> {
    async fn play(&mut self) -> Result<(), Hang> {
        let (world, kind) = (self.world, self.script.kind);
        self.set().await;
        let pipeline = Pipeline::start(world, self.script.options);
        world.until("the claim Bound", LIMIT, || is_bound(world)).await?;
        if kind.is_attached() {
            self.publish(true).await;
            let mut pod = manifests::pod(POD, CLAIM);
            // On a node, so that it keeps the claim.
            pod["spec"]["nodeName"] = NODE.into();
            world.admin().create(kinds::POD, pod).await.expect("the pod is valid");
        }
        // So that each life begins alike, whoever is faster.
        world.settle().await;
        self.report.asked = world.trace().len();
        self.ask().await;
        self.live().await?;
        self.report.deleted = world.trace().len();
        self.delete().await;
        world.until("the end of everything", LIMIT, || is_all_gone(world)).await?;
        self.report.took = world.elapsed();

        // Whoever is still down or late now comes back and must find nothing to do.
        tokio::time::sleep(self.script.options.downtime).await;
        world.settle().await;
        let observed = world.observe();
        let found = observed.violations_at_rest().into_iter().chain(observed.leftovers());
        self.report.wrong.extend(found.map(|violation| violation.to_string()));
        self.report.ends = pipeline.ends();
        for (service, numbers) in world.numbers() {
            if numbers.missed_wakeups > 0 {
                self.report.wrong.push(format!("{service}: {} wake-ups were missed", numbers.missed_wakeups));
            }
        }
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
        let Some(fault) = self.script.fault.clone() else { return };
        let (admin, delete) = (admin.clone(), self.script.delete);
        let at_fault = move || {
            let admin = admin.clone();
            async move {
                if delete {
                    admin.delete(kinds::CLAIM, &key(CLAIM)).await.expect("a claim can be deleted");
                }
            }
            .boxed()
        };
        world.arm(fault, Some(Arc::new(at_fault)));
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
            Kind::Online => {
                world
                    .until("the node's turn", LIMIT, || self.gave_up() || status(resize) == "NodeResizePending")
                    .await?;
                if !self.gave_up() {
                    let grown = json!({ "status": {
                        "capacity": { "storage": "5Gi" },
                        "allocatedResourceStatuses": { "storage": null }, "conditions": null,
                    } });
                    self.patch("/status", grown).await;
                }
            }
            Kind::Offline | Kind::Modified | Kind::Both => {}
        }
        let is_grown = || !kind.grows() || status("/status/capacity/storage") == "5Gi";
        let has_class = || !kind.changes() || status("/status/currentVolumeAttributesClassName") == GOLD;
        world.until("what was asked for", LIMIT, || self.gave_up() || (is_grown() && has_class())).await?;
        // The last word is said when the volume agrees.
        let agrees = || {
            let volumes = world.admin().list::<Volume>();
            volumes.iter().all(|volume| volume.meta.annotation(PRE_RESIZE_CAPACITY).is_none())
        };
        world.until("the volume's note gone", LIMIT, || self.gave_up() || agrees()).await
    }

    async fn delete(&self) {
        if self.script.kind.is_attached() {
            self.end_pod().await;
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
        self.script.delete && !self.world.is_armed()
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
}
