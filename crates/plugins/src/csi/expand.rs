//! The node's part in a volume's growth.

use async_trait::async_trait;

use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_csi::v1::{CapacityRange, NodeExpandVolumeRequest};
use stowage_model::volume_source::VolumeSource;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{DeviceMounter, Expand, Expanded, VolumeExpander};

use super::block::staging_path;
use super::request::capability;
use super::{Csi, EXPAND, driver_of, path_text, secret_key, stages};

#[async_trait]
impl VolumeExpander for Csi {
    async fn expand(&self, host: &VolumeHost, request: &Expand<'_>) -> Result<Expanded, Fault> {
        let spec = request.spec;
        let (driver, caller) = host.driver(driver_of(spec)?)?;
        if !driver.can(Capability::ExpandVolume) {
            return Ok(Expanded::NotSupported);
        }
        let VolumeSource::Csi(source) = &spec.source else { return Ok(Expanded::NotSupported) };
        let secret = source.node_expand_secret_ref.as_deref().map(secret_key);
        let secrets = caller.secrets(secret.as_ref()).await.map_err(Fault::unsent)?;
        let staging_target_path = match (stages(&driver), spec.is_block()) {
            (true, true) => path_text(&staging_path(&host.layout, &spec.name))?,
            (true, false) => path_text(&self.device_mount_path(host, spec)?)?,
            (false, _) => String::new(),
        };
        let required_bytes = i64::try_from(request.new_size)
            .map_err(|_| Fault::refused(format!("size {} is more than CSI can say", request.new_size)))?;
        let call = NodeExpandVolumeRequest {
            volume_id: source.volume_handle.clone(),
            volume_path: path_text(request.volume_path)?,
            capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
            staging_target_path,
            volume_capability: Some(capability(spec, &driver, None, None)),
            secrets,
        };
        let send = async |channel, request| NodeClient::new(channel).node_expand_volume(request).await;
        caller.call(EXPAND, call, send).await.map(|_| Expanded::Done).map_err(Fault::call(EXPAND))
    }
}
