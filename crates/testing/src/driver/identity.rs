//! Who the driver is.

use tonic::{Request, Response, Status, async_trait};

use stowage_csi::v1::identity_server::Identity;
use stowage_csi::v1::plugin_capability::{self, service};
use stowage_csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};

use super::Service;

#[async_trait]
impl Identity for Service {
    async fn get_plugin_info(
        &self,
        _: Request<GetPluginInfoRequest>,
    ) -> Result<Response<GetPluginInfoResponse>, Status> {
        let name = self.driver.name().to_owned();
        self.driver
            .answer("GetPluginInfo", "", |_| {
                Ok(GetPluginInfoResponse { name, vendor_version: "1".into(), ..Default::default() })
            })
            .await
    }

    async fn get_plugin_capabilities(
        &self,
        _: Request<GetPluginCapabilitiesRequest>,
    ) -> Result<Response<GetPluginCapabilitiesResponse>, Status> {
        let capability = |kind: service::Type| {
            let service = plugin_capability::Service { r#type: kind.into() };
            PluginCapability { r#type: Some(plugin_capability::Type::Service(service)) }
        };
        self.driver
            .answer("GetPluginCapabilities", "", |state| {
                let group = state.abilities.group_snapshots.then_some(service::Type::GroupControllerService);
                let places = state.is_local.then_some(service::Type::VolumeAccessibilityConstraints);
                let kinds = [service::Type::ControllerService].into_iter().chain(group).chain(places);
                Ok(GetPluginCapabilitiesResponse { capabilities: kinds.map(capability).collect() })
            })
            .await
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        self.driver.answer("Probe", "", |_| Ok(ProbeResponse { ready: Some(true) })).await
    }
}
