//! A group snapshot that has no content yet: which claims it is made of, and whether it can be.

use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use stowage_model::object::Projection;
use stowage_model::{VolumeGroupSnapshot, VolumeGroupSnapshotClass, annotations, finalizers, labels};
use stowage_runtime::api::Target;

use super::super::creation::{check, reference};
use super::super::{Action, Decision, GroupAction, Problem, Why, add_finalizers};
use super::{act, status};
use crate::projections::SourceClaim;
use crate::secrets;
use crate::snapshot::{Group, Place};

const FAILED: &str = "GroupSnapshotContentCreationFailed";

pub fn decide(group: &Group, now: Timestamp) -> Decision {
    let looks = unread(group);
    if !looks.is_empty() {
        return Decision::together(looks, Why::NeedsVolume);
    }
    match plan(group) {
        Ok(plan) => make(group, &plan),
        Err(problem) => {
            let failed = status::fail(group, problem, now);
            // Volumes are not watched: what is wrong with one is looked at again.
            let looks = group.claims.iter().flatten().filter_map(|candidate| candidate.volume.as_ref());
            let wake_at = failed.wake_at.into_iter().chain(looks.map(|look| look.until)).min();
            Decision { wake_at, ..failed }
        }
    }
}

/// Reads the volumes of the chosen claims that were not read of late.
pub fn unread(group: &Group) -> Vec<Action> {
    let candidates = group.claims.iter().flatten();
    let unread = candidates.filter(|candidate| candidate.claim.is_bound() && candidate.volume.is_none());
    let look =
        |claim: &SourceClaim| Action::LookAtVolume { name: claim.spec.volume_name.clone(), claim: claim.meta.key() };
    unread.map(|candidate| look(&candidate.claim)).collect()
}

struct Plan {
    class: String,
    body: Value,
}

fn plan(group: &Group) -> Result<Plan, Problem> {
    let object = &group.group;
    let candidates =
        group.claims.as_ref().map_err(|error| Problem::new(FAILED, format!("spec.source.selector: {error}")))?;
    if let (Some(_), None) = (&object.spec.volume_group_snapshot_class_name, &group.class) {
        class_of(group, "")?;
    }
    let (mut driver, mut handles) = (None, Vec::new());
    for candidate in candidates {
        let (claim, name) = (&candidate.claim, &candidate.claim.meta.name);
        if !claim.is_bound() {
            let phase = claim.status.phase;
            let message =
                format!("claim {name:?} is {phase} and has no volume yet; the group is made once all are Bound");
            return Err(Problem::new(FAILED, message));
        }
        let volume = check(claim, candidate.volume.as_ref().and_then(|look| look.volume.as_deref()));
        let volume = volume.map_err(|problem| Problem::new(FAILED, problem.message))?;
        let Some(csi) = &volume.spec.csi else {
            let message =
                format!("the volume of claim {name:?} is not of a CSI driver, and only these can make snapshots");
            return Err(Problem::new(FAILED, message));
        };
        let wanted = driver.get_or_insert_with(|| csi.driver.clone());
        if *wanted != csi.driver {
            let message = format!(
                "the volume of claim {name:?} is of driver {:?}, and others are of driver {wanted:?}; one group needs one driver: \
                 choose by spec.source.selector",
                csi.driver
            );
            return Err(Problem::new(FAILED, message));
        }
        handles.push(csi.volume_handle.clone());
    }
    let Some(driver) = driver else {
        let message =
            "spec.source.selector chooses no claim of this namespace; label claims, or delete this group snapshot";
        return Err(Problem::new(FAILED, message));
    };
    if group.place == Place::Nowhere {
        let message = "no node is as spec.nodeAffinity of the volumes of all chosen claims asks, and one node makes the whole \
                       group; choose claims whose volumes are on one node by spec.source.selector, and see that the node is in \
                       the cluster";
        return Err(Problem::new(FAILED, message));
    }
    let class = class_of(group, &driver)?;
    let secret = secrets::resolve(&secrets::GROUP, &class.parameters, &group.content_name, Some(&object.meta));
    let secret = secret.map_err(|error| {
        Problem::new(FAILED, format!("VolumeGroupSnapshotClass {:?} names no secret: {error}", class.meta.name))
    })?;
    let annotations = match secret {
        Some(secret) => json!({
            annotations::GROUP_SNAPSHOT_SECRET_NAME: secret.name,
            annotations::GROUP_SNAPSHOT_SECRET_NAMESPACE: secret.namespace,
        }),
        None => json!({}),
    };
    let mut metadata = json!({
        "name": group.content_name,
        "finalizers": [finalizers::GROUP_SNAPSHOT_CONTENT_BOUND],
        "annotations": annotations,
    });
    if let Place::Node(node) = &group.place {
        metadata["labels"] = json!({ labels::SNAPSHOT_MANAGED_BY: node });
    }
    let body = json!({
        "metadata": metadata,
        "spec": {
            "volumeGroupSnapshotRef": reference(VolumeGroupSnapshot::KIND, &object.meta),
            "source": { "volumeHandles": handles },
            "volumeGroupSnapshotClassName": class.meta.name,
            "deletionPolicy": class.deletion_policy.as_str(),
            "driver": class.driver,
        },
    });
    Ok(Plan { class: class.meta.name.clone(), body })
}

fn class_of(group: &Group, driver: &str) -> Result<Arc<VolumeGroupSnapshotClass>, Problem> {
    if let Some(name) = &group.group.spec.volume_group_snapshot_class_name {
        let Some(class) = &group.class else {
            let message = format!(
                "VolumeGroupSnapshotClass {name:?} does not exist; create it, or delete this group snapshot and create it with \
                 another spec.volumeGroupSnapshotClassName"
            );
            return Err(Problem::new("GetGroupSnapshotClassFailed", message));
        };
        if class.driver != driver {
            let message = format!(
                "VolumeGroupSnapshotClass {name:?} is of driver {:?}, but the claims' volumes are of driver {driver:?}",
                class.driver
            );
            return Err(Problem::new("CreateGroupSnapshotContentFailed", message));
        }
        return Ok(Arc::clone(class));
    }
    let of_driver: Vec<_> = group.defaults.iter().filter(|class| class.driver == driver).collect();
    let names: Vec<&str> = of_driver.iter().map(|class| class.meta.name.as_str()).collect();
    match of_driver.as_slice() {
        [class] => Ok(Arc::clone(class)),
        found => Err(Problem::new(
            "SetDefaultGroupSnapshotClassFailed",
            format!(
                "driver {driver:?} has {} default VolumeGroupSnapshotClasses [{}], and needs one; set \
                 spec.volumeGroupSnapshotClassName, or see to the annotation {}",
                found.len(),
                names.join(", "),
                annotations::DEFAULT_GROUP_SNAPSHOT_CLASS
            ),
        )),
    }
}

fn make(group: &Group, plan: &Plan) -> Decision {
    let object = &group.group;
    // Before the content, so that a group deleted meanwhile still takes it along.
    let mut operations = add_finalizers(&object.meta, &[finalizers::GROUP_SNAPSHOT_BOUND]);
    if object.spec.volume_group_snapshot_class_name.is_none() {
        operations.push(json!({ "op": "add", "path": "/spec/volumeGroupSnapshotClassName", "value": plan.class }));
    }
    let is_fresh = !operations.is_empty();
    let create = GroupAction::CreateContent { group: object.reference(), body: plan.body.clone(), is_fresh };
    let prepare = GroupAction::Prepare { target: Target::exact(&object.meta), operations };
    act(if is_fresh { vec![prepare, create] } else { vec![create] }, Why::Creating)
}
