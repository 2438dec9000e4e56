use std::sync::Arc;

use stowage_csi::v1::identity_server::Identity;
use stowage_csi::v1::plugin_capability::{Service as Offer, Type, service};
use stowage_csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use tonic::{Request, Response, Status};

use super::driver::Shared;

pub struct Service(pub Arc<Shared>);

#[tonic::async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        Ok(Response::new(GetPluginInfoResponse {
            name: self.0.options.driver_name.clone(),
            vendor_version: env!("CARGO_PKG_VERSION").into(),
            ..Default::default()
        }))
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let kind = Type::Service(Offer { r#type: service::Type::ControllerService.into() });
        let capabilities = vec![PluginCapability { r#type: Some(kind) }];
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    /// The driver is ready when it answers: which servers it will be asked for, nobody knows.
    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
