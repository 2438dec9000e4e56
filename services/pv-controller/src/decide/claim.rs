use stowage_model::access_mode::AccessModes;
use stowage_model::annotations;
use stowage_model::matching::{self, Place};
use stowage_model::object::Key;
use stowage_model::phase::ClaimPhase;
use stowage_model::quantity::Quantity;
use stowage_model::{Claim, Pod, Volume, finalizers};
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use crate::snapshot::ClaimSnapshot;

use super::{ClaimAction, Decision, Waiting, Why};

/// The pair that is being bound.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pair {
    pub claim: Key,
    pub volume: String,
}

/// A claim's status as it should be.
#[derive(Debug, Clone, PartialEq)]
pub struct Status {
    pub phase: ClaimPhase,
    pub access_modes: AccessModes,
    pub capacity: Option<Quantity>,
    pub attributes_class: Option<String>,
}

/// What must happen to this claim next, and why.
pub fn decide(s: &ClaimSnapshot) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    if let Some(decision) = protection(s) {
        return decision;
    }
    if claim.is_bind_completed() {
        return bound(s);
    }
    // Nothing is made for a claim on its way out; an unbound claim is deletable at any time.
    if claim.meta.is_deleting() && !claim.names_volume() {
        return Decision::rest(Why::Deleting);
    }
    if claim.names_volume() { named(s) } else { unbound(s) }
}

fn unbound(s: &ClaimSnapshot) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    let delayed = match matching::delays_binding(claim, s.class.as_deref()) {
        Ok(delayed) => delayed,
        Err(error) => return unmatchable(s, &error),
    };
    let place = if delayed { Place::Undecided } else { Place::Anywhere };
    match matching::smallest_fit(volumes(s), claim, place) {
        Ok(Some(volume)) => return bind(claim, volume),
        Ok(None) => {}
        Err(error) => return unmatchable(s, &error),
    }
    match &s.default_class {
        Some(class) if !claim.has_class() => {
            return Decision::act([ClaimAction::AssignClass { class: class.clone() }], Why::DefaultClass);
        }
        _ => {}
    }
    if delayed && claim.selected_node().is_none() {
        return wait(s, consumer_note(s), Waiting::FirstConsumer);
    }
    if !claim.class_name().is_empty() {
        return provision(s);
    }
    let summary = matching::explain(volumes(s), claim, place);
    let text = format!("no persistent volumes available for this claim and no storage class is set ({summary})");
    wait(s, Note::normal("FailedBinding", text), Waiting::Volume)
}

fn volumes(s: &ClaimSnapshot) -> impl Iterator<Item = &Volume> {
    s.candidates.iter().map(AsRef::as_ref)
}

fn unmatchable(s: &ClaimSnapshot, error: &matching::Error) -> Decision<ClaimAction> {
    let mut text = error.to_string();
    if let Some(source) = std::error::Error::source(error) {
        text = format!("{text}: {source}");
    }
    tell(s, Note::warning("FailedBinding", text), Why::Waiting(Waiting::Volume))
}

fn consumer_note(s: &ClaimSnapshot) -> Note {
    let waiting: Vec<&str> = s
        .pods
        .iter()
        .filter(|pod| !pod.is_terminal() && !pod.is_scheduled())
        .map(|pod| pod.meta.name.as_str())
        .collect();
    if waiting.is_empty() {
        Note::normal("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
    } else {
        Note::normal("WaitForPodScheduled", format!("waiting for pod {} to be scheduled", waiting.join(",")))
    }
}

fn provision(s: &ClaimSnapshot) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    if !s.provisioning {
        return Decision::rest(Why::Waiting(Waiting::Volume));
    }
    let Some(class) = &s.class else {
        let name = claim.class_name();
        let text = format!(
            "storageclass.storage.k8s.io {name:?} not found: create it, or name another in spec.storageClassName"
        );
        return tell(s, Note::warning("ProvisioningFailed", text), Why::Waiting(Waiting::Class));
    };
    let provisioner = class.provisioner.as_str();
    if provisioner.starts_with("kubernetes.io/") || provisioner.is_empty() {
        let summary = matching::explain(volumes(s), claim, Place::Anywhere);
        let text = format!(
            "class {:?} has provisioner {provisioner:?}, which makes no volumes: create a fitting PersistentVolume ({summary})",
            class.meta.name,
        );
        return tell(s, Note::warning("ProvisioningFailed", text), Why::Waiting(Waiting::Class));
    }
    if claim.meta.annotation(annotations::STORAGE_PROVISIONER) != Some(provisioner) {
        return Decision::act([ClaimAction::AskProvisioner { provisioner: provisioner.to_owned() }], Why::Provision);
    }
    let text = format!(
        "Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the \
         system administrator. If volume creation is delayed, please verify that the provisioner is running and \
         correctly registered."
    );
    tell(s, Note::normal("ExternalProvisioning", text), Why::Waiting(Waiting::Provisioner))
}

/// The claim names a volume, by its user's wish or because binding was interrupted.
fn named(s: &ClaimSnapshot) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    let volume = match &s.named {
        View::Unknown => return Decision::rest(Why::Unknown),
        View::Absent => return pending(s, None, Waiting::NamedVolume),
        View::Known(volume) => volume,
    };
    if volume.spec.claim_ref.is_none() {
        return match matching::satisfies(volume, claim) {
            Ok(()) => bind(claim, volume),
            Err(misfit) => {
                let text =
                    format!("cannot bind to the volume named in spec.volumeName: {}", misfit.describe(volume, claim));
                pending(s, Some(Note::warning("VolumeMismatch", text)), Waiting::NamedVolume)
            }
        };
    }
    if volume.is_bound_to(claim) {
        return bind(claim, volume);
    }
    let holder = volume.spec.claim_ref.as_ref().map(|reference| reference.key().to_string()).unwrap_or_default();
    let text = format!("volume {:?} already bound to claim {holder}", volume.meta.name);
    pending(s, Some(Note::warning("FailedBinding", text)), Waiting::NamedVolume)
}

/// Binding was completed once; the volume must still agree.
fn bound(s: &ClaimSnapshot) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    let name = &claim.spec.volume_name;
    match &s.named {
        View::Unknown => Decision::rest(Why::Unknown),
        View::Known(volume) if volume.spec.claim_ref.is_none() => bind(claim, volume),
        View::Known(volume) if volume.spec.claim_ref.as_ref().is_some_and(|held| held.uid == claim.meta.uid) => {
            bind(claim, volume)
        }
        View::Known(_) => lost(s, Note::warning("ClaimMisbound", format!("volume {name:?} is bound to another claim"))),
        View::Absent if name.is_empty() => {
            lost(s, Note::warning("ClaimLost", "the bound claim has lost its spec.volumeName; its data may be lost"))
        }
        View::Absent => {
            lost(s, Note::warning("ClaimLost", format!("volume {name:?} is gone although the claim is bound to it")))
        }
    }
}

/// The next missing write of a binding: the volume's pointer is written and answered before the claim's.
fn bind(claim: &Claim, volume: &Volume) -> Decision<ClaimAction> {
    let why = Why::Bind(Pair { claim: claim.meta.key(), volume: volume.meta.name.clone() });
    let name = volume.meta.name.clone();
    let reserved =
        volume.spec.claim_ref.as_ref().is_some_and(|held| held.uid == claim.meta.uid && held.key() == claim.meta.key());
    if !reserved {
        return Decision::act([ClaimAction::Reserve { volume: name, marked: !volume.is_bound_to(claim) }], why);
    }
    if claim.spec.volume_name != name || !claim.is_bind_completed() {
        let marked = claim.spec.volume_name != name && !claim.is_bound_by_controller();
        return Decision::act([ClaimAction::Complete { volume: name, marked }], why);
    }
    let wanted = status_bound(claim, volume);
    if wanted == status_of(claim) {
        return Decision::rest(Why::Settled);
    }
    Decision::act([ClaimAction::Status(Box::new(wanted))], why)
}

fn status_bound(claim: &Claim, volume: &Volume) -> Status {
    let current = status_of(claim);
    if current.phase == ClaimPhase::Bound {
        // Once bound, the capacity belongs to the resizer and the node.
        return Status { access_modes: volume.spec.access_modes, ..current };
    }
    let before_resize = volume.meta.annotation(annotations::PRE_RESIZE_CAPACITY).and_then(|text| text.parse().ok());
    Status {
        phase: ClaimPhase::Bound,
        access_modes: volume.spec.access_modes,
        capacity: before_resize.or(volume.spec.capacity),
        attributes_class: volume.spec.volume_attributes_class_name.clone().filter(|name| !name.is_empty()),
    }
}

fn status_of(claim: &Claim) -> Status {
    Status {
        phase: claim.status.phase,
        access_modes: claim.status.access_modes,
        capacity: claim.status.capacity.storage,
        attributes_class: claim.status.current_volume_attributes_class_name.clone().filter(|name| !name.is_empty()),
    }
}

fn cleared(phase: ClaimPhase) -> Status {
    Status { phase, access_modes: AccessModes::default(), capacity: None, attributes_class: None }
}

fn lost(s: &ClaimSnapshot, note: Note) -> Decision<ClaimAction> {
    if s.claim.status.phase == ClaimPhase::Lost {
        return Decision::rest(Why::Lost);
    }
    Decision::act([ClaimAction::Status(Box::new(cleared(ClaimPhase::Lost))), ClaimAction::Tell(note)], Why::Lost)
}

fn wait(s: &ClaimSnapshot, note: Note, waiting: Waiting) -> Decision<ClaimAction> {
    pending(s, Some(note), waiting)
}

fn pending(s: &ClaimSnapshot, note: Option<Note>, waiting: Waiting) -> Decision<ClaimAction> {
    let wanted = cleared(ClaimPhase::Pending);
    let mut actions = Vec::new();
    if wanted != status_of(&s.claim) {
        actions.push(ClaimAction::Status(Box::new(wanted)));
    }
    if let Some(note) = note
        && s.told.as_ref() != Some(&note)
    {
        actions.push(ClaimAction::Tell(note));
    }
    Decision::act(actions, Why::Waiting(waiting))
}

fn tell(s: &ClaimSnapshot, note: Note, why: Why) -> Decision<ClaimAction> {
    if s.told.as_ref() == Some(&note) {
        return Decision::rest(why);
    }
    Decision::act([ClaimAction::Tell(note)], why)
}

/// A claim stays while a pod on a node uses it, whoever asked for its deletion.
fn protection(s: &ClaimSnapshot) -> Option<Decision<ClaimAction>> {
    let meta = &s.claim.meta;
    let protected = meta.has_finalizer(finalizers::CLAIM_PROTECTION);
    if meta.is_deleting() {
        return (protected && !s.pods.iter().any(|pod| uses(pod, &s.claim)))
            .then(|| Decision::act([ClaimAction::Unprotect], Why::Protection));
    }
    (!protected).then(|| Decision::act([ClaimAction::Protect], Why::Protection))
}

/// Whether the pod keeps the claim from going: placed on a node and referring to it, even when it has ended.
pub fn uses(pod: &Pod, claim: &Claim) -> bool {
    pod.is_scheduled() && pod.meta.namespace == claim.meta.namespace && pod.claims().any(|key| key == claim.meta.key())
}
