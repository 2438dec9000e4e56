//! The Node service: an image becomes a loop device, a file system, and a mount that pods see.

mod device;
mod error;
mod expand;
mod growth;
mod inline;
mod options;
mod paths;
mod publish;
mod stage;
mod stats;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde::{Deserialize, Serialize};
use stowage_csi::v1::node_server::Node;
use stowage_csi::v1::node_service_capability::{self, Rpc, rpc};
use stowage_csi::v1::{
    NodeExpandVolumeRequest, NodeExpandVolumeResponse, NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse,
    NodeGetInfoRequest, NodeGetInfoResponse, NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse,
    NodePublishVolumeRequest, NodePublishVolumeResponse, NodeServiceCapability, NodeStageVolumeRequest,
    NodeStageVolumeResponse, NodeUnpublishVolumeRequest, NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest,
    NodeUnstageVolumeResponse, Topology,
};
use tonic::{Request, Response, Status};

pub use self::error::Error;
pub use self::paths::{hold, plain_path};
use crate::calls::Side;
use crate::driver::Shared;
use crate::pool::{self, Pool};
use crate::volume::RECORD_VERSION;

const CAPABILITIES: [rpc::Type; 5] = [
    rpc::Type::StageUnstageVolume,
    rpc::Type::GetVolumeStats,
    rpc::Type::ExpandVolume,
    rpc::Type::VolumeCondition,
    rpc::Type::SingleNodeMultiWriter,
];

pub struct Service(pub Arc<Shared>);

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
        let shared = self.0.clone();
        self.0.finish(Side::Node, "NodeGetInfo", async move { introduce(&shared).await }).await
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { stage::stage(&shared, &request.into_inner()).await };
        self.0.finish(Side::Node, "NodeStageVolume", call).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { stage::unstage(&shared, &request.into_inner()).await };
        self.0.finish(Side::Node, "NodeUnstageVolume", call).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let shared = self.0.clone();
        let request = request.into_inner();
        let call = async move {
            match inline::is_asked_for(&request) {
                true => inline::publish(&shared, &request).await,
                false => publish::publish(&shared, &request).await,
            }
        };
        self.0.finish(Side::Node, "NodePublishVolume", call).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let shared = self.0.clone();
        let request = request.into_inner();
        let call = async move {
            match inline::is_inline(&request.volume_id) {
                true => inline::unpublish(&shared, &request).await,
                false => publish::unpublish(&shared, &request).await,
            }
        };
        self.0.finish(Side::Node, "NodeUnpublishVolume", call).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        Ok(Response::new(stats::stats(&self.0, &request.into_inner()).await?))
    }

    async fn node_expand_volume(
        &self,
        request: Request<NodeExpandVolumeRequest>,
    ) -> Result<Response<NodeExpandVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { expand::expand(&shared, &request.into_inner()).await };
        self.0.finish(Side::Node, "NodeExpandVolume", call).await
    }
}

/// What a node leaves in each pool so that the controller knows it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeRecord {
    version: u32,
    name: String,
}

/// Here the cluster learns the node's name; from now on the controller may be asked to attach to it. A pool that is away
/// keeps nobody from the volumes of the others; it learns the name when it has come.
async fn introduce(shared: &Shared) -> Result<NodeGetInfoResponse, Error> {
    shared.introduced.store(true, Ordering::Relaxed);
    let mut refusal = None;
    for pool in &shared.pools {
        if let Err(error) = sign(shared, pool).await {
            tracing::warn!(pool = pool.name(), %error, "a pool does not know this node yet");
            refusal = Some(error);
        }
    }
    // Only an attachment asks whether the pool knows the node; without one, a node that were refused here could not even
    // take its pods' volumes away.
    let unknown = shared.attach && shared.pools.iter().all(|pool| !pool.signed.initialized());
    if let Some(error) = refusal.filter(|_| unknown) {
        return Err(error.into());
    }
    let segments = |(key, value): &(String, String)| BTreeMap::from([(key.clone(), value.clone())]);
    Ok(NodeGetInfoResponse {
        node_id: shared.node.clone(),
        max_volumes_per_node: shared.max_volumes,
        accessible_topology: shared.topology.as_ref().map(|pair| Topology { segments: segments(pair) }),
    })
}

/// Makes this node known in a pool; in one that is read-only it may be known already.
pub async fn sign(shared: &Shared, pool: &Pool) -> Result<(), pool::Error> {
    pool.open().await?;
    let record = NodeRecord { version: RECORD_VERSION, name: shared.node.clone() };
    let path = pool.node(&shared.node);
    if pool.load_file::<NodeRecord>(&path).await?.as_ref() != Some(&record) {
        pool.open_for_writing().await?;
        pool.store_file(&path, &record).await?;
    }
    // An error means that it was known before.
    let _ = pool.signed.set(());
    Ok(())
}
