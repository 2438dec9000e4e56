//! The life of a claim, from its creation to the pod that runs with it.

use stowage_model::object::Projection as _;
use stowage_model::phase::ClaimPhase;
use stowage_model::{Claim, Pod, Volume};

use super::{Steps, View, binding, by_hand, deleting, growing, pod};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Mark, Story};

pub fn story(view: &View<'_>, claim: &Claim) -> Story {
    let meta = &claim.meta;
    let created = meta.creation_timestamp;
    let mut steps = Steps::new();
    steps.add("claim created", true, created);
    let is_bound = claim.is_fully_bound() && claim.status.phase == ClaimPhase::Bound;
    binding_steps(view, claim, is_bound, &mut steps);
    let mut causes = Vec::new();
    if let Some(since) = meta.deletion_timestamp {
        steps.0.retain(|step| step.mark == Mark::Done);
        steps.add("deleted", false, Some(since));
        causes.extend(deleting::claim(view, claim));
    } else if !is_bound {
        causes.extend(binding::causes(view, claim));
    } else {
        let volume = view.g.volumes.named(&claim.spec.volume_name).there();
        if let Some(user) = unready_user(view, claim) {
            causes.extend(pod::life(view, user, &mut steps, false));
        }
        if let Some(volume) = volume {
            causes.extend(growing::causes(view, claim, volume, &mut steps));
        }
    }
    let phase = if meta.is_deleting() { "Terminating".to_owned() } else { claim.status.phase.to_string() };
    let here = steps.0.iter().find(|step| step.mark == Mark::Here);
    let since = meta.deletion_timestamp.or_else(|| here.and_then(|step| step.since)).or(created);
    Story { kind: Claim::KIND, key: meta.key(), phase, since, steps: steps.0, causes: once_sorted(causes) }
}

/// A pod that uses the claim and does not run yet; where one waits of many, that one.
fn unready_user<'a>(view: &View<'a>, claim: &Claim) -> Option<&'a Pod> {
    let users = view.users_of(&claim.meta.key());
    let waits = |pod: &&&Pod| pod.status.phase != stowage_model::phase::PodPhase::Running && !pod.meta.is_deleting();
    users.iter().find(waits).copied()
}

/// Up to the bound claim.
fn binding_steps(view: &View<'_>, claim: &Claim, is_bound: bool, steps: &mut Steps) {
    let created = claim.meta.creation_timestamp;
    let class = view.g.classes.named(claim.class_name());
    let name = claim.class_name();
    match &class {
        Look::There(class) if class.provisions() => {
            steps.add(format!("class {name:?} has provisioner {}", class.provisioner), true, None);
            if class.waits_for_consumer() {
                let node = claim.selected_node();
                let chosen = node.map_or_else(String::new, |node| format!(" ({node})"));
                let label = format!("scheduler chooses a node for the first pod{chosen}");
                steps.add(label, node.is_some() || is_bound, created);
            }
            let is_made = is_bound || volume_for(view, claim).is_some();
            let asked = claim.storage_provisioner().is_some();
            steps.add("pv-controller asks the provisioner", asked || is_made, created);
            steps.add(format!("{} makes the volume", class.provisioner), is_made, created);
        }
        Look::There(_) => steps.add(format!("class {name:?} makes no volumes"), true, None),
        // A volume that somebody has made needs none.
        Look::Absent if is_bound || by_hand::has_fit(view, claim) => {}
        Look::Absent if !name.is_empty() => steps.add(format!("class {name:?} is there"), false, created),
        Look::Absent if !claim.has_class() => steps.add("a class is chosen", false, created),
        Look::Absent | Look::Unread => {}
    }
    let volume = &claim.spec.volume_name;
    let to = if volume.is_empty() { String::new() } else { format!(" to {volume}") };
    steps.add(format!("pv-controller binds it{to}"), is_bound, created);
}

/// The volume that was made for it, bound or not.
fn volume_for<'a>(view: &View<'a>, claim: &Claim) -> Option<&'a Volume> {
    view.g.volumes.named(&claim.provisioned_volume_name()).there()
}

fn once_sorted(causes: Vec<Cause>) -> Vec<Cause> {
    let mut causes = pod::each_once(causes);
    // Stable: among equally bad ones the most exact stays first.
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.state));
    causes
}
