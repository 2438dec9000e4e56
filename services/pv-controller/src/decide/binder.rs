//! persistentvolume-binder: which volume a claim gets, and what becomes of a volume without its claim.

pub mod bind;
pub mod provision;
pub mod reclaim;
pub mod volume;

use jiff::Timestamp;

use stowage_model::Volume;
use stowage_model::matching::{self, Place};
use stowage_model::object::{Key, ObjectId, kinds};
use stowage_model::phase::ClaimPhase;
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use crate::snapshot::ClaimSnapshot;

use super::status::{self, Status, Unbound};
use super::{ClaimAction, Decision, Source, Waiting, Why};

use bind::bind;
use provision::provision;

/// Pods that an event names; of the others it only tells how many.
const PODS_NAMED: usize = 10;

/// What must happen to this claim next, and why.
pub fn decide(s: &ClaimSnapshot, now: Timestamp) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    if !s.rules.controllers.binder {
        return unbinding_status(s, now);
    }
    if claim.is_bind_completed() {
        return bound(s, now);
    }
    // Nothing is made for a claim on its way out; an unbound claim is deletable at any time.
    if claim.meta.is_deleting() {
        return Decision::rest(Why::Deleting);
    }
    if claim.names_volume() { named(s, now) } else { unbound(s, now) }
}

/// Without the binder only the `Unused` condition is ours.
fn unbinding_status(s: &ClaimSnapshot, now: Timestamp) -> Decision<ClaimAction> {
    match status::change(s, Status::of(&s.claim), None, now) {
        Some(change) => Decision::act([ClaimAction::Status(Box::new(change))], Why::Settled),
        None => Decision::rest(Why::Settled),
    }
}

fn unbound(s: &ClaimSnapshot, now: Timestamp) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    let delayed = match matching::delays_binding(claim, s.class.as_deref()) {
        Ok(delayed) => delayed,
        Err(error) => return unmatchable(s, &error, now),
    };
    let place = if delayed { Place::Undecided } else { Place::Anywhere };
    match matching::smallest_fit(volumes(s), claim, place) {
        Ok(Some(volume)) => return bind(s, volume, now),
        Ok(None) => {}
        Err(error) => return unmatchable(s, &error, now),
    }
    if let Some(volume) = &s.held_up {
        // What is being written may free it for this claim or give it to another: too early to ask or to tell.
        let busy = ObjectId { kind: kinds::VOLUME, key: Key::cluster(volume.clone()) };
        return Decision::wait_for(busy, Why::Waiting(Waiting::Volume));
    }
    match &s.default_class {
        Some(class) if !claim.has_class() => {
            return Decision::act([ClaimAction::AssignClass { class: class.clone() }], Why::DefaultClass);
        }
        _ => {}
    }
    if delayed && claim.selected_node().is_none() {
        return pending(s, Some(consumer_note(s)), None, Waiting::FirstConsumer, now);
    }
    if !claim.class_name().is_empty() {
        return provision(s, now);
    }
    let text = format!(
        "no volume fits claim {} ({}), and it names no class that could make one; {}, or the claim anew with \
         spec.storageClassName",
        claim.meta.key(),
        s.misfits,
        provision::by_hand(claim)
    );
    let note = Note::normal("FailedBinding", text);
    pending(s, Some(note), Some(Unbound::NoFittingVolume), Waiting::Volume, now)
}

fn volumes(s: &ClaimSnapshot) -> impl Iterator<Item = &Volume> {
    s.candidates.iter().map(AsRef::as_ref)
}

fn unmatchable(s: &ClaimSnapshot, error: &matching::Error, now: Timestamp) -> Decision<ClaimAction> {
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        text = format!("{text}: {source}");
    }
    let note = Note::warning("FailedBinding", text);
    waiting(s, Status::of(&s.claim), Some(note), Some(Unbound::InvalidClaim), Waiting::Class, now)
}

fn consumer_note(s: &ClaimSnapshot) -> Note {
    let waiting = s.pods.iter().filter(|pod| !pod.is_terminated() && !pod.is_scheduled());
    let waiting: Vec<&str> = waiting.map(|pod| pod.meta.name.as_str()).collect();
    if waiting.is_empty() {
        let text = format!(
            "claim {} gets its volume when a pod uses it: its class {:?} binds late, so that the volume is where the pod runs",
            s.claim.meta.key(),
            s.claim.class_name()
        );
        return Note::normal("WaitForFirstConsumer", text);
    }
    let named = waiting[..waiting.len().min(PODS_NAMED)].join(",");
    let others = match waiting.len().saturating_sub(PODS_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let text = format!(
        "claim {} gets its volume when pod {named}{others} has a node; the pod's own events say what it waits for",
        s.claim.meta.key()
    );
    Note::normal("WaitForPodScheduled", text)
}

/// The claim names a volume, by its user's wish or because binding was interrupted.
fn named(s: &ClaimSnapshot, now: Timestamp) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    let volume = match &s.named {
        View::Unknown => return Decision::rest(Why::Unknown),
        View::Absent => {
            let text = format!("volume {:?}, named in spec.volumeName, does not exist", claim.spec.volume_name);
            // Upstream is silent.
            let note = s.rules.unbound_condition.then(|| Note::normal("FailedBinding", text));
            return pending(s, note, Some(Unbound::VolumeNotFound), Waiting::NamedVolume, now);
        }
        View::Known(volume) => volume,
    };
    if volume.is_bound_to(claim) {
        return bind(s, volume, now);
    }
    let Some(held) = &volume.spec.claim_ref else {
        return match matching::satisfies(volume, claim) {
            Ok(()) => bind(s, volume, now),
            Err(misfit) => {
                let why = misfit.describe(volume, claim);
                let text = format!("cannot bind to the volume named in spec.volumeName: {why}");
                let note = Note::warning("VolumeMismatch", text);
                pending(s, Some(note), Some(Unbound::VolumeMismatch), Waiting::NamedVolume, now)
            }
        };
    };
    let text = format!(
        "volume {:?}, named in spec.volumeName, belongs to claim {}; name another volume, or delete that claim first",
        volume.meta.name,
        held.key()
    );
    let note = Note::warning("FailedBinding", text);
    if claim.is_bound_by_controller() {
        // Somebody took the mark of a completed binding away: nothing is known about the status.
        return Decision::act(untold(s, note, now).into_iter().collect::<Vec<_>>(), Why::Waiting(Waiting::NamedVolume));
    }
    pending(s, Some(note), Some(Unbound::VolumeTaken), Waiting::NamedVolume, now)
}

/// Binding was completed once; the volume must still agree.
fn bound(s: &ClaimSnapshot, now: Timestamp) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    let name = &claim.spec.volume_name;
    match &s.named {
        View::Unknown => Decision::rest(Why::Unknown),
        View::Known(volume) if volume.spec.claim_ref.as_ref().is_none_or(|held| held.uid == claim.meta.uid) => {
            bind(s, volume, now)
        }
        View::Known(_) => {
            lost(s, Note::warning("ClaimMisbound", format!("volume {name:?} is bound to another claim")), now)
        }
        View::Absent if name.is_empty() => lost(
            s,
            Note::warning("ClaimLost", "the bound claim has lost its spec.volumeName; its data may be lost"),
            now,
        ),
        View::Absent => lost(
            s,
            Note::warning("ClaimLost", format!("volume {name:?} is gone although the claim is bound to it")),
            now,
        ),
    }
}

fn lost(s: &ClaimSnapshot, note: Note, now: Timestamp) -> Decision<ClaimAction> {
    if s.claim.status.phase == ClaimPhase::Lost {
        return Decision::rest(Why::Lost);
    }
    let change = status::change(s, Status::cleared(ClaimPhase::Lost), None, now);
    let status = change.into_iter().map(|change| ClaimAction::Status(Box::new(change)));
    let tell = ClaimAction::Tell(Source::Binder, note);
    Decision::act(status.chain([tell]).collect::<Vec<_>>(), Why::Lost)
}

/// The claim has nothing; people are told when the reason changes, and its condition when the kind of reason does.
pub fn pending(
    s: &ClaimSnapshot,
    note: Option<Note>,
    unbound: Option<Unbound>,
    waits_for: Waiting,
    now: Timestamp,
) -> Decision<ClaimAction> {
    waiting(s, Status::cleared(ClaimPhase::Pending), note, unbound, waits_for, now)
}

/// The same, for a claim whose status may be another.
pub fn waiting(
    s: &ClaimSnapshot,
    status: Status,
    note: Option<Note>,
    unbound: Option<Unbound>,
    waits_for: Waiting,
    now: Timestamp,
) -> Decision<ClaimAction> {
    let change = status::change(s, status, unbound, now);
    let mut actions: Vec<ClaimAction> =
        change.into_iter().map(|change| ClaimAction::Status(Box::new(change))).collect();
    actions.extend(note.and_then(|note| untold(s, note, now)));
    Decision::act(actions, Why::Waiting(waits_for))
}

/// Tells people, unless they were told just that.
pub fn untold(s: &ClaimSnapshot, note: Note, now: Timestamp) -> Option<ClaimAction> {
    (s.told.said(&Source::Binder, now) != Some(&note)).then_some(ClaimAction::Tell(Source::Binder, note))
}
