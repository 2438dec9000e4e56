//! Volumes on a node: staged once, published for each pod.

use std::collections::BTreeSet;
use std::path::Path;

use tonic::{Request, Response, Status, async_trait};

use stowage_csi::v1::node_server::Node;
use stowage_csi::v1::node_service_capability::{self as capability, rpc};
use stowage_csi::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse,
};
use stowage_mount::{Access, MountOptions};

use super::{Service, State, controller};

#[async_trait]
impl Node for Service {
    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.node_id.clone();
        self.driver
            .answer("NodeGetInfo", &self.node_id, |state| {
                let accessible_topology = state.place(&node_id).map(controller::topology);
                Ok(NodeGetInfoResponse { node_id, accessible_topology, ..Default::default() })
            })
            .await
    }

    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |kind: rpc::Type| NodeServiceCapability {
            r#type: Some(capability::Type::Rpc(capability::Rpc { r#type: kind.into() })),
        };
        self.driver
            .answer("NodeGetCapabilities", &self.node_id, |state| {
                let grows = state.growth.for_node.then_some(rpc::Type::ExpandVolume);
                let kinds = [rpc::Type::StageUnstageVolume].into_iter().chain(grows);
                Ok(NodeGetCapabilitiesResponse { capabilities: kinds.map(capability).collect() })
            })
            .await
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let request = request.into_inner();
        let about = format!("{} {}", request.volume_id, self.node_id);
        self.driver.answer("NodeStageVolume", &about, |state| self.stage(state, &request)).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let request = request.into_inner();
        let about = format!("{} {}", request.volume_id, self.node_id);
        self.driver.answer("NodeUnstageVolume", &about, |state| self.unstage(state, &request)).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let about = format!("{} {}", request.volume_id, self.node_id);
        self.driver.answer("NodePublishVolume", &about, |state| self.publish(state, &request)).await
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let request = request.into_inner();
        let about = format!("{} {}", request.volume_id, self.node_id);
        self.driver.answer("NodeExpandVolume", &about, |state| self.expand(state, &request)).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let request = request.into_inner();
        let about = format!("{} {}", request.volume_id, self.node_id);
        self.driver.answer("NodeUnpublishVolume", &about, |state| self.unpublish(state, &request)).await
    }
}

impl Service {
    fn key(&self, id: &str) -> (String, String) {
        (self.node_id.clone(), id.to_owned())
    }

    fn stage(&self, state: &mut State, request: &NodeStageVolumeRequest) -> Result<NodeStageVolumeResponse, Status> {
        let (id, node, path) = (&request.volume_id, &self.node_id, &request.staging_target_path);
        if !state.volumes.contains_key(id) {
            return Err(Status::not_found(format!("volume {id} does not exist")));
        }
        let attached = state.attached.get(id).is_some_and(|nodes| nodes.contains(node));
        if !attached || request.publish_context.get("token") != Some(&controller::token(id, node)) {
            state.violation(format!("A1: asked to stage volume {id} on {node}, to which it is not published"));
            return Err(Status::failed_precondition(format!("volume {id} is not published to node {node}")));
        }
        match state.staged.get(&self.key(id)) {
            Some(staged) if staged == path => return Ok(NodeStageVolumeResponse {}),
            Some(staged) => return Err(Status::already_exists(format!("volume {id} is staged at {staged}"))),
            None => {}
        }
        self.node
            .with(|tree| tree.mount(id, Path::new(path), "test", &MountOptions::default()))
            .map_err(|error| Status::failed_precondition(error.to_string()))?;
        state.staged.insert(self.key(id), path.clone());
        // Made once; what is in the volume already keeps its size.
        let bytes = state.volumes.get(id).map_or(0, |made| made.bytes);
        state.file_systems.entry(id.clone()).or_insert(bytes);
        Ok(NodeStageVolumeResponse {})
    }

    fn unstage(
        &self,
        state: &mut State,
        request: &NodeUnstageVolumeRequest,
    ) -> Result<NodeUnstageVolumeResponse, Status> {
        let (id, node) = (&request.volume_id, &self.node_id);
        if let Some(targets) = state.published.get(&self.key(id)) {
            let text = format!("M1: asked to unstage volume {id} on {node} while it is published at {targets:?}");
            state.violation(text);
            return Err(Status::failed_precondition(format!("volume {id} is still published")));
        }
        self.node
            .with(|tree| tree.unmount(Path::new(&request.staging_target_path)))
            .map_err(|error| Status::internal(error.to_string()))?;
        state.staged.remove(&self.key(id));
        Ok(NodeUnstageVolumeResponse {})
    }

    fn publish(
        &self,
        state: &mut State,
        request: &NodePublishVolumeRequest,
    ) -> Result<NodePublishVolumeResponse, Status> {
        let (id, node, target) = (&request.volume_id, &self.node_id, &request.target_path);
        if state.staged.get(&self.key(id)) != Some(&request.staging_target_path) {
            state.violation(format!("M1: asked to publish volume {id} on {node}, where it is not staged"));
            return Err(Status::failed_precondition(format!("volume {id} is not staged")));
        }
        if state.published.get(&self.key(id)).is_some_and(|targets| targets.contains(target)) {
            return Ok(NodePublishVolumeResponse {});
        }
        let (source, target_path) = (Path::new(&request.staging_target_path), Path::new(target));
        let access = if request.readonly { Access::ReadOnly } else { Access::ReadWrite };
        self.node
            .with(|tree| {
                // The caller makes the parent, the driver the target itself.
                if target_path.parent().is_none_or(|parent| tree.stat(parent).is_none()) {
                    return Err(format!("the parent of {target} does not exist"));
                }
                tree.create_dir(target_path).map_err(|error| error.to_string())?;
                tree.bind(source, target_path, access).map_err(|error| error.to_string())
            })
            .map_err(Status::failed_precondition)?;
        state.published.entry(self.key(id)).or_default().insert(target.clone());
        Ok(NodePublishVolumeResponse {})
    }

    /// The file system takes all of its device.
    fn expand(&self, state: &mut State, request: &NodeExpandVolumeRequest) -> Result<NodeExpandVolumeResponse, Status> {
        let (id, node) = (&request.volume_id, &self.node_id);
        if !state.published.get(&self.key(id)).is_some_and(|targets| targets.contains(&request.volume_path)) {
            return Err(Status::not_found(format!("volume {id} is not at {} of {node}", request.volume_path)));
        }
        let (Some(made), Some(has)) = (state.volumes.get(id), state.file_systems.get_mut(id)) else {
            return Err(Status::not_found(format!("volume {id} does not exist")));
        };
        let required = request.capacity_range.as_ref().map_or(0, |range| range.required_bytes);
        if required > made.bytes {
            return Err(Status::out_of_range(format!("volume {id} has {} bytes, not {required}", made.bytes)));
        }
        *has = made.bytes;
        Ok(NodeExpandVolumeResponse { capacity_bytes: made.bytes })
    }

    fn unpublish(
        &self,
        state: &mut State,
        request: &NodeUnpublishVolumeRequest,
    ) -> Result<NodeUnpublishVolumeResponse, Status> {
        let (id, target) = (&request.volume_id, Path::new(&request.target_path));
        self.node
            .with(|tree| {
                tree.unmount(target)?;
                tree.remove_dir(target)
            })
            .map_err(|error| Status::internal(error.to_string()))?;
        let key = self.key(id);
        if let Some(targets) = state.published.get_mut(&key) {
            targets.remove(&request.target_path);
            if targets.is_empty() {
                state.published.remove(&key);
            }
        }
        Ok(NodeUnpublishVolumeResponse {})
    }
}

impl State {
    /// Everything staged or published on a node, by volume.
    pub fn on_node(&self, node: &str) -> BTreeSet<String> {
        let staged = self.staged.keys().filter(|(on, _)| on == node);
        let published = self.published.keys().filter(|(on, _)| on == node);
        staged.chain(published).map(|(_, volume)| volume.clone()).collect()
    }
}
