//! From a claim and its volume to a driver call, or to the reason why there can be none.

use std::borrow::Cow;
use std::collections::BTreeMap;

use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_csi::v1::volume_capability::MountVolume;
use stowage_csi::v1::{CapacityRange, ControllerExpandVolumeRequest, ControllerModifyVolumeRequest, VolumeCapability};
use stowage_model::annotations::{MODIFY_SECRET_NAME, MODIFY_SECRET_NAMESPACE};
use stowage_model::phase::VolumeMode;
use stowage_model::quantity::{self, Quantity};
use stowage_model::volume::{CsiSource, SecretRef};
use stowage_model::{Volume, access_mode, migration};

use crate::projections::{Claim, Class};
use crate::snapshot::Facts;

/// Why the driver cannot be asked. People read it in the claim's events.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error(
        "PersistentVolume {name:?} has no volume of driver {driver:?}: its source is {source_member:?}, which cannot be \
         translated for it; move the data to a volume of the driver"
    )]
    FindSource { name: String, driver: String, source_member: &'static str },
    #[error("PersistentVolume {name:?}: {source}")]
    Translate { name: String, source: migration::Error },
    #[error("PersistentVolume {name:?} has an empty spec.csi.volumeHandle; make it anew with the driver's id")]
    FindHandle { name: String },
    #[error("PersistentVolume {name:?}: {source}")]
    MapModes { name: String, source: access_mode::Error },
    #[error(
        "spec.volumeAttributesClassName: driver {driver:?} does not change volumes (it lacks the capability MODIFY_VOLUME); \
         name {current:?} again, or move the data to a volume of a class that says so from the start"
    )]
    ModifyNothing { driver: String, current: String },
    #[error("spec.resources.requests.storage: {source}; ask for less")]
    FitSize { source: quantity::Error },
}

/// The volume as the driver knows it, translated where the driver took over from an in-tree plugin.
fn known_to<'a>(volume: &'a Volume, facts: &Facts) -> Result<Cow<'a, Volume>, Problem> {
    let name = || volume.meta.name.clone();
    let known = migration::to_csi(volume).map_err(|source| Problem::Translate { name: name(), source })?;
    let source_member = volume.spec.other_source.unwrap_or_default();
    known.ok_or_else(|| Problem::FindSource { name: name(), driver: facts.name.clone(), source_member })
}

fn source(volume: &Volume) -> Result<&CsiSource, Problem> {
    let csi = volume.spec.csi.as_ref().filter(|csi| !csi.volume_handle.is_empty());
    csi.ok_or_else(|| Problem::FindHandle { name: volume.meta.name.clone() })
}

/// The call that expands, without its secrets, and the secret it needs.
pub fn expand(
    volume: &Volume,
    target: Quantity,
    facts: &Facts,
) -> Result<(ControllerExpandVolumeRequest, Option<SecretRef>), Problem> {
    let volume = &*known_to(volume, facts)?;
    let csi = source(volume)?;
    let request = ControllerExpandVolumeRequest {
        volume_id: csi.volume_handle.clone(),
        capacity_range: Some(CapacityRange {
            required_bytes: target.size().map_err(|source| Problem::FitSize { source })?,
            ..CapacityRange::default()
        }),
        volume_capability: Some(capability(volume, csi, facts)?),
        ..ControllerExpandVolumeRequest::default()
    };
    Ok((request, csi.controller_expand_secret_ref.as_deref().cloned()))
}

fn capability(volume: &Volume, csi: &CsiSource, facts: &Facts) -> Result<VolumeCapability, Problem> {
    let spec = &volume.spec;
    let mode = access_mode::fold_to_csi(spec.access_modes, facts.can(Call::SingleNodeMultiWriter))
        .map_err(|source| Problem::MapModes { name: volume.meta.name.clone(), source })?;
    let mount =
        MountVolume { fs_type: csi.fs_type.clone(), mount_flags: spec.mount_options.clone(), ..MountVolume::default() };
    Ok(VolumeCapability::new(mode.number(), (spec.volume_mode != VolumeMode::Block).then_some(mount)))
}

/// A secret, and what names it.
pub type NamedSecret = (&'static str, SecretRef);

/// The call that changes attributes, without its secrets, and the secret it needs.
pub fn modify(
    claim: &Claim,
    volume: &Volume,
    class: &Class,
    facts: &Facts,
) -> Result<(ControllerModifyVolumeRequest, Option<NamedSecret>), Problem> {
    let volume = &*known_to(volume, facts)?;
    let csi = source(volume)?;
    let mut parameters: BTreeMap<String, String> = class.parameters.clone();
    if facts.options.extra_modify_metadata {
        for (key, value) in [
            ("csi.storage.k8s.io/pvc/name", &claim.meta.name),
            ("csi.storage.k8s.io/pvc/namespace", &claim.meta.namespace),
            ("csi.storage.k8s.io/pv/name", &volume.meta.name),
        ] {
            parameters.insert(key.to_owned(), value.clone());
        }
    }
    let request = ControllerModifyVolumeRequest {
        volume_id: csi.volume_handle.clone(),
        mutable_parameters: parameters,
        ..ControllerModifyVolumeRequest::default()
    };
    Ok((request, modify_secret(volume, csi)))
}

fn modify_secret(volume: &Volume, csi: &CsiSource) -> Option<NamedSecret> {
    let noted = |key| volume.meta.annotation(key).filter(|value| !value.is_empty());
    match (noted(MODIFY_SECRET_NAME), noted(MODIFY_SECRET_NAMESPACE)) {
        (Some(name), Some(namespace)) => {
            Some((MODIFY_SECRET_NAME, SecretRef { namespace: namespace.to_owned(), name: name.to_owned() }))
        }
        _ => csi.controller_expand_secret_ref.as_deref().map(|secret| (EXPAND_SECRET, secret.clone())),
    }
}

/// The field of a volume that names the secret for expansions.
pub const EXPAND_SECRET: &str = "controllerExpandSecretRef";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use stowage_csi::identity::ControllerCapabilities;

    use super::*;
    use crate::options::Options;
    use crate::snapshot::Expansion;

    fn facts(name: &str) -> Facts {
        Facts {
            name: name.into(),
            expansion: Expansion::Controller,
            modifies: true,
            calls: ControllerCapabilities::from([Call::SingleNodeMultiWriter]),
            options: Options::default(),
        }
    }

    fn volume(source: serde_json::Value) -> Volume {
        let mut spec = json!({ "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "1Gi" } });
        spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
        serde_json::from_value(json!({ "metadata": { "name": "pv" }, "spec": spec })).unwrap()
    }

    #[test]
    fn a_volume_of_an_in_tree_plugin_is_translated_for_its_driver() {
        let volume = volume(json!({ "awsElasticBlockStore": { "volumeID": "aws://zone/vol-1", "fsType": "xfs" } }));
        let (request, secret) = expand(&volume, "2Gi".parse().unwrap(), &facts("ebs.csi.aws.com")).unwrap();
        assert_eq!((request.volume_id.as_str(), secret), ("vol-1", None));
        assert_eq!(request.capacity_range.unwrap().required_bytes, 2 << 30);
    }

    #[test]
    fn a_device_has_no_file_system_and_a_finer_driver_gets_the_finer_mode() {
        let csi = json!({ "driver": "d", "volumeHandle": "h", "fsType": "ext4" });
        let block = volume(json!({ "csi": csi, "volumeMode": "Block" }));
        let (request, _) = expand(&block, "2Gi".parse().unwrap(), &facts("d")).unwrap();
        let mode = access_mode::CsiAccessMode::SingleNodeMultiWriter.number();
        assert_eq!(request.volume_capability, Some(VolumeCapability::new(mode, None)));
    }

    #[test]
    fn what_the_driver_cannot_know_is_not_asked_for() {
        let size: Quantity = "2Gi".parse().unwrap();
        let path = volume(json!({ "hostPath": { "path": "/x" } }));
        assert!(matches!(expand(&path, size, &facts("d")), Err(Problem::FindSource { source_member: "hostPath", .. })));
        let empty = volume(json!({ "csi": { "driver": "d", "volumeHandle": "" } }));
        assert!(matches!(expand(&empty, size, &facts("d")), Err(Problem::FindHandle { .. })));
        let whole = volume(json!({ "csi": { "driver": "d", "volumeHandle": "h" } }));
        assert!(matches!(expand(&whole, "9Ei".parse().unwrap(), &facts("d")), Err(Problem::FitSize { .. })));
    }
}
