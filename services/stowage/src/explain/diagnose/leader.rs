//! Who must act, and whether that component is alive, by its Lease.

use std::collections::BTreeSet;

use jiff::{SignedDuration, Timestamp};

use stowage_model::migration::IN_TREE;
use stowage_model::object::Projection as _;
use stowage_model::phase::ReclaimPolicy;
use stowage_model::{Lease, Volume};

use super::View;
use crate::explain::report::{Leader, Who, ago};

/// Clocks of this machine and of the holder may differ, and a busy API server takes its time.
pub(super) const SLACK: SignedDuration = SignedDuration::from_secs(30);

/// client-go's lease duration, where a Lease does not say.
const USUAL: SignedDuration = SignedDuration::from_secs(15);

/// The originals of these services are parts of one process, with its Lease.
const CONTROLLER_MANAGER: &str = "kube-controller-manager";

fn names(service: &str, driver: &str) -> Vec<String> {
    let own = match driver.contains('/') {
        // No CSI driver: the library of its provisioner knows one rule only.
        true => (service == "provisioner").then(|| driver.replace('/', "-")),
        false => stowage_services::find(service).and_then(|service| service.lease_name(driver)),
    };
    let others = matches!(service, "pv-controller" | "attach-detach-controller").then(|| CONTROLLER_MANAGER.to_owned());
    own.into_iter().chain(others).collect()
}

/// Where its Lease must be, and that of what it stands in for; empty for one that has it where it chooses.
fn namespace(service: &str) -> &'static str {
    stowage_services::find(service).and_then(|service| service.lease).map_or("", |(namespace, _)| namespace)
}

/// The CSI driver of a volume, its own or the one that took it over.
pub fn driver_of(volume: &Volume) -> Option<&str> {
    volume.spec.csi.as_ref().map(|csi| csi.driver.as_str()).or_else(|| volume.migrated_to())
}

/// Every Lease that a report may look at.
pub fn lease_names(drivers: &BTreeSet<String>) -> BTreeSet<String> {
    let mut all = BTreeSet::new();
    for driver in drivers {
        for service in ["provisioner", "attacher", "resizer", "snapshotter"] {
            all.extend(names(service, driver));
        }
    }
    for service in ["pv-controller", "attach-detach-controller", "scheduler", "snapshot-controller"] {
        all.extend(names(service, ""));
    }
    all
}

impl View<'_> {
    /// A component of the cluster.
    pub(super) fn who(&self, service: &str) -> Who {
        Who { component: service.to_owned(), leader: self.leader(service, "") }
    }

    /// A driver's sidecar.
    pub(super) fn sidecar(&self, service: &str, driver: &str) -> Who {
        Who { component: format!("{service} of {driver}"), leader: self.leader(service, driver) }
    }

    /// Who deletes a volume's data: whoever made it. What no CSI driver has, and all that is only erased, is the
    /// pv-controller's.
    pub(super) fn deleter_of(&self, volume: &Volume) -> Who {
        let made_by = volume.provisioned_by().filter(|name| !name.is_empty() && !name.starts_with(IN_TREE));
        match made_by.or_else(|| driver_of(volume)) {
            Some(driver) if volume.spec.reclaim_policy != ReclaimPolicy::Recycle => self.sidecar("provisioner", driver),
            _ => self.who("pv-controller"),
        }
    }

    /// Who expands a volume: of one without a CSI driver a part of the pv-controller's process.
    pub(super) fn resizer_of(&self, volume: &Volume) -> Who {
        match driver_of(volume) {
            Some(driver) => self.sidecar("resizer", driver),
            None => self.who("pv-controller"),
        }
    }

    fn leader(&self, service: &str, driver: &str) -> Leader {
        let (namespace, names) = (namespace(service), names(service, driver));
        let is_there = |lease: &&Lease| namespace.is_empty() || lease.meta.namespace == namespace;
        let leases = names.iter().flat_map(|name| self.index.leases(name)).copied().filter(is_there);
        // Whoever may write Leases somewhere could outdo the true one with a time that never comes.
        let is_ahead = |lease: &&Lease| lease.spec.renew_time.is_some_and(|at| at > self.now + SLACK);
        let (ahead, credible): (Vec<&Lease>, Vec<&Lease>) = leases.partition(is_ahead);
        let Some(latest) = credible.into_iter().max_by_key(|lease| lease.spec.renew_time) else {
            return match ahead.first() {
                Some(lease) => Leader::Ahead { lease: lease.key() },
                None if self.g.leases.is_known => Leader::Absent { names },
                None => Leader::Unread,
            };
        };
        let (lease, renewed) = (latest.key(), latest.spec.renew_time);
        let lasts = if latest.duration().is_zero() { USUAL } else { latest.duration() };
        // Up to then its holder may have worked and died.
        let is_valid = |renewed: Timestamp, at: Timestamp| at.duration_since(renewed) <= lasts + SLACK;
        if let (Some(renewed), Some(worked)) = (renewed, self.work.last(service, driver))
            && !is_valid(renewed, worked)
        {
            return Leader::Abandoned { lease, renewed };
        }
        let Some(holder) = latest.holder() else { return Leader::Released { lease, renewed } };
        let holder = holder.to_owned();
        let is_alive = renewed.is_some_and(|renewed| is_valid(renewed, self.now));
        if is_alive { Leader::Alive { lease, holder, renewed } } else { Leader::Stale { lease, holder, renewed } }
    }

    /// What its Lease says of somebody who does nothing, and what to do about it.
    pub(super) fn silence(&self, who: &Who) -> (String, String) {
        let component = &who.component;
        let told =
            if self.g.events.is_known { "has told nothing" } else { "may have told something that was not read" };
        let restart = format!("see that {component} runs: `kubectl get pods -A` and its log");
        match &who.leader {
            Leader::Alive { lease, holder, .. } => (
                format!("{component} is alive ({holder} holds Lease {lease}) and {told}"),
                format!("read the log of {holder}, which holds the Lease of {component}"),
            ),
            Leader::Stale { lease, holder, renewed } => {
                let since = renewed.map(|at| format!(" for {}", ago(at, self.now))).unwrap_or_default();
                (format!("{component} is dead: {holder} has not renewed Lease {lease}{since}"), restart)
            }
            Leader::Released { lease, .. } => (format!("{component} has stopped: nobody holds Lease {lease}"), restart),
            Leader::Abandoned { lease, renewed } => {
                let since = ago(*renewed, self.now);
                let why = format!(
                    "{component} {told} of this; Lease {lease} was left {since} ago, and it has worked since without"
                );
                (why, restart)
            }
            Leader::Ahead { lease } => {
                (format!("{component} {told}, and Lease {lease} was renewed in the future"), restart)
            }
            Leader::Absent { names } => (
                format!(
                    "{component} {told}, and there is no Lease {}: it runs without leader election, or not \
                     at all",
                    names.join(" or ")
                ),
                restart,
            ),
            Leader::None | Leader::Unread => (format!("{component} {told}"), restart),
        }
    }

    /// When a dead component was seen last.
    pub(super) fn dead_since(&self, who: &Who) -> Option<Timestamp> {
        match &who.leader {
            Leader::Stale { renewed, .. } | Leader::Released { renewed, .. } if self.is_dead(who) => *renewed,
            _ => None,
        }
    }

    /// Whether its Lease proves that nobody works.
    pub(super) fn is_dead(&self, who: &Who) -> bool {
        match &who.leader {
            Leader::Stale { .. } => true,
            // In a rolling update somebody takes it at once.
            Leader::Released { renewed, .. } => renewed.is_none_or(|renewed| self.now.duration_since(renewed) > SLACK),
            _ => false,
        }
    }
}
