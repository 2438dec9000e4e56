use std::sync::Arc;

use stowage_csi::v1::identity_server::Identity;
use stowage_csi::v1::plugin_capability::{self, VolumeExpansion, service, volume_expansion};
use stowage_csi::v1::{
    GetPluginCapabilitiesRequest, GetPluginCapabilitiesResponse, GetPluginInfoRequest, GetPluginInfoResponse,
    PluginCapability, ProbeRequest, ProbeResponse,
};
use tonic::{Code, Request, Response, Status};

use crate::driver::{Shared, refusal};

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
        use plugin_capability::Type;
        let service = |kind: service::Type| Type::Service(plugin_capability::Service { r#type: kind.into() });
        let expansion = VolumeExpansion { r#type: volume_expansion::Type::Online.into() };
        let mut kinds = vec![
            service(service::Type::ControllerService),
            service(service::Type::GroupControllerService),
            service(service::Type::SnapshotMetadataService),
            Type::VolumeExpansion(expansion),
        ];
        if self.0.topology.is_some() {
            kinds.push(service(service::Type::VolumeAccessibilityConstraints));
        }
        let capabilities = kinds.into_iter().map(|kind| PluginCapability { r#type: Some(kind) }).collect();
        Ok(Response::new(GetPluginCapabilitiesResponse { capabilities }))
    }

    async fn probe(&self, _: Request<ProbeRequest>) -> Result<Response<ProbeResponse>, Status> {
        // A pool that has come meanwhile may get no other call before this node is known in it.
        self.0.recover_all().await;
        for pool in &self.0.pools {
            pool.check_room().await.map_err(|error| refusal(Code::FailedPrecondition, error))?;
        }
        Ok(Response::new(ProbeResponse { ready: Some(true) }))
    }
}
