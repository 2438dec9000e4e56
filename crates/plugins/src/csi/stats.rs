//! How full a volume is and whether it is well, as its driver says.

use std::path::Path;

use async_trait::async_trait;

use stowage_csi::v1::node_client::NodeClient;
use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_csi::v1::volume_usage::Unit;
use stowage_csi::v1::{NodeGetVolumeStatsRequest, VolumeUsage};

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{Condition, DeviceMounter, VolumeMetrics, VolumeStats};
use crate::spec::VolumeSpec;

use super::{Csi, STATS, driver_of, handle_of, path_text, stages};

#[async_trait]
impl VolumeMetrics for Csi {
    async fn stats(&self, host: &VolumeHost, spec: &VolumeSpec, path: &Path) -> Result<VolumeStats, Fault> {
        let name = driver_of(spec)?;
        let (driver, caller) = host.driver(name)?;
        if !driver.can(Capability::GetVolumeStats) {
            return Err(Fault::refused(format!("driver {name} does not tell how full its volumes are")));
        }
        let staging_target_path = match stages(&driver) && !spec.is_block() {
            true => self.device_mount_path(host, spec).and_then(|path| path_text(&path)).unwrap_or_default(),
            false => String::new(),
        };
        let call = NodeGetVolumeStatsRequest {
            volume_id: handle_of(spec, "").to_string(),
            volume_path: path_text(path)?,
            staging_target_path,
        };
        let send = async |channel, request| NodeClient::new(channel).node_get_volume_stats(request).await;
        let answer = caller.call(STATS, call, send).await.map_err(Fault::call(STATS))?;
        if answer.usage.is_empty() {
            return Err(Fault::refused(format!("driver {name} gave no figures")));
        }
        let condition = answer.volume_condition.filter(|_| driver.can(Capability::VolumeCondition));
        let condition = condition.map(|said| Condition { abnormal: said.abnormal, message: said.message });
        Ok(VolumeStats { condition, ..usage(&answer.usage) })
    }
}

fn usage(figures: &[VolumeUsage]) -> VolumeStats {
    let count = |number: i64| u64::try_from(number).ok();
    let mut stats = VolumeStats::default();
    for figure in figures {
        match figure.unit() {
            Unit::Bytes => {
                stats.capacity_bytes = count(figure.total);
                stats.available_bytes = count(figure.available);
                stats.used_bytes = count(figure.used);
            }
            Unit::Inodes => {
                stats.inodes = count(figure.total);
                stats.inodes_free = count(figure.available);
                stats.inodes_used = count(figure.used);
            }
            Unit::Unknown => {}
        }
    }
    stats
}
