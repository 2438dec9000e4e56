//! Volumes that grow and change while they are there.

use tonic::Status;

use stowage_csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerModifyVolumeRequest,
    ControllerModifyVolumeResponse,
};

use super::{LARGEST, State};

/// The only attribute of a class this driver knows.
const ATTRIBUTE: &str = "iops";

/// How volumes grow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Growth {
    /// Whether the node has to do its part afterwards.
    pub for_node: bool,
    /// Whether only what is published to no node grows.
    pub offline_only: bool,
    /// Said in place of the true size.
    pub lies: Option<i64>,
}

pub(super) fn expand(
    state: &mut State,
    request: &ControllerExpandVolumeRequest,
    node: &str,
) -> Result<ControllerExpandVolumeResponse, Status> {
    if !state.abilities.expansion {
        return Err(Status::unimplemented("volumes do not grow here"));
    }
    let (id, growth) = (&request.volume_id, state.growth);
    let required = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
    let is_attached = state.attached.contains_key(id);
    let is_known = state.is_known(id, node);
    let Some(made) = state.volumes.get_mut(id).filter(|_| is_known) else {
        return Err(Status::not_found(format!("volume {id} does not exist")));
    };
    if required > LARGEST {
        return Err(Status::out_of_range(format!(
            "capacity_range.required_bytes is {required}, but a volume can have at most {LARGEST}; ask for less"
        )));
    }
    if growth.offline_only && is_attached && required > made.bytes {
        return Err(Status::failed_precondition(format!("volume {id} is published to a node; unpublish it first")));
    }
    made.bytes = made.bytes.max(required);
    if let Some(has) = state.file_systems.get_mut(id).filter(|_| !growth.for_node) {
        *has = made.bytes;
    }
    let capacity_bytes = growth.lies.unwrap_or(made.bytes);
    Ok(ControllerExpandVolumeResponse { capacity_bytes, node_expansion_required: growth.for_node })
}

pub(super) fn modify(
    state: &mut State,
    request: ControllerModifyVolumeRequest,
) -> Result<ControllerModifyVolumeResponse, Status> {
    if !state.abilities.modification {
        return Err(Status::unimplemented("volumes do not change here"));
    }
    let ControllerModifyVolumeRequest { volume_id, mutable_parameters, .. } = request;
    if !state.volumes.contains_key(&volume_id) {
        return Err(Status::not_found(format!("volume {volume_id} does not exist")));
    }
    let is_known = |key: &&String| *key == ATTRIBUTE || key.starts_with("csi.storage.k8s.io/");
    if let Some(key) = mutable_parameters.keys().find(|key| !is_known(key)) {
        return Err(Status::invalid_argument(format!("attribute {key:?} is unknown; only {ATTRIBUTE:?} can be set")));
    }
    state.attributes.insert(volume_id, mutable_parameters);
    Ok(ControllerModifyVolumeResponse {})
}
