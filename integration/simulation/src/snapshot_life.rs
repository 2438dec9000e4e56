//! The lives of a snapshot: made, used, deleted in every order, gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures::FutureExt;
use serde_json::json;

use stowage_model::VolumeGroupSnapshot;
use stowage_model::claim::Claim;
use stowage_model::object::{self, Key, kinds};
use stowage_model::volume_snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use stowage_testing::driver::Source;
use stowage_testing::{Abilities, Hang, World, crds};

use crate::life::{self, LIMIT, Life, Report, Sample};
use crate::manifests::{self, Binding, key};
use crate::pipeline::{self, Pipeline};

/// The claim of which snapshots are made, and its copy.
const CLAIM: &str = "data";
const COPY: &str = "copy";
const SNAPSHOT: &str = "monday";

/// The other claim of a group, and the label of both.
const SECOND: &str = "more";
const LABEL: (&str, &str) = ("of", "pair");

/// The driver's id of the claim's volume, which is made first, and of the other one's.
const VOLUME: &str = "vol-1";
const SECOND_VOLUME: &str = "vol-2";

/// Which life is played.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Made, ready, deleted.
    Plain,
    /// The driver says several times that it is not ready.
    Slow,
    /// Deleted as soon as it is asked for.
    Hasty,
    /// The claim is deleted as soon as its snapshot is asked for; the snapshot outlives it.
    ClaimFirst,
    /// The content is deleted before the snapshot.
    ContentFirst,
    /// The class is deleted before the snapshot.
    ClassFirst,
    /// The class says Retain: the driver keeps the snapshot.
    Retained,
    /// The driver had it before Kubernetes knew.
    PreProvisioned,
    /// A claim is made from it.
    Restored,
    /// A claim is made from the claim.
    Cloned,
    /// A group of two claims is made, ready, deleted.
    Group,
}

impl Life for Kind {
    const ALL: &'static [Self] = &[
        Self::Plain,
        Self::Slow,
        Self::Hasty,
        Self::ClaimFirst,
        Self::ContentFirst,
        Self::ClassFirst,
        Self::Retained,
        Self::PreProvisioned,
        Self::Restored,
        Self::Cloned,
        Self::Group,
    ];

    fn sweeps(self, service: &str) -> bool {
        match service {
            "snapshot-controller" | "snapshotter" => self != Self::Cloned,
            "provisioner" => self.makes_copy(),
            _ => false,
        }
    }

    fn options(self) -> pipeline::Options {
        pipeline::Options { services: Some(&pipeline::SNAPSHOTS), ..pipeline::Options::default() }
    }

    fn sample(self) -> Sample {
        if self.is_primary() { Sample::ALL } else { Sample::WORST }
    }

    async fn live(world: &World, script: &Script, report: &mut Report) -> Result<(), Hang> {
        Stage { world, script, report, taken_over: Arc::default() }.live().await
    }
}

type Script = life::Script<Kind>;

impl Kind {
    /// Whether this life is [`Kind::Plain`] until its deletion.
    fn begins_plain(self) -> bool {
        matches!(self, Self::ContentFirst | Self::ClassFirst)
    }

    /// Whether most of what it does is done in no other life, so that it is stopped in every way.
    fn is_primary(self) -> bool {
        matches!(self, Self::Plain | Self::Restored | Self::Cloned | Self::Group)
    }

    /// What is deleted at a fault, if anything is.
    fn doomed(self) -> (object::Kind, &'static str) {
        match self {
            Self::Cloned => (kinds::CLAIM, CLAIM),
            Self::Group => (kinds::VOLUME_GROUP_SNAPSHOT, SNAPSHOT),
            _ => (kinds::VOLUME_SNAPSHOT, SNAPSHOT),
        }
    }

    /// Whether a claim is made from something.
    fn makes_copy(self) -> bool {
        matches!(self, Self::Restored | Self::Cloned)
    }
}

struct Stage<'a> {
    world: &'a World,
    script: &'a Script,
    report: &'a mut Report,
    /// Whether at the fault a content was bound and its snapshot found, so that services must delete both.
    taken_over: Arc<AtomicBool>,
}

impl Stage<'_> {
    async fn live(&mut self) -> Result<(), Hang> {
        let (world, kind) = (self.world, self.script.kind);
        self.set().await;
        let pipeline = Pipeline::start(world, self.script.options);
        world.until("the claim Bound", LIMIT, || is_bound(world, CLAIM)).await?;
        if kind == Kind::Group {
            world.until("the other claim Bound", LIMIT, || is_bound(world, SECOND)).await?;
        }
        write(world, kind, 1);
        self.make().await;
        if !matches!(kind, Kind::Hasty | Kind::Cloned) {
            world.until("the snapshot ready", LIMIT, || self.gave_up() || is_ready(world, kind)).await?;
            self.rest("everything at rest with the snapshot ready").await?;
        }
        if kind == Kind::ClaimFirst {
            world
                .until("the end of the claim", LIMIT, || !world.driver().snapshot().volumes.contains_key(VOLUME))
                .await?;
            self.rest("everything at rest without the claim").await?;
        }
        write(world, kind, 2);
        if kind.makes_copy() {
            self.copy().await?;
        }
        self.report.deleted = world.trace().len();
        if kind.begins_plain() {
            self.report.own.start = self.report.deleted;
        }
        self.delete().await?;
        world.until("the end of everything", LIMIT, || is_all_gone(world)).await?;
        self.report.end(world, self.script, &pipeline).await;
        Ok(())
    }

    /// What is there before any service is.
    async fn set(&self) {
        let (admin, driver, kind) = (self.world.admin(), self.world.driver(), self.script.kind);
        let made = "the manifests of a life are valid";
        crds::install(admin).await.expect(made);
        driver.enable(Abilities::ALL);
        driver.ready_after(if kind == Kind::Slow { 2 } else { 0 });
        admin.create(kinds::CSI_DRIVER, manifests::csi_driver()).await.expect(made);
        admin.create(kinds::STORAGE_CLASS, manifests::class(Binding::Immediate)).await.expect(made);
        let policy = if kind == Kind::Retained { "Retain" } else { "Delete" };
        admin.create(kinds::VOLUME_SNAPSHOT_CLASS, manifests::snapshot_class(policy)).await.expect(made);
        let mut claim = manifests::claim(CLAIM, "1Gi");
        if kind == Kind::Group {
            let class = manifests::snapshot_class(policy);
            admin.create(kinds::VOLUME_GROUP_SNAPSHOT_CLASS, class).await.expect(made);
            claim["metadata"]["labels"] = json!({ LABEL.0: LABEL.1 });
            let mut second = claim.clone();
            second["metadata"]["name"] = SECOND.into();
            admin.create(kinds::CLAIM, second).await.expect(made);
        }
        admin.create(kinds::CLAIM, claim).await.expect(made);
        let Some(fault) = self.script.fault.clone() else { return };
        let (world, delete) = (self.world.clone(), self.script.delete);
        let (doomed, taken_over) = (kind.doomed(), Arc::clone(&self.taken_over));
        let at_fault = move || {
            let (world, taken_over) = (world.clone(), Arc::clone(&taken_over));
            async move {
                let is_taken_over = |content: &VolumeSnapshotContent| {
                    !content.spec.volume_snapshot_ref.uid.is_empty() && content.snapshot_handle().is_some()
                };
                let contents = world.admin().list::<VolumeSnapshotContent>();
                taken_over.store(contents.iter().any(is_taken_over), Ordering::Relaxed);
                // Whatever is cut anew after this is of another moment.
                write(&world, kind, 9);
                if delete {
                    world.admin().delete(doomed.0, &key(doomed.1)).await.expect("what a user made can be deleted");
                }
            }
            .boxed()
        };
        self.world.arm(fault, Some(Arc::new(at_fault)));
    }

    /// Asks for what this life is about.
    async fn make(&mut self) {
        let (admin, kind) = (self.world.admin(), self.script.kind);
        let made = "the manifests of a life are valid";
        self.report.asked = self.world.trace().len();
        match kind {
            Kind::Cloned => {}
            Kind::Group => {
                let group = manifests::group_snapshot(SNAPSHOT, LABEL);
                admin.create(kinds::VOLUME_GROUP_SNAPSHOT, group).await.expect(made);
            }
            Kind::PreProvisioned => {
                let handle = self.world.driver().cut(VOLUME).expect("the volume is there");
                let (snapshot, content) = manifests::known_snapshot(SNAPSHOT, &handle);
                admin.create(kinds::VOLUME_SNAPSHOT_CONTENT, content).await.expect(made);
                admin.create(kinds::VOLUME_SNAPSHOT, snapshot).await.expect(made);
            }
            _ => {
                admin.create(kinds::VOLUME_SNAPSHOT, manifests::snapshot(SNAPSHOT, CLAIM)).await.expect(made);
            }
        }
        if kind == Kind::ClaimFirst {
            // Only what is being cut holds the claim: before that there is nothing to protect.
            let begun = || self.gave_up() || !admin.list_raw(kinds::VOLUME_SNAPSHOT_CONTENT).is_empty();
            let _ = self.world.until("the content", LIMIT, begun).await;
            admin.delete(kinds::CLAIM, &key(CLAIM)).await.expect("a claim can be deleted");
        }
    }

    /// Makes a claim from the snapshot or from the claim.
    async fn copy(&mut self) -> Result<(), Hang> {
        let (world, kind) = (self.world, self.script.kind);
        let (of, name) = if kind == Kind::Cloned { (kinds::CLAIM, CLAIM) } else { (kinds::VOLUME_SNAPSHOT, SNAPSHOT) };
        let copy = manifests::claim_from(COPY, of, name);
        self.report.own.start = world.trace().len();
        world.admin().create(kinds::CLAIM, copy).await.expect("the manifests of a life are valid");
        world.until("the copy Bound", LIMIT, || self.gave_up() || is_bound(world, COPY)).await?;
        if self.gave_up() {
            return Ok(());
        }
        self.rest("everything at rest with the copy").await?;
        let state = world.driver().snapshot();
        let copies: Vec<_> = state.volumes.values().filter(|made| made.source.is_some()).collect();
        let right = |source: &Source| match source {
            Source::Snapshot(id) => state.snapshots.get(id).map(|cut| cut.content),
            Source::Volume(_) => Some(2),
        };
        let [copy] = copies[..] else {
            self.report.wrong.push(format!("S1: one volume was to be made from another, but there are {copies:?}"));
            return Ok(());
        };
        let expected = copy.source.as_ref().and_then(right);
        // Whether a clone is made before or after what is written at the fault is nobody's promise.
        if Some(copy.content) != expected && !(kind == Kind::Cloned && copy.content == 9) {
            self.report.wrong.push(format!("S1: the copy holds {}, not {expected:?}", copy.content));
        }
        Ok(())
    }

    async fn delete(&mut self) -> Result<(), Hang> {
        let (world, admin, kind) = (self.world, self.world.admin(), self.script.kind);
        let deletable = "what a user made can be deleted";
        if kind == Kind::ContentFirst {
            for content in admin.list::<VolumeSnapshotContent>() {
                admin.delete(kinds::VOLUME_SNAPSHOT_CONTENT, &content.meta.key()).await.expect(deletable);
            }
            world.settle().await;
        }
        if kind == Kind::ClassFirst {
            admin.delete(kinds::VOLUME_SNAPSHOT_CLASS, &Key::cluster(manifests::CLASS)).await.expect(deletable);
            world.settle().await;
        }
        let what = if kind == Kind::Group { kinds::VOLUME_GROUP_SNAPSHOT } else { kinds::VOLUME_SNAPSHOT };
        admin.delete(what, &key(SNAPSHOT)).await.expect(deletable);
        if kind == Kind::Retained {
            self.give_back().await?;
        }
        if kind == Kind::PreProvisioned && self.gave_up() && !self.taken_over.load(Ordering::Relaxed) {
            self.take_back().await?;
        }
        for claim in [CLAIM, COPY, SECOND] {
            admin.delete(kinds::CLAIM, &key(claim)).await.expect(deletable);
        }
        Ok(())
    }

    /// What an administrator brought and nobody took over in time stays theirs.
    async fn take_back(&mut self) -> Result<(), Hang> {
        let (world, admin) = (self.world, self.world.admin());
        world.until("the end of the snapshot", LIMIT, || !admin.exists(kinds::VOLUME_SNAPSHOT, &key(SNAPSHOT))).await?;
        // Who comes back late may still take it over.
        tokio::time::sleep(self.script.options.downtime).await;
        world.settle().await;
        for content in admin.list::<VolumeSnapshotContent>() {
            let key = content.meta.key();
            admin.delete(kinds::VOLUME_SNAPSHOT_CONTENT, &key).await.expect("an administrator can delete a content");
        }
        let no_content = || admin.list_raw(kinds::VOLUME_SNAPSHOT_CONTENT).is_empty();
        world.until("the end of the content", LIMIT, no_content).await?;
        let left: Vec<String> = world.driver().snapshot().snapshots.into_keys().collect();
        left.iter().for_each(|id| world.driver().discard(id));
        Ok(())
    }

    /// What was retained stays until an administrator deletes it by hand.
    async fn give_back(&mut self) -> Result<(), Hang> {
        let (world, admin) = (self.world, self.world.admin());
        world.until("the end of the snapshot", LIMIT, || !admin.exists(kinds::VOLUME_SNAPSHOT, &key(SNAPSHOT))).await?;
        self.rest("everything at rest with what is retained").await?;
        let retained: Vec<String> = world.driver().snapshot().snapshots.into_keys().collect();
        let contents = admin.list::<VolumeSnapshotContent>();
        if contents.is_empty() && !self.gave_up() {
            self.report.wrong.push("P3: the content of a retained snapshot went with it".into());
        }
        retained.iter().for_each(|id| world.driver().adopt(id));
        for content in contents {
            let key = content.meta.key();
            admin.delete(kinds::VOLUME_SNAPSHOT_CONTENT, &key).await.expect("an administrator can delete a content");
        }
        let no_content = || admin.list_raw(kinds::VOLUME_SNAPSHOT_CONTENT).is_empty();
        world.until("the end of the content", LIMIT, no_content).await?;
        let left: Vec<String> = world.driver().snapshot().snapshots.into_keys().collect();
        if left != retained {
            self.report.wrong.push(format!("P3: {retained:?} were to be retained, but the driver has {left:?}"));
        }
        left.iter().for_each(|id| world.driver().discard(id));
        Ok(())
    }

    /// Waits until all is as it must be when nothing goes on: who was stopped needs a moment to come back.
    async fn rest(&self, what: &str) -> Result<(), Hang> {
        self.world.until(what, LIMIT, || self.world.observe().violations_at_rest().is_empty()).await
    }

    /// Whether this life's snapshot was deleted at the fault, so that nobody waits for it.
    fn gave_up(&self) -> bool {
        self.script.gave_up(self.world)
    }
}

fn is_bound(world: &World, claim: &str) -> bool {
    let claim: Option<Claim> = world.admin().get(&key(claim));
    claim.is_some_and(|claim| claim.is_fully_bound())
}

/// Changes what is in the volumes of which something is made.
fn write(world: &World, kind: Kind, content: u64) {
    let second = (kind == Kind::Group).then_some(SECOND_VOLUME);
    for volume in [Some(VOLUME), second].into_iter().flatten() {
        world.driver().write(volume, content);
    }
}

fn is_ready(world: &World, kind: Kind) -> bool {
    if kind == Kind::Group {
        let group: Option<VolumeGroupSnapshot> = world.admin().get(&key(SNAPSHOT));
        return group.is_some_and(|group| group.is_ready());
    }
    let snapshot: Option<VolumeSnapshot> = world.admin().get(&key(SNAPSHOT));
    snapshot.is_some_and(|snapshot| snapshot.is_ready())
}

/// Cheap looks first: this is asked after every change.
fn is_all_gone(world: &World) -> bool {
    let admin = world.admin();
    world.driver().snapshot().is_empty()
        && !admin.exists(kinds::VOLUME_SNAPSHOT, &key(SNAPSHOT))
        && admin.list_raw(kinds::VOLUME).is_empty()
        && world.observe().leftovers().is_empty()
}
