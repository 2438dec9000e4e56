//! The Controller service: directories are made, copied, packed and removed on a share that is mounted for the call.

mod error;
mod snapshots;
mod source;
mod volumes;

use std::sync::Arc;

use stowage_csi::v1::controller_server::Controller;
use stowage_csi::v1::controller_service_capability::{self, Rpc, rpc};
use stowage_csi::v1::*;
use tonic::{Request, Response, Status};

pub use self::error::Error;
use super::driver::Shared;
use super::handle::is_name;
use crate::calls::Side;

/// CSI's limit for strings, in bytes.
const MAX_NAME: usize = 128;

const CAPABILITIES: [rpc::Type; 5] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::SingleNodeMultiWriter,
    rpc::Type::CloneVolume,
    rpc::Type::CreateDeleteSnapshot,
    rpc::Type::ExpandVolume,
];

pub struct Service(pub Arc<Shared>);

/// Names become directories.
fn check_name(name: &str) -> Result<(), Error> {
    let shown = || name.chars().take(MAX_NAME).collect();
    match name {
        "" => Err(Error::ReadField { field: "name" }),
        name if name.len() > MAX_NAME => Err(Error::ReadName { name: shown(), reason: "it is longer than 128 bytes" }),
        name if !is_name(name) => Err(Error::ReadName {
            name: shown(),
            reason: "it becomes a directory: no slash, .., # or control character",
        }),
        _ => Ok(()),
    }
}

fn not_offered(rpc: &'static str) -> Status {
    Status::unimplemented(format!("{rpc} is not offered by this driver, see ControllerGetCapabilities"))
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
        let capabilities = CAPABILITIES.into_iter().map(capability).collect();
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { volumes::create(&shared, request.into_inner()).await };
        self.0.calls.finish(Side::Controller, "CreateVolume", call).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { volumes::delete(&shared, &request.into_inner()).await };
        self.0.calls.finish(Side::Controller, "DeleteVolume", call).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { volumes::validate(&shared, request.into_inner()).await };
        self.0.calls.finish(Side::Controller, "ValidateVolumeCapabilities", call).await
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { snapshots::create(&shared, &request.into_inner()).await };
        self.0.calls.finish(Side::Controller, "CreateSnapshot", call).await
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { snapshots::delete(&shared, &request.into_inner()).await };
        self.0.calls.finish(Side::Controller, "DeleteSnapshot", call).await
    }

    /// A directory has no size of its own: the claim gets what it asks for, and nothing enforces it.
    async fn controller_expand_volume(
        &self,
        request: Request<ControllerExpandVolumeRequest>,
    ) -> Result<Response<ControllerExpandVolumeResponse>, Status> {
        Ok(Response::new(volumes::expand(&request.into_inner())?))
    }

    async fn controller_publish_volume(
        &self,
        _: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        Err(not_offered("ControllerPublishVolume"))
    }

    async fn controller_unpublish_volume(
        &self,
        _: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        Err(not_offered("ControllerUnpublishVolume"))
    }

    async fn list_volumes(&self, _: Request<ListVolumesRequest>) -> Result<Response<ListVolumesResponse>, Status> {
        Err(not_offered("ListVolumes"))
    }

    async fn get_capacity(&self, _: Request<GetCapacityRequest>) -> Result<Response<GetCapacityResponse>, Status> {
        Err(not_offered("GetCapacity"))
    }

    async fn list_snapshots(
        &self,
        _: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        Err(not_offered("ListSnapshots"))
    }

    async fn get_snapshot(&self, _: Request<GetSnapshotRequest>) -> Result<Response<GetSnapshotResponse>, Status> {
        Err(not_offered("GetSnapshot"))
    }

    async fn controller_get_volume(
        &self,
        _: Request<ControllerGetVolumeRequest>,
    ) -> Result<Response<ControllerGetVolumeResponse>, Status> {
        Err(not_offered("ControllerGetVolume"))
    }

    async fn controller_modify_volume(
        &self,
        _: Request<ControllerModifyVolumeRequest>,
    ) -> Result<Response<ControllerModifyVolumeResponse>, Status> {
        Err(not_offered("ControllerModifyVolume"))
    }
}
