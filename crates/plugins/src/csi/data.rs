//! `vol_data.json`: whose mount this is, readable without the API and without the driver.
//!
//! A flat map of texts with sorted keys and a newline at the end, as every kubelet reads and writes it.

use std::collections::BTreeMap;

use stowage_model::csi_driver::LifecycleMode;
use stowage_model::names::{self, VolumeHandle};

const HANDLE: &str = "volumeHandle";
const DRIVER: &str = "driverName";
const SPEC_NAME: &str = "specVolID";
const NODE: &str = "nodeName";
const ATTACHMENT: &str = "attachmentID";
const LIFECYCLE: &str = "volumeLifecycleMode";
const LABEL: &str = "seLinuxMountContext";

/// What such a file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeData {
    pub driver: String,
    pub handle: VolumeHandle,
    /// Beside a pod's mount, and of a device.
    pub pod: Option<PodData>,
    /// The SELinux label it is mounted with.
    pub label: Option<String>,
}

/// What is said only of a pod's use, or of a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodData {
    pub spec_name: String,
    pub node: String,
    /// Not written for devices, which are always persistent.
    pub lifecycle: Option<LifecycleMode>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the metadata is no map of texts: {source}")]
    Parse { source: serde_json::Error },
    #[error("the metadata has no {key}")]
    FindKey { key: &'static str },
}

impl VolumeData {
    pub fn encode(&self) -> Vec<u8> {
        let mut data = BTreeMap::from([(HANDLE, self.handle.as_str()), (DRIVER, &self.driver)]);
        let attachment;
        if let Some(pod) = &self.pod {
            // The attachment's name is there even where nothing is attached, as the kubelet has it.
            attachment = names::attachment(self.handle.as_str(), &self.driver, &pod.node);
            data.extend([(SPEC_NAME, pod.spec_name.as_str()), (NODE, &pod.node), (ATTACHMENT, &attachment)]);
            data.extend(pod.lifecycle.map(|mode| (LIFECYCLE, mode.as_str())));
        }
        data.extend(self.label.as_deref().map(|label| (LABEL, label)));
        let mut bytes = serde_json::to_vec(&data).expect("a map of texts is always JSON");
        bytes.push(b'\n');
        bytes
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let mut data: BTreeMap<String, String> =
            serde_json::from_slice(bytes).map_err(|source| Error::Parse { source })?;
        let mut take = |key| data.remove(key).filter(|value| !value.is_empty()).ok_or(Error::FindKey { key });
        let (driver, handle) = (take(DRIVER)?, take(HANDLE)?.into());
        let pod = match take(SPEC_NAME) {
            Ok(spec_name) => {
                let lifecycle = take(LIFECYCLE).ok().map(|text| LifecycleMode::from(text.as_str()));
                Some(PodData { spec_name, node: take(NODE).unwrap_or_default(), lifecycle })
            }
            Err(_) => None,
        };
        Ok(Self { driver, handle, pod, label: take(LABEL).ok() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn staged() -> VolumeData {
        VolumeData { driver: "driver1".into(), handle: "vol1".into(), pod: None, label: None }
    }

    fn of_pod(lifecycle: Option<LifecycleMode>) -> VolumeData {
        let pod = PodData { spec_name: "pv1".into(), node: "node1".into(), lifecycle };
        VolumeData { pod: Some(pod), ..staged() }
    }

    #[test]
    fn the_file_beside_a_global_mount_has_driver_and_handle() {
        let text = String::from_utf8(staged().encode()).unwrap();
        assert_eq!(text, "{\"driverName\":\"driver1\",\"volumeHandle\":\"vol1\"}\n");
    }

    #[test]
    fn the_file_beside_a_pods_mount_has_everything_the_kubelet_writes() {
        // printf 'vol1driver1node1' | sha256sum
        let expected = concat!(
            "{\"attachmentID\":\"csi-277fb9628e864dc71a29d97e84a29d03f19eb560a7cfe7ad08be7306da360ba6\",",
            "\"driverName\":\"driver1\",\"nodeName\":\"node1\",\"specVolID\":\"pv1\",",
            "\"volumeHandle\":\"vol1\",\"volumeLifecycleMode\":\"Persistent\"}\n",
        );
        assert_eq!(String::from_utf8(of_pod(Some(LifecycleMode::Persistent)).encode()).unwrap(), expected);
        let of_device = String::from_utf8(of_pod(None).encode()).unwrap();
        assert_eq!(of_device, expected.replace(",\"volumeLifecycleMode\":\"Persistent\"", ""));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let label = Some("system_u:object_r:container_file_t:s0".to_owned());
        for data in [staged(), VolumeData { label, ..staged() }, of_pod(None), of_pod(Some(LifecycleMode::Ephemeral))] {
            assert_eq!(VolumeData::parse(&data.encode()).unwrap(), data);
        }
    }

    #[test]
    fn a_file_that_is_cut_off_empty_or_foreign_is_an_error() {
        for text in
            ["", "{", "[]", "{\"driverName\":\"d\"}", "{\"driverName\":\"\",\"volumeHandle\":\"h\"}", "{\"a\":1}"]
        {
            assert!(VolumeData::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
