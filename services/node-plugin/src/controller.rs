//! The Controller service: volumes are made, found, copied, changed, handed to a node, and removed.

pub mod arrivals;
mod attach;
mod capacity;
mod changes;
pub mod copying;
mod error;
mod listing;
pub mod snapshots;
mod source;
mod topology;
pub mod volumes;

use std::sync::Arc;

use stowage_csi::v1::controller_server::Controller;
use stowage_csi::v1::controller_service_capability::{self, Rpc, rpc};
use stowage_csi::v1::*;
use tonic::{Request, Response, Status};

pub use self::error::Error;
use crate::calls::Side;
use crate::driver::Shared;

/// CSI's limit for strings, in bytes.
const MAX_NAME: usize = 128;

const CAPABILITIES: [rpc::Type; 12] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::ListVolumes,
    rpc::Type::GetCapacity,
    rpc::Type::CreateDeleteSnapshot,
    rpc::Type::ListSnapshots,
    rpc::Type::GetSnapshot,
    rpc::Type::CloneVolume,
    rpc::Type::ExpandVolume,
    rpc::Type::ModifyVolume,
    rpc::Type::GetVolume,
    rpc::Type::VolumeCondition,
    rpc::Type::SingleNodeMultiWriter,
];
/// What the shared driver can besides.
const ATTACH_CAPABILITIES: [rpc::Type; 3] =
    [rpc::Type::PublishUnpublishVolume, rpc::Type::PublishReadonly, rpc::Type::ListVolumesPublishedNodes];

pub struct Service(pub Arc<Shared>);

/// The names CSI allows.
pub fn check_name(name: &str) -> Result<(), Error> {
    let refuse = |reason| Error::ReadName { name: name.chars().take(MAX_NAME).collect(), reason };
    if name.is_empty() {
        return Err(Error::ReadField { field: "name" });
    }
    if name.len() > MAX_NAME {
        return Err(refuse("it is longer than 128 bytes"));
    }
    match name.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r')) {
        true => Err(refuse("it holds control characters")),
        false => Ok(()),
    }
}

#[tonic::async_trait]
impl Controller for Service {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let capability = |kind: rpc::Type| ControllerServiceCapability {
            r#type: Some(controller_service_capability::Type::Rpc(Rpc { r#type: kind.into() })),
        };
        let attach = self.0.attach.then_some(ATTACH_CAPABILITIES).into_iter().flatten();
        let capabilities = CAPABILITIES.into_iter().chain(attach).map(capability).collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { volumes::create(&shared, &request.into_inner()).await };
        self.0.finish(Side::Controller, "CreateVolume", call).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { volumes::delete(&shared, &request.into_inner()).await };
        self.0.finish(Side::Controller, "DeleteVolume", call).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { attach::publish(&shared, &request.into_inner()).await };
        self.0.finish(Side::Controller, "ControllerPublishVolume", call).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { attach::unpublish(&shared, &request.into_inner()).await };
        self.0.finish(Side::Controller, "ControllerUnpublishVolume", call).await
    }

    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { changes::expand(&shared, &request.into_inner()).await };
        self.0.finish(Side::Controller, "ControllerExpandVolume", call).await
    }

    async fn controller_modify_volume(
        &self,
        request: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { changes::modify(&shared, &request.into_inner()).await };
        self.0.finish(Side::Controller, "ControllerModifyVolume", call).await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { snapshots::create(&shared, &request.into_inner()).await };
        self.0.finish(Side::Controller, "CreateSnapshot", call).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { snapshots::delete(&shared, &request.into_inner()).await };
        self.0.finish(Side::Controller, "DeleteSnapshot", call).await
    }

    async fn get_snapshot(
        &self,
        request: Request<GetSnapshotRequest>,
    ) -> Result<Response<GetSnapshotResponse>, Status> {
        Ok(Response::new(snapshots::get(&self.0, &request.into_inner()).await?))
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        Ok(Response::new(listing::snapshots(&self.0, &request.into_inner()).await?))
    }

    async fn controller_get_volume(
        &self,
        request: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        Ok(Response::new(listing::volume(&self.0, &request.into_inner()).await?))
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        Ok(Response::new(capacity::validate(&self.0, request.into_inner()).await?))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        Ok(Response::new(listing::volumes(&self.0, &request.into_inner()).await?))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        Ok(Response::new(capacity::get(&self.0, &request.into_inner()).await?))
    }
}
