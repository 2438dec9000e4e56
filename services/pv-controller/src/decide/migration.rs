//! Volumes of in-tree plugins that a CSI driver has taken over.

use stowage_model::migration;

/// What must become of the annotation that names the driver in place of the provisioner.
pub fn migration_change(provisioner: &str, current: Option<&str>) -> Option<Option<&'static str>> {
    match (migration::driver_of(provisioner), current) {
        (Some(driver), current) if current != Some(driver) => Some(Some(driver)),
        // A claim whose class was translated names the driver itself: that is no migration taken back.
        (None, Some(current)) if !current.is_empty() && current != provisioner => Some(None),
        _ => None,
    }
}
