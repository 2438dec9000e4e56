//! From the pod on its node to the volume attached there.

use jiff::Timestamp;

use stowage_model::object::kinds;
use stowage_model::{Claim, CsiDriver, Node, Pod, Volume, VolumeAttachment};

use super::{Steps, View, some};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Who, ago};

/// Adds the steps of one volume of a pod on a node, and says why it is not attached there.
pub fn causes(view: &View<'_>, pod: &Pod, claim: &Claim, volume: &Volume, steps: &mut Steps) -> Vec<Cause> {
    let Some(csi) = &volume.spec.csi else { return Vec::new() };
    let node = pod.spec.node_name.as_str();
    let driver = view.g.drivers.named(&csi.driver);
    let needs_attach = match &driver {
        Look::There(driver) => CsiDriver::needs_attach(driver),
        // Without the object, Kubernetes attaches.
        Look::Absent => true,
        Look::Unread => view.attachments_of(&volume.meta.name).next().is_some(),
    };
    if !needs_attach {
        return not_on_node(view, &csi.driver, node).into_iter().collect();
    }
    let here = view.attachments_of(&volume.meta.name).find(|one| one.spec.node_name == node && !one.meta.is_deleting());
    let found_node = view.g.nodes.named(node).there();
    let is_attached = here.is_some_and(|one| one.status.attached);
    let unique = csi.unique_name();
    let is_reported = found_node.is_some_and(|node| node.is_attached(unique.as_str()));
    let name = &claim.meta.name;
    let is_seen = view.g.attachments.is_known || view.attachments_of(&volume.meta.name).next().is_some();
    if !is_seen {
        // The node's own list is the other place that tells it.
        if is_reported {
            steps.add(format!("{name}: node {node} is told (status.volumesAttached)"), true, None);
            return Vec::new();
        }
        return not_wanted(view, pod, claim, volume);
    }
    steps.add(
        format!("{name}: attach-detach-controller wants it attached to {node}"),
        here.is_some(),
        here.map_or_else(|| pod.status.start_time.or_else(|| scheduled_at(pod)), |one| one.meta.creation_timestamp),
    );
    steps.add(format!("{name}: attacher attaches it"), is_attached, here.and_then(|one| one.meta.creation_timestamp));
    if found_node.is_some() {
        steps.add(format!("{name}: node {node} is told (status.volumesAttached)"), is_reported, None);
    }

    match here {
        Some(one) if !one.status.attached => not_attached(view, one, &csi.driver),
        Some(one) if !is_reported && found_node.is_some() => {
            let who = view.who("attach-detach-controller");
            let (silence, way_out) = view.silence(&who);
            let why = format!(
                "VolumeAttachment {} is attached, and status.volumesAttached of node {node} does not list it: {silence}",
                one.meta.name
            );
            vec![view.slow("not-reported", who, one.meta.creation_timestamp, why, way_out)]
        }
        Some(_) => Vec::new(),
        None => not_wanted(view, pod, claim, volume),
    }
}

/// When the pod came to its node.
pub fn scheduled_at(pod: &Pod) -> Option<Timestamp> {
    let condition = stowage_model::condition::find(&pod.status.conditions, "PodScheduled")?;
    condition.last_transition_time.filter(|_| condition.is_true())
}

fn not_attached(view: &View<'_>, one: &VolumeAttachment, driver: &str) -> Vec<Cause> {
    let node = &one.spec.node_name;
    let who = view.sidecar("attacher", driver);
    let mut causes = Vec::new();
    if let Some(error) = &one.status.attach_error {
        let when = error.time.map(|at| format!(", {} ago", ago(at, view.now))).unwrap_or_default();
        let code = error.error_code.map(|code| format!(", gRPC code {code}")).unwrap_or_default();
        let why = format!(
            "attaching to {node} failed: {} (status.attachError of VolumeAttachment {}{code}{when})",
            error.message, one.meta.name
        );
        let way_out = "remove what the driver names; it is tried again by itself".to_owned();
        causes.push(Cause::stuck("attach-failed", who.clone(), why, way_out));
    }
    causes.extend(not_on_node(view, driver, node));
    if causes.is_empty() {
        let (silence, way_out) = view.silence(&who);
        let why = format!("status.attached of VolumeAttachment {} is false: {silence}", one.meta.name);
        causes.push(view.slow("attacher-silent", who, one.meta.creation_timestamp, why, way_out));
    }
    causes
}

/// The driver is not registered where the pod is.
pub fn not_on_node(view: &View<'_>, driver: &str, node: &str) -> Option<Cause> {
    let found = match view.g.csi_nodes.named(node) {
        Look::There(found) if found.driver(driver).is_some() => return None,
        Look::Unread => return None,
        Look::There(found) => {
            let there: Vec<&str> = found.spec.drivers.iter().map(|one| one.name.as_str()).collect();
            let there = if there.is_empty() { "none".to_owned() } else { some(there) };
            format!("spec.drivers of CSINode {node} does not list {driver} (it has {there})")
        }
        Look::Absent => format!("there is no CSINode {node}: no CSI driver was ever registered there"),
    };
    Some(Cause::stuck(
        "driver-not-on-node",
        Who::named(format!("the node part of {driver} on {node}")),
        found,
        format!(
            "see that the driver's pod and its node-driver-registrar run on {node}: `kubectl get pods -A --field-selector \
             spec.nodeName={node}`"
        ),
    ))
}

/// There is no VolumeAttachment for the node.
fn not_wanted(view: &View<'_>, pod: &Pod, claim: &Claim, volume: &Volume) -> Vec<Cause> {
    let node = pod.spec.node_name.as_str();
    let elsewhere = view.attachments_of(&volume.meta.name).find(|one| one.spec.node_name != node);
    let leaving = view.attachments_of(&volume.meta.name).find(|one| one.spec.node_name == node);
    if let Some(old) = elsewhere.filter(|_| !volume.spec.access_modes.allow_many_nodes()) {
        return held_elsewhere(view, claim, volume, old, scheduled_at(pod));
    }
    if let Some(old) = leaving {
        return vec![detaching(view, old, scheduled_at(pod))];
    }
    let driver = volume.spec.csi.as_ref().map_or("", |csi| csi.driver.as_str());
    if let Some(cause) = not_on_node(view, driver, node) {
        return vec![cause];
    }
    if !view.g.attachments.is_known {
        let why = format!("whether PersistentVolume {:?} is attached to node {node} is not known", volume.meta.name);
        return vec![view.unseen(kinds::VOLUME_ATTACHMENT, scheduled_at(pod), why)];
    }
    let who = view.who("attach-detach-controller");
    let (silence, way_out) = view.silence(&who);
    let why =
        format!("there is no VolumeAttachment of PersistentVolume {:?} for node {node}: {silence}", volume.meta.name);
    vec![view.slow("attach-not-wanted", who, scheduled_at(pod), why, way_out)]
}

/// A volume of one node is still on another one.
fn held_elsewhere(
    view: &View<'_>,
    claim: &Claim,
    volume: &Volume,
    old: &VolumeAttachment,
    since: Option<Timestamp>,
) -> Vec<Cause> {
    let there = old.spec.node_name.as_str();
    let users: Vec<&Pod> =
        view.users_of(&claim.meta.key()).into_iter().filter(|pod| pod.spec.node_name == there).collect();
    let modes = volume.spec.access_modes;
    let base = format!("PersistentVolume {:?} ({modes}) is still attached to node {there}", volume.meta.name);
    let node = view.g.nodes.named(there).there();
    let mut causes = Vec::new();
    // From a node that is gone, or said to be out of service, it is detached whoever used it there.
    let is_given_up = view.g.nodes.named(there).is_absent() || node.is_some_and(Node::is_out_of_service);
    if is_given_up {
        return vec![detaching(view, old, since)];
    }
    if node.is_some_and(|node| !node.is_ready()) {
        let why = format!("{base}, which is not ready, so nobody knows whether it still writes");
        let way_out = format!(
            "once {there} is certainly off: `kubectl taint node {there} \
             node.kubernetes.io/out-of-service=nodeshutdown:NoExecute`; or bring it back"
        );
        causes.push(Cause::stuck("held-by-dead-node", Who::user(), why, way_out));
    } else if let Some(user) = users.iter().find(|pod| !pod.meta.is_deleting()) {
        let names = some(users.iter().map(|pod| pod.meta.name.as_str()));
        let way_out = format!(
            "delete the pod there: `kubectl delete {}`, or let both pods run on {there}; a volume for several nodes needs \
             ReadWriteMany",
            super::kubectl(kinds::POD.plural, &user.meta.key())
        );
        causes.push(Cause::stuck("multi-attach", Who::user(), format!("{base} for pod {names}"), way_out));
    } else if let Some(user) = users.first() {
        causes.push(leaving(view, user, &base));
    } else if !view.g.pods.is_known && !old.meta.is_deleting() {
        causes.push(view.unseen(kinds::POD, since, format!("{base}, and no pod that uses it there was seen")));
    }
    if causes.is_empty() || old.status.detach_error.is_some() {
        causes.insert(0, detaching(view, old, since));
    }
    causes
}

/// The pod that has it is on its way out, as in every move.
fn leaving(view: &View<'_>, user: &Pod, base: &str) -> Cause {
    let there = &user.spec.node_name;
    let who = Who::named(format!("kubelet of {there}"));
    let why = format!("{base} for pod {} (it is being deleted)", user.meta.name);
    let way_out = format!("`stowage explain {}`", super::kubectl(kinds::POD.plural, &user.meta.key()));
    // The deletion timestamp is when the grace ends.
    view.slow("multi-attach-leaving", who, user.meta.deletion_timestamp, why, way_out)
}

/// A volume that is to leave a node, `since` when.
pub fn detaching(view: &View<'_>, old: &VolumeAttachment, since: Option<Timestamp>) -> Cause {
    let (name, node) = (&old.meta.name, &old.spec.node_name);
    let since = old.meta.deletion_timestamp.or(since);
    let attacher = view.sidecar("attacher", &old.spec.attacher);
    if let Some(error) = &old.status.detach_error {
        let why =
            format!("detaching from {node} failed: {} (status.detachError of VolumeAttachment {name})", error.message);
        let way_out = "remove what the driver names; it is tried again by itself. Do not remove finalizers while the \
                       node may write";
        return Cause::stuck("detach-failed", attacher, why, way_out);
    }
    let in_use = view.g.nodes.named(node).there().is_some_and(|found| {
        let volume = old.volume_name().and_then(|name| view.g.volumes.named(name).there());
        let unique = volume.and_then(|volume| Some(volume.spec.csi.as_ref()?.unique_name()));
        unique.is_some_and(|unique| found.is_in_use(unique.as_str()))
    });
    if in_use {
        let why = format!("node {node} still has it mounted (status.volumesInUse)");
        let who = Who::named(format!("kubelet of {node}"));
        let way_out = format!("see what holds the mount: log of the kubelet on {node}");
        return view.slow("still-in-use", who, since, why, way_out);
    }
    if !old.meta.is_deleting() && matches!(view.g.nodes.named(node), Look::Unread) {
        let why = format!("VolumeAttachment {name} is kept as long as node {node} has it mounted");
        return view.unseen(kinds::NODE, since, why);
    }
    let who = if old.meta.is_deleting() { attacher } else { view.who("attach-detach-controller") };
    let (silence, way_out) = view.silence(&who);
    view.slow("detach-silent", who, since, format!("VolumeAttachment {name} to {node} is not gone: {silence}"), way_out)
}
