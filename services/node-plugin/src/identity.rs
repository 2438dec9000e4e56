use std::sync::Arc;

use stowage_csi::v1::identity_server::Identity;
use stowage_csi::v1::plugin_capability::{self, service};
use stowage_csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use crate::driver::Shared;

pub struct Service(pub Arc<Shared>);

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.0.name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        }))
    }

    /// The same in every mode: all instances of one version must agree.
    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let controller = plugin_capability::Service { r#type: service::Type::ControllerService.into() };
        let capability = PluginCapability { r#type: Some(plugin_capability::Type::Service(controller)) };
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities: vec![capability] }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        for pool in &self.0.pools {
            pool.open_for_writing().await.map_err(|error| Status::failed_precondition(error.to_string()))?;
        }
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
