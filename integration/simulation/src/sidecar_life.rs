//! Lives in which a sidecar does what the life of an ordinary claim does not ask for.
//!
//! The player is the attach-detach controller and the node.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::FutureExt;
use serde_json::{Value, json};

use stowage_model::claim::Claim;
use stowage_model::object::{Key, Kind as ObjectKind, kinds};
use stowage_testing::driver::{Abilities, POOL};
use stowage_testing::world::DRIVER;
use stowage_testing::{Hang, World};

use crate::life::LIMIT;
use crate::life_sweep::{self, Life, Report};
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
    /// The driver loses a publication, and the list of volumes shows it.
    Reconciled,
}

impl Life for Kind {
    const ALL: &'static [Self] = &[Self::Capacity, Self::Classed, Self::VolumeFirst, Self::Reconciled];

    fn swept(self) -> &'static [&'static str] {
        match self {
            Self::Capacity | Self::Classed => &["provisioner"],
            Self::VolumeFirst => &["provisioner", "pv-controller"],
            Self::Reconciled => &["attacher"],
        }
    }

    fn options(self) -> pipeline::Options {
        let services: &'static [&'static str] = match self {
            Self::Reconciled => &["pv-controller", "provisioner", "attacher"],
            Self::Capacity | Self::Classed | Self::VolumeFirst => &["pv-controller", "provisioner"],
        };
        let capacity = self == Self::Capacity;
        pipeline::Options { services: Some(services), capacity, ..pipeline::Options::default() }
    }

    async fn play(world: &World, script: &Script) -> Report {
        let mut stage = Stage { world, script, report: Report::default() };
        let seen: Arc<Mutex<(u64, BTreeSet<String>)>> = Arc::default();
        let watcher = tokio::spawn(watch(world.clone(), Arc::clone(&seen)));
        let played = stage.play().await;
        watcher.abort();
        {
            let seen = seen.lock().expect("nobody panics while holding it");
            stage.report.wrong.extend(seen.1.iter().cloned());
            stage.report.looks = seen.0;
        }
        if let Err(hang) = played {
            stage.report.wrong.insert(0, hang.to_string());
        }
        stage.report.trace = world.trace().points();
        stage.report
    }
}

type Script = life_sweep::Script<Kind>;

async fn watch(world: World, seen: Arc<Mutex<(u64, BTreeSet<String>)>>) {
    loop {
        let count = world.changes().count();
        {
            let mut seen = seen.lock().expect("nobody panics while holding it");
            seen.0 += 1;
            seen.1.extend(world.observe().violations().iter().map(ToString::to_string));
        }
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
            self.live().await?;
        }
        self.report.deleted = world.trace().len();
        self.end().await;
        world.until("the end of everything", LIMIT, || is_all_gone(world)).await?;
        self.report.took = world.elapsed();

        // Whoever is still down or late now comes back and must find nothing to do.
        tokio::time::sleep(self.script.options.downtime).await;
        world.settle().await;
        let observed = world.observe();
        let found = observed.violations_at_rest().into_iter().chain(observed.leftovers());
        self.report.wrong.extend(found.map(|violation| violation.to_string()));
        if kind == Kind::Capacity {
            world.until("the room is back", LIMIT, || rooms(world) == [POOL.to_string()]).await?;
            self.remove(kinds::STORAGE_CLASS, &Key::cluster(CLASS)).await;
            world.until("nothing published", LIMIT, || rooms(world).is_empty()).await?;
        }
        self.report.ends = pipeline.ends();
        for (service, numbers) in world.numbers() {
            if numbers.missed_wakeups > 0 {
                self.report.wrong.push(format!("{service}: {} wake-ups were missed", numbers.missed_wakeups));
            }
        }
        Ok(())
    }

    async fn set(&self) {
        let (world, kind) = (self.world, self.script.kind);
        let (listing, capacity) = (kind == Kind::Reconciled, kind == Kind::Capacity);
        world.driver().enable(Abilities { listing, capacity, ..Abilities::default() });
        self.make(kinds::CSI_DRIVER, manifests::csi_driver()).await;
        self.make(kinds::STORAGE_CLASS, manifests::class(Binding::Immediate)).await;
        let gold = json!({ "metadata": { "name": GOLD }, "driverName": DRIVER, "parameters": { "iops": "9" } });
        self.make(kinds::ATTRIBUTES_CLASS, gold).await;
        self.make(kinds::NODE, json!({ "metadata": { "name": NODE } })).await;
        let drivers = json!([{ "name": DRIVER, "nodeID": NODE, "topologyKeys": null }]);
        self.make(kinds::CSI_NODE, json!({ "metadata": { "name": NODE }, "spec": { "drivers": drivers } })).await;
        let Some(fault) = self.script.fault.clone() else { return };
        let (admin, delete) = (world.admin().clone(), self.script.delete);
        let at_fault = move || {
            let admin = admin.clone();
            async move {
                if delete {
                    // Whichever of them is there yet.
                    let _ = admin.delete(kinds::VOLUME_ATTACHMENT, &Key::cluster(ATTACHMENT)).await;
                    let _ = admin.delete(kinds::CLAIM, &key(CLAIM)).await;
                }
            }
            .boxed()
        };
        world.arm(fault, Some(Arc::new(at_fault)));
    }

    /// What the life is about, unless the claim went.
    async fn live(&mut self) -> Result<(), Hang> {
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
            Kind::VolumeFirst => {
                for volume in world.admin().list_raw(kinds::VOLUME) {
                    let name = volume["metadata"]["name"].as_str().unwrap_or_default();
                    self.remove(kinds::VOLUME, &Key::cluster(name)).await;
                }
                Ok(())
            }
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
        self.script.delete && !self.world.is_armed()
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
