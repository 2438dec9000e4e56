//! Sources that are known and have no plugin here: each says what to use instead.

use stowage_model::migration;
use stowage_model::volume_source::{SourceKind, VolumeSource};

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{Claim, VolumePlugin};
use crate::spec::VolumeSpec;
use crate::traits::Traits;

/// A source that is refused with the way out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    name: &'static str,
    source: SourceKind,
}

impl Refused {
    /// `iscsi`
    pub const ISCSI: Self = Self { name: "kubernetes.io/iscsi", source: SourceKind::Iscsi };
    /// `fc`
    pub const FC: Self = Self { name: "kubernetes.io/fc", source: SourceKind::Fc };
    /// `gitRepo`
    pub const GIT_REPO: Self = Self { name: "kubernetes.io/git-repo", source: SourceKind::GitRepo };
    /// Sources whose work CSI drivers have taken over, or that Kubernetes has dropped.
    pub const IN_TREE: Self = Self { name: "kubernetes.io/in-tree", source: SourceKind::InTree };
    /// All of them.
    pub const ALL: [Self; 4] = [Self::ISCSI, Self::FC, Self::GIT_REPO, Self::IN_TREE];
}

impl VolumePlugin for Refused {
    fn name(&self) -> &str {
        self.name
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Source(self.source)]
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault> {
        Ok(spec.name.clone())
    }

    fn traits(&self, _: &VolumeSpec, _: &VolumeHost) -> Traits {
        Traits::PLAIN
    }

    fn ready(&self, spec: &VolumeSpec, _: &VolumeHost) -> Result<(), Fault> {
        Err(Fault::refused(format!("volume {}: {}", spec.name, instead(&spec.source))))
    }
}

fn instead(source: &VolumeSource) -> String {
    match source {
        VolumeSource::Iscsi => {
            "iscsi is not mounted by this node; use a PersistentVolume of the CSI driver iscsi.csi.k8s.io".to_owned()
        }
        VolumeSource::Fc => {
            "fc is not mounted by this node; use a PersistentVolume of your array's CSI driver, or local on a device that \
             multipathd has set up"
                .to_owned()
        }
        VolumeSource::GitRepo => {
            "gitRepo is disabled in Kubernetes because repositories can run programs on the node; clone into an emptyDir \
             in an init container, or use an image volume"
                .to_owned()
        }
        other => dropped(other.member()),
    }
}

fn dropped(member: &str) -> String {
    let driver = migration::driver_of_member(member).or(match member {
        "cephfs" => Some("cephfs.csi.ceph.com"),
        "rbd" => Some("rbd.csi.ceph.com"),
        "scaleIO" => Some("csi-vxflexos.dellemc.com"),
        "quobyte" => Some("csi.quobyte.com"),
        "storageos" => Some("csi.storageos.com"),
        _ => None,
    });
    match driver {
        Some(driver) => {
            format!("{member} is handled by the CSI driver {driver}; use a PersistentVolume of that driver")
        }
        None => format!("{member} is not known to this version; use a CSI volume"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_refusal_names_the_field_and_what_to_use_instead() {
        for (member, way_out) in [
            ("iscsi", "iscsi.csi.k8s.io"),
            ("fc", "CSI driver"),
            ("gitRepo", "init container"),
            ("cephfs", "cephfs.csi.ceph.com"),
            ("awsElasticBlockStore", "ebs.csi.aws.com"),
            ("glusterfs", "CSI volume"),
        ] {
            let text = instead(&VolumeSource::of_pod(member, json!({})).unwrap());
            assert!(text.contains(member) && text.contains(way_out), "{text}");
        }
    }
}
