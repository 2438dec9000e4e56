//! Volumes, and which node has them.

use std::collections::BTreeMap;

use tonic::{Request, Response, Status, async_trait};

use stowage_csi::v1::controller_server::Controller;
use stowage_csi::v1::controller_service_capability as capability;
use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::{
    ControllerExpandVolumeRequest, ControllerExpandVolumeResponse, ControllerGetCapabilitiesRequest,
    ControllerGetCapabilitiesResponse, ControllerModifyVolumeRequest, ControllerModifyVolumeResponse,
    ControllerPublishVolumeRequest, ControllerPublishVolumeResponse, ControllerServiceCapability,
    ControllerUnpublishVolumeRequest, ControllerUnpublishVolumeResponse, CreateSnapshotRequest, CreateSnapshotResponse,
    CreateVolumeRequest, CreateVolumeResponse, DeleteSnapshotRequest, DeleteSnapshotResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, ListSnapshotsRequest, ListSnapshotsResponse,
    ListVolumesRequest, ListVolumesResponse, Topology, Volume, VolumeCapability,
};

use super::{LARGEST, Made, Service, State, changes, figures, snapshots};

/// What a volume has that is made without a wish for a size.
const DEFAULT_BYTES: i64 = 1 << 20;

/// What tells nodes apart where volumes are local.
pub const TOPOLOGY: &str = "topology.driver.test/node";

/// The only parameter of a class this driver knows.
const PARAMETER: &str = "pool";

#[async_trait]
impl Controller for Service {
    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        let about = request.name.clone();
        self.driver.answer("CreateVolume", &about, |state| create(state, request, &self.node_id)).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let id = request.into_inner().volume_id;
        self.driver.answer("DeleteVolume", &id, |state| delete(state, &id, &self.node_id)).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let about = format!("{} {}", request.volume_id, request.node_id);
        self.driver.answer("ControllerPublishVolume", &about, |state| attach(state, &request)).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let about = format!("{} {}", request.volume_id, request.node_id);
        self.driver.answer("ControllerUnpublishVolume", &about, |state| detach(state, &request)).await
    }

    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |kind: capability::rpc::Type| ControllerServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc { r#type: kind.into() })),
        };
        self.driver
            .answer("ControllerGetCapabilities", "", |state| {
                let capabilities = state.abilities.types().into_iter().map(capability).collect();
                Ok(ControllerGetCapabilitiesResponse { capabilities })
            })
            .await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let about = request.volume_id.clone();
        self.driver.lock().state.expansions.push(request.clone());
        self.driver
            .answer("ControllerExpandVolume", &about, |state| changes::expand(state, &request, &self.node_id))
            .await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        let request = request.into_inner();
        let about = request.volume_id.clone();
        self.driver.lock().state.modifications.push(request.clone());
        self.driver.answer("ControllerModifyVolume", &about, |state| changes::modify(state, request)).await
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        let request = request.into_inner();
        let about = request.starting_token.clone();
        self.driver.answer("ListVolumes", &about, |state| figures::list(state, &request)).await
    }

    async fn get_capacity(&self, _: Request<GetCapacityRequest>) -> Result<Response<GetCapacityResponse>, Status> {
        self.driver.answer("GetCapacity", "", |state| figures::room(state)).await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let request = request.into_inner();
        let about = request.name.clone();
        self.driver.answer("CreateSnapshot", &about, |state| snapshots::create(state, request)).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let id = request.into_inner().snapshot_id;
        self.driver.answer("DeleteSnapshot", &id, |state| snapshots::delete(state, &id)).await
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        let request = request.into_inner();
        let about = request.snapshot_id.clone();
        self.driver.answer("ListSnapshots", &about, |state| snapshots::list(state, &request)).await
    }
}

fn create(state: &mut State, request: CreateVolumeRequest, node: &str) -> Result<CreateVolumeResponse, Status> {
    if request.name.is_empty() {
        return Err(Status::invalid_argument("name is empty"));
    }
    if request.volume_capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities is empty"));
    }
    if let Some((key, value)) = request.parameters.iter().find(|(key, _)| *key != PARAMETER) {
        return Err(Status::invalid_argument(format!(
            "parameter {key:?} with value {value:?} is unknown; the class may only set {PARAMETER:?}"
        )));
    }
    let source = snapshots::source(state, request.volume_content_source)?;
    let place = state.place(node);
    let known = state.volumes.iter().find(|(_, made)| made.name == request.name && made.node == place);
    let known = known.map(|(id, made)| (id.clone(), made.clone()));
    // What was made already needs its source no more.
    let (least, content) = match (&known, &source) {
        (Some((_, made)), _) => (made.bytes, 0),
        (None, Some(source)) => state.contents_of(source)?,
        (None, None) => (DEFAULT_BYTES, 0),
    };
    let range = request.capacity_range.unwrap_or_default();
    let bytes = if range.required_bytes == 0 { least } else { range.required_bytes };
    if bytes > LARGEST {
        return Err(Status::out_of_range(format!(
            "capacity_range.required_bytes is {bytes}, but a volume can have at most {LARGEST}; ask for less"
        )));
    }
    if known.is_none() && source.is_some() && bytes < least {
        return Err(Status::out_of_range(format!(
            "capacity_range.required_bytes is {bytes}, but its source has {least}; ask for at least as much"
        )));
    }
    let single_node = !request.volume_capabilities.iter().any(many_nodes);
    let wish = Made {
        name: request.name.clone(),
        bytes,
        single_node,
        content: 0,
        source: source.clone(),
        by_hand: false,
        node: place.clone(),
    };
    let id = match known {
        Some((_, made)) if wish != (Made { content: 0, ..made.clone() }) => {
            return Err(Status::already_exists(format!("volume {} exists and is different", request.name)));
        }
        Some((id, _)) => id,
        None => {
            state.made += 1;
            let id = format!("vol-{}", state.made);
            state.volumes.insert(id.clone(), wish);
            if !request.mutable_parameters.is_empty() {
                state.attributes.insert(id.clone(), request.mutable_parameters);
            }
            if content > 0 {
                state.write(&id, content);
            }
            id
        }
    };
    let volume = Volume {
        capacity_bytes: bytes,
        volume_id: id,
        content_source: source.map(Into::into),
        accessible_topology: place.map(topology).into_iter().collect(),
        ..Volume::default()
    };
    Ok(CreateVolumeResponse { volume: Some(volume) })
}

/// The place of a node, as the driver names it.
pub(super) fn topology(node: String) -> Topology {
    Topology { segments: BTreeMap::from([(TOPOLOGY.to_owned(), node)]) }
}

fn many_nodes(capability: &VolumeCapability) -> bool {
    let mode = capability.access_mode.as_ref().map(|access| access.mode());
    matches!(mode, Some(Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter))
}

fn delete(state: &mut State, id: &str, node: &str) -> Result<DeleteVolumeResponse, Status> {
    if !state.is_known(id, node) {
        return Ok(DeleteVolumeResponse {});
    }
    let staged = state.staged.keys().any(|(_, volume)| volume == id);
    if staged || state.attached.contains_key(id) {
        state.violation(format!("A2: asked to delete volume {id}, which a node still has"));
        return Err(Status::failed_precondition(format!("volume {id} is in use")));
    }
    if state.volumes.get(id).is_some_and(|made| made.by_hand) {
        state.violation(format!("P3: asked to delete volume {id}, which is to be kept"));
    }
    state.volumes.remove(id);
    state.file_systems.remove(id);
    Ok(DeleteVolumeResponse {})
}

fn attach(
    state: &mut State,
    request: &ControllerPublishVolumeRequest,
) -> Result<ControllerPublishVolumeResponse, Status> {
    let (id, node) = (&request.volume_id, &request.node_id);
    let Some(volume) = state.volumes.get(id) else {
        return Err(Status::not_found(format!("volume {id} does not exist")));
    };
    if !state.nodes.contains(node) {
        return Err(Status::not_found(format!("node {node} does not exist")));
    }
    let capability = request.volume_capability.as_ref();
    let shared = !volume.single_node && capability.is_some_and(many_nodes);
    let other = state.attached.get(id).and_then(|nodes| nodes.iter().find(|other| *other != node)).cloned();
    if let Some(other) = other.filter(|_| !shared) {
        state.violation(format!("A1: asked to publish volume {id} to {node} while it is published to {other}"));
        return Err(Status::failed_precondition(format!("volume {id} is published to node {other}")));
    }
    state.attached.entry(id.clone()).or_default().insert(node.clone());
    let publish_context = BTreeMap::from([("token".to_owned(), token(id, node))]);
    Ok(ControllerPublishVolumeResponse { publish_context })
}

fn detach(
    state: &mut State,
    request: &ControllerUnpublishVolumeRequest,
) -> Result<ControllerUnpublishVolumeResponse, Status> {
    let (id, node) = (&request.volume_id, &request.node_id);
    if state.staged.contains_key(&(node.clone(), id.clone())) {
        state.violation(format!("A2: asked to unpublish volume {id} from {node}, where it is staged"));
    }
    if let Some(nodes) = state.attached.get_mut(id) {
        nodes.remove(node);
        if nodes.is_empty() {
            state.attached.remove(id);
        }
    }
    Ok(ControllerUnpublishVolumeResponse {})
}

/// What a node must show to stage the volume.
pub(super) fn token(id: &str, node: &str) -> String {
    format!("{id} on {node}")
}
