//! Plugins whose volumes can be reclaimed, and how one is found.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use crate::disk::Disk;
use crate::host_path::HostPath;
use crate::nfs::Nfs;
use crate::permit::{self, Permit};

/// Why a volume was not reclaimed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The object does not say where its data is.
    #[error("volume {volume} has no spec.{field}")]
    MissingField {
        /// The PersistentVolume's name.
        volume: String,
        /// The path of the field, below `spec`.
        field: &'static str,
    },
    /// What the disk answered.
    #[error("{0}")]
    Erase(io::Error),
    /// Nothing failed: the permit ended before the work did.
    #[error("this process may not remove files any more")]
    CalledOff,
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        if permit::is_called_off(&error) { Self::CalledOff } else { Self::Erase(error) }
    }
}

/// A plugin whose volumes can be emptied, so that another claim may have them.
pub trait RecyclableVolumePlugin: Send + Sync {
    /// Removes what is in the volume, given as the API server has it. Begun again after a crash it removes what is left.
    fn recycle<'a>(&'a self, volume: &'a Value, permit: &'a Permit) -> BoxFuture<'a, Result<(), Error>>;
}

/// A plugin whose volumes can be removed, with all that is in them.
pub trait DeletableVolumePlugin: Send + Sync {
    /// Removes the data of the volume, given as the API server has it; data that is gone already is success.
    fn delete<'a>(&'a self, volume: &'a Value, permit: &'a Permit) -> BoxFuture<'a, Result<(), Error>>;
}

/// The plugins there are, by the names that Kubernetes has for them.
#[derive(Clone, Default)]
pub struct Plugins {
    recyclable: BTreeMap<&'static str, Arc<dyn RecyclableVolumePlugin>>,
    deletable: BTreeMap<&'static str, Arc<dyn DeletableVolumePlugin>>,
}

impl Plugins {
    /// Those that work on the files of one disk.
    pub fn of(disk: &Arc<dyn Disk>) -> Self {
        let mut plugins = Self::default();
        let host_path = Arc::new(HostPath::on(Arc::clone(disk)));
        plugins.recyclable.insert(HostPath::NAME, Arc::clone(&host_path) as _);
        plugins.deletable.insert(HostPath::NAME, host_path);
        plugins.recyclable.insert(Nfs::NAME, Arc::new(Nfs::on(Arc::clone(disk))));
        plugins
    }

    /// The plugin of this name, if its volumes can be recycled.
    pub fn recyclable(&self, name: &str) -> Option<&dyn RecyclableVolumePlugin> {
        self.recyclable.get(name).map(|plugin| &**plugin)
    }

    /// The plugin of this name, if its volumes can be deleted.
    pub fn deletable(&self, name: &str) -> Option<&dyn DeletableVolumePlugin> {
        self.deletable.get(name).map(|plugin| &**plugin)
    }
}

/// A text of the volume's source, by its path below `spec`; one that is empty counts as missing.
pub(crate) fn text<'a>(volume: &'a Value, field: &'static str) -> Result<&'a str, Error> {
    let found = field.split('.').fold(&volume["spec"], |value, member| &value[member]).as_str();
    found.filter(|text| !text.is_empty()).ok_or_else(|| Error::MissingField { volume: name(volume).to_owned(), field })
}

pub(crate) fn name(volume: &Value) -> &str {
    volume["metadata"]["name"].as_str().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::disk::LocalDisk;

    use super::*;

    fn plugins() -> Plugins {
        Plugins::of(&(Arc::new(LocalDisk::default()) as Arc<dyn Disk>))
    }

    #[test]
    fn host_path_volumes_can_be_deleted_and_recycled_exports_only_recycled() {
        let plugins = plugins();
        let can = |name| (plugins.recyclable(name).is_some(), plugins.deletable(name).is_some());
        assert_eq!(can("kubernetes.io/host-path"), (true, true));
        assert_eq!(can("kubernetes.io/nfs"), (true, false));
        assert_eq!(can("kubernetes.io/iscsi"), (false, false));
    }

    #[tokio::test]
    async fn a_volume_that_does_not_say_where_it_is_names_the_field() {
        let (plugins, permit) = (plugins(), Permit::always());
        for (plugin, source, field) in [
            (HostPath::NAME, json!({ "nfs": { "server": "s", "path": "/v" } }), "hostPath.path"),
            (HostPath::NAME, json!({ "hostPath": { "path": "" } }), "hostPath.path"),
            (Nfs::NAME, json!({ "nfs": { "path": "/v" } }), "nfs.server"),
            (Nfs::NAME, json!({ "nfs": { "server": "s" } }), "nfs.path"),
        ] {
            let volume = json!({ "metadata": { "name": "v" }, "spec": source });
            let error = plugins.recyclable(plugin).unwrap().recycle(&volume, &permit).await.unwrap_err();
            assert_eq!(error.to_string(), format!("volume v has no spec.{field}"));
        }
    }

    #[tokio::test]
    async fn a_permit_that_has_ended_is_no_failure() {
        let directory = tempfile::tempdir_in("/tmp").unwrap();
        std::fs::write(directory.path().join("kept"), "x").unwrap();
        let volume = json!({ "spec": { "hostPath": { "path": directory.path() } } });
        let never = Permit::new(|| false);
        let plugins = plugins();
        let recycled = plugins.recyclable(HostPath::NAME).unwrap().recycle(&volume, &never).await;
        let deleted = plugins.deletable(HostPath::NAME).unwrap().delete(&volume, &never).await;
        assert!(matches!((recycled, deleted), (Err(Error::CalledOff), Err(Error::CalledOff))));
        assert!(directory.path().join("kept").is_file());
    }
}
