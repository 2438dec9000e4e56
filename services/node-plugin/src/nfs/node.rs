//! The Node service: a directory of a server is mounted at a pod's path.

mod error;
mod publish;
mod stats;

use std::sync::Arc;

use stowage_csi::v1::node_server::Node;
use stowage_csi::v1::node_service_capability::{self, Rpc, rpc};
use stowage_csi::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse,
};
use tonic::{Request, Response, Status};

pub use self::error::Error;
use super::driver::Shared;
use crate::calls::Side;

const CAPABILITIES: [rpc::Type; 2] = [rpc::Type::GetVolumeStats, rpc::Type::SingleNodeMultiWriter];

pub struct Service(pub Arc<Shared>);

fn not_offered(rpc: &'static str) -> Status {
    Status::unimplemented(format!("{rpc} is not offered by this driver, see NodeGetCapabilities"))
}

#[tonic::async_trait]
impl Node for Service {
    async fn node_get_capabilities(
        &self,
        _: Request<NodeGetCapabilitiesRequest>,
    ) -> Result<Response<NodeGetCapabilitiesResponse>, Status> {
        let capability = |kind: rpc::Type| NodeServiceCapability {
            r#type: Some(node_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let capabilities = CAPABILITIES.into_iter().map(capability).collect();
        Ok(Response::new(NodeGetCapabilitiesResponse { capabilities }))
    }

    async fn node_get_info(&self, _: Request<NodeGetInfoRequest>) -> Result<Response<NodeGetInfoResponse>, Status> {
        let node_id = self.0.options.node_id.clone();
        Ok(Response::new(NodeGetInfoResponse { node_id, ..Default::default() }))
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { publish::publish(&shared, &request.into_inner()).await };
        self.0.calls.finish(Side::Node, "NodePublishVolume", call).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { publish::unpublish(&shared, &request.into_inner()).await };
        self.0.calls.finish(Side::Node, "NodeUnpublishVolume", call).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        Ok(Response::new(stats::stats(&self.0, &request.into_inner()).await?))
    }

    async fn node_stage_volume(
        &self,
        _: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        Err(not_offered("NodeStageVolume"))
    }

    async fn node_unstage_volume(
        &self,
        _: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        Err(not_offered("NodeUnstageVolume"))
    }

    async fn node_expand_volume(
        &self,
        _: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        Err(not_offered("NodeExpandVolume"))
    }
}
