//! pvc-protection: a claim stays while a pod uses it.

use stowage_model::{annotations, finalizers};

use crate::snapshot::ClaimSnapshot;

use super::migration::migration_change;
use super::{ClaimAction, ClaimTidy, Decision, Why, status};

/// A claim stays while a pod on a node uses it, whoever asked for its deletion. Annotations of migration ride on the
/// same write.
pub fn decide(s: &ClaimSnapshot) -> Option<Decision<ClaimAction>> {
    let claim = &*s.claim;
    let (meta, rules) = (&claim.meta, &s.rules);
    let protected = meta.has_finalizer(finalizers::CLAIM_PROTECTION);
    if rules.controllers.claim_protection && meta.is_deleting() && protected {
        if s.pods.iter().any(|pod| status::holds(pod, claim)) {
            return None;
        }
        // The end of the lookup wakes the claim, which meanwhile takes no place from others.
        return Some(if s.is_pod_lookup_pending {
            Decision::wait_half_way(Why::Protection)
        } else {
            Decision::act([ClaimAction::Unprotect], Why::Protection)
        });
    }
    let tidy = ClaimTidy {
        migrated_to: claim.storage_provisioner().filter(|_| rules.controllers.binder).and_then(|provisioner| {
            let current = meta.annotation(annotations::MIGRATED_TO);
            migration_change(provisioner, current)
        }),
        protect: rules.controllers.claim_protection && !meta.is_deleting() && !protected,
    };
    let why = if tidy.protect { Why::Protection } else { Why::Migration };
    (tidy != ClaimTidy::default()).then(|| Decision::act([ClaimAction::Tidy(tidy)], why))
}
