//! A bound claim that asks for more, or for another VolumeAttributesClass.

use jiff::Timestamp;

use stowage_model::claim::ResizeStatus;
use stowage_model::object::{Key, kinds};
use stowage_model::{Claim, Volume, annotations, condition, resize};

use super::leader::driver_of;
use super::{Steps, View, kubectl_claim, quoted};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Who};

/// Whether it asks for more than it has.
pub fn wants_more(claim: &Claim) -> bool {
    let has = claim.status.capacity.storage;
    has.is_some_and(|has| claim.requested() > has)
        || claim.status.allocated_resource_statuses.storage != ResizeStatus::None
}

/// Whether it asks for another VolumeAttributesClass than it has.
pub fn wants_change(claim: &Claim) -> bool {
    let current = claim.status.current_volume_attributes_class_name.as_deref().unwrap_or_default();
    let wanted = claim.attributes_class();
    !wanted.is_empty() && wanted != current
}

/// Why it has not grown or changed.
pub fn causes(view: &View<'_>, claim: &Claim, volume: &Volume, steps: &mut Steps) -> Vec<Cause> {
    let mut causes = Vec::new();
    if wants_more(claim) {
        causes.extend(growth(view, claim, volume, steps));
    }
    if wants_change(claim) {
        causes.extend(change(view, claim, volume, steps));
    }
    causes
}

fn growth(view: &View<'_>, claim: &Claim, volume: &Volume, steps: &mut Steps) -> Vec<Cause> {
    let status = claim.status.allocated_resource_statuses.storage;
    let has = claim.status.capacity.storage.unwrap_or_default();
    let is_at_node = matches!(
        status,
        ResizeStatus::NodeResizePending | ResizeStatus::NodeResizeInProgress | ResizeStatus::NodeResizeInfeasible
    ) || condition::find(&claim.status.conditions, resize::FILE_SYSTEM_RESIZE_PENDING).is_some();
    let since = condition::find(&claim.status.conditions, resize::RESIZING).and_then(|one| one.last_transition_time);
    steps.add(format!("resizer expands the volume from {has} to {}", claim.requested()), is_at_node, since);
    steps.add("node expands the file system", false, None);
    if is_at_node { at_node(view, claim, status) } else { at_controller(view, claim, volume, status, since) }
}

fn condition_of<'a>(claim: &'a Claim, kind: &str) -> Option<&'a stowage_model::Condition> {
    condition::find(&claim.status.conditions, kind).filter(|one| one.is_true())
}

fn back(claim: &Claim) -> String {
    let least = claim.status.capacity.storage.unwrap_or_default();
    format!(
        "ask for a size that the driver can give, above {least}: `kubectl patch {} -p \
         '{{\"spec\":{{\"resources\":{{\"requests\":{{\"storage\":\"SIZE\"}}}}}}}}'`",
        kubectl_claim(claim)
    )
}

fn at_controller(
    view: &View<'_>,
    claim: &Claim,
    volume: &Volume,
    status: ResizeStatus,
    since: Option<Timestamp>,
) -> Vec<Cause> {
    let who = view.resizer_of(volume);
    let told = view.complaint(claim, &["VolumeResizeFailed"], &["VolumeResizeSuccessful", "FileSystemResizeRequired"]);
    let error = condition_of(claim, resize::CONTROLLER_RESIZE_ERROR);
    let words = error.filter(|error| !error.message.is_empty()).map_or_else(
        || told.map(|told| quoted(told, view.now)),
        |error| Some(format!("{} (condition {}, {})", error.message, error.kind, error.reason)),
    );
    if status == ResizeStatus::ControllerResizeInfeasible {
        let words =
            words.unwrap_or_else(|| "status.allocatedResourceStatuses.storage is ControllerResizeInfeasible".into());
        let why = format!("the driver cannot expand the volume to {}: {words}", claim.requested());
        return vec![Cause::stuck("resize-infeasible", who, why, back(claim))];
    }
    if let Some(words) = words {
        let way_out = format!("remove what the driver names; it is tried again by itself. Or {}", back(claim));
        return vec![Cause::stuck("resize-failed", who, words, way_out)];
    }
    if let Look::There(class) = view.g.classes.named(claim.class_name())
        && !class.allow_volume_expansion
    {
        let name = &class.meta.name;
        let why = format!("allowVolumeExpansion of StorageClass {name:?} is not true");
        let way_out = format!(
            "if the driver can expand: `kubectl patch storageclass {name} -p '{{\"allowVolumeExpansion\":true}}'`"
        );
        return vec![Cause::stuck("expansion-not-allowed", Who::user(), why, way_out)];
    }
    let (silence, way_out) = view.silence(&who);
    // Nobody wrote when more was asked for: an old claim is late at once where no resizer has begun.
    let since = since.or(claim.meta.creation_timestamp);
    let begun = match status {
        ResizeStatus::ControllerResizeInProgress => "the resizer has begun and not ended",
        _ => "no resizer has begun",
    };
    let named = claim.meta.annotation(annotations::STORAGE_RESIZER);
    let named = named.map(|name| format!(" (annotation {}: {name})", annotations::STORAGE_RESIZER)).unwrap_or_default();
    vec![view.slow("resizer-silent", who, since, format!("{begun}{named}: {silence}"), way_out)]
}

fn at_node(view: &View<'_>, claim: &Claim, status: ResizeStatus) -> Vec<Cause> {
    let users = view.users_of(&claim.meta.key());
    let placed = users.iter().find(|pod| pod.is_scheduled());
    let node = placed.map_or("", |pod| pod.spec.node_name.as_str());
    let kubelet = match placed {
        Some(_) => Who::named(format!("kubelet of {node}")),
        None if view.g.pods.is_known => Who::user(),
        None => Who::unknown(),
    };
    // The resizer's failures have the name of the kubelet's, and it has done its part since.
    let settled_by = ["FileSystemResizeSuccessful", "FileSystemResizeRequired", "VolumeResizeSuccessful"];
    let told = view.complaint(claim, &["VolumeResizeFailed", "FileSystemResizeFailed"], &settled_by);
    let of_pod =
        || users.iter().find_map(|pod| view.complaint(*pod, &["VolumeResizeFailed"], &["FileSystemResizeSuccessful"]));
    let error =
        condition_of(claim, resize::NODE_RESIZE_ERROR).map(|one| format!("{} (condition {})", one.message, one.kind));
    let words = error.or_else(|| told.or_else(of_pod).map(|told| quoted(told, view.now)));
    if status == ResizeStatus::NodeResizeInfeasible {
        let why =
            words.unwrap_or_else(|| "status.allocatedResourceStatuses.storage is NodeResizeInfeasible".to_owned());
        let way_out =
            "the device has grown, its file system has not: look at it on the node, or restore into a new claim";
        return vec![Cause::stuck("resize-infeasible", kubelet, why, way_out)];
    }
    if let Some(why) = words {
        return vec![Cause::stuck("resize-failed", kubelet, why, "remove what is named; it is tried again by itself")];
    }
    let pending = condition::find(&claim.status.conditions, resize::FILE_SYSTEM_RESIZE_PENDING);
    let since = pending.and_then(|one| one.last_transition_time);
    if placed.is_none() && !view.g.pods.is_known {
        let why = "the device has grown; its file system grows when a pod uses the claim, and none was seen";
        return vec![view.unseen(kinds::POD, since, why)];
    }
    if placed.is_none() {
        let why = "the device has grown; its file system grows when a pod uses the claim, and none does";
        let way_out = "start a pod that uses the claim".to_owned();
        return vec![Cause::waiting("resize-waits-for-pod", Who::user(), why, way_out)];
    }
    let why = format!("the kubelet of {node} has not expanded the file system yet");
    let way_out =
        format!("read the log of the kubelet on {node}; a driver that grows only unused volumes needs the pod stopped");
    vec![view.slow("node-resize-pending", kubelet, since, why, way_out)]
}

fn change(view: &View<'_>, claim: &Claim, volume: &Volume, steps: &mut Steps) -> Vec<Cause> {
    let wanted = claim.attributes_class();
    let driver = driver_of(volume).unwrap_or_default();
    let since =
        condition::find(&claim.status.conditions, resize::MODIFYING_VOLUME).and_then(|one| one.last_transition_time);
    steps.add(format!("resizer changes the volume to VolumeAttributesClass {wanted:?}"), false, since);
    let other = format!(
        "name another: `kubectl patch {} -p '{{\"spec\":{{\"volumeAttributesClassName\":\"NAME\"}}}}'`",
        kubectl_claim(claim)
    );
    match view.g.attributes_classes.look(&Key::cluster(wanted)) {
        Look::Absent => {
            let why =
                format!("spec.volumeAttributesClassName is {wanted:?}, and there is no such VolumeAttributesClass");
            return vec![Cause::stuck("attributes-class-missing", Who::user(), why, format!("create it, or {other}"))];
        }
        Look::There(class) if class.driver_name != driver => {
            let why = format!(
                "driverName of VolumeAttributesClass {wanted:?} is {:?}, the volume's driver is {driver:?}",
                class.driver_name
            );
            return vec![Cause::stuck("attributes-class-of-other-driver", Who::user(), why, other)];
        }
        _ => {}
    }
    let who = view.resizer_of(volume);
    let told = view.complaint(claim, &["VolumeModifyFailed"], &["VolumeModifySuccessful"]);
    let error = condition_of(claim, resize::MODIFY_VOLUME_ERROR).filter(|one| !one.message.is_empty());
    let words = error.map(|one| format!("{} (condition {}, {})", one.message, one.kind, one.reason));
    if let Some(words) = words.or_else(|| told.map(|told| quoted(told, view.now))) {
        let is_refused = words.contains("InvalidArgument");
        let id = if is_refused { "modify-infeasible" } else { "modify-failed" };
        return vec![Cause::stuck(id, who, words, format!("correct the parameters in a new class, or {other}"))];
    }
    let (silence, way_out) = view.silence(&who);
    let since = since.or(claim.meta.creation_timestamp);
    vec![view.slow("modifier-silent", who, since, format!("the volume is not changed yet: {silence}"), way_out)]
}
