//! From the claim to a volume that is there already, or to the wish for a new one.

use stowage_model::annotations;
use stowage_model::claim::DataSource;
use stowage_model::class::default_class;
use stowage_model::matching;
use stowage_model::object::{Key, kinds};
use stowage_model::phase::{ClaimPhase, VolumePhase};
use stowage_model::{Claim, StorageClass, Volume};

use super::{View, behind, by_hand, kubectl, kubectl_claim, placing, provisioning, some, worst};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Who};

/// Why a claim has no volume.
pub fn causes(view: &View<'_>, claim: &Claim) -> Vec<Cause> {
    if claim.status.phase == ClaimPhase::Lost {
        return vec![lost(view, claim)];
    }
    if claim.names_volume() {
        return named_volume(view, claim);
    }
    if let Some(cause) = source(view, claim) {
        return vec![cause];
    }
    let class = claim.class_name();
    if !claim.has_class() {
        return no_class(view, claim);
    }
    match view.g.classes.named(class) {
        Look::There(class) if class.provisions() => of_class(view, claim, class),
        Look::There(class) => by_hand::causes(view, claim, Some(class)),
        Look::Absent if !class.is_empty() => by_hand::class_missing(view, claim),
        Look::Absent => by_hand::causes(view, claim, None),
        Look::Unread => provisioning::causes(view, claim, None),
    }
}

fn lost(view: &View<'_>, claim: &Claim) -> Cause {
    let name = &claim.spec.volume_name;
    let why = match view.g.volumes.named(name) {
        Look::Absent => format!("PersistentVolume {name:?}, to which it was bound, is gone"),
        Look::There(volume) if !volume.is_bound_to(claim) => {
            format!("spec.claimRef of PersistentVolume {name:?}, to which it was bound, names {}", owner(volume))
        }
        _ => format!("it has lost PersistentVolume {name:?}"),
    };
    let delete = format!("kubectl delete {}", kubectl_claim(claim));
    Cause::stuck(
        "claim-lost",
        Who::user(),
        why,
        format!("create the volume again with this claim in its spec.claimRef, or give the claim up: `{delete}`"),
    )
}

fn owner(volume: &Volume) -> String {
    match &volume.spec.claim_ref {
        Some(reference) => format!("claim {}", reference.key()),
        None => "no claim".to_owned(),
    }
}

fn named_volume(view: &View<'_>, claim: &Claim) -> Vec<Cause> {
    let name = &claim.spec.volume_name;
    let again = "spec.volumeName cannot be changed: delete the claim and create it anew with another volume";
    match view.g.volumes.named(name) {
        Look::Absent => vec![Cause::stuck(
            "volume-missing",
            Who::user(),
            format!("spec.volumeName is {name:?}, and there is no such PersistentVolume"),
            format!("create it, or {again}"),
        )],
        Look::There(volume) if volume.spec.claim_ref.is_some() && !volume.is_bound_to(claim) => {
            vec![taken(view, claim, volume, again)]
        }
        Look::There(volume) => match matching::satisfies(volume, claim) {
            Err(misfit) if !claim.is_bind_completed() => {
                vec![Cause::stuck("volume-mismatch", Who::user(), misfit.describe(volume, claim), again)]
            }
            _ => vec![binder(view, claim)],
        },
        Look::Unread => {
            let why = format!("spec.volumeName is {name:?}, and it is not bound to that");
            vec![view.unseen(kinds::VOLUME, claim.meta.creation_timestamp, why)]
        }
    }
}

/// Another claim has the volume that this one names.
fn taken(view: &View<'_>, claim: &Claim, volume: &Volume, again: &str) -> Cause {
    let name = &volume.meta.name;
    let reference = volume.spec.claim_ref.as_ref();
    let uid = reference.map(|reference| reference.uid.as_str()).unwrap_or_default();
    let is_same_name = reference.is_some_and(|one| one.key() == claim.meta.key()) && !uid.is_empty();
    let why = match is_same_name {
        true => {
            format!("spec.claimRef.uid of PersistentVolume {name:?} is {uid}, that of an earlier claim of this name")
        }
        false => format!("spec.claimRef of PersistentVolume {name:?} names {}", owner(volume)),
    };
    let way_out = match is_given_up(view, volume) {
        true => format!(
            "if its data may be given to this claim, free it: `kubectl patch pv {name} --type=json -p \
             '[{{\"op\":\"remove\",\"path\":\"/spec/claimRef\"}}]'`; otherwise {again}"
        ),
        false => again.to_owned(),
    };
    Cause::stuck("volume-taken", Who::user(), why, way_out)
}

/// Whether nobody loses data when its claim reference goes: the claim in it was looked for and is gone, and the
/// pv-controller knows that.
fn is_given_up(view: &View<'_>, volume: &Volume) -> bool {
    let Some(reference) = &volume.spec.claim_ref else { return false };
    let is_gone = match view.g.claims.look(&reference.key()) {
        Look::Absent => true,
        // A name is used again, a uid is not.
        Look::There(now) => !reference.uid.is_empty() && reference.uid != now.meta.uid,
        Look::Unread => false,
    };
    is_gone
        && matches!(volume.status.phase, VolumePhase::Released | VolumePhase::Available)
        && !volume.meta.is_deleting()
}

/// Everything is there that the pv-controller needs.
pub fn binder(view: &View<'_>, claim: &Claim) -> Cause {
    let who = view.who("pv-controller");
    let (why, way_out) = view.silence(&who);
    let since = claim.meta.creation_timestamp;
    view.slow("binder-silent", who, since, format!("it is to be bound or provisioned for, and is not: {why}"), way_out)
}

fn no_class(view: &View<'_>, claim: &Claim) -> Vec<Cause> {
    // Before a default class is looked for, a volume is.
    if by_hand::has_fit(view, claim) {
        return vec![binder(view, claim)];
    }
    let classes = &view.g.classes;
    if let Some(class) = default_class(classes.all()) {
        let way =
            format!("wait a moment, or look at the log of the pv-controller ({:?} is the default)", class.meta.name);
        let who = view.who("pv-controller");
        let why =
            format!("spec.storageClassName is not set, and the default class {:?} was not filled in", class.meta.name);
        return vec![view.slow("default-class-not-filled-in", who, claim.meta.creation_timestamp, why, way)];
    }
    if !classes.is_known {
        return vec![view.unseen(
            kinds::STORAGE_CLASS,
            None,
            "spec.storageClassName is not set, and no default was seen",
        )];
    }
    if !view.g.volumes.is_known {
        let why = "spec.storageClassName is not set, no StorageClass is the default, and no volume for it was seen";
        return vec![view.unseen(kinds::VOLUME, claim.meta.creation_timestamp, why)];
    }
    let names: Vec<&str> = classes.all().iter().map(|class| class.meta.name.as_str()).collect();
    let way_out = match names.first() {
        Some(first) => format!(
            "mark one as the default: `kubectl annotate storageclass {first} {}=true` (there are {}), or create the claim \
             anew with spec.storageClassName",
            annotations::DEFAULT_CLASS,
            some(names.iter().copied())
        ),
        None => {
            "install a CSI driver and create a StorageClass for it, or create a fitting PersistentVolume".to_owned()
        }
    };
    let why = format!(
        "spec.storageClassName is not set, no StorageClass is the default, and no volume without a class fits ({})",
        by_hand::misfits(view, claim)
    );
    vec![Cause::stuck("no-default-class", Who::user(), why, way_out)]
}

fn of_class(view: &View<'_>, claim: &Claim, class: &StorageClass) -> Vec<Cause> {
    if class.waits_for_consumer() && claim.selected_node().is_none() {
        return placing::first_consumer(view, claim, class);
    }
    if claim.storage_provisioner().is_none() {
        return vec![binder(view, claim)];
    }
    provisioning::causes(view, claim, Some(class))
}

/// What it is to be filled from is not there, or not ready.
fn source(view: &View<'_>, claim: &Claim) -> Option<Cause> {
    let is_read = |source: &&DataSource| source.namespace.is_none() && !provisioning::is_for_populator(source);
    let source = claim.data_source().filter(is_read)?;
    let key = Key::namespaced(claim.meta.namespace.as_str(), source.name.as_str());
    let missing = |kind: &str| {
        let why = format!("spec.dataSource names {kind} {:?}, which is not there", source.name);
        Cause::stuck(
            "source-missing",
            Who::user(),
            why,
            "create it, or delete the claim and create it without the source",
        )
    };
    if source.kind == kinds::VOLUME_SNAPSHOT.kind {
        let snapshots = &view.g.snapshots;
        return match snapshots.look(&key) {
            Look::Absent => Some(missing("VolumeSnapshot")),
            Look::There(snapshot) if !snapshot.is_ready() => {
                let why = format!(
                    "spec.dataSource names VolumeSnapshot {:?}, whose status.readyToUse is not true",
                    source.name
                );
                let way = format!("`stowage explain {}`", kubectl(kinds::VOLUME_SNAPSHOT.plural, &key));
                let inner = worst(super::snapshot::causes(view, snapshot))?;
                Some(behind(inner.clone(), "source-not-ready", format!("{why}: {}", inner.why), way))
            }
            _ => None,
        };
    }
    let is_claim = source.kind == kinds::CLAIM.kind;
    match view.g.claims.look(&key) {
        Look::Absent if is_claim => Some(missing("PersistentVolumeClaim")),
        Look::There(from) if is_claim && from.status.phase != ClaimPhase::Bound => {
            let why = format!("spec.dataSource names claim {:?}, whose phase is {}", source.name, from.status.phase);
            let way = format!("`stowage explain {}`", kubectl_claim(from));
            let since = claim.meta.creation_timestamp.max(from.meta.creation_timestamp);
            Some(view.slow("source-not-ready", Who::user(), since, why, way))
        }
        _ => None,
    }
}
