use std::collections::BTreeMap;

use stowage_mount::FileSystem;

/// Keys the provisioner understands itself; it strips most of them, and what is left is not for us.
const PROVISIONER_PREFIX: &str = "csi.storage.k8s.io/";

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("parameter {key:?} (value {value:?}) is unknown; this driver takes pool and fsType")]
    Unknown { key: String, value: String },
    #[error("{field} {value:?} is not supported; use ext4")]
    UnsupportedFileSystem { field: &'static str, value: String },
    #[error("parameter fsType {parameter:?} and volume capability fs_type {capability:?} differ; set one of them")]
    TwoFileSystems { parameter: String, capability: String },
}

/// What a storage class may say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Parameters {
    pub pool: Option<String>,
    fs_type: Option<String>,
}

impl Parameters {
    pub fn read(parameters: &BTreeMap<String, String>) -> Result<Self, Error> {
        let mut read = Parameters::default();
        for (key, value) in parameters {
            match key.as_str() {
                "pool" => read.pool = Some(value.clone()),
                "fsType" => read.fs_type = Some(value.clone()),
                key if key.starts_with(PROVISIONER_PREFIX) => {}
                _ => return Err(Error::Unknown { key: key.clone(), value: value.clone() }),
            }
        }
        if let Some(name) = &read.fs_type {
            file_system("parameter fsType", name)?;
        }
        Ok(read)
    }

    /// What the class of an existing volume said.
    pub fn with_file_system(name: &str) -> Result<Self, Error> {
        file_system("the volume's fsType", name)?;
        Ok(Parameters { pool: None, fs_type: Some(name.into()) })
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
}

fn file_system(field: &'static str, name: &str) -> Result<FileSystem, Error> {
    match name.parse() {
        Ok(FileSystem::Ext4) => Ok(FileSystem::Ext4),
        _ => Err(Error::UnsupportedFileSystem { field, value: name.into() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Parameters, Error> {
        Parameters::read(&pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect())
    }

    #[test]
    fn known_parameters_are_read_and_the_provisioners_own_are_left_alone() {
        let read = read(&[("pool", "fast"), ("fsType", "ext4"), ("csi.storage.k8s.io/pvc/name", "x")]).unwrap();
        assert_eq!(read.pool.as_deref(), Some("fast"));
        assert_eq!(read.choose_file_system(["ext4", ""].into_iter()), Ok(FileSystem::Ext4));
    }

    #[test]
    fn what_is_unknown_or_unsupported_is_refused_by_name() {
        let unknown = read(&[("Pool", "fast")]).unwrap_err().to_string();
        assert!(unknown.contains("\"Pool\"") && unknown.contains("takes pool and fsType"), "{unknown}");
        assert!(read(&[("fsType", "ntfs")]).unwrap_err().to_string().contains("\"ntfs\""));
        let capability = read(&[]).unwrap().choose_file_system(["xfs"].into_iter()).unwrap_err().to_string();
        assert!(capability.contains("\"xfs\" is not supported; use ext4"), "{capability}");
    }
}
