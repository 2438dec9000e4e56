//! Who must act, and whether that component is alive, by its Lease.

use std::collections::BTreeSet;

use jiff::SignedDuration;

use stowage_model::Lease;
use stowage_model::object::Projection as _;
use stowage_services::SERVICES;

use super::View;
use crate::explain::report::{Leader, Who, ago};

/// Clocks of this machine and of the holder may differ, and a busy API server takes its time.
const SLACK: SignedDuration = SignedDuration::from_secs(30);

/// client-go's lease duration, where a Lease does not say.
const USUAL: SignedDuration = SignedDuration::from_secs(15);

/// The originals of these services are parts of one process, with its Lease.
const CONTROLLER_MANAGER: &str = "kube-controller-manager";

fn names(service: &str, driver: &str) -> Vec<String> {
    let own = SERVICES.iter().find(|one| one.name == service).and_then(|service| service.lease_name(driver));
    let others = matches!(service, "pv-controller" | "attach-detach-controller").then(|| CONTROLLER_MANAGER.to_owned());
    own.into_iter().chain(others).collect()
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
        Who { component: service.to_owned(), leader: self.leader(names(service, "")) }
    }

    /// A driver's sidecar.
    pub(super) fn sidecar(&self, service: &str, driver: &str) -> Who {
        Who { component: format!("{service} of {driver}"), leader: self.leader(names(service, driver)) }
    }

    fn leader(&self, names: Vec<String>) -> Leader {
        let of_names = |lease: &&Lease| names.contains(&lease.meta.name);
        let latest = self.g.leases.objects.iter().filter(of_names).max_by_key(|lease| lease.spec.renew_time);
        let Some(latest) = latest else {
            return if self.g.leases.is_known { Leader::Absent { names } } else { Leader::Unread };
        };
        let (lease, renewed) = (latest.key(), latest.spec.renew_time);
        let Some(holder) = latest.holder() else { return Leader::Released { lease } };
        let holder = holder.to_owned();
        let lasts = if latest.duration().is_zero() { USUAL } else { latest.duration() };
        let is_alive = renewed.is_some_and(|renewed| self.now.duration_since(renewed) <= lasts + SLACK);
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
            Leader::Released { lease } => (format!("{component} has stopped: nobody holds Lease {lease}"), restart),
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

    /// Whether its Lease proves that nobody works.
    pub(super) fn is_dead(&self, who: &Who) -> bool {
        matches!(who.leader, Leader::Stale { .. } | Leader::Released { .. })
    }
}
