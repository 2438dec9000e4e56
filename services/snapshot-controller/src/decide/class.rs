//! The class of a VolumeSnapshot: the one it names, or its driver's default.

use std::sync::Arc;

use stowage_model::VolumeSnapshotClass;

use super::Problem;
use crate::snapshot::Single;

/// The class that a content is made with, given the driver of the volume.
pub fn of(single: &Single, driver: &str) -> Result<Arc<VolumeSnapshotClass>, Problem> {
    let Some(name) = &single.snapshot.spec.volume_snapshot_class_name else { return default_of(single, driver) };
    let Some(class) = &single.class else {
        return Err(Problem::new(
            "GetSnapshotClassFailed",
            format!(
                "VolumeSnapshotClass {name:?} does not exist; create it, or delete this snapshot and create it with another \
                 spec.volumeSnapshotClassName"
            ),
        ));
    };
    if class.driver != driver {
        let other = &class.driver;
        return Err(Problem::new(
            "SnapshotContentCreationFailed",
            format!(
                "VolumeSnapshotClass {name:?} is of driver {other:?}, but the claim's volume is of driver {driver:?}; delete \
                 this snapshot and create it with a class of that driver"
            ),
        ));
    }
    Ok(Arc::clone(class))
}

fn default_of(single: &Single, driver: &str) -> Result<Arc<VolumeSnapshotClass>, Problem> {
    let of_driver: Vec<&Arc<VolumeSnapshotClass>> =
        single.defaults.iter().filter(|class| class.driver == driver).collect();
    let message = match of_driver.as_slice() {
        [class] => return Ok(Arc::clone(class)),
        [] => format!(
            "no VolumeSnapshotClass is the default of driver {driver:?}; set spec.volumeSnapshotClassName, or annotate a class \
             of that driver with snapshot.storage.kubernetes.io/is-default-class: \"true\""
        ),
        several => {
            let names: Vec<&str> = several.iter().map(|class| class.meta.name.as_str()).collect();
            format!(
                "driver {driver:?} has {} default VolumeSnapshotClasses: {}; set spec.volumeSnapshotClassName, or leave the \
                 annotation snapshot.storage.kubernetes.io/is-default-class on one of them only",
                names.len(),
                names.join(", ")
            )
        }
    };
    Err(Problem::new("SetDefaultSnapshotClassFailed", message))
}
