//! Lives in which a sidecar does what the life of an ordinary claim does not ask for.
//!
//! The player is the attach-detach controller and the node.

use std::time::Duration;

use serde_json::{Value, json};

use stowage_model::claim::Claim;
use stowage_model::object::{Key, Kind as ObjectKind, Projection, kinds};
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::volume::Volume;
use stowage_testing::driver::{Abilities, POOL};
use stowage_testing::world::DRIVER;
use stowage_testing::{Hang, World};

use crate::life::{self, LIMIT, Life, Report, Sample};
use crate::manifests::{self, Binding, CLASS, key};
use crate::pipeline::{self, NODE, Pipeline};

const CLAIM: &str = "data";
const GOLD: &str = "gold";
const SIZE: i64 = 1 << 30;
const ATTACHMENT: &str = "csi-by-hand";

/// Which life is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// How much room there is gets published, with less of it once the claim has its volume, and goes with its class.
    Capacity,
    /// The claim names a VolumeAttributesClass from the start.
    Classed,
    /// The volume's object is deleted before the claim.
    VolumeFirst,
    /// The class says Retain: the driver keeps the volume when the claim goes, and when an administrator deletes its object.
    Retained,
    /// The same, and the volume's object is deleted before the claim.
    RetainedVolumeFirst,
    /// The driver loses a publication, and the list of volumes shows it.
    Reconciled,
}

impl Life for Kind {
    const ALL: &'static [Self] = &[
        Self::Capacity,
        Self::Classed,
        Self::VolumeFirst,
        Self::Retained,
        Self::RetainedVolumeFirst,
        Self::Reconciled,
    ];

    fn sweeps(self, service: &str) -> bool {
        match self {
            Self::Capacity | Self::Classed => service == "provisioner",
            Self::VolumeFirst | Self::Retained | Self::RetainedVolumeFirst => {
                matches!(service, "provisioner" | "pv-controller")
            }
            Self::Reconciled => service == "attacher",
        }
    }

    fn options(self) -> pipeline::Options {
        let services: &'static [&'static str] = match self {
            Self::Reconciled => &["pv-controller", "provisioner", "attacher"],
            _ => &["pv-controller", "provisioner"],
        };
        let capacity = self == Self::Capacity;
        pipeline::Options { services: Some(services), capacity, ..pipeline::Options::default() }
    }

    fn sample(self) -> Sample {
        Sample { watched: true, ..Sample::ALL }
    }

    async fn live(world: &World, script: &Script, report: &mut Report) -> Result<(), Hang> {
        Stage { world, script, report }.live().await
    }
}

type Script = life::Script<Kind>;

impl Kind {
    fn retains(self) -> bool {
        matches!(self, Self::Retained | Self::RetainedVolumeFirst)
    }

    /// Whether the volume's object is deleted before the claim.
    fn is_volume_first(self) -> bool {
        matches!(self, Self::VolumeFirst | Self::RetainedVolumeFirst)
    }
}

struct Stage<'a> {
    world: &'a World,
    script: &'a Script,
    report: &'a mut Report,
}

impl Stage<'_> {
    async fn live(&mut self) -> Result<(), Hang> {
        let (world, kind) = (self.world, self.script.kind);
        self.set().await;
        let pipeline = Pipeline::start(world, self.script.options);
        if kind == Kind::Capacity {
            world.until("the room published", LIMIT, || rooms(world) == [POOL.to_string()]).await?;
        }
        world.settle().await;
        self.report.asked = world.trace().len();
        let mut claim = manifests::claim(CLAIM, &SIZE.to_string());
        if kind == Kind::Classed {
            claim["spec"]["volumeAttributesClassName"] = GOLD.into();
        }
        self.make(kinds::CLAIM, claim).await;
        world.until("the claim Bound", LIMIT, || self.gave_up() || is_bound(world)).await?;
        if !self.gave_up() {
            self.be_used().await?;
        }
        self.report.deleted = world.trace().len();
        self.end().await;
        if kind.retains() {
            self.give_back().await?;
        }
        world.until("the end of everything", LIMIT, || is_all_gone(world)).await?;
        if kind == Kind::Capacity {
            world.until("the room is back", LIMIT, || rooms(world) == [POOL.to_string()]).await?;
            self.remove(kinds::STORAGE_CLASS, &Key::cluster(CLASS)).await;
            world.until("nothing published", LIMIT, || rooms(world).is_empty()).await?;
        }
        self.report.end(world, self.script, &pipeline).await;
        Ok(())
    }

    async fn set(&self) {
        let (world, kind) = (self.world, self.script.kind);
        let (listing, capacity) = (kind == Kind::Reconciled, kind == Kind::Capacity);
        world.driver().enable(Abilities { listing, capacity, ..Abilities::default() });
        self.make(kinds::CSI_DRIVER, manifests::csi_driver()).await;
        let mut class = manifests::class(Binding::Immediate);
        if kind.retains() {
            class["reclaimPolicy"] = "Retain".into();
        }
        self.make(kinds::STORAGE_CLASS, class).await;
        let gold = json!({ "metadata": { "name": GOLD }, "driverName": DRIVER, "parameters": { "iops": "9" } });
        self.make(kinds::ATTRIBUTES_CLASS, gold).await;
        self.make(kinds::NODE, json!({ "metadata": { "name": NODE } })).await;
        let drivers = json!([{ "name": DRIVER, "nodeID": NODE, "topologyKeys": null }]);
        self.make(kinds::CSI_NODE, json!({ "metadata": { "name": NODE }, "spec": { "drivers": drivers } })).await;
        self.script.arm(world, move |world| async move {
            // Whichever of them is there yet.
            if kind.is_volume_first() {
                delete_volumes(&world).await;
            }
            let _ = world.admin().delete(kinds::VOLUME_ATTACHMENT, &Key::cluster(ATTACHMENT)).await;
            let _ = world.admin().delete(kinds::CLAIM, &key(CLAIM)).await;
        });
    }

    /// What the life is about, unless the claim went.
    async fn be_used(&mut self) -> Result<(), Hang> {
        let world = self.world;
        match self.script.kind {
            Kind::Capacity => {
                let less = (POOL - SIZE).to_string();
                world.until("less room published", LIMIT, || self.gave_up() || rooms(world) == [less.as_str()]).await
            }
            Kind::Classed => {
                let volume = world.admin().list_raw(kinds::VOLUME).pop().unwrap_or_default();
                let attributes: Vec<_> = world.driver().snapshot().attributes.into_values().collect();
                let has = volume["spec"]["volumeAttributesClassName"] == GOLD;
                if !self.gave_up() && (!has || attributes.iter().any(|given| given.get("iops").is_none())) {
                    self.report.wrong.push(format!("the class was not obeyed: {attributes:?}, {}", volume["spec"]));
                }
                Ok(())
            }
            Kind::VolumeFirst | Kind::RetainedVolumeFirst => {
                delete_volumes(world).await;
                Ok(())
            }
            Kind::Retained => Ok(()),
            Kind::Reconciled => self.lose().await,
        }
    }

    async fn lose(&self) -> Result<(), Hang> {
        let world = self.world;
        let volume = world.admin().list_raw(kinds::VOLUME).pop().unwrap_or_default();
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap_or_default().to_owned();
        let source = json!({ "persistentVolumeName": volume["metadata"]["name"] });
        let spec = json!({ "attacher": DRIVER, "nodeName": NODE, "source": source });
        self.make(kinds::VOLUME_ATTACHMENT, json!({ "metadata": { "name": ATTACHMENT }, "spec": spec })).await;
        let attached = || {
            let attachment = world.admin().get_raw(kinds::VOLUME_ATTACHMENT, &Key::cluster(ATTACHMENT));
            attachment.is_some_and(|attachment| attachment["status"]["attached"] == true)
        };
        world.until("the volume attached", LIMIT, || self.gave_up() || attached()).await?;
        world.settle().await;
        world.driver().lose_publication(&handle);
        let is_there = || world.driver().snapshot().attached.contains_key(&handle);
        world.until("it is published again", LIMIT, || self.gave_up() || is_there()).await?;
        // A doubt ends with the next look.
        tokio::time::sleep(Duration::from_secs(61)).await;
        Ok(())
    }

    async fn end(&self) {
        if self.script.kind == Kind::Reconciled {
            self.remove(kinds::VOLUME_ATTACHMENT, &Key::cluster(ATTACHMENT)).await;
        }
        self.remove(kinds::CLAIM, &key(CLAIM)).await;
    }

    /// What is retained outlives its claim and its object, until an administrator discards it.
    async fn give_back(&mut self) -> Result<(), Hang> {
        let (world, admin) = (self.world, self.world.admin());
        world.until("the end of the claim", LIMIT, || !admin.exists(kinds::CLAIM, &key(CLAIM))).await?;
        // Who comes back late may still make what was begun, or take it back.
        tokio::time::sleep(self.script.options.downtime).await;
        let released = || admin.list::<Volume>().iter().all(|volume| volume.status.phase == VolumePhase::Released);
        // A finalizer whose removal got no answer is removed at the next try.
        let kind = self.script.kind;
        let is_gone = || !kind.is_volume_first() || self.gave_up() || admin.list_raw(kinds::VOLUME).is_empty();
        let is_over = || released() && is_gone() && world.observe().violations_at_rest().is_empty();
        world.until("what is retained at rest", LIMIT, is_over).await?;
        world.settle().await;
        let kept: Vec<String> = world.driver().snapshot().volumes.into_keys().collect();
        let objects = admin.list_raw(kinds::VOLUME).len();
        let expected = if self.script.kind.is_volume_first() { 0 } else { 1 };
        if !self.gave_up() && (objects, kept.len()) != (expected, 1) {
            let text = format!("P3: of one retained volume {objects} objects are left, and {kept:?} in the driver");
            self.report.wrong.push(text);
        }
        delete_volumes(world).await;
        world.until("the end of its object", LIMIT, || admin.list_raw(kinds::VOLUME).is_empty()).await?;
        tokio::time::sleep(self.script.options.downtime).await;
        world.settle().await;
        let left: Vec<String> = world.driver().snapshot().volumes.into_keys().collect();
        if left != kept {
            self.report.wrong.push(format!("P3: {kept:?} were to be retained, but the driver has {left:?}"));
        }
        left.iter().for_each(|id| world.driver().discard(id));
        Ok(())
    }

    async fn make(&self, kind: ObjectKind, object: Value) {
        self.world.admin().create(kind, object).await.expect("the manifests of a life are valid");
    }

    async fn remove(&self, kind: ObjectKind, key: &Key) {
        if self.world.admin().exists(kind, key) {
            self.world.admin().delete(kind, key).await.expect("what a user made can be deleted");
        }
    }

    /// Whether it was deleted at the fault, so that nobody waits for it.
    fn gave_up(&self) -> bool {
        self.script.gave_up(self.world)
    }
}

/// Deletes the objects of volumes; what is retained is the administrator's from then on.
async fn delete_volumes(world: &World) {
    for volume in world.admin().list::<Volume>() {
        if volume.spec.reclaim_policy == ReclaimPolicy::Retain
            && let Some(csi) = &volume.spec.csi
        {
            world.driver().adopt(&csi.volume_handle);
        }
        world.admin().delete(kinds::VOLUME, &volume.key()).await.expect("an administrator can delete a volume");
    }
}

/// What is published of the class, in bytes.
fn rooms(world: &World) -> Vec<String> {
    let published = world.admin().list_raw(kinds::STORAGE_CAPACITY);
    let rooms = published.iter().filter_map(|object| {
        let size: stowage_model::quantity::Quantity = object["capacity"].as_str()?.parse().ok()?;
        Some(size.bytes().to_string())
    });
    rooms.collect()
}

fn is_bound(world: &World) -> bool {
    let claim: Option<Claim> = world.admin().get(&key(CLAIM));
    claim.is_some_and(|claim| claim.is_fully_bound() && claim.status.capacity.storage.is_some())
}

fn is_all_gone(world: &World) -> bool {
    let admin = world.admin();
    world.driver().snapshot().is_empty()
        && admin.list_raw(kinds::VOLUME).is_empty()
        && admin.list_raw(kinds::VOLUME_ATTACHMENT).is_empty()
        && !admin.exists(kinds::CLAIM, &key(CLAIM))
        && world.observe().leftovers().is_empty()
}
