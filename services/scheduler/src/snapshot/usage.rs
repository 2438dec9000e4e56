//! Who uses which volumes where: pods on nodes, pods on their way, attachments, and claims whose volume is being made.

use std::collections::BTreeSet;
use std::sync::Arc;

use stowage_model::migration;
use stowage_model::object::{Key, Projection};
use stowage_model::pod::PodVolumeSource;
use stowage_model::{AccessMode, Node, Pod, Volume};

use super::{ClaimState, NodeState, Volumes};
use crate::assumed::Assumed;
use crate::watches::{BY_CLAIM, BY_NODE, Caches, SELECTED};

/// A pod that was sent to a node but not seen there.
pub(super) struct Coming {
    pod: Arc<Pod>,
    node: String,
}

impl Caches {
    /// Pods on their way, without this one and without those that arrived or are gone.
    pub(super) fn coming(&self, assumed: &Assumed, but: &Key) -> Vec<Coming> {
        let others = assumed.all().into_iter().filter(|(key, _)| key != but);
        others
            .filter_map(|(key, assumed)| {
                let pod = self.pods.get(&key)?;
                let waits = pod.meta.uid == assumed.uid && is_using(&pod) && !pod.is_scheduled();
                waits.then_some(Coming { pod, node: assumed.node })
            })
            .collect()
    }

    /// The pod's ReadWriteOncePod claims that another pod has or is about to have.
    pub(super) fn once_pod_in_use(&self, pod: &Pod, others: &[Coming]) -> BTreeSet<Key> {
        let direct = pod.spec.volumes.iter().filter(|volume| matches!(volume.source, PodVolumeSource::Claim { .. }));
        let claims = direct.filter_map(|volume| pod.claim_of(volume));
        claims
            .filter(|key| {
                let claim = self.claims.get(key);
                claim.is_some_and(|claim| claim.spec.access_modes.contains(AccessMode::ReadWriteOncePod))
            })
            .filter(|key| {
                let users = self.pods.by_index(BY_CLAIM, &key.to_string());
                let placed =
                    users.iter().any(|user| user.is_scheduled() && is_using(user) && user.meta.uid != pod.meta.uid);
                placed || others.iter().any(|other| other.pod.claims().any(|claim| claim == *key))
            })
            .collect()
    }

    pub(super) fn node_state(&self, node: Arc<Node>, drivers: &BTreeSet<String>, others: &[Coming]) -> NodeState {
        let name = node.meta.name.as_str();
        let here: Vec<_> = self.pods.by_index(BY_NODE, name).into_iter().filter(|pod| is_using(pod)).collect();
        let coming: Vec<_> = others.iter().filter(|other| other.node == name).collect();
        let csi_node = self.csi_nodes.get(&Key::cluster(name));
        let mut present = Volumes::new();
        let mut expected = Volumes::new();
        // Counting is dear, and most pods have no volume of a driver with a limit.
        if drivers.iter().any(|driver| csi_node.as_ref().is_some_and(|csi| csi.limit(driver).is_some())) {
            let of_pods = here.iter().flat_map(|pod| self.of_pod(pod));
            collect(&mut present, drivers, of_pods.chain(self.attached(name)));
            expected = present.clone();
            let of_claims =
                self.claims.by_index(SELECTED, name).into_iter().filter_map(|claim| self.of_claim(&claim.key()));
            collect(&mut expected, drivers, coming.iter().flat_map(|other| self.of_pod(&other.pod)).chain(of_claims));
        }
        NodeState { pods: here.len() + coming.len(), csi_node, present, expected, node }
    }

    pub(super) fn volumes_of(&self, pod: &Pod) -> Volumes {
        let mut volumes = Volumes::new();
        for (driver, volume) in self.of_pod(pod) {
            volumes.entry(driver).or_default().insert(volume);
        }
        volumes
    }

    fn of_pod(&self, pod: &Pod) -> Vec<(String, String)> {
        let own =
            pod.spec.volumes.iter().filter_map(|volume| migration::inline_to_csi(volume, &pod.meta.namespace).ok());
        let own = own.flatten().filter_map(|volume| csi_of(&volume));
        pod.claims().filter_map(|claim| self.of_claim(&claim)).chain(own).collect()
    }

    fn attached(&self, node: &str) -> Vec<(String, String)> {
        let volumes = self.attachments.by_index(BY_NODE, node).into_iter().filter_map(|attachment| {
            if let Some(csi) = attachment.inline_csi() {
                return Some((attachment.spec.attacher.clone(), csi.volume_handle.clone()));
            }
            let volume = self.volumes.get(&Key::cluster(attachment.volume_name()?))?;
            let (_, handle) = csi_of(&volume)?;
            Some((attachment.spec.attacher.clone(), handle))
        });
        volumes.collect()
    }

    /// Driver and identity of the claim's volume, or of the one that will be made for it.
    fn of_claim(&self, key: &Key) -> Option<(String, String)> {
        let claim = self.claims.get(key)?;
        let named = self.volumes.get(&Key::cluster(claim.spec.volume_name.clone()));
        let reserved = || {
            let pointing = self.volumes.by_index(BY_CLAIM, &key.to_string());
            pointing.into_iter().find(|volume| volume.is_bound_to(&claim))
        };
        match named.or_else(reserved) {
            Some(volume) => csi_of(&volume),
            None => {
                let class = self.class_of(&claim)?;
                let driver = migration::driver_of(&class.provisioner).unwrap_or(&class.provisioner);
                Some((driver.to_owned(), future_volume(key)))
            }
        }
    }
}

/// Driver and handle of a volume, as its driver knows it; a driver took over most in-tree sources.
pub fn csi_of(volume: &Volume) -> Option<(String, String)> {
    let volume = migration::to_csi(volume).ok().flatten()?;
    let csi = volume.spec.csi.as_ref()?;
    Some((csi.driver.clone(), csi.volume_handle.clone()))
}

/// What stands for the volume that a claim will get; no driver's handle looks like it by accident.
pub fn future_volume(claim: &Key) -> String {
    format!("future volume of {claim}")
}

/// Drivers whose volumes the pod has or may get.
pub(super) fn drivers(volumes: &Volumes, claims: &[ClaimState]) -> BTreeSet<String> {
    let free = claims.iter().flat_map(|claim| &claim.candidates).filter_map(|volume| csi_of(volume));
    volumes.keys().cloned().chain(free.map(|(driver, _)| driver)).collect()
}

fn collect(into: &mut Volumes, drivers: &BTreeSet<String>, volumes: impl Iterator<Item = (String, String)>) {
    for (driver, volume) in volumes.filter(|(driver, _)| drivers.contains(driver)) {
        into.entry(driver).or_default().insert(volume);
    }
}

/// Whether the pod holds what it uses: an ended one does not.
fn is_using(pod: &Pod) -> bool {
    !pod.is_terminal()
}
