//! Node deployment: which node's provisioner makes the volume of a claim, and deletes it again.
//!
//! Where the scheduler chooses a node, that node's provisioner acts. Claims that bind at once belong to nobody: each
//! provisioner that could serve one waits a while, longer after each failure, and then tries to write its own node's
//! name into the claim; the API server lets one of them win.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::phase::BindingMode;
use stowage_model::topology;
use stowage_model::volume::Volume;
use stowage_runtime::backoff::Backoff;
use stowage_runtime::random::Random;

use crate::facts::{Facts, NodeFacts};

/// An attempt to become the owner of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bid {
    /// When to try.
    pub at: Timestamp,
    /// How often it was lost or there was no room.
    pub failures: u32,
}

/// Whether this provisioner makes the volume of a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ownership {
    /// It does.
    Ours,
    /// Another node's does, or none.
    Others,
    /// Nobody's yet, and ours could.
    Open,
}

pub fn of(claim: &Claim, class: &StorageClass, facts: &Facts) -> Ownership {
    let Some(node) = &facts.node else { return Ownership::Ours };
    match claim.node_of_volume() {
        Some(selected) if selected == node.name => Ownership::Ours,
        Some(_) => Ownership::Others,
        None if may_take(class, facts, node) => Ownership::Open,
        None => Ownership::Others,
    }
}

/// Whether a volume that is made for the claim is made here. In node deployment a claim that was taken back, or given to
/// another node, gets its volume there: what was made for it here is nobody's.
pub fn is_claimed(claim: &Claim, facts: &Facts) -> bool {
    facts.node.as_ref().is_none_or(|node| claim.node_of_volume() == Some(&node.name))
}

/// The mode must be said: a class without one may be older than the distinction.
fn may_take(class: &StorageClass, facts: &Facts, node: &NodeFacts) -> bool {
    let deployment = facts.options.node_deployment.as_ref();
    deployment.is_some_and(|deployment| deployment.immediate_binding)
        && class.binding_mode == Some(BindingMode::Immediate)
        && topology::allows(&class.allowed_topologies, &node.segments)
}

/// Whether this provisioner deletes the volume: in node deployment only the node that has it can.
pub fn is_here(volume: &Volume, facts: &Facts) -> bool {
    let Some(node) = &facts.node else { return true };
    let affinity = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    // A malformed affinity names no node that could be asked.
    affinity.is_none_or(|required| required.matches(&node.name, &node.segments).unwrap_or(false))
}

/// Whether the object may stand for a volume of this node: ids of local drivers tell volumes of one node apart, not always of
/// two. One that says that unreadably may.
pub fn may_be_here(volume: &Volume, facts: &Facts) -> bool {
    let Some(node) = &facts.node else { return true };
    let affinity = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    affinity.is_none_or(|required| required.matches(&node.name, &node.segments).unwrap_or(true))
}

/// The bids of this provisioner, by claim uid.
#[derive(Debug, Default)]
pub struct Bids(Mutex<BTreeMap<String, Bid>>);

impl Bids {
    pub fn get(&self, uid: &str) -> Option<Bid> {
        self.lock().get(uid).copied()
    }

    /// Tries again later, each time twice as long; less up to the base delay, so that nodes do not try together.
    pub fn postpone(&self, uid: &str, backoff: Backoff, now: Timestamp, random: &Random) {
        let mut bids = self.lock();
        let failures = bids.get(uid).map_or(0, |bid| bid.failures + 1);
        let delay = backoff.delay(failures + 1).saturating_sub(backoff.base.mul_f64(random.fraction()));
        bids.insert(uid.to_owned(), Bid { at: after(now, delay), failures });
    }

    pub fn drop(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Bid>> {
        self.0.lock().expect("no code panics while holding the bids")
    }
}

fn after(now: Timestamp, delay: Duration) -> Timestamp {
    let delay = SignedDuration::try_from(delay).unwrap_or(SignedDuration::MAX);
    now.checked_add(delay).unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use stowage_model::topology::Segments;

    use super::*;
    use crate::fixture::{claim_with, class_with, facts, volume_with};
    use crate::options::NodeDeployment;

    fn on_node(name: &str, immediate_binding: bool) -> Facts {
        let mut facts = facts();
        facts.topology = true;
        let segments = Segments::from([("node".to_owned(), name.to_owned())]);
        facts.node = Some(NodeFacts { name: name.into(), segments });
        facts.options.node_deployment =
            Some(NodeDeployment { node: name.into(), immediate_binding, ..NodeDeployment::default() });
        facts
    }

    fn selected(node: &str) -> Claim {
        claim_with(|claim| claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = node.into())
    }

    #[test]
    fn a_claim_belongs_to_the_selected_node_and_without_one_to_whoever_may_take_it() {
        let class = class_with(|_| {});
        let waiting = class_with(|class| class["volumeBindingMode"] = "WaitForFirstConsumer".into());
        let silent = class_with(|class| class["volumeBindingMode"] = json!(null));
        let elsewhere = class_with(|class| {
            let expression = json!({ "key": "node", "values": ["b"] });
            class["allowedTopologies"] = json!([{ "matchLabelExpressions": [expression] }]);
        });
        let nobody = claim_with(|_| {});
        let here = on_node("a", true);
        assert_eq!(of(&selected("a"), &waiting, &here), Ownership::Ours);
        assert_eq!(of(&selected("b"), &waiting, &here), Ownership::Others);
        assert_eq!(of(&nobody, &class, &here), Ownership::Open);
        assert_eq!(of(&nobody, &class, &on_node("a", false)), Ownership::Others);
        for class in [waiting, silent, elsewhere] {
            assert_eq!(of(&nobody, &class, &here), Ownership::Others);
        }
        assert_eq!(of(&nobody, &class, &facts()), Ownership::Ours);
    }

    #[test]
    fn a_volume_is_deleted_by_the_node_that_has_it() {
        let volume = volume_with(|volume| {
            let expression = json!({ "key": "node", "operator": "In", "values": ["a"] });
            let terms = json!([{ "matchExpressions": [expression] }]);
            volume["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": terms } });
        });
        assert!(is_here(&volume, &on_node("a", true)) && !is_here(&volume, &on_node("b", true)));
        assert!(is_here(&volume, &facts()) && is_here(&volume_with(|_| {}), &on_node("b", true)));
    }

    #[test]
    fn a_lost_bid_waits_twice_as_long_up_to_the_maximum() {
        let backoff = Backoff { base: Duration::from_secs(20), max: Duration::from_secs(60) };
        let (bids, random, now) = (Bids::default(), Random::seeded(1), Timestamp::UNIX_EPOCH);
        for (least, most) in [(0, 20), (20, 40), (40, 60), (40, 60)] {
            bids.postpone("u", backoff, now, &random);
            let waits = bids.get("u").unwrap().at.as_second();
            assert!((least..=most).contains(&waits), "{waits} is not in {least}..={most}");
        }
        bids.drop("u");
        assert_eq!(bids.get("u"), None);
    }
}
