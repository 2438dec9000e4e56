mod mkfs;

use std::collections::BTreeMap;

use stowage_mount::FileSystem;

pub use self::mkfs::check as check_mkfs_options;
use crate::volume::Backend;

/// Keys the sidecars understand themselves; they strip most of them, and what is left is not for us.
const SIDECAR_PREFIX: &str = "csi.storage.k8s.io/";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Only the name: what nobody knows may be a secret under a name that was mistyped.
    #[error(
        "parameter {key:?} is unknown; this driver takes pool, backend, fsType, thin, mkfsOptions and freezeForCopy"
    )]
    Unknown { key: String },
    #[error("parameter {key:?} is unknown; a snapshot class takes freezeForCopy")]
    UnknownOfSnapshot { key: String },
    #[error("parameter {key} is {value:?}; give {wanted}")]
    Value { key: &'static str, value: String, wanted: &'static str },
    #[error("{field} {value:?} is not supported; use ext4, xfs or btrfs")]
    UnsupportedFileSystem { field: &'static str, value: String },
    #[error("parameter fsType {parameter:?} and volume capability fs_type {capability:?} differ; set one of them")]
    TwoFileSystems { parameter: String, capability: String },
    #[error("parameter {key} is not for {what}; leave it out")]
    Unfit { key: &'static str, what: &'static str },
    #[error("parameter mkfsOptions: {word:?} is not allowed for {kind}: {reason}")]
    MkfsOption { word: String, kind: FileSystem, reason: &'static str },
}

/// What a storage class may say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameters {
    pub pool: Option<String>,
    pub backend: Backend,
    pub thin: bool,
    /// Whether a volume in use may stand still for as long as copying it takes.
    pub freeze_for_copy: bool,
    fs_type: Option<String>,
    mkfs_options: Option<String>,
}

impl Default for Parameters {
    fn default() -> Self {
        let (pool, backend, fs_type, mkfs_options) = (None, Backend::Image, None, None);
        Parameters { pool, backend, thin: true, freeze_for_copy: false, fs_type, mkfs_options }
    }
}

impl Parameters {
    pub fn read(parameters: &BTreeMap<String, String>) -> Result<Self, Error> {
        let mut read = Parameters::default();
        for (key, value) in parameters {
            match key.as_str() {
                "pool" => read.pool = Some(value.clone()),
                "fsType" => read.fs_type = Some(value.clone()),
                "mkfsOptions" => read.mkfs_options = Some(value.clone()),
                "backend" => read.backend = backend(value)?,
                "thin" => read.thin = boolean("thin", value)?,
                "freezeForCopy" => read.freeze_for_copy = boolean("freezeForCopy", value)?,
                key if key.starts_with(SIDECAR_PREFIX) => {}
                _ => return Err(Error::Unknown { key: key.clone() }),
            }
        }
        if let Some(name) = &read.fs_type {
            file_system("parameter fsType", name)?;
        }
        if read.backend == Backend::Directory {
            let given = [
                ("fsType", read.fs_type.is_some()),
                ("mkfsOptions", read.mkfs_options.is_some()),
                ("thin", !read.thin),
            ];
            if let Some((key, _)) = given.into_iter().find(|(_, given)| *given) {
                return Err(Error::Unfit { key, what: "backend=directory" });
            }
        }
        Ok(read)
    }

    /// What the class of an existing volume said.
    pub fn with_file_system(name: &str) -> Result<Self, Error> {
        file_system("the volume's fsType", name)?;
        Ok(Parameters { fs_type: Some(name.into()), ..Parameters::default() })
    }

    /// The one file system that the class and all capabilities agree on.
    pub fn choose_file_system<'a>(&self, capabilities: impl Iterator<Item = &'a str>) -> Result<FileSystem, Error> {
        let mut chosen = self.fs_type.as_deref();
        for name in capabilities.filter(|name| !name.is_empty()) {
            file_system("volume capability fs_type", name)?;
            match chosen {
                Some(other) if other != name => {
                    return Err(Error::TwoFileSystems { parameter: other.into(), capability: name.into() });
                }
                _ => chosen = Some(name),
            }
        }
        chosen.map_or(Ok(FileSystem::Ext4), |name| file_system("fsType", name))
    }

    /// The words to give to mkfs, none of which can name a file.
    pub fn mkfs_options(&self, kind: FileSystem) -> Result<Vec<String>, Error> {
        self.mkfs_options.as_deref().map_or(Ok(Vec::new()), |text| mkfs::read(text, kind))
    }

    /// Refuses what has no meaning for a raw device.
    pub fn check_block(&self) -> Result<(), Error> {
        let given = [("fsType", self.fs_type.is_some()), ("mkfsOptions", self.mkfs_options.is_some())];
        match given.into_iter().find(|(_, given)| *given) {
            Some((key, _)) => Err(Error::Unfit { key, what: "block volumes" }),
            None => Ok(()),
        }
    }
}

/// Whether a snapshot class allows a volume in use to stand still while it is copied; the only thing it may say.
pub fn freeze_for_copy(parameters: &BTreeMap<String, String>) -> Result<bool, Error> {
    let mut freeze = false;
    for (key, value) in parameters.iter().filter(|(key, _)| !key.starts_with(SIDECAR_PREFIX)) {
        match key.as_str() {
            "freezeForCopy" => freeze = boolean("freezeForCopy", value)?,
            _ => return Err(Error::UnknownOfSnapshot { key: key.clone() }),
        }
    }
    Ok(freeze)
}

fn boolean(key: &'static str, value: &str) -> Result<bool, Error> {
    value.parse().map_err(|_| Error::Value { key, value: value.into(), wanted: "true or false" })
}

fn backend(value: &str) -> Result<Backend, Error> {
    match value {
        "image" => Ok(Backend::Image),
        "directory" => Ok(Backend::Directory),
        _ => Err(Error::Value { key: "backend", value: value.into(), wanted: "image or directory" }),
    }
}

fn file_system(field: &'static str, name: &str) -> Result<FileSystem, Error> {
    match name.parse() {
        Ok(kind @ (FileSystem::Ext4 | FileSystem::Xfs | FileSystem::Btrfs)) => Ok(kind),
        _ => Err(Error::UnsupportedFileSystem { field, value: name.into() }),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
    }

    fn read(pairs: &[(&str, &str)]) -> Result<Parameters, Error> {
        Parameters::read(&map(pairs))
    }

    #[test]
    fn known_parameters_are_read_and_the_sidecars_own_are_left_alone() {
        let read =
            read(&[("pool", "fast"), ("fsType", "xfs"), ("thin", "false"), ("csi.storage.k8s.io/pvc/name", "x")]);
        let read = read.unwrap();
        assert_eq!(read.pool.as_deref(), Some("fast"));
        assert!(!read.thin);
        assert_eq!(read.choose_file_system(["xfs", ""].into_iter()), Ok(FileSystem::Xfs));
    }

    #[test]
    fn what_is_unknown_or_unsupported_is_refused_by_name() {
        for (pairs, says) in [
            (&[("Pool", "fast")][..], "\"Pool\""),
            (&[("fsType", "ntfs")], "\"ntfs\" is not supported; use ext4, xfs or btrfs"),
            (&[("thin", "maybe")], "thin is \"maybe\"; give true or false"),
            (&[("backend", "tape")], "image or directory"),
            (&[("backend", "directory"), ("fsType", "ext4")], "fsType is not for backend=directory"),
            (&[("backend", "directory"), ("thin", "false")], "thin is not for backend=directory"),
        ] {
            let message = read(pairs).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
        let differ = read(&[("fsType", "ext4")]).unwrap().choose_file_system(["xfs"].into_iter());
        assert!(differ.unwrap_err().to_string().contains("differ"));
        let block = read(&[("mkfsOptions", "-m 1")]).unwrap().check_block();
        assert!(block.unwrap_err().to_string().contains("block volumes"));
    }

    #[test]
    fn the_value_of_an_unknown_parameter_is_not_repeated() {
        let class = read(&[("pasword", "hunter2")]).unwrap_err();
        let snapshot_class = freeze_for_copy(&map(&[("pasword", "hunter2")])).unwrap_err();
        for error in [class, snapshot_class] {
            let (said, debugged) = (error.to_string(), format!("{error:?}"));
            assert!(said.contains("\"pasword\" is unknown") && said.contains("freezeForCopy"), "{said}");
            assert!(!said.contains("hunter2") && !debugged.contains("hunter2"), "{said} {debugged}");
        }
    }

    #[test]
    fn a_snapshot_class_may_only_ask_to_freeze() {
        assert_eq!(freeze_for_copy(&map(&[("csi.storage.k8s.io/volumesnapshot/name", "x")])), Ok(false));
        assert_eq!(freeze_for_copy(&map(&[("freezeForCopy", "true")])), Ok(true));
        assert!(freeze_for_copy(&map(&[("pool", "x")])).unwrap_err().to_string().contains("\"pool\""));
    }

    proptest! {
        #[test]
        fn no_parameters_whatever_make_the_reader_fall_over(pairs in prop::collection::btree_map(
            prop_oneof!["[a-zA-Z]{0,12}", Just("mkfsOptions".to_owned()), Just("thin".to_owned()), Just("backend".to_owned())],
            ".{0,40}", 0..6,
        )) {
            if let Ok(read) = Parameters::read(&pairs) {
                let _ = read.mkfs_options(FileSystem::Ext4);
            }
        }
    }
}
