//! What a pod's volumes are: its claims and their volumes, read live as the kubelet reads them.

use stowage_model::claim::Claim;
use stowage_model::finalizers;
use stowage_model::node::Node;
use stowage_model::object::{Key, Projection};
use stowage_model::phase::{ClaimPhase, VolumeMode};
use stowage_model::pod::{Pod, PodVolume, PodVolumeSource};
use stowage_model::volume::{SecretRef, Volume};
use stowage_runtime::api::{self, Api};

use crate::desired::{Resolution, Use, VolumeId};

/// Reads the claims and volumes behind the pod's volumes that a container uses.
pub async fn resolve(api: &Api, pod: &Pod, node: Option<&Node>) -> Resolution {
    let mut resolution = Resolution::default();
    for volume in &pod.spec.volumes {
        if !pod.mounts(&volume.name) && !pod.maps_device(&volume.name) {
            continue;
        }
        match resolve_one(api, pod, volume, node).await {
            Ok(usage) => {
                // A second name for the same volume shares its mount.
                resolution.uses.entry(usage.volume.clone()).or_insert(usage);
            }
            Err(error) => resolution.problems.push(format!("volume {:?}: {error}", volume.name)),
        }
    }
    resolution
}

async fn resolve_one(api: &Api, pod: &Pod, volume: &PodVolume, node: Option<&Node>) -> Result<Use, Error> {
    let Some(key) = pod.claim_of(volume) else {
        return Err(Error::Support { source_field: field_name(&volume.source) });
    };
    let claim = match api.get::<Claim>(&key).await {
        Ok(Some(claim)) => claim,
        Ok(None) => return Err(Error::FindClaim { name: key.name }),
        Err(source) => return Err(Error::GetClaim { source }),
    };
    check_claim(pod, volume, &claim)?;
    let persistent = match api.get::<Volume>(&Key::cluster(&claim.spec.volume_name)).await {
        Ok(Some(persistent)) => persistent,
        Ok(None) => return Err(Error::FindVolume { name: claim.spec.volume_name.clone() }),
        Err(source) => return Err(Error::GetVolume { source }),
    };
    usage(pod, volume, &claim, &persistent, node)
}

fn check_claim(pod: &Pod, volume: &PodVolume, claim: &Claim) -> Result<(), Error> {
    let name = || claim.meta.name.clone();
    if claim.meta.is_deleting() && !claim.meta.has_finalizer(finalizers::CLAIM_PROTECTION) {
        return Err(Error::UseDeletingClaim { name: name() });
    }
    if volume.source == PodVolumeSource::Ephemeral && !claim.is_owned_by(pod) {
        return Err(Error::UseForeignClaim { name: name() });
    }
    // The scheduler places pods on the mark of a completed binding; the claim's status follows a moment later.
    if !claim.is_fully_bound() || claim.status.phase == ClaimPhase::Lost {
        return Err(Error::UseUnboundClaim { name: name() });
    }
    Ok(())
}

/// How the pod is to have the volume, if it may have it.
fn usage(pod: &Pod, volume: &PodVolume, claim: &Claim, pv: &Volume, node: Option<&Node>) -> Result<Use, Error> {
    let spec_name = pv.meta.name.clone();
    if pv.spec.claim_ref.as_ref().is_none_or(|reference| reference.uid != claim.meta.uid) {
        return Err(Error::UseForeignVolume { name: spec_name, claim: claim.key() });
    }
    let as_device = pod.maps_device(&volume.name);
    match (pv.spec.volume_mode, as_device) {
        (VolumeMode::Block, true) => return Err(Error::SupportBlock { name: spec_name }),
        (VolumeMode::Block, false) => return Err(Error::MountDevice { name: spec_name }),
        (_, true) => return Err(Error::MapFileSystem { name: spec_name }),
        (_, false) => {}
    }
    let Some(csi) = &pv.spec.csi else {
        return Err(Error::Support { source_field: pv.spec.other_source.unwrap_or("unknown") });
    };
    if csi.driver.is_empty() || csi.driver.contains('/') || csi.driver.starts_with('.') || csi.volume_handle.is_empty()
    {
        return Err(Error::ReadCsiSource { name: spec_name });
    }
    check_affinity(pv, node)?;
    let read_only = matches!(volume.source, PodVolumeSource::Claim { read_only: true, .. });
    Ok(Use {
        volume: VolumeId::new(&csi.driver, &csi.volume_handle),
        spec_name,
        pod_volume: volume.name.clone(),
        fs_type: csi.fs_type.clone(),
        mount_options: pv.spec.mount_options.clone(),
        attributes: csi.volume_attributes.clone(),
        access_modes: pv.spec.access_modes,
        read_only,
        fs_group: pod.spec.security_context.fs_group,
        stage_secret: csi.node_stage_secret_ref.as_deref().map(secret_key),
        publish_secret: csi.node_publish_secret_ref.as_deref().map(secret_key),
    })
}

fn check_affinity(pv: &Volume, node: Option<&Node>) -> Result<(), Error> {
    let required = pv.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let (Some(required), Some(node)) = (required, node) else {
        return Ok(());
    };
    match required.matches(&node.meta.name, &node.meta.labels) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Error::ReachVolume { name: pv.meta.name.clone(), node: node.meta.name.clone() }),
        Err(error) => Err(Error::ReadAffinity { name: pv.meta.name.clone(), error: error.to_string() }),
    }
}

fn secret_key(reference: &SecretRef) -> Key {
    Key::namespaced(&reference.namespace, &reference.name)
}

fn field_name(source: &PodVolumeSource) -> &'static str {
    match source {
        PodVolumeSource::Claim { .. } => "persistentVolumeClaim",
        PodVolumeSource::Ephemeral => "ephemeral",
        PodVolumeSource::EmptyDir => "emptyDir",
        PodVolumeSource::ConfigMap => "configMap",
        PodVolumeSource::Secret => "secret",
        PodVolumeSource::Projected => "projected",
        PodVolumeSource::DownwardApi => "downwardAPI",
        PodVolumeSource::HostPath => "hostPath",
        PodVolumeSource::Csi(_) => "csi (inline)",
        PodVolumeSource::Other => "unknown",
    }
}

/// Why a pod cannot have a volume, for an event.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("source {source_field} is not supported by this volume manager; use a claim of a CSI volume")]
    Support { source_field: &'static str },
    #[error(
        "volume {name} is a raw block device, which this volume manager does not map yet; use volumeMode Filesystem"
    )]
    SupportBlock { name: String },
    #[error("claim {name} does not exist; create it in the pod's namespace")]
    FindClaim { name: String },
    #[error("{source}")]
    GetClaim { source: api::Error },
    #[error("claim {name} is being deleted")]
    UseDeletingClaim { name: String },
    #[error("claim {name} was not made for this pod; delete it or rename the pod")]
    UseForeignClaim { name: String },
    #[error("claim {name} is not bound yet")]
    UseUnboundClaim { name: String },
    #[error("volume {name} does not exist, though the claim is bound to it")]
    FindVolume { name: String },
    #[error("{source}")]
    GetVolume { source: api::Error },
    #[error("volume {name} is not bound to claim {claim}")]
    UseForeignVolume { name: String, claim: Key },
    #[error("volume {name} has volumeMode Block; list it in volumeDevices, not in volumeMounts")]
    MountDevice { name: String },
    #[error("volume {name} has volumeMode Filesystem; list it in volumeMounts, not in volumeDevices")]
    MapFileSystem { name: String },
    #[error("volume {name}: spec.csi.driver or spec.csi.volumeHandle is empty or not a name")]
    ReadCsiSource { name: String },
    #[error("volume {name} cannot be reached from node {node}: the node does not match spec.nodeAffinity")]
    ReachVolume { name: String, node: String },
    #[error("volume {name}: spec.nodeAffinity cannot be read: {error}")]
    ReadAffinity { name: String, error: String },
}

#[cfg(test)]
mod tests;
