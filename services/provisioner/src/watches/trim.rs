//! What of claims and volumes nobody here looks at: there are tens of thousands of them, and what is not kept is not paid
//! for.

use stowage_model::annotations::{BETA_STORAGE_CLASS, MIGRATED_TO, SELECTED_NODE};
use stowage_model::annotations::{BETA_STORAGE_PROVISIONER, STORAGE_PROVISIONER};
use stowage_model::claim::Claim;
use stowage_model::finalizers::CLONING_PROTECTION;
use stowage_model::node::Node;
use stowage_model::volume::Volume;

/// What decisions about a claim that has its volume still look at; before, the class's templates may name any.
const OF_A_BOUND_CLAIM: [&str; 5] =
    [STORAGE_PROVISIONER, BETA_STORAGE_PROVISIONER, MIGRATED_TO, SELECTED_NODE, BETA_STORAGE_CLASS];

/// A claim as it is kept.
pub fn claim(claim: &mut Claim) {
    claim.meta.labels.clear();
    claim.meta.owner_references = Vec::new();
    claim.status.conditions = Vec::new();
    // Never written back: who changes them reads them first.
    claim.meta.finalizers.retain(|finalizer| finalizer == CLONING_PROTECTION);
    claim.meta.finalizers.shrink_to_fit();
    // The older says the same, and counts where the newer is missing.
    let is_said_twice = claim.meta.annotation(STORAGE_PROVISIONER).is_some();
    let is_kept = |key: &str| OF_A_BOUND_CLAIM.contains(&key) && !(is_said_twice && key == BETA_STORAGE_PROVISIONER);
    if claim.names_volume() && !claim.meta.annotations.keys().all(is_kept) {
        let kept = claim.meta.annotations.iter().filter(|(key, _)| is_kept(key));
        claim.meta.annotations = kept.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    }
}

/// A node as it is kept: its labels.
pub fn node(node: &mut Node) {
    node.meta.annotations = Default::default();
    node.meta.owner_references = Vec::new();
    node.meta.finalizers = Vec::new();
    node.spec = Default::default();
    node.status = Default::default();
}

/// A volume as it is kept.
pub fn volume(volume: &mut Volume) {
    // Of an in-tree volume they tell the place.
    if volume.spec.in_tree.is_none() {
        volume.meta.labels.clear();
    }
    volume.meta.owner_references = Vec::new();
    volume.spec.mount_options = Vec::new();
    volume.status.message = String::new();
    volume.status.reason = String::new();
    if let Some(csi) = &mut volume.spec.csi {
        // Given to the driver at each use, by others.
        csi.volume_attributes.clear();
        csi.fs_type = String::new();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stowage_model::object::Projection;

    use super::*;

    fn read<T: Projection>(body: &serde_json::Value) -> T {
        T::read(body.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_claim_keeps_its_annotations_until_it_has_its_volume() {
        let mut body = json!({
            "metadata": {
                "name": "c", "labels": { "app": "db" }, "finalizers": ["kubernetes.io/pvc-protection", CLONING_PROTECTION],
                "annotations": {
                    STORAGE_PROVISIONER: "d", BETA_STORAGE_PROVISIONER: "d", "team": "blue",
                    "pv.kubernetes.io/bind-completed": "yes",
                },
            },
            "spec": {},
        });
        let mut waits: Claim = read(&body);
        claim(&mut waits);
        assert_eq!(waits.meta.annotation("team"), Some("blue"), "a secret's name may be made of it");
        assert!(waits.meta.labels.is_empty());
        assert_eq!(waits.meta.finalizers, [CLONING_PROTECTION]);
        body["spec"]["volumeName"] = "pvc-1".into();
        let mut bound: Claim = read(&body);
        claim(&mut bound);
        assert_eq!(bound.meta.annotations.keys().collect::<Vec<_>>(), [STORAGE_PROVISIONER]);
        body["metadata"]["annotations"] = json!({ BETA_STORAGE_PROVISIONER: "old" });
        let mut older: Claim = read(&body);
        claim(&mut older);
        assert_eq!(older.storage_provisioner(), Some("old"));
    }

    #[test]
    fn a_volume_keeps_what_its_deletion_needs() {
        let body = json!({
            "metadata": { "name": "v", "labels": { "zone": "a" }, "finalizers": ["f"], "annotations": { "k": "v" } },
            "spec": {
                "csi": { "driver": "d", "volumeHandle": "h", "fsType": "ext4", "volumeAttributes": { "pool": "fast" } },
                "claimRef": { "namespace": "n", "name": "c", "uid": "u" }, "storageClassName": "gold",
                "nodeAffinity": { "required": { "nodeSelectorTerms": [] } }, "mountOptions": ["ro"],
            },
            "status": { "phase": "Released", "message": "long" },
        });
        let whole: Volume = read(&body);
        let mut kept = whole.clone();
        volume(&mut kept);
        assert!(kept.meta.labels.is_empty() && kept.status.message.is_empty());
        let csi = kept.spec.csi.as_ref().unwrap();
        assert_eq!((csi.driver.as_str(), csi.volume_handle.as_str()), ("d", "h"));
        assert!(csi.volume_attributes.is_empty() && csi.fs_type.is_empty());
        assert_eq!(
            (&kept.spec.claim_ref, &kept.spec.node_affinity),
            (&whole.spec.claim_ref, &whole.spec.node_affinity)
        );
        assert_eq!((&kept.meta.annotations, &kept.meta.finalizers), (&whole.meta.annotations, &whole.meta.finalizers));
    }

    #[test]
    fn an_in_tree_volume_keeps_the_labels_that_tell_where_it_is() {
        let body = json!({
            "metadata": { "name": "v", "labels": { "topology.kubernetes.io/zone": "a" } },
            "spec": { "awsElasticBlockStore": { "volumeID": "vol-1" } },
        });
        let mut kept: Volume = read(&body);
        volume(&mut kept);
        assert_eq!(kept.meta.labels["topology.kubernetes.io/zone"], "a");
    }
}
