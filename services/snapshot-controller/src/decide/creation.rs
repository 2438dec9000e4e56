//! A snapshot of a claim that has no content yet: whether one can be made, and with what in it.

use serde_json::{Value, json};

use stowage_model::object::{self, Kind, Meta, Projection};
use stowage_model::volume_snapshot::DeletionPolicy;
use stowage_model::{Volume, VolumeSnapshot, annotations, finalizers, labels};
use stowage_runtime::cache::View;

use super::{Problem, class};
use crate::projections::SourceClaim;
use crate::secrets;
use crate::snapshot::{Place, Single};

/// How far a snapshot that has no content yet has come, its claim's finalizer apart.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Something is not known for the moment, and wakes the key when it is.
    Unknown,
    /// This volume of this claim must be read first.
    Look {
        volume: String,
        claim: object::Key,
    },
    /// It cannot be made as things are.
    Broken(Problem),
    Make(Plan),
}

/// What a content is made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    pub class: String,
    pub policy: DeletionPolicy,
    pub body: Value,
}

const FAILED: &str = "SnapshotContentCreationFailed";

pub fn step(single: &Single) -> Step {
    let Some(name) =
        single.snapshot.spec.source.persistent_volume_claim_name.as_deref().filter(|name| !name.is_empty())
    else {
        let message = "spec.source.persistentVolumeClaimName is empty; delete this snapshot and create it with a claim";
        return Step::Broken(Problem::new("SnapshotPVCSourceMissing", message));
    };
    // A content whose data was there and is gone is not made again from the claim of today.
    if single.snapshot.status.as_ref().is_some_and(|status| status.creation_time.is_some()) {
        return Step::Broken(missing_content(single));
    }
    let claim = match &single.claim {
        View::Known(claim) => claim,
        View::Unknown => return Step::Unknown,
        View::Absent => {
            let message = format!("claim {name:?} does not exist; create it, or delete this snapshot");
            return Step::Broken(Problem::new(FAILED, message));
        }
    };
    match plan(single, claim) {
        Ok(Some(plan)) => Step::Make(plan),
        Ok(None) => Step::Look { volume: claim.spec.volume_name.clone(), claim: claim.meta.key() },
        Err(problem) => Step::Broken(problem),
    }
}

/// The content of a snapshot that once held data is not there.
pub fn missing_content(single: &Single) -> Problem {
    let name = &single.content_name;
    Problem::new(
        "SnapshotContentMissing",
        format!(
            "VolumeSnapshotContent {name:?}, which held this snapshot, does not exist any more; restore that object, or delete \
             this snapshot"
        ),
    )
}

/// The content to be made, or nothing while the volume is not known.
fn plan(single: &Single, claim: &SourceClaim) -> Result<Option<Plan>, Problem> {
    let name = &claim.meta.name;
    if claim.meta.is_deleting() && !claim.is_protected() {
        return Err(Problem::new(FAILED, format!("claim {name:?} is being deleted; delete this snapshot too")));
    }
    if !claim.is_bound() {
        let phase = claim.status.phase;
        return Err(Problem::new(
            FAILED,
            format!("claim {name:?} is {phase} and has no volume yet; the snapshot is made once it is Bound"),
        ));
    }
    // Without a class that exists nothing need be read.
    if let (Some(_), None) = (&single.snapshot.spec.volume_snapshot_class_name, &single.class) {
        class::of(single, "")?;
    }
    let Some(look) = &single.volume else { return Ok(None) };
    let volume = check(claim, look.volume.as_deref())?;
    let csi = volume.spec.csi.as_ref().ok_or_else(|| {
        let volume = &volume.meta.name;
        Problem::new(
            FAILED,
            format!("volume {volume:?} of claim {name:?} is not of a CSI driver, and only these can make snapshots"),
        )
    })?;
    let class = class::of(single, &csi.driver)?;
    if single.place == Place::Nowhere {
        let volume = &volume.meta.name;
        let message = format!(
            "no node is as spec.nodeAffinity of volume {volume:?} of claim {name:?} asks, and the snapshot is made on such a node; \
             see that the node is in the cluster and has its labels"
        );
        return Err(Problem::new(FAILED, message));
    }
    let meta = &single.snapshot.meta;
    let secret = secrets::resolve(&secrets::SNAPSHOT, &class.parameters, &single.content_name, Some(meta));
    let secret = secret.map_err(|error| {
        Problem::new(FAILED, format!("VolumeSnapshotClass {:?} names no secret: {error}", class.meta.name))
    })?;
    let mut metadata = json!({
        "name": single.content_name,
        "finalizers": [finalizers::SNAPSHOT_CONTENT_BOUND],
        "annotations": secret_annotations(secret.as_ref()),
    });
    if let Place::Node(node) = &single.place {
        metadata["labels"] = json!({ labels::SNAPSHOT_MANAGED_BY: node });
    }
    let mut spec = json!({
        "volumeSnapshotRef": reference(VolumeSnapshot::KIND, meta),
        "source": { "volumeHandle": csi.volume_handle },
        "volumeSnapshotClassName": class.meta.name,
        "deletionPolicy": class.deletion_policy.as_str(),
        "driver": class.driver,
    });
    if single.policy.keep_volume_mode {
        spec["sourceVolumeMode"] = volume.spec.volume_mode.as_str().into();
    }
    let body = json!({ "metadata": metadata, "spec": spec });
    Ok(Some(Plan { class: class.meta.name.clone(), policy: class.deletion_policy, body }))
}

/// The claim's volume, if both agree that it is.
pub fn check<'a>(claim: &SourceClaim, volume: Option<&'a Volume>) -> Result<&'a Volume, Problem> {
    let (name, wanted) = (&claim.meta.name, &claim.spec.volume_name);
    let Some(volume) = volume else {
        return Err(Problem::new(FAILED, format!("volume {wanted:?} of claim {name:?} does not exist")));
    };
    let is_its = volume.spec.claim_ref.as_ref().is_some_and(|reference| {
        reference.key() == claim.meta.key() && (reference.uid.is_empty() || reference.uid == claim.meta.uid)
    });
    if !is_its {
        let message = format!("volume {wanted:?} is not bound to claim {name:?}, although the claim says so");
        return Err(Problem::new(FAILED, message));
    }
    Ok(volume)
}

pub fn secret_annotations(secret: Option<&object::Key>) -> Value {
    match secret {
        Some(secret) => json!({
            annotations::SNAPSHOT_SECRET_NAME: secret.name,
            annotations::SNAPSHOT_SECRET_NAMESPACE: secret.namespace,
        }),
        None => json!({}),
    }
}

/// The full reference that the originals write into a content.
pub fn reference(kind: Kind, meta: &Meta) -> Value {
    json!({
        "apiVersion": kind.api_version(),
        "kind": kind.kind,
        "namespace": meta.namespace,
        "name": meta.name,
        "uid": meta.uid,
        "resourceVersion": meta.revision.to_string(),
    })
}
