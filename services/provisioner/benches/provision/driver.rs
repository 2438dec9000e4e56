//! A driver that makes volumes at once, or after a while, and knows when it was asked.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use stowage_csi::v1::controller_server::{Controller, ControllerServer};
use stowage_csi::v1::identity_server::{Identity, IdentityServer};
use stowage_csi::v1::{
    ControllerGetCapabilitiesRequest, ControllerGetCapabilitiesResponse, ControllerServiceCapability,
    CreateVolumeRequest, CreateVolumeResponse, DeleteVolumeRequest, DeleteVolumeResponse, GetPluginCapabilitiesRequest,
    GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse, PluginCapability, ProbeRequest,
    ProbeResponse, Volume, controller_service_capability, plugin_capability,
};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

pub const DRIVER: &str = "bench.csi.example";

#[derive(Clone, Default)]
pub struct Driver {
    /// When each volume was first asked for, by name.
    asked: Arc<Mutex<BTreeMap<String, Instant>>>,
    takes: Duration,
}

impl Driver {
    /// A driver whose calls take so long.
    pub fn slow(takes: Duration) -> Self {
        Self { takes, ..Self::default() }
    }

    pub fn asked(&self) -> BTreeMap<String, Instant> {
        self.asked.lock().unwrap().clone()
    }

    pub fn routes(&self) -> Routes {
        Routes::new(IdentityServer::new(self.clone())).add_service(ControllerServer::new(self.clone()))
    }
}

#[tonic::async_trait]
impl Identity for Driver {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let (name, vendor_version) = (DRIVER.to_owned(), "1".to_owned());
        Ok(Response::new(GetPluginInfoResponse { name, vendor_version, ..Default::default() }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let service = plugin_capability::Service { r#type: plugin_capability::service::Type::ControllerService.into() };
        let capability = PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) };
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}

#[tonic::async_trait]
impl Controller for Driver {
    async fn controller_get_capabilities(
        &self,
        _: Request<ControllerGetCapabilitiesRequest>,
    ) -> Result<Response<ControllerGetCapabilitiesResponse>, Status> {
        let r#type = controller_service_capability::rpc::Type::CreateDeleteVolume.into();
        let rpc = controller_service_capability::Type::Rpc(controller_service_capability::Rpc { r#type });
        let capabilities = vec![ControllerServiceCapability { r#type: Some(rpc) }];
        Ok(Response::new(ControllerGetCapabilitiesResponse { capabilities }))
    }

    async fn create_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<Response<CreateVolumeResponse>, Status> {
        let request = request.into_inner();
        self.asked.lock().unwrap().entry(request.name.clone()).or_insert_with(Instant::now);
        if !self.takes.is_zero() {
            tokio::time::sleep(self.takes).await;
        }
        let capacity_bytes = request.capacity_range.map(|range| range.required_bytes).unwrap_or_default();
        let volume = Volume { volume_id: request.name, capacity_bytes, ..Default::default() };
        Ok(Response::new(CreateVolumeResponse { volume: Some(volume) }))
    }

    async fn delete_volume(&self, _: Request<DeleteVolumeRequest>) -> Result<Response<DeleteVolumeResponse>, Status> {
        Ok(Response::new(DeleteVolumeResponse {}))
    }
}
