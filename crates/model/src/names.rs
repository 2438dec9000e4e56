//! Names that several components must agree on without talking.

use std::fmt::{self, Display, Write};

use serde::Serialize;
use sha2::{Digest, Sha256};

/// The plugin name under which nodes keep CSI volumes.
pub const CSI_PLUGIN: &str = "kubernetes.io/csi";

/// `CSI_PLUGIN` as a directory name inside a pod's directory.
pub const CSI_PLUGIN_DIR: &str = "kubernetes.io~csi";

/// The file beside a volume's mount point that says whose it is.
pub const VOLUME_DATA_FILE: &str = "vol_data.json";

/// The name under which nodes and the attach-detach controller know a volume, in `volumesAttached` and `volumesInUse`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct UniqueVolumeName(String);

impl UniqueVolumeName {
    /// The name of a persistent CSI volume.
    pub fn csi(driver: &str, handle: &VolumeHandle) -> Self {
        Self(csi_volume(driver, handle.as_str()))
    }

    /// Driver and handle, if it is the name of a persistent CSI volume.
    pub fn driver_and_handle(&self) -> Option<(&str, VolumeHandle)> {
        parse_csi_volume(&self.0).map(|(driver, handle)| (driver, handle.into()))
    }

    /// As it is in a node's status.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for UniqueVolumeName {
    fn from(name: T) -> Self {
        Self(name.into())
    }
}

impl Display for UniqueVolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What a driver calls a volume: its id in every call, opaque to everybody else.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(transparent)]
pub struct VolumeHandle(String);

impl VolumeHandle {
    /// As the driver gave it.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<T: Into<String>> From<T> for VolumeHandle {
    fn from(handle: T) -> Self {
        Self(handle.into())
    }
}

impl Display for VolumeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn sha256_hex(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        write!(hex, "{byte:02x}").expect("a string takes every write");
        hex
    })
}

const RECYCLER: &str = "recycler-for-";

/// The pod that erases a volume.
pub fn recycler_pod(volume: &str) -> String {
    format!("{RECYCLER}{volume}")
}

/// Whether a pod of that name erases a volume, whoever made it.
pub fn is_recycler_pod(name: &str) -> bool {
    name.starts_with(RECYCLER)
}

/// The name of the VolumeAttachment of a CSI volume to a node.
pub fn attachment(volume_handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256_hex(&[volume_handle, driver, node]))
}

/// The handle of a CSI volume that lives as long as its pod.
pub fn inline_handle(pod_uid: &str, volume: &str) -> String {
    format!("csi-{}", sha256_hex(&[pod_uid, volume]))
}

/// The name of the volume made for a claim; deterministic, so that making it twice is noticed. The usual prefix is `pvc`.
pub fn provisioned_volume(prefix: &str, claim_uid: &str) -> String {
    format!("{prefix}-{claim_uid}")
}

/// The content of a snapshot that is made of a claim; deterministic, so that making it twice is noticed.
pub fn snapshot_content(snapshot_uid: &str) -> String {
    format!("snapcontent-{snapshot_uid}")
}

/// The content of a group snapshot that is made of claims.
pub fn group_snapshot_content(group_uid: &str) -> String {
    format!("groupsnapcontent-{group_uid}")
}

/// The VolumeSnapshot and the VolumeSnapshotContent of one member of a group snapshot.
pub fn group_member(group_uid: &str, volume_handle: &str) -> (String, String) {
    let hash = sha256_hex(&[group_uid, volume_handle]);
    (format!("snapshot-{hash}"), format!("snapcontent-{hash}"))
}

/// The VolumeSnapshotContent of a group's member with this name, if it has the form that [`group_member`] gives.
pub fn member_content(snapshot: &str) -> Option<String> {
    let hash = snapshot.strip_prefix("snapshot-")?;
    let is_hash = hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_hash.then(|| format!("snapcontent-{hash}"))
}

/// The claim of a pod's generic ephemeral volume.
pub fn ephemeral_claim(pod: &str, volume: &str) -> String {
    format!("{pod}-{volume}")
}

/// The unique name of a persistent CSI volume in `volumesAttached` and `volumesInUse`.
pub fn csi_volume(driver: &str, volume_handle: &str) -> String {
    format!("{CSI_PLUGIN}/{driver}^{volume_handle}")
}

/// Driver and handle of a unique name. Driver names cannot hold `^`, so a handle that does is still read right.
pub fn parse_csi_volume(unique_name: &str) -> Option<(&str, &str)> {
    unique_name.strip_prefix(CSI_PLUGIN)?.strip_prefix('/')?.split_once('^')
}

/// The unique name of a CSI volume that lives as long as its pod.
pub fn csi_inline_volume(pod_uid: &str, volume: &str) -> String {
    format!("{CSI_PLUGIN}/{pod_uid}-{volume}")
}

/// A name as the sidecars put it into finalizers and lease names: only letters, digits and dashes, no dash at the end.
pub fn sanitised(name: &str) -> String {
    let mut clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    if clean.ends_with('-') {
        clean.push('X');
    }
    clean
}

/// A name as one path component: slashes become tildes.
pub fn escaped(name: &str) -> String {
    name.replace('/', "~")
}

/// Where a CSI file system volume is staged, below the kubelet's root.
pub fn staging_dir(driver: &str, volume_handle: &str) -> String {
    format!("plugins/{CSI_PLUGIN}/{driver}/{}", sha256_hex(&[volume_handle]))
}

/// Where a CSI file system volume is mounted for the whole node, below the kubelet's root.
pub fn global_mount(driver: &str, volume_handle: &str) -> String {
    format!("{}/globalmount", staging_dir(driver, volume_handle))
}

/// A pod's directory, below the kubelet's root.
pub fn pod_dir(pod_uid: &str) -> String {
    format!("pods/{pod_uid}")
}

/// A CSI volume's directory inside a pod's, below the kubelet's root. `spec_name` is the volume object's name, or the pod's
/// own name for an inline volume.
pub fn pod_volume_dir(pod_uid: &str, spec_name: &str) -> String {
    format!("{}/volumes/{CSI_PLUGIN_DIR}/{}", pod_dir(pod_uid), escaped(spec_name))
}

/// Where a CSI volume is mounted for a pod, below the kubelet's root.
pub fn pod_mount(pod_uid: &str, spec_name: &str) -> String {
    format!("{}/mount", pod_volume_dir(pod_uid, spec_name))
}

/// The link to a CSI block device inside a pod's directory, below the kubelet's root.
pub fn pod_device(pod_uid: &str, spec_name: &str) -> String {
    format!("{}/volumeDevices/{CSI_PLUGIN_DIR}/{}", pod_dir(pod_uid), escaped(spec_name))
}

/// Where a CSI block volume is staged, below the kubelet's root.
pub fn block_staging_dir(spec_name: &str) -> String {
    format!("plugins/{CSI_PLUGIN}/volumeDevices/staging/{spec_name}")
}

/// Where a CSI block volume is published for a pod, below the kubelet's root.
pub fn block_publish(spec_name: &str, pod_uid: &str) -> String {
    format!("plugins/{CSI_PLUGIN}/volumeDevices/publish/{spec_name}/{pod_uid}")
}

/// Where a CSI block volume's metadata is, below the kubelet's root.
pub fn block_data_dir(spec_name: &str) -> String {
    format!("plugins/{CSI_PLUGIN}/volumeDevices/{}/data", escaped(spec_name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_attachment_is_named_by_the_hash_of_handle_driver_and_node() {
        // printf 'vol1driver1node1' | sha256sum
        assert_eq!(
            attachment("vol1", "driver1", "node1"),
            "csi-277fb9628e864dc71a29d97e84a29d03f19eb560a7cfe7ad08be7306da360ba6"
        );
    }

    #[test]
    fn an_inline_volume_is_named_by_the_hash_of_pod_and_volume() {
        assert_eq!(inline_handle("vol1driver1", "node1"), attachment("vol1", "driver1", "node1"));
    }

    #[test]
    fn a_unique_name_gives_back_its_driver_and_handle() {
        let name = csi_volume("shared.csi.stowage.dev", "pool/a^b");
        assert_eq!(name, "kubernetes.io/csi/shared.csi.stowage.dev^pool/a^b");
        assert_eq!(parse_csi_volume(&name), Some(("shared.csi.stowage.dev", "pool/a^b")));
        assert_eq!(parse_csi_volume("kubernetes.io/nfs/server"), None);
        assert_eq!(parse_csi_volume("kubernetes.io/csi/uid-volume"), None);
        let typed = UniqueVolumeName::csi("shared.csi.stowage.dev", &"pool/a^b".into());
        assert_eq!(typed.as_str(), name);
        assert_eq!(typed.driver_and_handle(), Some(("shared.csi.stowage.dev", "pool/a^b".into())));
    }

    #[test]
    fn dots_become_dashes_and_a_last_dash_gets_an_x() {
        assert_eq!(sanitised("shared.csi.stowage.dev"), "shared-csi-stowage-dev");
        assert_eq!(sanitised("driver."), "driver-X");
    }

    #[test]
    fn a_members_content_has_the_hash_of_its_snapshot() {
        let (snapshot, content) = group_member("uid", "vol1");
        assert_eq!(member_content(&snapshot), Some(content));
        assert_eq!((member_content("snapshot-1"), member_content("nightly")), (None, None));
    }

    #[test]
    fn paths_on_the_node_are_the_kubelets() {
        // printf vol1 | sha256sum
        assert_eq!(
            global_mount("driver1", "vol1"),
            "plugins/kubernetes.io/csi/driver1/af1f1ed4cf362d576cb22ce9e3e2dcba2733cbde8ab5ae181d2b82d2b1274b66/globalmount"
        );
        assert_eq!(pod_mount("uid", "pv/1"), "pods/uid/volumes/kubernetes.io~csi/pv~1/mount");
        assert_eq!(pod_device("uid", "pv1"), "pods/uid/volumeDevices/kubernetes.io~csi/pv1");
        assert_eq!(block_publish("pv1", "uid"), "plugins/kubernetes.io/csi/volumeDevices/publish/pv1/uid");
    }
}
