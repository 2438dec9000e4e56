//! What is remembered of a decision that is about to be carried out: who waits for a volume, and since when.

use jiff::Timestamp;

use stowage_model::matching::delays_binding;
use stowage_model::object;
use stowage_model::phase::{ReclaimPolicy, VolumePhase};
use stowage_model::{Volume, migration};

use crate::controller::Controller;
use crate::decide::binder::reclaim::is_released;
use crate::decide::{Action, ClaimAction, Decision, Waiting, Why};
use crate::matchmaker::Outcome;
use crate::snapshot::{ClaimSnapshot, Snapshot, Told, VolumeSnapshot, Work};
use crate::watches::{Caches, Key};

/// Notes how a claim was left, for those that compete with it; says which claim to wake. It must be done before the next
/// claim is decided on, which else would not know who waits.
pub(crate) fn note_outcome(
    caches: &Caches,
    told: &Told,
    key: &Key,
    snapshot: &Snapshot,
    decision: &Decision<Action>,
) -> Option<object::Key> {
    match (key, snapshot) {
        (Key::Claim(_), Snapshot::Claim(s)) => {
            if decision.actions.is_empty() && decision.why == Why::Settled {
                told.forget(key);
            }
            caches.matchmaker.decided(&s.claim, &outcome(s, &decision.why), s.version)
        }
        // Gone or unreadable, it keeps no volume from those who wait.
        (Key::Claim(claim), _) => caches.matchmaker.forget(claim),
        _ => None,
    }
}

fn outcome(s: &ClaimSnapshot, why: &Why) -> Outcome {
    let delayed = || delays_binding(&s.claim, s.class.as_deref()).unwrap_or(true);
    match why {
        Why::Bind(pair) => Outcome::Takes(pair.volume.clone()),
        Why::Waiting(Waiting::Volume | Waiting::Provisioner | Waiting::Class) | Why::Provision | Why::DefaultClass
            if !delayed() && s.claim.data_source().is_none() =>
        {
            Outcome::Waits
        }
        _ => Outcome::Leaves,
    }
}

impl Controller {
    pub(crate) fn remember(&self, key: &Key, snapshot: &Snapshot, decision: &Decision<Action>, now: Timestamp) {
        if let Some(claim) = note_outcome(&self.caches, &self.told, key, snapshot, decision) {
            self.queue.add(Key::Claim(claim));
        }
        match (key, snapshot) {
            (Key::Claim(claim), _) => {
                let is_let_go = matches!(decision.actions[..], [Action::Claim(ClaimAction::Unprotect, _)]);
                if !is_let_go && !decision.is_half_way {
                    self.pod_lookups.forget(claim);
                }
                if let Snapshot::Claim(s) = snapshot {
                    self.note_provisioning(s, &decision.why, now);
                }
            }
            (Key::Volume(_), Snapshot::Volume(s)) => self.note_deleting(s, &decision.why, now),
            (Key::Volume(volume), Snapshot::Gone) if self.caches.volumes.get(volume).is_none() => {
                // What was still running when the volume went leaves a record that nobody asks for.
                let first = Work::first_of(volume.clone());
                let of_volume = self.operations.records_from(&first, |work| work.volume == *volume);
                of_volume.iter().for_each(|(work, _)| self.operations.forget(work));
            }
            _ => {}
        }
    }

    /// Provisioning and deleting are timed from the first decision in favour of them, whoever does the work.
    fn note_provisioning(&self, s: &ClaimSnapshot, why: &Why, now: Timestamp) {
        if !matches!(why, Why::Provision | Why::Waiting(Waiting::Provisioner | Waiting::Class)) {
            return;
        }
        let plugin = self.plugin_of_class(s.claim.class_name());
        // Where there is a plugin that only cannot make this volume, it was begun.
        let is_begun = plugin == migration::HOST_PATH && self.rules.host_path_provisioner;
        if *why != Why::Waiting(Waiting::Class) || is_begun {
            self.begun.start(s.claim.meta.key().to_string(), &plugin, "provision", now);
        }
    }

    fn note_deleting(&self, s: &VolumeSnapshot, why: &Why, now: Timestamp) {
        let volume = &*s.volume;
        if matches!(why, Why::ClaimGone | Why::ClaimElsewhere | Why::Reclaim | Why::Phase(VolumePhase::Failed))
            && is_deleted(volume)
        {
            let plugin = match migration::plugin_of_source(volume) {
                Some(plugin) if plugin == migration::HOST_PATH => plugin.to_owned(),
                _ => self.plugin_of_class(volume.class_name()),
            };
            self.begun.start(volume.meta.name.clone(), &plugin, "delete", now);
        }
    }

    /// The class's provisioner, under the name of the driver that stands for it; never a volume's annotation, which
    /// could be anything.
    fn plugin_of_class(&self, class: &str) -> String {
        let class = self.caches.classes.get(&object::Key::cluster(class));
        class
            .map(|class| migration::driver_of(&class.provisioner).unwrap_or(&class.provisioner).to_owned())
            .unwrap_or_default()
    }
}

fn is_deleted(volume: &Volume) -> bool {
    volume.spec.reclaim_policy == ReclaimPolicy::Delete
        && is_released(volume)
        && volume.migrated_to().is_none_or(str::is_empty)
}
