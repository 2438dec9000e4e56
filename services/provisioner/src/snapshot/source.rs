//! What is known of the objects that volumes are filled from.

use std::sync::Arc;

use stowage_model::claim::Claim;
use stowage_model::object::{Key as ObjectKey, kinds};
use stowage_runtime::cache::View;
use stowage_runtime::told::Known;

use super::SourceSnapshot;
use crate::controller::Controller;
use crate::decide::{finalizer, is_ours, is_wanted};
use crate::intent::{Intent, SourceKind};
use crate::ownership;
use crate::source::{Found, Object, Origin};

/// What the claim names to be filled from.
pub fn find(controller: &Controller, claim: &Claim) -> Option<Found> {
    let origin = Origin::of(claim)?;
    let permitted = is_permitted(controller, claim, &origin);
    Some(Found { object: object(controller, &origin), permitted, origin })
}

/// Whether the claim may use it, as far as it is in another namespace.
fn is_permitted(controller: &Controller, claim: &Claim, origin: &Origin) -> bool {
    let (own, name) = (&claim.meta.namespace, &origin.key.name);
    origin.key.namespace == *own
        || controller.caches.grants.list().iter().any(|grant| {
            let is_there = grant.meta.namespace == origin.key.namespace;
            is_there && grant.permits(kinds::CLAIM, own, origin.object_kind(), name)
        })
}

/// Whether the object that the record names is there and can be held, and is not yet.
pub fn is_unprotected(controller: &Controller, intent: &Intent) -> bool {
    let Some(source) = &intent.request.source else { return false };
    if source.kind == SourceKind::Snapshot && controller.is_protecting_forbidden() {
        return false;
    }
    match object(controller, &source.origin()).meta() {
        // Nothing can be added to what is going, and a namesake is not meant.
        View::Known(meta) => {
            meta.uid == source.uid && !meta.is_deleting() && !meta.has_finalizer(finalizer(source.kind))
        }
        View::Absent | View::Unknown => false,
    }
}

/// Whether the object that the record names does not exist any more; a namesake is not it.
pub fn is_gone(controller: &Controller, intent: &Intent) -> bool {
    let Some(source) = &intent.request.source else { return false };
    let caches = &controller.caches;
    let is_listed = match source.kind {
        SourceKind::Claim => caches.claims.is_synced(),
        SourceKind::Snapshot => caches.snapshots.is_synced(),
    };
    match object(controller, &source.origin()).meta() {
        View::Known(meta) => meta.uid != source.uid,
        View::Absent => is_listed,
        View::Unknown => false,
    }
}

/// Whether the object that the record names is being deleted.
pub fn is_going(controller: &Controller, intent: &Intent) -> bool {
    let Some(source) = &intent.request.source else { return false };
    match object(controller, &source.origin()).meta() {
        View::Known(meta) => meta.uid == source.uid && meta.is_deleting(),
        View::Absent | View::Unknown => false,
    }
}

pub fn gather(controller: &Controller, origin: &Origin, told: Known) -> SourceSnapshot {
    let facts = &controller.facts;
    let object = object(controller, origin);
    let users = match object.meta() {
        View::Known(meta) => controller.journal().users(&meta.uid),
        View::Absent | View::Unknown => Vec::new(),
    };
    let waiting = controller.caches.claims.by_index("source", &origin.to_string());
    // Who may not use it cannot keep it either.
    let waiting = waiting.iter().filter(|claim| is_wanted(claim) && is_permitted(controller, claim, origin));
    let (ours, others): (Vec<_>, Vec<_>) =
        waiting.partition(|claim| is_ours(claim, &facts.driver) && ownership::is_claimed(claim, facts));
    let others = others.into_iter().filter(|claim| may_be_ours(controller, claim)).map(|claim| claim.meta.key());
    let mut others: Vec<ObjectKey> = others.collect();
    others.sort();
    SourceSnapshot {
        facts: Arc::clone(facts),
        origin: origin.clone(),
        object,
        users,
        others,
        need: controller.needs.get(origin),
        is_awaited: !ours.is_empty(),
        told,
    }
}

/// Only our own driver fills volumes from what is ours to free. Before the claim is given to a driver its class tells.
fn may_be_ours(controller: &Controller, claim: &Claim) -> bool {
    let driver = &controller.facts.driver;
    match claim.storage_provisioner() {
        Some(provisioner) => provisioner == driver,
        None => {
            let class = controller.caches.classes.get(&ObjectKey::cluster(claim.class_name()));
            class.is_none_or(|class| class.provisioner == *driver)
        }
    }
}

fn object(controller: &Controller, origin: &Origin) -> Object {
    let caches = &controller.caches;
    match origin.kind {
        SourceKind::Claim => {
            let claim = caches.claims.view(&origin.key);
            let volume = match &claim {
                View::Known(claim) if claim.names_volume() => {
                    caches.volumes.view(&ObjectKey::cluster(&claim.spec.volume_name))
                }
                _ => View::Absent,
            };
            Object::Claim { claim, volume }
        }
        SourceKind::Snapshot => Object::Snapshot {
            snapshot: caches.snapshots.view(&origin.key),
            look: controller.looks.record(&origin.key),
            is_followed: caches.snapshots.is_followed(),
        },
    }
}
