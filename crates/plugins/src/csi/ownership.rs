//! Whether the node gives a volume's files to the pod's group.

use std::path::Path;

use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_model::access_mode::AccessMode;
use stowage_model::csi_driver::{CsiDriver, FsGroupPolicy};
use stowage_model::volume_source::VolumeSource;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::SetUp;
use crate::spec::VolumeSpec;

use super::driver_of;

/// Whether files of the volume are given to the pod's group, by what the driver's CSIDriver says.
pub fn changes_ownership(spec: &VolumeSpec, driver: Option<&CsiDriver>) -> bool {
    if spec.read_only {
        return false;
    }
    match driver.map_or_else(FsGroupPolicy::default, |driver| driver.spec.fs_group_policy) {
        FsGroupPolicy::None | FsGroupPolicy::Unknown => false,
        FsGroupPolicy::File => true,
        FsGroupPolicy::ReadWriteOnceWithFsType => match (&spec.source, &spec.persistent) {
            (VolumeSource::CsiInline(source), _) => !source.fs_type.is_empty(),
            (VolumeSource::Csi(source), Some(persistent)) => {
                let modes = persistent.access_modes;
                let single = modes.contains(AccessMode::ReadWriteOnce) || modes.contains(AccessMode::ReadWriteOncePod);
                !source.fs_type.is_empty() && single
            }
            _ => false,
        },
    }
}

/// Gives the files to the pod's group, unless the driver did or its policy says not to. Also when it is published again:
/// the driver may have brought new ones.
pub async fn give(host: &VolumeHost, request: &SetUp<'_>, path: &Path) -> Result<(), Fault> {
    let name = driver_of(request.spec)?;
    let Some(group) = request.fs_group else { return Ok(()) };
    let (driver, _) = host.driver(name)?;
    if driver.can(Capability::VolumeMountGroup) {
        return Ok(());
    }
    if !changes_ownership(request.spec, host.drivers.object(name).as_deref()) {
        return Ok(());
    }
    crate::ownership::give(host, request, path, group).await
}
