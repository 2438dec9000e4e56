//! Volumes of in-tree plugins whose work a CSI driver has taken over, as that driver knows them.

use stowage_model::migration;
use stowage_model::node_view::{NodePod, NodeVolume};
use stowage_model::object::Key;
use stowage_model::volume::Volume;
use stowage_model::volume_source::VolumeSource;

use crate::fault::Fault;
use crate::spec::{Persistent, VolumeSpec};

/// The volume behind a claim, translated if its plugin's work was taken over; none if the object has no source.
pub fn persistent(volume: &NodeVolume, claim: Key, read_only: bool) -> Result<Option<VolumeSpec>, Fault> {
    if !matches!(volume.source, Some(VolumeSource::InTree { .. })) {
        return Ok(VolumeSpec::persistent(volume, claim, read_only));
    }
    let name = &volume.meta.name;
    let refused = |error| Fault::transient(format!("volume {name} cannot be used through its CSI driver: {error}"));
    match migration::to_csi(volume).map_err(refused)? {
        Some(translated) => {
            let own = VolumeSpec::persistent(volume, claim, read_only);
            Ok(own.map(|spec| translated_spec(spec, &translated)))
        }
        None => Ok(VolumeSpec::persistent(volume, claim, read_only)),
    }
}

/// A volume that a pod names itself, translated if its plugin's work was taken over; none for a claim.
pub fn inline(pod: &NodePod, name: &str) -> Result<Option<VolumeSpec>, Fault> {
    let Some(source) = pod.sources.get(name) else { return Ok(None) };
    let spec = VolumeSpec::inline(name, source.clone());
    let Some(volume) = pod.spec.volumes.iter().find(|volume| volume.name == name) else { return Ok(Some(spec)) };
    let refused = |error| Fault::transient(format!("volume {name} cannot be used through its CSI driver: {error}"));
    let Some(translated) = migration::inline_to_csi(volume, &pod.meta.namespace).map_err(refused)? else {
        return Ok(Some(spec));
    };
    let persistent = Persistent {
        claim: Key::default(),
        access_modes: translated.spec.access_modes,
        access_mode: translated.spec.access_modes.iter().next(),
        volume_mode: translated.spec.volume_mode,
        mount_options: Vec::new(),
        capacity: Default::default(),
        node_affinity: None,
        group: None,
    };
    let spec = VolumeSpec { name: translated.meta.name.clone(), persistent: Some(persistent), ..spec };
    Ok(Some(translated_spec(spec, &translated)))
}

fn translated_spec(spec: VolumeSpec, translated: &Volume) -> VolumeSpec {
    let Some(csi) = translated.spec.csi.clone() else { return spec };
    let persistent = spec.persistent.map(|persistent| Persistent {
        access_modes: translated.spec.access_modes,
        node_affinity: translated.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.clone()),
        mount_options: translated.spec.mount_options.clone(),
        ..persistent
    });
    let read_only = spec.read_only || csi.read_only;
    VolumeSpec { source: VolumeSource::Csi(csi), persistent, read_only, ..spec }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stowage_model::object::Projection as _;

    use super::*;

    #[test]
    fn a_persistent_disk_of_a_moved_plugin_becomes_its_drivers_volume() {
        let volume = json!({ "metadata": { "name": "pv" }, "spec": {
            "accessModes": ["ReadWriteOnce"], "cinder": { "volumeID": "id", "fsType": "xfs" }, "mountOptions": ["noatime"],
        }});
        let volume = NodeVolume::read(volume.to_string().as_bytes()).unwrap();
        let spec = persistent(&volume, Key::namespaced("n", "c"), false).unwrap().unwrap();
        assert_eq!((spec.name.as_str(), spec.source.to_string().as_str()), ("pv", "csi cinder.csi.openstack.org^id"));
        assert_eq!(spec.mount_options(), ["noatime"]);
        let VolumeSource::Csi(csi) = spec.source else { panic!("a CSI volume") };
        assert_eq!(csi.fs_type, "xfs");
    }

    #[test]
    fn a_pods_own_disk_becomes_a_persistent_volume_and_others_stay_what_they_are() {
        let pod = json!({ "metadata": { "name": "p", "namespace": "n" }, "spec": { "volumes": [
            { "name": "disk", "awsElasticBlockStore": { "volumeID": "vol-1" } },
            { "name": "dir", "emptyDir": {} },
        ]}});
        let pod = NodePod::read(pod.to_string().as_bytes()).unwrap();
        let spec = inline(&pod, "disk").unwrap().unwrap();
        assert!(matches!(spec.source, VolumeSource::Csi(_)) && spec.persistent.is_some(), "{spec}");
        assert_eq!(inline(&pod, "dir").unwrap().unwrap().source.member(), "emptyDir");
        assert_eq!(inline(&pod, "gone").unwrap(), None);
    }
}
