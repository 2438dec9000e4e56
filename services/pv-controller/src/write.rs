//! The writes as data: patches of exactly the fields this service owns, each guarded by the version decided on.

use serde_json::{Value, json};

use stowage_model::object::{Kind, Meta, ObjectId, Projection, kinds};
use stowage_model::phase::VolumePhase;
use stowage_model::{AttributesClass, Claim, Text, Volume, annotations, finalizers};
use stowage_runtime::api::{Part, Patch, Target};

use crate::decide::binder::bind::Bind;
use crate::decide::status::{Change, Edit, Status};
use crate::decide::{AttributesClassAction, ClaimAction, ClaimTidy, VolumeAction, VolumeTidy};

/// One write to the API.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    Patch { kind: Kind, target: Target, part: Part, patch: Patch },
    Create { kind: Kind, body: Value },
    Delete { kind: Kind, target: Target },
}

fn patch<T: Projection>(object: &T, part: Part, patch: Patch) -> Write {
    Write::Patch { kind: T::KIND, target: Target::exact(object.meta()), part, patch }
}

fn main<T: Projection>(object: &T, body: Value) -> Write {
    patch(object, Part::Main, Patch::Merge(body))
}

/// The writes of a claim's action, to be sent side by side; nothing for what is no write.
///
/// `volume` is the volume the action names, where it names one.
pub fn of_claim(action: &ClaimAction, claim: &Claim, volume: Option<&Volume>) -> Vec<Write> {
    match action {
        ClaimAction::Reserve { marked, .. } => {
            volume.map(|volume| main(volume, reserve(claim, *marked))).into_iter().collect()
        }
        ClaimAction::Bind(pair) => bind(pair, claim, volume),
        ClaimAction::Status(change) => vec![patch(claim, Part::Status, status(change))],
        ClaimAction::AskProvisioner { provisioner, migrated_to } => vec![main(claim, ask(provisioner, *migrated_to))],
        ClaimAction::Make { volume } => vec![Write::Create { kind: kinds::VOLUME, body: (**volume).clone() }],
        ClaimAction::AssignClass { class } => vec![main(claim, json!({ "spec": { "storageClassName": class } }))],
        ClaimAction::Tidy(tidy) => vec![main(claim, tidy_claim(tidy, &claim.meta))],
        ClaimAction::Unprotect => {
            vec![main(claim, without_finalizer(&claim.meta, finalizers::CLAIM_PROTECTION))]
        }
        ClaimAction::NameResizer { resizer } => {
            let body = json!({ "metadata": { "annotations": { annotations::STORAGE_RESIZER: resizer } } });
            vec![patch(claim, Part::Status, Patch::Merge(body))]
        }
        ClaimAction::Collect => vec![Write::Delete { kind: kinds::CLAIM, target: Target::exact(&claim.meta) }],
        ClaimAction::Tell(..) => vec![],
    }
}

/// The writes of a volume's action.
pub fn of_volume(action: &VolumeAction, volume: &Volume) -> Vec<Write> {
    match action {
        VolumeAction::Phase { phase, message } => vec![patch(volume, Part::Status, set_phase(*phase, message))],
        VolumeAction::Release => vec![patch(volume, Part::Status, set_phase(VolumePhase::Released, ""))],
        VolumeAction::Unbind => vec![main(volume, unbind(volume))],
        VolumeAction::Tidy(tidy) => vec![main(volume, tidy_volume(tidy))],
        VolumeAction::Unprotect => {
            vec![main(volume, without_finalizer(&volume.meta, finalizers::VOLUME_PROTECTION))]
        }
        VolumeAction::DeleteObject => {
            vec![Write::Delete { kind: kinds::VOLUME, target: Target::exact(&volume.meta) }]
        }
        VolumeAction::Recycle | VolumeAction::DeleteData | VolumeAction::Tell(_) | VolumeAction::TellClaim(_) => vec![],
    }
}

/// The write of a VolumeAttributesClass's action.
pub fn of_attributes_class(action: AttributesClassAction, class: &AttributesClass) -> Write {
    const NAME: &str = finalizers::ATTRIBUTES_CLASS_PROTECTION;
    match action {
        AttributesClassAction::Protect => main(class, with_finalizer(&class.meta, NAME)),
        AttributesClassAction::Unprotect => main(class, without_finalizer(&class.meta, NAME)),
    }
}

/// The version is part of every guard, so replacing the whole list loses nobody's finalizer.
fn with_finalizer(meta: &Meta, name: &str) -> Value {
    let list: Vec<&str> = meta.finalizers.iter().map(Text::as_str).chain([name]).collect();
    json!({ "metadata": { "finalizers": list } })
}

fn without_finalizer(meta: &Meta, name: &str) -> Value {
    let list: Vec<&str> = meta.finalizers.iter().map(Text::as_str).filter(|present| *present != name).collect();
    json!({ "metadata": { "finalizers": list } })
}

/// A full reference to the claim, as the API server's own helpers make it.
pub fn claim_reference(claim: &Claim) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim.meta.namespace,
        "name": claim.meta.name,
        "uid": claim.meta.uid,
        "resourceVersion": claim.meta.revision.to_string(),
    })
}

fn reserve(claim: &Claim, marked: bool) -> Value {
    let mut body = json!({ "spec": { "claimRef": claim_reference(claim) } });
    if marked {
        body["metadata"] = json!({ "annotations": { annotations::BOUND_BY_CONTROLLER: "yes" } });
    }
    body
}

fn bind(pair: &Bind, claim: &Claim, volume: Option<&Volume>) -> Vec<Write> {
    let mut writes = Vec::new();
    if let Some(volume) = volume.filter(|_| pair.phase) {
        writes.push(patch(volume, Part::Status, set_phase(VolumePhase::Bound, "")));
    }
    if let Some(complete) = pair.complete {
        let mut notes = json!({ annotations::BIND_COMPLETED: "yes" });
        if complete.marked {
            notes[annotations::BOUND_BY_CONTROLLER] = "yes".into();
        }
        let body = json!({ "metadata": { "annotations": notes }, "spec": { "volumeName": pair.volume } });
        writes.push(main(claim, body));
    }
    if let Some(change) = &pair.status {
        writes.push(patch(claim, Part::Status, status(change)));
    }
    writes
}

/// The request to a provisioner, under both of its names.
fn ask(provisioner: &str, migrated_to: Option<&str>) -> Value {
    let mut notes = json!({
        annotations::STORAGE_PROVISIONER: provisioner,
        annotations::BETA_STORAGE_PROVISIONER: provisioner,
    });
    if let Some(driver) = migrated_to {
        notes[annotations::MIGRATED_TO] = driver.into();
    }
    json!({ "metadata": { "annotations": notes } })
}

fn tidy_claim(tidy: &ClaimTidy, meta: &Meta) -> Value {
    let mut body =
        if tidy.protect { with_finalizer(meta, finalizers::CLAIM_PROTECTION) } else { json!({ "metadata": {} }) };
    if let Some(driver) = tidy.migrated_to {
        body["metadata"]["annotations"] = json!({ annotations::MIGRATED_TO: driver });
    }
    body
}

fn tidy_volume(tidy: &VolumeTidy) -> Value {
    let mut body = json!({ "metadata": {} });
    if let Some(driver) = tidy.migrated_to {
        body["metadata"]["annotations"] = json!({ annotations::MIGRATED_TO: driver });
    }
    if let Some(finalizers) = &tidy.finalizers {
        body["metadata"]["finalizers"] = json!(finalizers);
    }
    body
}

/// The volume's phase and its message.
fn set_phase(phase: VolumePhase, message: &str) -> Patch {
    Patch::Merge(json!({ "status": {
        "phase": phase.as_str(),
        "message": if message.is_empty() { Value::Null } else { message.into() },
    } }))
}

/// The volume without its claim.
fn unbind(volume: &Volume) -> Value {
    if volume.is_bound_by_controller() {
        json!({
            "metadata": { "annotations": { annotations::BOUND_BY_CONTROLLER: null } },
            "spec": { "claimRef": null },
        })
    } else {
        json!({ "spec": { "claimRef": { "uid": null, "resourceVersion": null } } })
    }
}

fn members(status: &Status) -> [(&'static str, Value); 4] {
    let modes = status.access_modes.names();
    [
        ("phase", status.phase.as_str().into()),
        ("accessModes", if modes.is_empty() { Value::Null } else { json!(modes) }),
        ("capacity", status.capacity.map_or(Value::Null, |size| json!({ "storage": size.to_string() }))),
        ("currentVolumeAttributesClassName", json!(status.attributes_class)),
    ]
}

/// Only what differs. Conditions belong to several writers, so they are changed one by one, at the positions they have
/// in the version that guards the write; where there are none yet, there are none to lose.
fn status(change: &Change) -> Patch {
    let before = members(&change.from);
    let differing = members(&change.to).into_iter().zip(before).filter(|(to, from)| to != from);
    if change.edits.is_empty() || change.first_condition {
        let mut body: serde_json::Map<String, Value> =
            differing.map(|((name, value), _)| (name.to_owned(), value)).collect();
        let added = change.edits.iter().filter_map(Edit::added).cloned();
        if !change.edits.is_empty() {
            body.insert("conditions".to_owned(), added.collect());
        }
        return Patch::Merge(json!({ "status": body }));
    }
    let mut operations: Vec<Value> = differing
        .map(|((name, value), _)| {
            let path = format!("/status/{name}");
            if value.is_null() {
                json!({ "op": "remove", "path": path })
            } else {
                json!({ "op": "add", "path": path, "value": value })
            }
        })
        .collect();
    let mut removed = Vec::new();
    for edit in &change.edits {
        match edit {
            Edit::Add(condition) => {
                operations.push(json!({ "op": "add", "path": "/status/conditions/-", "value": condition }));
            }
            Edit::Replace(at, condition) => {
                operations
                    .push(json!({ "op": "replace", "path": format!("/status/conditions/{at}"), "value": condition }));
            }
            Edit::Remove(at) => removed.push(*at),
        }
    }
    // From the back, so that earlier positions stay true.
    removed.sort_unstable();
    operations.extend(
        removed.into_iter().rev().map(|at| json!({ "op": "remove", "path": format!("/status/conditions/{at}") })),
    );
    Patch::Json(operations)
}

/// The object a write is for.
impl Write {
    pub fn id(&self) -> Option<ObjectId> {
        match self {
            Self::Patch { kind, target, .. } | Self::Delete { kind, target } => {
                Some(ObjectId { kind: *kind, key: target.key.clone() })
            }
            Self::Create { .. } => None,
        }
    }
}
