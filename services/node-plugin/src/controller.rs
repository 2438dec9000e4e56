//! The Controller service: volumes are made, found, handed to a node, and removed.

mod attach;
mod error;
mod listing;
mod volumes;

use std::sync::Arc;

use stowage_csi::v1::controller_server::Controller;
use stowage_csi::v1::controller_service_capability::{self, Rpc, rpc};
use stowage_csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerPublishVolumeRequest,
    ControllerPublishVolumeResponse, ControllerServiceCapability, ControllerUnpublishVolumeRequest,
    ControllerUnpublishVolumeResponse, CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest,
    DeleteVolumeResponse, GetCapacityRequest, GetCapacityResponse, ListVolumesRequest, ListVolumesResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};
use tonic::{Request, Response, Status};

pub use self::error::Error;
use crate::driver::Shared;

const CAPABILITIES: [rpc::Type; 6] = [
    rpc::Type::CreateDeleteVolume,
    rpc::Type::PublishUnpublishVolume,
    rpc::Type::ListVolumes,
    rpc::Type::ListVolumesPublishedNodes,
    rpc::Type::GetCapacity,
    rpc::Type::SingleNodeMultiWriter,
];

pub struct Service(pub Arc<Shared>);

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
        let call = async move { volumes::create(&shared, &request.into_inner()).await };
        self.0.finish("CreateVolume", call).await
    }

    async fn delete_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<Response<DeleteVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { volumes::delete(&shared, &request.into_inner()).await };
        self.0.finish("DeleteVolume", call).await
    }

    async fn controller_publish_volume(
        &self,
        request: Request<ControllerPublishVolumeRequest>,
    ) -> Result<Response<ControllerPublishVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { attach::publish(&shared, &request.into_inner()).await };
        self.0.finish("ControllerPublishVolume", call).await
    }

    async fn controller_unpublish_volume(
        &self,
        request: Request<ControllerUnpublishVolumeRequest>,
    ) -> Result<Response<ControllerUnpublishVolumeResponse>, Status> {
        let shared = self.0.clone();
        let call = async move { attach::unpublish(&shared, &request.into_inner()).await };
        self.0.finish("ControllerUnpublishVolume", call).await
    }

    async fn validate_volume_capabilities(
        &self,
        request: Request<ValidateVolumeCapabilitiesRequest>,
    ) -> Result<Response<ValidateVolumeCapabilitiesResponse>, Status> {
        Ok(Response::new(listing::validate(&self.0, request.into_inner()).await?))
    }

    async fn list_volumes(
        &self,
        request: Request<ListVolumesRequest>,
    ) -> Result<Response<ListVolumesResponse>, Status> {
        Ok(Response::new(listing::list(&self.0, &request.into_inner()).await?))
    }

    async fn get_capacity(
        &self,
        request: Request<GetCapacityRequest>,
    ) -> Result<Response<GetCapacityResponse>, Status> {
        Ok(Response::new(listing::capacity(&self.0, &request.into_inner()).await?))
    }
}
