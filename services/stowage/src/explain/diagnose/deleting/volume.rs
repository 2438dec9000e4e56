//! A PersistentVolume that was deleted, or is to be when its claim is gone.

use stowage_model::object::kinds;
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::{Volume, finalizers};

use super::super::leader::driver_of;
use super::super::{View, attaching, behind, kubectl_claim, quoted, worst};
use super::{foreign, gone_soon, unneeded, unreleased};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Who};

/// What is told of data that could not be deleted or erased.
const FAILURES: [&str; 2] = ["VolumeFailedDelete", "VolumeFailedRecycle"];

/// Begins the finalizers of attachers, one for each driver.
const OF_ATTACHER: &str = "external-attacher/";

/// Why a deleted volume is still there.
pub fn volume(view: &View<'_>, volume: &Volume) -> Vec<Cause> {
    let meta = &volume.meta;
    if meta.finalizers.is_empty() {
        return vec![gone_soon(view, meta)];
    }
    let held = |finalizer: &str| match finalizer {
        finalizers::VOLUME_PROTECTION => vec![still_bound(view, volume)],
        finalizers::PROVISIONER => delete_in_driver(view, volume),
        finalizers::IN_TREE_DELETER => vec![unreleased(view, view.who("pv-controller"), meta, finalizer)],
        other if other.starts_with(OF_ATTACHER) => vec![still_attached(view, volume, other)],
        other => vec![foreign(view, meta, kinds::VOLUME, other)],
    };
    // The one that the others wait for comes first.
    let order = |finalizer: &&str| match *finalizer {
        finalizers::VOLUME_PROTECTION => 0,
        other if other.starts_with(OF_ATTACHER) => 1,
        finalizers::PROVISIONER => 2,
        _ => 3,
    };
    let mut held_by: Vec<&str> = meta.finalizers.iter().map(|finalizer| &**finalizer).collect();
    held_by.sort_by_key(order);
    held_by.into_iter().flat_map(held).collect()
}

fn still_bound(view: &View<'_>, volume: &Volume) -> Cause {
    let finalizer = finalizers::VOLUME_PROTECTION;
    let reference = volume.spec.claim_ref.as_ref().filter(|_| volume.status.phase == VolumePhase::Bound);
    let claim = reference.map(|reference| reference.key());
    match claim.as_ref().map(|key| view.g.claims.look(key)) {
        Some(Look::There(claim)) => {
            let why = format!("finalizer {finalizer}: bound to claim {}", claim.meta.key());
            if claim.meta.is_deleting()
                && let Some(inner) = worst(super::claim(view, claim))
            {
                let way_out = format!("the claim is being deleted: `stowage explain {}`", kubectl_claim(claim));
                return behind(inner, "bound-to-claim", why, way_out);
            }
            let way_out =
                format!("delete the claim, if its data is not needed: `kubectl delete {}`", kubectl_claim(claim));
            view.slow("bound-to-claim", Who::user(), volume.meta.deletion_timestamp, why, way_out)
        }
        Some(Look::Unread) => {
            let why = format!("finalizer {finalizer} is held, and status.phase is Bound");
            view.unseen(kinds::CLAIM, volume.meta.deletion_timestamp, why)
        }
        _ => unreleased(view, view.who("pv-controller"), &volume.meta, finalizer),
    }
}

fn still_attached(view: &View<'_>, volume: &Volume, finalizer: &str) -> Cause {
    match view.attachments_of(&volume.meta.name).next() {
        Some(attachment) => attaching::detaching(view, attachment, volume.meta.deletion_timestamp),
        None => {
            // The finalizer has the driver's name as its Lease has it.
            let driver = finalizer.strip_prefix(OF_ATTACHER).unwrap_or(finalizer);
            let driver = driver_of(volume).unwrap_or(driver);
            unneeded(view, &view.g.attachments, view.sidecar("attacher", driver), &volume.meta, finalizer)
        }
    }
}

/// Its data is to be deleted, or whoever was asked refuses.
pub fn delete_in_driver(view: &View<'_>, volume: &Volume) -> Vec<Cause> {
    let who = view.deleter_of(volume);
    let mut causes = Vec::new();
    if let Some(told) = view.complaint(volume, &FAILURES, &["VolumeDeleted", "VolumeRecycled"]) {
        let way_out = "remove what is named; it is tried again by itself";
        causes.push(Cause::stuck("delete-failed", who.clone(), quoted(told, view.now), way_out));
    } else if volume.status.phase == VolumePhase::Failed && !volume.status.message.is_empty() {
        let why = format!("{} (status.message)", volume.status.message);
        causes.push(Cause::stuck(
            "delete-failed",
            who.clone(),
            why,
            "remove what is named; it is tried again by itself",
        ));
    }
    let since = volume.meta.deletion_timestamp.or(volume.status.last_phase_transition_time);
    let attached = view.attachments_of(&volume.meta.name).next();
    causes.extend(attached.map(|one| attaching::detaching(view, one, since)));
    let may_be_attached = driver_of(volume).is_some() && !view.g.attachments.is_known;
    if causes.is_empty() && may_be_attached && !view.is_dead(&who) {
        let why = "its data is not deleted yet, which waits until it is attached nowhere";
        causes.push(view.unseen(kinds::VOLUME_ATTACHMENT, since, why));
    }
    if causes.is_empty() {
        let (silence, way_out) = view.silence(&who);
        let done = if volume.spec.reclaim_policy == ReclaimPolicy::Recycle { "erased" } else { "deleted" };
        causes.push(view.slow("deleter-silent", who, since, format!("its data is not {done} yet: {silence}"), way_out));
    }
    causes
}
