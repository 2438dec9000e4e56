//! A claim that fits no volume, but has a class that can make one.

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_model::class::NO_PROVISIONER;
use stowage_model::phase::{ReclaimPolicy, VolumeMode};
use stowage_model::{Claim, StorageClass, annotations, finalizers, migration};
use stowage_runtime::events::Note;

use crate::decide::status::{Status, Unbound};
use crate::decide::{ClaimAction, Decision, Waiting, Why};
use crate::snapshot::ClaimSnapshot;

use super::{untold, waiting};

/// Where hostPath volumes are made; upstream's deleter refuses anything outside `/tmp`.
const HOST_PATH_ROOT: &str = "/tmp/hostpath_pv";

/// A provisioner that works has made the volume by then, and tells so itself; of one that has not people hear. Counted from
/// when it was asked: where thousands of claims come at once, those that wait for their turn need not be told so too.
const AT_WORK: SignedDuration = SignedDuration::from_secs(5);

/// Whatever comes of it, the claim's status is left as it is, but for the condition.
pub fn provision(s: &ClaimSnapshot, now: Timestamp) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    if !s.rules.provisioning {
        return waiting(s, Status::of(claim), None, Some(Unbound::NoFittingVolume), Waiting::Volume, now);
    }
    let Some(class) = &s.class else {
        let name = claim.class_name();
        let text = format!(
            "storageclass.storage.k8s.io {name:?} not found: create it, or name another in spec.storageClassName ({})",
            s.misfits
        );
        return fail(s, text, Unbound::ClassNotFound, now);
    };
    let Some(provisioner) = provisioner_of(class) else {
        return if class.provisioner == migration::HOST_PATH {
            in_tree(s, class, now)
        } else {
            fail(s, no_provisioner(s, class), Unbound::NoProvisioner, now)
        };
    };
    let text = format!(
        "claim {} has no volume yet: provisioner {provisioner:?} of class {:?} was asked to make one; if nothing happens, \
         check that this provisioner runs and that its log names no error, or {} by hand",
        claim.meta.key(),
        class.meta.name,
        by_hand(claim)
    );
    let note = Note::normal("ExternalProvisioning", text);
    if claim.meta.annotation(annotations::STORAGE_PROVISIONER) != Some(provisioner) {
        return ask(provisioner, migration::driver_of(&class.provisioner));
    }
    let since = claim.meta.creation_timestamp.max(s.asked_since);
    let tell_at = since.and_then(|since| since.checked_add(AT_WORK).ok()).filter(|at| *at > now);
    let note = Some(note).filter(|_| tell_at.is_none());
    // One that once could not be bound loses that reason.
    let decision = waiting(s, Status::of(claim), note, None, Waiting::Provisioner, now);
    Decision { wake_at: tell_at, ..decision }
}

/// What people can do themselves. A volume that is only free is not taken for one that was filled from a source.
pub fn by_hand(claim: &Claim) -> &'static str {
    match claim.data_source() {
        None => "create a fitting PersistentVolume",
        Some(_) => "create a PersistentVolume that holds the data, with the claim in its spec.claimRef",
    }
}

/// The external provisioner of the class, a driver in place of an in-tree plugin included.
pub fn provisioner_of(class: &StorageClass) -> Option<&str> {
    let plugin = class.provisioner.as_str();
    let external = !plugin.is_empty() && !plugin.starts_with(migration::IN_TREE);
    migration::driver_of(plugin).or_else(|| external.then_some(plugin))
}

fn ask(provisioner: &str, migrated_to: Option<&'static str>) -> Decision<ClaimAction> {
    let action = ClaimAction::AskProvisioner { provisioner: provisioner.to_owned(), migrated_to };
    Decision::act([action], Why::Provision)
}

fn no_provisioner(s: &ClaimSnapshot, class: &StorageClass) -> String {
    let (name, plugin) = (&class.meta.name, &class.provisioner);
    let way_out = if plugin == NO_PROVISIONER || plugin.is_empty() {
        ""
    } else if plugin == migration::HOST_PATH {
        "start the pv-controller with --enable-hostpath-provisioner, or "
    } else {
        "use a class of a CSI driver, or "
    };
    let by_hand = by_hand(&s.claim);
    format!(
        "class {name:?} has provisioner {plugin:?}, which makes no volumes here: {way_out}{by_hand} ({})",
        s.misfits
    )
}

fn fail(s: &ClaimSnapshot, text: String, unbound: Unbound, now: Timestamp) -> Decision<ClaimAction> {
    let note = Note::warning("ProvisioningFailed", text);
    waiting(s, Status::of(&s.claim), Some(note), Some(unbound), Waiting::Class, now)
}

/// Only the object is made: the directory appears when a node first uses it, so nothing can be left behind.
fn in_tree(s: &ClaimSnapshot, class: &StorageClass, now: Timestamp) -> Decision<ClaimAction> {
    let claim = &*s.claim;
    if claim.data_source().is_some() {
        let text =
            format!("plugin {:?} cannot fill a volume from spec.dataSource: use a CSI driver", class.provisioner);
        return fail(s, text, Unbound::InvalidClaim, now);
    }
    if !claim.attributes_class().is_empty() {
        let text = format!(
            "plugin {:?} knows no spec.volumeAttributesClassName: leave it out or use a CSI driver",
            class.provisioner
        );
        return fail(s, text, Unbound::InvalidClaim, now);
    }
    if claim.meta.annotation(annotations::STORAGE_PROVISIONER) != Some(&class.provisioner) {
        return ask(&class.provisioner, None);
    }
    if !class.mount_options.is_empty() {
        let text = format!(
            "Mount options are not supported by plugin {:?}: remove them from class {:?}",
            class.provisioner, class.meta.name
        );
        return fail(s, text, Unbound::NoProvisioner, now);
    }
    if !s.rules.host_path_provisioner {
        return fail(s, no_provisioner(s, class), Unbound::NoProvisioner, now);
    }
    if claim.spec.volume_mode != VolumeMode::Filesystem {
        let text = format!("plugin {:?} makes no block volumes: set spec.volumeMode to Filesystem", class.provisioner);
        return fail(s, text, Unbound::InvalidClaim, now);
    }
    let name = claim.provisioned_volume_name();
    let note = Note::normal("ProvisioningSucceeded", format!("volume {name} is made by {}", class.provisioner));
    let made = ClaimAction::Make { volume: Box::new(host_path_volume(claim, class)) };
    Decision::act([made].into_iter().chain(untold(s, note, now)).collect::<Vec<_>>(), Why::Provision)
}

fn host_path_volume(claim: &Claim, class: &StorageClass) -> Value {
    let policy = class.reclaim_policy();
    let mut metadata = json!({
        "name": claim.provisioned_volume_name(),
        "annotations": {
            annotations::BOUND_BY_CONTROLLER: "yes",
            annotations::PROVISIONED_BY: class.provisioner,
            annotations::CREATED_BY: "hostpath-dynamic-provisioner",
        },
    });
    if policy == ReclaimPolicy::Delete {
        metadata["finalizers"] = json!([finalizers::IN_TREE_DELETER]);
    }
    json!({
        "metadata": metadata,
        "spec": {
            "capacity": { "storage": claim.requested().to_string() },
            "accessModes": claim.spec.access_modes.names(),
            "persistentVolumeReclaimPolicy": policy.as_str(),
            "storageClassName": class.meta.name,
            "claimRef": crate::write::claim_reference(claim),
            "hostPath": { "path": format!("{HOST_PATH_ROOT}/{}", claim.meta.uid), "type": "DirectoryOrCreate" },
        },
    })
}
