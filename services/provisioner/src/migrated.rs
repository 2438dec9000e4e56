//! Classes and volumes of the in-tree plugin that the driver took over from: the driver sees them as its own, and the API
//! as the plugin's, so that migration can be switched off again.

use std::borrow::Cow;

use serde_json::{Value, json};

use stowage_csi::v1;
use stowage_model::class::StorageClass;
use stowage_model::migration::{self, ClassError, InTreeError};
use stowage_model::names::VolumeHandle;
use stowage_model::topology;
use stowage_model::volume::{CsiSource, Volume};

/// The class as the driver understands it, and the plugin if it was the plugin's.
pub fn class<'a>(
    class: &'a StorageClass,
    driver: &str,
) -> Result<(Cow<'a, StorageClass>, Option<&'static str>), ClassError> {
    let plugin = migration::plugin_of(driver).filter(|plugin| *plugin == class.provisioner);
    Ok(match (plugin, plugin.map(|_| migration::class_to_csi(class)).transpose()?.flatten()) {
        (Some(plugin), Some(translated)) => (Cow::Owned(translated), Some(plugin)),
        _ => (Cow::Borrowed(class), None),
    })
}

/// What the driver calls the volume; none if it is another's.
pub fn handle_of(volume: &Volume, driver: &str) -> Option<VolumeHandle> {
    let translated = migration::to_csi(volume).ok().flatten()?;
    translated.spec.csi.as_ref().filter(|csi| csi.driver == driver).map(CsiSource::handle)
}

/// Whether it has the source of the plugin, and the plugin or the driver made it or has it.
pub fn is_ours(volume: &Volume, driver: &str) -> bool {
    let plugin = migration::plugin_of(driver);
    let maker = volume.provisioned_by();
    plugin.is_some()
        && migration::driver_of_source(volume) == Some(driver)
        && (is_migrated(volume, driver) || maker == plugin || maker == Some(driver))
}

fn is_migrated(volume: &Volume, driver: &str) -> bool {
    volume.migrated_to() == Some(driver)
}

/// Whether the pv-controller has not said yet that the driver has it: the plugin may still be the one to delete it.
pub fn is_still_the_plugins(volume: &Volume, driver: &str) -> bool {
    migration::driver_of_source(volume) == Some(driver) && !is_migrated(volume, driver)
}

/// Whether the volume that the driver made can be written as the plugin's; what cannot is deleted again.
pub fn check(volume: &v1::Volume, plugin: &str) -> Result<(), InTreeError> {
    let driver = migration::driver_of(plugin);
    let places: Vec<_> = volume.accessible_topology.iter().map(|place| place.segments.clone()).collect();
    let mut body = json!({
        "metadata": { "annotations": {} },
        "spec": {
            "csi": { "driver": driver, "volumeHandle": volume.volume_id, "volumeAttributes": volume.volume_context },
            "nodeAffinity": topology::to_node_affinity(&places),
        },
    });
    migration::to_in_tree(&mut body)
}

/// The body of its object, as the plugin would have written it.
pub fn translate(body: &mut Value) -> Result<(), InTreeError> {
    migration::to_in_tree(body)
}
