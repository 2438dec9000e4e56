//! All plugins that come with a node.

use std::sync::Arc;

use crate::plugin::VolumePlugin;
use crate::{Csi, EmptyDir, Files, HostPathVolume, Image, Local, NfsVolume, Refused};

/// Every plugin of Kubernetes, those that only refuse too; FlexVolume drivers come and go by themselves.
pub fn in_tree() -> Vec<Arc<dyn VolumePlugin>> {
    in_tree_with(Image::default())
}

/// The same with images from elsewhere.
pub fn in_tree_with(images: Image) -> Vec<Arc<dyn VolumePlugin>> {
    let mut all: Vec<Arc<dyn VolumePlugin>> = vec![
        Arc::new(Csi),
        Arc::new(EmptyDir),
        Arc::new(HostPathVolume),
        Arc::new(Local),
        Arc::new(NfsVolume),
        Arc::new(images),
    ];
    all.extend(Files::ALL.map(|plugin| Arc::new(plugin) as Arc<dyn VolumePlugin>));
    all.extend(Refused::ALL.map(|plugin| Arc::new(plugin) as Arc<dyn VolumePlugin>));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::VolumePluginManager;

    #[test]
    fn all_plugins_are_taken_under_the_names_that_kubernetes_has_for_them() {
        let names = VolumePluginManager::new(in_tree()).unwrap().names();
        for name in [
            "csi",
            "empty-dir",
            "configmap",
            "secret",
            "downward-api",
            "projected",
            "host-path",
            "local-volume",
            "nfs",
            "image",
        ] {
            assert!(names.contains(&format!("kubernetes.io/{name}")), "{name}: {names:?}");
        }
    }
}
