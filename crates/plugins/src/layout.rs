//! Where things are on a node, below the kubelet's root: either can take over from the other.

use std::path::{Path, PathBuf};

use stowage_model::names;

/// The directory tree of one node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    root: PathBuf,
}

impl Layout {
    /// Below this directory, `/var/lib/kubelet` by custom.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The directory itself.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where plugins announce themselves.
    pub fn registry(&self) -> PathBuf {
        self.root.join("plugins_registry")
    }

    /// Where the pods' directories are.
    pub fn pods(&self) -> PathBuf {
        self.root.join("pods")
    }

    /// A pod's directory.
    pub fn pod(&self, uid: &str) -> PathBuf {
        self.root.join(names::pod_dir(uid))
    }

    /// What a plugin keeps for the whole node.
    pub fn plugin(&self, plugin: &str) -> PathBuf {
        self.root.join("plugins").join(plugin)
    }

    /// Where a pod's file system volumes are, by plugin and name.
    pub fn pod_volumes(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumes")
    }

    /// A pod's file system volume: the mount, or the directory that holds it.
    pub fn pod_volume(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.pod_volumes(uid).join(names::escaped(plugin)).join(names::escaped(name))
    }

    /// Where the links to a pod's devices are, by plugin and name.
    pub fn pod_devices(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volumeDevices")
    }

    /// The link to a pod's device.
    pub fn pod_device(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.pod_devices(uid).join(names::escaped(plugin)).join(names::escaped(name))
    }

    /// Where parts of a pod's volumes are bound for its containers.
    pub fn sub_paths(&self, uid: &str) -> PathBuf {
        self.pod(uid).join("volume-subpaths")
    }

    /// Those of one volume.
    pub fn volume_sub_paths(&self, uid: &str, name: &str) -> PathBuf {
        self.sub_paths(uid).join(name)
    }

    /// What a plugin keeps for one volume of a pod, such as the mark that it is ready.
    pub fn pod_plugin(&self, uid: &str, plugin: &str, name: &str) -> PathBuf {
        self.pod(uid).join("plugins").join(names::escaped(plugin)).join(names::escaped(name))
    }
}
