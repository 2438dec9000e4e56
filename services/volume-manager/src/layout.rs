//! Where things are on the node, below the kubelet's root.

use std::path::{Path, PathBuf};

use stowage_model::names;

use crate::desired::VolumeId;

/// The directory tree of one node.
#[derive(Debug, Clone)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub fn registry(&self) -> PathBuf {
        self.root.join("plugins_registry")
    }

    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    pub fn pod(&self, uid: &str) -> PathBuf {
        self.root.join(names::pod_dir(uid))
    }

    /// Where the CSI volumes of a pod are.
    pub fn pod_volumes(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumes").join(names::CSI_PLUGIN_DIR)
    }

    /// A pod's directory and those in it that hold volumes, innermost first.
    pub fn pod_dirs(&self, uid: &str) -> [PathBuf; 3] {
        [self.pod_volumes(uid), self.pod(uid).join("volumes"), self.pod(uid)]
    }

    pub fn pod_volume(&self, uid: &str, spec_name: &str) -> PathBuf {
        self.root.join(names::pod_volume_dir(uid, spec_name))
    }

    pub fn pod_mount(&self, uid: &str, spec_name: &str) -> PathBuf {
        self.root.join(names::pod_mount(uid, spec_name))
    }

    /// Where the drivers' staging directories are, one directory per driver.
    pub fn staging(&self) -> PathBuf {
        self.root.join("plugins").join(names::CSI_PLUGIN)
    }

    pub fn staging_dir(&self, volume: &VolumeId) -> PathBuf {
        self.root.join(names::staging_dir(&volume.driver, volume.handle.as_str()))
    }

    pub fn global_mount(&self, volume: &VolumeId) -> PathBuf {
        self.root.join(names::global_mount(&volume.driver, volume.handle.as_str()))
    }
}

/// The metadata file beside a mount.
pub fn data_file(dir: &Path) -> PathBuf {
    dir.join(names::VOLUME_DATA_FILE)
}
