//! `vol_data.json`: whose mount this is, readable without the API and without the driver.
//!
//! A flat map of texts with sorted keys and a newline at the end, as every kubelet reads and writes it.

use std::collections::BTreeMap;

use crate::desired::VolumeId;

const HANDLE: &str = "volumeHandle";
const DRIVER: &str = "driverName";
const SPEC_NAME: &str = "specVolID";

/// What is read back from such a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeData {
    pub volume: VolumeId,
    /// Only beside a pod's mount.
    pub spec_name: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the metadata is no map of texts: {source}")]
    Parse { source: serde_json::Error },
    #[error("the metadata has no {key}")]
    FindKey { key: &'static str },
}

/// The file beside a global mount.
pub fn staging(volume: &VolumeId) -> Vec<u8> {
    encode(&BTreeMap::from([(HANDLE, volume.handle.as_str()), (DRIVER, &volume.driver)]))
}

/// The file beside a pod's mount.
pub fn publishing(volume: &VolumeId, spec_name: &str, node: &str) -> Vec<u8> {
    // The attachment's name is there even where nothing is attached, as the kubelet has it.
    let attachment = volume.attachment(node);
    encode(&BTreeMap::from([
        (SPEC_NAME, spec_name),
        (HANDLE, volume.handle.as_str()),
        (DRIVER, &volume.driver),
        ("nodeName", node),
        ("attachmentID", &attachment),
        ("volumeLifecycleMode", "Persistent"),
    ]))
}

fn encode(data: &BTreeMap<&str, &str>) -> Vec<u8> {
    let mut bytes = serde_json::to_vec(data).expect("a map of texts is always JSON");
    bytes.push(b'\n');
    bytes
}

/// Reads either file.
pub fn parse(bytes: &[u8]) -> Result<VolumeData, Error> {
    let mut data: BTreeMap<String, String> = serde_json::from_slice(bytes).map_err(|source| Error::Parse { source })?;
    let mut take = |key| data.remove(key).filter(|value| !value.is_empty()).ok_or(Error::FindKey { key });
    Ok(VolumeData {
        volume: VolumeId { driver: take(DRIVER)?, handle: take(HANDLE)?.into() },
        spec_name: take(SPEC_NAME).ok(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn volume() -> VolumeId {
        VolumeId::new("driver1", "vol1")
    }

    #[test]
    fn the_file_beside_a_global_mount_has_driver_and_handle() {
        assert_eq!(
            String::from_utf8(staging(&volume())).unwrap(),
            "{\"driverName\":\"driver1\",\"volumeHandle\":\"vol1\"}\n"
        );
    }

    #[test]
    fn the_file_beside_a_pods_mount_has_everything_the_kubelet_writes() {
        // printf 'vol1driver1node1' | sha256sum
        let expected = concat!(
            "{\"attachmentID\":\"csi-277fb9628e864dc71a29d97e84a29d03f19eb560a7cfe7ad08be7306da360ba6\",",
            "\"driverName\":\"driver1\",\"nodeName\":\"node1\",\"specVolID\":\"pv1\",",
            "\"volumeHandle\":\"vol1\",\"volumeLifecycleMode\":\"Persistent\"}\n",
        );
        assert_eq!(String::from_utf8(publishing(&volume(), "pv1", "node1")).unwrap(), expected);
    }

    #[test]
    fn what_is_written_is_read_back() {
        assert_eq!(parse(&staging(&volume())).unwrap(), VolumeData { volume: volume(), spec_name: None });
        let published = parse(&publishing(&volume(), "pv1", "n")).unwrap();
        assert_eq!(published, VolumeData { volume: volume(), spec_name: Some("pv1".into()) });
    }

    #[test]
    fn a_kubelets_file_with_more_keys_is_read() {
        let bytes = br#"{"driverName":"d","seLinuxMountContext":"x","volumeHandle":"h"}"#;
        assert_eq!(parse(bytes).unwrap().volume, VolumeId::new("d", "h"));
    }

    #[test]
    fn a_damaged_file_is_refused_and_says_why() {
        for (bytes, says) in [
            (&b""[..], "no map of texts"),
            (b"{\"driverName\":1}", "no map of texts"),
            (b"{\"driverName\":\"d\"}", "no volumeHandle"),
            (b"{\"driverName\":\"\",\"volumeHandle\":\"h\"}", "no driverName"),
        ] {
            let message = parse(bytes).unwrap_err().to_string();
            assert!(message.contains(says), "{message}");
        }
    }
}
