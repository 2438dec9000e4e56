//! Pod to volumes: what each volume that a container uses turns out to be. Pure over what is cached.

use std::sync::Arc;

use stowage_model::claim::Claim;
use stowage_model::finalizers;
use stowage_model::names::UniqueVolumeName;
use stowage_model::node::Node;
use stowage_model::node_view::{NodePod, NodeVolume};
use stowage_model::object::{Key, Projection};
use stowage_model::phase::{ClaimPhase, VolumeMode};
use stowage_model::pod::{PodVolume, PodVolumeSource};
use stowage_model::volume_source::VolumeSource;
use stowage_plugins::traits::Remount;
use stowage_plugins::{Fault, VolumeHost, VolumePluginManager, VolumeSpec, translate};
use stowage_runtime::cache::Cache;

use crate::desired_state::{Inputs, PodVolumes, Problem, VolumeToMount};
use crate::made_of::MadeOf;
use crate::selinux::{self, SeLinux};

/// What volumes are looked up in.
pub struct Sources<'a> {
    pub claims: &'a Cache<Claim>,
    pub volumes: &'a Cache<NodeVolume>,
    pub node: Option<Arc<Node>>,
    pub plugins: &'a VolumePluginManager,
    pub host: &'a VolumeHost,
    pub made_of: &'a MadeOf,
    /// How files are labelled, where SELinux is on.
    pub se_linux: Option<&'a SeLinux>,
}

/// What the pod's volumes turn out to be.
pub fn populate(pod: &NodePod, sources: &Sources<'_>) -> PodVolumes {
    let mut found = PodVolumes::default();
    for volume in &pod.spec.volumes {
        if !pod.mounts(&volume.name) && !pod.maps_device(&volume.name) {
            continue;
        }
        match describe(pod, volume, sources) {
            Ok((name, mount)) => match found.volumes.get_mut(&name) {
                // A second name for the same volume shares its mount.
                Some(known) => known.outer_names.extend(mount.outer_names),
                None => drop(found.volumes.insert(name, mount)),
            },
            Err(error) => found.problems.push(Problem {
                volume: volume.name.clone(),
                message: format!("volume {:?}: {error}", volume.name),
                is_waiting: error.is_waiting(),
                labels_differ: match error {
                    Error::Label { access_mode, .. } => Some(access_mode),
                    _ => None,
                },
            }),
        }
    }
    found
}

fn describe(
    pod: &NodePod,
    volume: &PodVolume,
    sources: &Sources<'_>,
) -> Result<(UniqueVolumeName, VolumeToMount), Error> {
    let spec = match pod.claim_of(volume) {
        Some(key) => claimed(pod, volume, &key, sources)?,
        None => {
            if pod.maps_device(&volume.name) {
                return Err(Error::MapFileSystem { name: volume.name.clone() });
            }
            translate::inline(pod, &volume.name).map_err(Error::Refuse)?.ok_or(Error::FindSource)?
        }
    };
    let described = sources.plugins.describe(&spec, &pod.meta.uid, sources.host);
    let (plugin, traits, name) = described.map_err(Error::Refuse)?;
    if spec.is_block() && !traits.supports_block {
        return Err(Error::SupportBlock { name: spec.name, plugin: plugin.name().to_owned() });
    }
    if !spec.mount_options().is_empty() && !traits.supports_mount_options {
        return Err(Error::SupportOptions { name: spec.name, plugin: plugin.name().to_owned() });
    }
    let inputs = match traits.remount {
        Remount::Never => Inputs::default(),
        Remount::OnChange => inputs(pod, &spec, sources.host, sources.made_of),
    };
    let se_linux_label = match sources.se_linux {
        Some(machine) => machine
            .label(pod, &volume.name, &spec, &traits)
            .map_err(|conflict| Error::Label { access_mode: selinux::access_mode(&spec), conflict })?,
        None => None,
    };
    let outer_names = [volume.name.clone()].into();
    let plugin = plugin.name().to_owned();
    Ok((name, VolumeToMount { spec: Arc::new(spec), plugin, traits, outer_names, inputs, se_linux_label }))
}

/// What a volume is made of that may change while it is mounted.
pub fn inputs(pod: &NodePod, spec: &VolumeSpec, host: &VolumeHost, made_of: &MadeOf) -> Inputs {
    let driver = match &spec.source {
        VolumeSource::Csi(source) => &source.driver,
        VolumeSource::CsiInline(source) => &source.driver,
        _ => return Inputs { objects: made_of.versions(pod, spec) },
    };
    let mut objects = made_of.objects(pod, spec);
    objects.extend(host.drivers.object(driver).map(|object| (format!("CSIDriver/{driver}"), object.meta.revision)));
    Inputs { objects }
}

fn claimed(pod: &NodePod, volume: &PodVolume, key: &Key, sources: &Sources<'_>) -> Result<VolumeSpec, Error> {
    let claim = sources.claims.get(key).ok_or_else(|| Error::FindClaim { name: key.name.clone() })?;
    check_claim(pod, volume, &claim)?;
    let pv = sources.volumes.get(&Key::cluster(&claim.spec.volume_name));
    let pv = pv.ok_or_else(|| Error::FindVolume { name: claim.spec.volume_name.clone() })?;
    let name = pv.meta.name.clone();
    if pv.spec.claim_ref.as_ref().is_none_or(|reference| reference.uid != claim.meta.uid) {
        return Err(Error::UseForeignVolume { name, claim: claim.key() });
    }
    if !pv.has_volume_mode {
        return Err(Error::FindMode { name });
    }
    match (pv.spec.volume_mode, pod.maps_device(&volume.name), pod.mounts(&volume.name)) {
        (VolumeMode::Block, _, true) => return Err(Error::MountDevice { name }),
        (VolumeMode::Block, _, _) => {}
        (_, true, _) => return Err(Error::MapFileSystem { name }),
        _ => {}
    }
    check_affinity(&pv, sources.node.as_deref())?;
    let read_only = matches!(volume.source, PodVolumeSource::Claim { read_only: true, .. });
    translate::persistent(&pv, claim.key(), read_only).map_err(Error::Refuse)?.ok_or(Error::FindSource)
}

fn check_claim(pod: &NodePod, volume: &PodVolume, claim: &Claim) -> Result<(), Error> {
    let name = || claim.meta.name.clone();
    if claim.meta.is_deleting() && !claim.meta.has_finalizer(finalizers::CLAIM_PROTECTION) {
        return Err(Error::UseDeletingClaim { name: name() });
    }
    if volume.source == PodVolumeSource::Ephemeral && !claim.is_owned_by(pod) {
        return Err(Error::UseForeignClaim { name: name() });
    }
    if claim.status.phase == ClaimPhase::Lost {
        return Err(Error::UseLostClaim { name: name() });
    }
    // The scheduler places pods on the mark of a completed binding; the claim's status follows a moment later.
    if !claim.is_fully_bound() {
        return Err(Error::UseUnboundClaim { name: name() });
    }
    Ok(())
}

fn check_affinity(pv: &NodeVolume, node: Option<&Node>) -> Result<(), Error> {
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

/// Why a pod cannot have a volume, for an event.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("it names no source that this version knows")]
    FindSource,
    #[error("{0}")]
    Refuse(Fault),
    #[error("{conflict}")]
    Label { access_mode: &'static str, conflict: selinux::Conflict },
    #[error("claim {name} does not exist; create it in the pod's namespace")]
    FindClaim { name: String },
    #[error("claim {name} is being deleted")]
    UseDeletingClaim { name: String },
    #[error("claim {name} was not made for this pod; delete it or rename the pod")]
    UseForeignClaim { name: String },
    #[error("claim {name} has lost its volume; restore the PersistentVolume or delete the claim")]
    UseLostClaim { name: String },
    #[error("claim {name} is not bound yet")]
    UseUnboundClaim { name: String },
    #[error("volume {name} does not exist, though the claim is bound to it")]
    FindVolume { name: String },
    #[error("volume {name} is not bound to claim {claim}")]
    UseForeignVolume { name: String, claim: Key },
    #[error("volume {name} does not say its volumeMode; set spec.volumeMode to Filesystem or Block")]
    FindMode { name: String },
    #[error("volume {name} has volumeMode Block; list it in volumeDevices, not in volumeMounts")]
    MountDevice { name: String },
    #[error("volume {name} has volumeMode Filesystem; list it in volumeMounts, not in volumeDevices")]
    MapFileSystem { name: String },
    #[error("volume {name} has volumeMode Block, which plugin {plugin} cannot map; use volumeMode Filesystem")]
    SupportBlock { name: String, plugin: String },
    #[error("volume {name} has mount options, which plugin {plugin} does not take; remove spec.mountOptions")]
    SupportOptions { name: String, plugin: String },
    #[error("volume {name} cannot be reached from node {node}: the node does not match spec.nodeAffinity")]
    ReachVolume { name: String, node: String },
    #[error("volume {name}: spec.nodeAffinity cannot be read: {error}")]
    ReadAffinity { name: String, error: String },
}

impl Error {
    /// Whether somebody else is likely to be at it: what is watched may also be a moment late.
    fn is_waiting(&self) -> bool {
        matches!(
            self,
            Self::FindClaim { .. }
                | Self::UseUnboundClaim { .. }
                | Self::FindVolume { .. }
                | Self::UseForeignVolume { .. }
                | Self::ReachVolume { .. }
        )
    }
}

#[cfg(test)]
mod tests;
