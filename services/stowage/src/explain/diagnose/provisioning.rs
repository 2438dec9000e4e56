//! The volume is to be made: by the provisioner of the class's driver.

use stowage_model::claim::DataSource;
use stowage_model::object::kinds;
use stowage_model::quantity::Quantity;
use stowage_model::{Claim, StorageClass};

use super::{View, kubectl_claim, quoted};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Leader, State, Who};

/// Told when the driver is asked, by the original at every try and by ours where it takes long.
const ASKED: &str = "Provisioning";

/// Told when the driver has answered, or the call was given up.
const ENDS: [&str; 2] = ["ProvisioningFailed", "ProvisioningSucceeded"];

/// Why no volume was made.
pub fn causes(view: &View<'_>, claim: &Claim, class: Option<&StorageClass>) -> Vec<Cause> {
    let Some(driver) = claim.storage_provisioner().or_else(|| class.map(|class| class.provisioner.as_str())) else {
        // Whether it waits for a pod, and whether its class is there at all, is said by the class.
        return vec![view.unseen(kinds::STORAGE_CLASS, None, "it has no volume, and its class was not seen")];
    };
    let who = view.sidecar("provisioner", driver);
    if let Some(source) = claim.data_source().filter(|source| is_for_populator(source)) {
        return vec![populating(view, claim, source)];
    }
    if let Some(cause) = asked(view, claim, &who) {
        return vec![cause];
    }
    let mut causes = Vec::new();
    causes.extend(refused(view, claim, &who));
    causes.extend(selected_node(view, claim, driver));
    causes.extend(no_room(view, claim, driver));
    causes.extend(nobody(view, claim, driver, &who));
    if causes.is_empty() {
        let (silence, way_out) = view.silence(&who);
        let since = claim.meta.creation_timestamp;
        let id = if view.is_dead(&who) { "provisioner-dead" } else { "provisioner-silent" };
        causes.push(view.slow(id, who, since, silence, way_out));
    }
    causes
}

/// Whether neither the provisioner nor this command knows what it is: whoever has registered the kind fills the volume.
pub fn is_for_populator(source: &DataSource) -> bool {
    let group = source.api_group.as_deref().unwrap_or_default();
    let known = [kinds::VOLUME_SNAPSHOT, kinds::CLAIM];
    !known.iter().any(|kind| kind.kind == source.kind && (group.is_empty() || group == kind.group))
}

/// Somebody else fills the volume, for which the provisioner is asked under another claim.
fn populating(view: &View<'_>, claim: &Claim, source: &DataSource) -> Cause {
    let (kind, name) = (&source.kind, &source.name);
    let kind = match source.api_group.as_deref() {
        Some(group) if !group.is_empty() => format!("{kind}.{group}"),
        _ => kind.clone(),
    };
    let who = Who::named(format!("the populator of {kind}"));
    let told = view.told(claim).into_iter().find(|told| told.is_warning());
    let words = told.map(|told| format!("; its last warning: {}", quoted(told, view.now))).unwrap_or_default();
    let why = format!("spec.dataSourceRef names {kind} {name:?}, from which a populator fills the volume{words}");
    let namespace = source.namespace.as_deref().unwrap_or(&claim.meta.namespace);
    let way_out = format!(
        "see what it tells (`kubectl describe {}`), that `kubectl get {kind} {name} -n {namespace}` finds it, and that its \
         populator is installed (`kubectl get volumepopulators`)",
        kubectl_claim(claim)
    );
    let cause = Cause::stuck("waits-for-populator", who, why, way_out);
    if told.is_some_and(|told| told.reason == "UnrecognizedDataSourceKind") {
        return Cause { id: "populator-missing", ..cause };
    }
    // However long it takes: an import of an image has its own object that tells.
    Cause { state: State::Working, ..cause }
}

/// The provisioner has begun to ask the driver since its last failure. How long that takes is the driver's to say.
fn asked(view: &View<'_>, claim: &Claim, who: &Who) -> Option<Cause> {
    let asked = view.told(claim).into_iter().find(|told| told.reason == ASKED)?;
    let failed = view.told(claim).into_iter().find(|told| ENDS.contains(&told.reason.as_str()));
    // Of one second the end is later than the beginning.
    if view.is_dead(who) || failed.is_some_and(|failed| failed.last() >= asked.last()) {
        return None;
    }
    let before = failed.map(|failed| format!("; before that: {}", quoted(failed, view.now))).unwrap_or_default();
    let why = format!("the driver was asked and has not answered yet: {}{before}", quoted(asked, view.now));
    let way_out = "wait; if it takes longer than the driver should, read the driver's log";
    let cause = Cause::stuck("driver-at-work", who.clone(), why, way_out);
    Some(Cause { state: State::Working, ..cause })
}

/// The driver's own words.
fn refused(view: &View<'_>, claim: &Claim, who: &Who) -> Option<Cause> {
    let told = view.complaint(claim, &["ProvisioningFailed"], &["ProvisioningSucceeded"])?;
    let text = &told.message;
    let way_out = if text.contains("ResourceExhausted") || text.contains("OutOfRange") {
        "make room in the driver's storage, or delete the claim and create it anew with a size that fits; it is tried \
         again by itself"
            .to_owned()
    } else if text.contains("InvalidArgument") {
        let class = claim.class_name();
        format!(
            "correct the parameters: `kubectl get storageclass {class} -o yaml` (a class is deleted and created anew)"
        )
    } else {
        format!(
            "remove what the driver names; it is tried again by itself (`kubectl describe {}`)",
            kubectl_claim(claim)
        )
    };
    Some(Cause::stuck("provisioning-failed", who.clone(), quoted(told, view.now), way_out))
}

fn selected_node(view: &View<'_>, claim: &Claim, driver: &str) -> Option<Cause> {
    let node = claim.selected_node()?;
    let is_absent = match view.g.csi_nodes.named(node) {
        Look::There(csi_node) => csi_node.driver(driver).is_none(),
        Look::Absent => true,
        Look::Unread => false,
    };
    // One that is not of CSI has no CSINode at all.
    let is_csi = view.g.drivers.named(driver).there().is_some();
    if !is_absent || !is_csi {
        return None;
    }
    Some(Cause::stuck(
        "driver-not-on-node",
        Who::named(format!("the node part of {driver} on {node}")),
        format!("the scheduler chose node {node}, and CSINode {node} does not list driver {driver} in spec.drivers"),
        format!(
            "see that the driver's pod on {node} runs: `kubectl get pods -A --field-selector spec.nodeName={node}`"
        ),
    ))
}

/// What the driver says of its room.
fn no_room(view: &View<'_>, claim: &Claim, driver: &str) -> Option<Cause> {
    let tells = view.g.drivers.named(driver).there().is_some_and(|driver| driver.spec.storage_capacity);
    if !tells || !view.g.capacities.is_known {
        return None;
    }
    let of_class = view.g.capacities.all().iter().filter(|one| one.storage_class_name == claim.class_name());
    let largest: Option<Quantity> = of_class.filter_map(|one| one.limit()).max();
    let largest = largest.filter(|largest| *largest < claim.requested())?;
    Some(Cause::stuck(
        "no-capacity",
        Who::user(),
        format!(
            "the claim asks for {}, and the most that any CSIStorageCapacity of class {:?} offers is {largest}",
            claim.requested(),
            claim.class_name()
        ),
        format!("make room in the storage of {driver}, or create the claim anew with at most {largest}"),
    ))
}

/// Nobody of that name is installed.
fn nobody(view: &View<'_>, claim: &Claim, driver: &str, who: &Who) -> Option<Cause> {
    let Leader::Absent { names } = &who.leader else { return None };
    // Only CSI drivers have those objects, and no name of one has a slash.
    if driver.contains('/') {
        return None;
    }
    let is_registered = view.g.csi_nodes.all().iter().any(|node| node.driver(driver).is_some());
    let has_told = view.told(claim).iter().any(|told| told.component().contains(driver));
    let is_known = view.g.csi_nodes.is_known && view.g.drivers.named(driver).is_absent();
    if !is_known || is_registered || has_told {
        return None;
    }
    let why = format!(
        "provisioner {driver:?} was asked and does not seem to be installed: there is no CSIDriver of that name, no CSINode \
         lists it, there is no Lease {}",
        names.join(" or ")
    );
    let way_out = format!("install the driver {driver}, or create the claim anew with the class of another");
    Some(view.slow("provisioner-absent", who.clone(), claim.meta.creation_timestamp, why, way_out))
}
