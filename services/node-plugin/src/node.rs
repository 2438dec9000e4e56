//! The Node service: an image becomes a loop device, a file system, and a mount that pods see.

mod error;
mod publish;
mod stage;

use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use stowage_csi::v1::node_server::Node;
use stowage_csi::v1::node_service_capability::{self, Rpc, rpc};
use stowage_csi::v1::volume_usage::Unit;
use stowage_csi::v1::{
    NodeGetCapabilitiesRequest, NodeGetCapabilitiesResponse, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest, NodePublishVolumeResponse,
    NodeServiceCapability, NodeStageVolumeRequest, NodeStageVolumeResponse, NodeUnpublishVolumeRequest,
    NodeUnpublishVolumeResponse, NodeUnstageVolumeRequest, NodeUnstageVolumeResponse, VolumeUsage,
};
use tonic::{Request, Response, Status};

pub use self::error::Error;
use crate::driver::Shared;
use crate::staging::{Tag, View};
use crate::volume::{RECORD_VERSION, VolumeId};

const CAPABILITIES: [rpc::Type; 3] =
    [rpc::Type::StageUnstageVolume, rpc::Type::GetVolumeStats, rpc::Type::SingleNodeMultiWriter];

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
        self.0.finish("NodeGetInfo", async move { introduce(&shared).await }).await
    }

    async fn node_stage_volume(
        &self,
        request: Request<NodeStageVolumeRequest>,
    ) -> Result<Response<NodeStageVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { stage::stage(&shared, &request.into_inner()).await };
        self.0.finish("NodeStageVolume", call).await
    }

    async fn node_unstage_volume(
        &self,
        request: Request<NodeUnstageVolumeRequest>,
    ) -> Result<Response<NodeUnstageVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { stage::unstage(&shared, &request.into_inner()).await };
        self.0.finish("NodeUnstageVolume", call).await
    }

    async fn node_publish_volume(
        &self,
        request: Request<NodePublishVolumeRequest>,
    ) -> Result<Response<NodePublishVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { publish::publish(&shared, &request.into_inner()).await };
        self.0.finish("NodePublishVolume", call).await
    }

    async fn node_unpublish_volume(
        &self,
        request: Request<NodeUnpublishVolumeRequest>,
    ) -> Result<Response<NodeUnpublishVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { publish::unpublish(&shared, &request.into_inner()).await };
        self.0.finish("NodeUnpublishVolume", call).await
    }

    async fn node_get_volume_stats(
        &self,
        request: Request<NodeGetVolumeStatsRequest>,
    ) -> Result<Response<NodeGetVolumeStatsResponse>, Status> {
        Ok(Response::new(stats(&self.0, &request.into_inner()).await?))
    }
}

/// What a node leaves in each pool so that the controller knows it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeRecord {
    version: u32,
    name: String,
}

/// Here the cluster learns the node's name; from now on the controller may be asked to attach to it.
async fn introduce(shared: &Shared) -> Result<NodeGetInfoResponse, Error> {
    let record = NodeRecord { version: RECORD_VERSION, name: shared.node.clone() };
    for pool in &shared.pools {
        pool.open_for_writing().await?;
        let path = pool.node(&shared.node);
        if pool.load_file::<NodeRecord>(&path).await?.as_ref() != Some(&record) {
            pool.store_file(&path, &record).await?;
        }
    }
    Ok(NodeGetInfoResponse { node_id: shared.node.clone(), ..Default::default() })
}

async fn stats(shared: &Shared, request: &NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStatsResponse, Error> {
    let id = read_id(&request.volume_id)?;
    let path = read_path("volume_path", &request.volume_path)?;
    let absent = || Error::FindMount { volume: id.to_string(), path: path.clone() };
    let pool = shared.pool(id.pool())?;
    let view = View::look(&*shared.host, &pool.image(&id), &Tag::new(pool, &id, &shared.node)).await?;
    let target = shared.host.resolve(&path).await?.ok_or_else(absent)?;
    view.our_mount(&target).ok_or_else(absent)?;
    let usage = shared.host.usage(&target).await?;

    let signed = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
    let entry = |unit: Unit, total, used, available| VolumeUsage {
        unit: unit.into(),
        total: signed(total),
        used: signed(used),
        available: signed(available),
    };
    let bytes = entry(Unit::Bytes, usage.total_bytes, usage.used_bytes, usage.available_bytes);
    let inodes = entry(Unit::Inodes, usage.total_inodes, usage.used_inodes, usage.available_inodes);
    Ok(NodeGetVolumeStatsResponse { usage: vec![bytes, inodes], volume_condition: None })
}

fn read_id(text: &str) -> Result<VolumeId, Error> {
    match text {
        "" => Err(Error::ReadField { field: "volume_id" }),
        text => VolumeId::parse(text).ok_or_else(|| Error::FindVolume { volume: text.into() }),
    }
}

/// A path without tricks: absolute, and no `.` or `..` that could lead elsewhere.
fn read_path(field: &'static str, text: &str) -> Result<PathBuf, Error> {
    if text.is_empty() {
        return Err(Error::ReadField { field });
    }
    let refuse = |reason| Err(Error::ReadPath { field, value: text.into(), reason });
    let path = Path::new(text);
    if !path.is_absolute() {
        return refuse("it must be absolute");
    }
    if text.contains('\0') || path.components().any(|part| !matches!(part, Component::RootDir | Component::Normal(_))) {
        return refuse("it must not contain .. or a zero byte");
    }
    match path.parent() {
        None => refuse("the root directory cannot be a target"),
        Some(_) => Ok(path.components().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_with_tricks_are_refused_by_field_and_value() {
        for bad in ["relative", "/", "/a/../b", "/a\0b"] {
            let message = read_path("target_path", bad).unwrap_err().to_string();
            assert!(message.contains("target_path"), "{message}");
        }
        assert_eq!(read_path("target_path", "/a//b/").unwrap(), Path::new("/a/b"));
    }
}
