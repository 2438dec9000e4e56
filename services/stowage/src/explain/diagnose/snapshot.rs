//! The life of a VolumeSnapshot.

use stowage_model::object::{Key, Projection as _, kinds};
use stowage_model::phase::ClaimPhase;
use stowage_model::{VolumeSnapshot, VolumeSnapshotContent, names};

use super::{Steps, View, deleting, kubectl_claim, quoted, some};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, State, Story, Who};

pub fn story(view: &View<'_>, snapshot: &VolumeSnapshot) -> Story {
    let meta = &snapshot.meta;
    let created = meta.creation_timestamp;
    let mut steps = Steps::new();
    steps.add("snapshot created", true, created);
    let content = content_of(view, snapshot);
    let is_ready = snapshot.is_ready();
    steps.add("snapshot-controller asks for it (VolumeSnapshotContent)", content.is_some() || is_ready, created);
    let content_created = content.and_then(|content| content.meta.creation_timestamp);
    let has_handle = content.is_some_and(|content| content.snapshot_handle().is_some());
    steps.add("snapshotter has the driver make it", has_handle || is_ready, content_created);
    let is_usable = content.is_some_and(VolumeSnapshotContent::is_ready) || is_ready;
    steps.add("the driver says that it can be used", is_usable, content_created);
    steps.add("snapshot-controller tells it (status.readyToUse)", is_ready, content_created);
    let causes = match meta.deletion_timestamp {
        Some(since) => {
            steps.add("deleted", false, Some(since));
            deleting::snapshot(view, snapshot)
        }
        None if is_ready => Vec::new(),
        None => causes(view, snapshot),
    };
    let phase = match (meta.is_deleting(), is_ready) {
        (true, _) => "Terminating",
        (_, true) => "ReadyToUse",
        _ => "not ReadyToUse",
    };
    Story {
        kind: VolumeSnapshot::KIND,
        key: meta.key(),
        phase: phase.to_owned(),
        since: meta.deletion_timestamp.or(created),
        steps: steps.0,
        causes,
    }
}

pub fn content_of<'a>(view: &View<'a>, snapshot: &VolumeSnapshot) -> Option<&'a VolumeSnapshotContent> {
    let given = snapshot.spec.source.volume_snapshot_content_name.clone();
    let name = snapshot.bound_content().map(str::to_owned).or(given);
    let name = name.unwrap_or_else(|| names::snapshot_content(&snapshot.meta.uid));
    view.g.contents.look(&Key::cluster(name)).there()
}

/// Why a snapshot is not ready.
pub fn causes(view: &View<'_>, snapshot: &VolumeSnapshot) -> Vec<Cause> {
    let mut causes = Vec::new();
    let content = content_of(view, snapshot);
    causes.extend(content.and_then(|content| refused(view, content)));
    if causes.is_empty() {
        causes.extend(source(view, snapshot));
        causes.extend(class(view, snapshot, content));
        causes.extend(given_content(view, snapshot));
    }
    if causes.is_empty() {
        let error = snapshot.status.as_ref().and_then(|status| status.error.as_ref()?.message.clone());
        let told = view.complaint(snapshot, &["SnapshotCreationFailed", "SnapshotContentMissing"], &["SnapshotReady"]);
        let words =
            error.map(|error| format!("{error} (status.error)")).or_else(|| told.map(|told| quoted(told, view.now)));
        causes.extend(words.map(|why| {
            let way_out = "remove what is named; it is tried again by itself";
            Cause::stuck("snapshot-failed", view.who("snapshot-controller"), why, way_out)
        }));
    }
    if causes.is_empty() {
        causes.push(silence(view, snapshot, content));
    }
    causes
}

/// The driver's own words.
fn refused(view: &View<'_>, content: &VolumeSnapshotContent) -> Option<Cause> {
    let who = view.sidecar("snapshotter", &content.spec.driver);
    let error = content.status.as_ref().and_then(|status| status.error.as_ref()?.message.clone());
    let error = error.map(|error| format!("{error} (status.error of VolumeSnapshotContent {})", content.meta.name));
    let told = || view.complaint(content, &["SnapshotCreationFailed", "SnapshotContentCheckandUpdateFailed"], &[]);
    let why = error.or_else(|| told().map(|told| quoted(told, view.now)))?;
    Some(Cause::stuck("snapshot-failed", who, why, "remove what the driver names; it is tried again by itself"))
}

fn source(view: &View<'_>, snapshot: &VolumeSnapshot) -> Option<Cause> {
    let name = snapshot.spec.source.persistent_volume_claim_name.as_deref()?;
    let key = Key::namespaced(snapshot.meta.namespace.as_str(), name);
    let field = "spec.source.persistentVolumeClaimName";
    match view.g.claims.look(&key) {
        Look::Absent => {
            let why = format!("{field} is {name:?}, and there is no such claim");
            let way_out = "create the claim, or delete the snapshot and create it anew for another";
            Some(Cause::stuck("source-missing", Who::user(), why, way_out))
        }
        Look::There(claim) if claim.status.phase != ClaimPhase::Bound => {
            let why = format!("{field} is {name:?}, whose phase is {}, not Bound", claim.status.phase);
            let way_out = format!("`stowage explain {}`", kubectl_claim(claim));
            Some(view.slow("source-not-bound", Who::user(), snapshot.meta.creation_timestamp, why, way_out))
        }
        _ => None,
    }
}

fn class(view: &View<'_>, snapshot: &VolumeSnapshot, content: Option<&VolumeSnapshotContent>) -> Option<Cause> {
    let classes = &view.g.snapshot_classes;
    let all: Vec<&str> = classes.all().iter().map(|class| class.meta.name.as_str()).collect();
    let there = if all.is_empty() { "there is none".to_owned() } else { format!("there are {}", some(all)) };
    match snapshot.spec.volume_snapshot_class_name.as_deref() {
        Some(name) if classes.look(&Key::cluster(name)).is_absent() && content.is_none() => {
            let why = format!("spec.volumeSnapshotClassName is {name:?}, and there is no such VolumeSnapshotClass");
            let way_out = format!("create it, or delete the snapshot and name another class ({there})");
            Some(Cause::stuck("snapshot-class-missing", Who::user(), why, way_out))
        }
        Some(_) => None,
        None if snapshot.spec.source.volume_snapshot_content_name.is_some() || !classes.is_known => None,
        None => {
            let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref()?;
            let claim = view.g.claims.look(&Key::namespaced(snapshot.meta.namespace.as_str(), claim)).there()?;
            let volume = view.g.volumes.named(&claim.spec.volume_name).there()?;
            let Some(csi) = &volume.spec.csi else {
                let why =
                    format!("PersistentVolume {:?} of claim {} is not a CSI volume", volume.meta.name, claim.meta.name);
                return Some(Cause::stuck("not-csi", Who::user(), why, "only volumes of CSI drivers have snapshots"));
            };
            let defaults = classes.all().iter().filter(|class| class.is_default() && class.driver == csi.driver);
            let defaults: Vec<&str> = defaults.map(|class| class.meta.name.as_str()).collect();
            let name = "spec.volumeSnapshotClassName is not set";
            match defaults.len() {
                0 => Some(Cause::stuck(
                    "no-default-snapshot-class",
                    Who::user(),
                    format!("{name}, and no VolumeSnapshotClass is the default of driver {}", csi.driver),
                    format!("delete the snapshot and create it anew with a class of that driver ({there})"),
                )),
                1 => None,
                _ => Some(Cause::stuck(
                    "several-default-snapshot-classes",
                    Who::user(),
                    format!("{name}, and several classes are the default of driver {}: {}", csi.driver, some(defaults)),
                    "name one in the snapshot, or leave the annotation on one class only",
                )),
            }
        }
    }
}

/// A content that stands for a snapshot the driver has already.
fn given_content(view: &View<'_>, snapshot: &VolumeSnapshot) -> Option<Cause> {
    let name = snapshot.spec.source.volume_snapshot_content_name.as_deref()?;
    match view.g.contents.look(&Key::cluster(name)) {
        Look::Absent => {
            let why = format!(
                "spec.source.volumeSnapshotContentName is {name:?}, and there is no such VolumeSnapshotContent"
            );
            Some(Cause::stuck("content-missing", Who::user(), why, "create the content"))
        }
        Look::There(content) if !content.spec.volume_snapshot_ref.names(&snapshot.meta) => {
            let reference = &content.spec.volume_snapshot_ref;
            let why = format!("spec.volumeSnapshotRef of VolumeSnapshotContent {name:?} names {}", reference.key());
            let way_out = "name this snapshot in the content's spec.volumeSnapshotRef, without a uid";
            Some(Cause::stuck("content-not-bound", Who::user(), why, way_out))
        }
        _ => None,
    }
}

fn silence(view: &View<'_>, snapshot: &VolumeSnapshot, content: Option<&VolumeSnapshotContent>) -> Cause {
    let created = snapshot.meta.creation_timestamp;
    let Some(content) = content else {
        if !view.g.contents.is_known {
            return view.unseen(kinds::VOLUME_SNAPSHOT_CONTENT, created, "no content of it was seen");
        }
        let who = view.who("snapshot-controller");
        let (silence, way_out) = view.silence(&who);
        return view.slow(
            "snapshot-controller-silent",
            who,
            created,
            format!("no content was made: {silence}"),
            way_out,
        );
    };
    let name = &content.meta.name;
    let who = view.sidecar("snapshotter", &content.spec.driver);
    if content.snapshot_handle().is_some() && !content.is_ready() {
        let why = format!(
            "the driver {} has made it and does not say yet that it can be used (status.readyToUse of \
             VolumeSnapshotContent {name} is not true)",
            content.spec.driver
        );
        // However long it takes: it is the driver's to say.
        let cause = Cause::stuck("snapshot-not-ready", who, why, "wait: some drivers copy the data first");
        return Cause { state: State::Working, ..cause };
    }
    let (silence, way_out) = view.silence(&who);
    if content.is_ready() {
        let who = view.who("snapshot-controller");
        let (silence, way_out) = view.silence(&who);
        let why = format!("VolumeSnapshotContent {name} is ready, and the snapshot does not say so: {silence}");
        return view.slow("content-not-bound", who, created, why, way_out);
    }
    view.slow(
        "snapshotter-silent",
        who,
        created,
        format!("VolumeSnapshotContent {name} has no snapshot yet: {silence}"),
        way_out,
    )
}
