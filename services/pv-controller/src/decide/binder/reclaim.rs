//! What becomes of a volume that lost its claim.

use jiff::Timestamp;

use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::{Text, Volume, finalizers, migration};
use stowage_runtime::events::Note;
use stowage_runtime::operation::{Record, State};

use crate::decide::{Decision, Source, VolumeAction, VolumeTidy, Why};
use crate::snapshot::VolumeSnapshot;

pub fn is_released(volume: &Volume) -> bool {
    matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Failed)
}

pub fn reclaim(s: &VolumeSnapshot, now: Timestamp) -> Decision<VolumeAction> {
    let volume = &*s.volume;
    if volume.migrated_to().is_some_and(|driver| !driver.is_empty()) {
        return Decision::rest(Why::ClaimGone);
    }
    match volume.spec.reclaim_policy {
        ReclaimPolicy::Retain => Decision::rest(Why::ClaimGone),
        ReclaimPolicy::Delete => delete(s, now),
        ReclaimPolicy::Recycle => recycle(s, now),
        ReclaimPolicy::Unknown => {
            let text = "unknown persistentVolumeReclaimPolicy: set it to Retain or Delete".to_owned();
            failed(s, "VolumeUnknownReclaimPolicy", text)
        }
    }
}

/// Who deletes a volume's data.
enum Deleter {
    /// The external provisioner, which sees the phase Released.
    External,
    InTree,
    Nobody(String),
}

/// Who made it deletes it; what nobody made here is deleted by the plugin of its kind.
pub fn deleting_plugin(volume: &Volume) -> Option<&str> {
    volume.provisioned_by().filter(|name| !name.is_empty()).or_else(|| migration::plugin_of_source(volume))
}

fn deleter(s: &VolumeSnapshot) -> Deleter {
    let volume = &*s.volume;
    match volume.provisioned_by().filter(|name| !name.is_empty()) {
        Some(name) if !name.starts_with(migration::IN_TREE) => return Deleter::External,
        None if volume.spec.csi.is_some() || volume.migrated_to().is_some() => return Deleter::External,
        _ => {}
    }
    match deleting_plugin(volume) {
        Some(migration::HOST_PATH) => Deleter::InTree,
        _ => Deleter::Nobody(format!(
            "no deleter for a {} volume: set persistentVolumeReclaimPolicy to Retain, then delete its data and the object by hand",
            volume.spec.other_source.unwrap_or("volume without source"),
        )),
    }
}

fn delete(s: &VolumeSnapshot, now: Timestamp) -> Decision<VolumeAction> {
    match deleter(s) {
        Deleter::External => return Decision::rest(Why::ClaimGone),
        Deleter::Nobody(why) => return failed(s, "VolumeFailedDelete", why),
        Deleter::InTree => {}
    }
    if !s.is_data_deleted() {
        return operation(s, VolumeAction::DeleteData, "VolumeFailedDelete", now);
    }
    let meta = &s.volume.meta;
    if !meta.is_deleting() {
        // Asked for before the finalizers go: nobody can add one again to an object that is being deleted.
        return Decision::act([VolumeAction::DeleteObject], Why::Reclaim);
    }
    // Where another process protects volumes, its finalizer is its own to remove.
    let protection = s.rules.controllers.volume_protection.then_some(finalizers::VOLUME_PROTECTION);
    let is_ours = |name: &str| name == finalizers::IN_TREE_DELETER || Some(name) == protection;
    let left: Vec<Text> = meta.finalizers.iter().filter(|name| !is_ours(name)).cloned().collect();
    if left == meta.finalizers {
        return Decision::rest(Why::Reclaim);
    }
    let tidy = VolumeTidy { finalizers: Some(left), ..VolumeTidy::default() };
    Decision::act([VolumeAction::Tidy(tidy)], Why::Reclaim)
}

fn recycle(s: &VolumeSnapshot, now: Timestamp) -> Decision<VolumeAction> {
    if !s.users.is_empty() {
        let text =
            format!("the released volume is still used by pod {}: it is recycled when they end", s.users.join(","));
        let note = Note::normal("VolumeFailedRecycle", text);
        let told = s.told.said(&Source::Binder, now) == Some(&note);
        return Decision::act(if told { vec![] } else { vec![VolumeAction::Tell(note)] }, Why::InUse);
    }
    let plugin = migration::plugin_of_source(&s.volume);
    if !matches!(plugin, Some(migration::HOST_PATH | migration::NFS)) {
        let text = "no recycler for this kind of volume: set persistentVolumeReclaimPolicy to Retain or Delete";
        return failed(s, "VolumeFailedRecycle", text.to_owned());
    }
    if matches!(s.operation, Some(Record { state: State::Done(()), .. })) {
        let note = Note::normal("VolumeRecycled", format!("volume {} is erased and free again", s.volume.meta.name));
        let untold = (s.told.said(&Source::Binder, now) != Some(&note)).then_some(VolumeAction::Tell(note));
        return Decision::act(untold.into_iter().chain([VolumeAction::Unbind]).collect::<Vec<_>>(), Why::Reclaim);
    }
    operation(s, VolumeAction::Recycle, "VolumeFailedRecycle", now)
}

/// Starts the operation, waits for it, or says that it failed and when it is tried again.
fn operation(s: &VolumeSnapshot, start: VolumeAction, reason: &'static str, now: Timestamp) -> Decision<VolumeAction> {
    let Some(record) = &s.operation else { return Decision::act([start], Why::Reclaim) };
    match &record.state {
        State::Running | State::Done(()) => Decision::rest(Why::Reclaim),
        State::Failed(_) | State::Uncertain(_) if record.may_start(now) => Decision::act([start], Why::Reclaim),
        // Called off before anything was tried: nothing to tell.
        State::Uncertain(_) => Decision::wait_until(record.retry_at, Why::Reclaim),
        State::Failed(failure) => {
            let what =
                if start == VolumeAction::Recycle { "cannot erase the volume" } else { "cannot delete the volume" };
            let decision = failed(s, reason, format!("{what}: {}", failure.message));
            Decision { wake_at: Some(record.retry_at), ..decision }
        }
    }
}

fn failed(s: &VolumeSnapshot, reason: &'static str, message: String) -> Decision<VolumeAction> {
    if s.volume.status.phase == VolumePhase::Failed {
        return Decision::rest(Why::Phase(VolumePhase::Failed));
    }
    let phase = VolumeAction::Phase { phase: VolumePhase::Failed, message: message.clone() };
    Decision::act([phase, VolumeAction::Tell(Note::warning(reason, message))], Why::Phase(VolumePhase::Failed))
}
