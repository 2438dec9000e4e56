//! The pod's way to a node, and the claims that wait for it.

use std::collections::BTreeSet;

use stowage_model::object::kinds;
use stowage_model::{Claim, Node, Pod, StorageClass, Volume, condition, topology};

use super::{View, kubectl_claim, quoted, some};
use crate::explain::gathered::Look;
use crate::explain::report::{Cause, Who};

/// Why a claim that waits for its first consumer has no node.
pub fn first_consumer(view: &View<'_>, claim: &Claim, class: &StorageClass) -> Vec<Cause> {
    let users = view.users_of(&claim.meta.key());
    if users.is_empty() && !view.g.pods.is_known {
        // It may wait for a pod as it was told to: how old it is says nothing.
        return vec![view.unseen(kinds::POD, None, "it waits for its first consumer, and no pod of it was seen")];
    }
    let class = &class.meta.name;
    let Some(pod) = users.iter().find(|pod| !pod.is_scheduled()).or_else(|| users.first()) else {
        return vec![Cause::waiting(
            "waits-for-pod",
            Who::user(),
            format!("class {class:?} has volumeBindingMode WaitForFirstConsumer, and no pod uses the claim"),
            format!("create a pod that uses it; `kubectl describe {}` shows its users", kubectl_claim(claim)),
        )];
    };
    if pod.is_scheduled() {
        let (name, node) = (&pod.meta.name, &pod.spec.node_name);
        return vec![Cause::stuck(
            "pod-past-scheduler",
            Who::user(),
            format!(
                "pod {name} was put on node {node} by spec.nodeName, past the scheduler, which alone chooses the node for \
                 class {class:?} (volumeBindingMode WaitForFirstConsumer)"
            ),
            format!("create the pod with nodeSelector kubernetes.io/hostname: {node} in place of spec.nodeName"),
        )];
    }
    unplaced(view, pod, Some(claim))
}

/// Why a pod has no node. `from` is a claim that asks already, and need not be asked.
pub fn unplaced(view: &View<'_>, pod: &Pod, from: Option<&Claim>) -> Vec<Cause> {
    if let Some(gate) = pod.spec.scheduling_gates.first() {
        let why = format!("spec.schedulingGates of pod {} holds {:?}", pod.meta.name, gate.name);
        let who = Who::named(format!("whoever set the gate {:?}", gate.name));
        return vec![Cause::waiting("gated", who, why, "whoever set the gate removes it when the pod may be placed")];
    }
    let mut causes = Vec::new();
    for key in pod.claims().filter(|key| from.is_none_or(|claim| claim.meta.key() != *key)) {
        match view.g.claims.look(&key) {
            Look::There(claim) if !claim.is_fully_bound() => {
                let waits =
                    view.g.classes.named(claim.class_name()).there().is_some_and(StorageClass::waits_for_consumer);
                // One that waits for this very pod says no more than the pod itself.
                if !waits || claim.selected_node().is_some() {
                    causes.extend(super::binding::causes(view, claim));
                }
            }
            Look::There(claim) => {
                let volume = view.g.volumes.named(&claim.spec.volume_name).there();
                causes.extend(volume.and_then(|volume| out_of_reach(view, pod, volume)));
                causes.extend(volume.and_then(|volume| no_room_on_nodes(view, volume)));
            }
            Look::Absent => {
                let why = format!("pod {} uses claim {key}, which is not there", pod.meta.name);
                causes.push(Cause::stuck("claim-missing", Who::user(), why, format!("create the claim {}", key.name)));
            }
            Look::Unread => {}
        }
    }
    causes.extend(told(view, pod));
    if causes.is_empty() {
        let scheduler = &pod.spec.scheduler_name;
        let own = scheduler.is_empty() || scheduler == "default-scheduler";
        let who = if own { view.who("scheduler") } else { Who::named(format!("scheduler {scheduler:?}")) };
        let (silence, way_out) = view.silence(&who);
        let since = pod.meta.creation_timestamp;
        let why = format!("pod {} has no node yet: {silence}", pod.meta.name);
        causes.push(view.slow("scheduler-silent", who, since, why, way_out));
    }
    causes
}

/// The scheduler's own words.
fn told(view: &View<'_>, pod: &Pod) -> Option<Cause> {
    let event = view.complaint(pod, &["FailedScheduling"], &["Scheduled"]);
    let condition = condition::find(&pod.status.conditions, "PodScheduled").filter(|one| !one.is_true());
    let message = condition.map(|one| one.message.as_str()).filter(|text| !text.is_empty());
    let why = match (event, message) {
        (Some(event), _) => quoted(event, view.now),
        (None, Some(message)) => format!("{message} (condition PodScheduled)"),
        (None, None) => return None,
    };
    let (id, way_out) = hint(&why);
    let name = &pod.meta.name;
    Some(Cause::stuck(id, view.who("scheduler"), format!("no node takes pod {name}: {why}"), way_out))
}

/// What the phrases of kube-scheduler's filters ask for.
fn hint(text: &str) -> (&'static str, String) {
    let phrases = [
        (
            "volume node affinity conflict",
            "volume-unreachable",
            "make room on a node that reaches the volume, or undo what keeps the pod from there (nodeSelector, taints)",
        ),
        ("max volume count", "attach-limit", "add a node, or move pods with volumes away from those nodes"),
        ("enough free storage", "no-capacity", "make room in the driver's storage, or ask for less"),
        (
            "didn't find available persistent volumes",
            "no-fitting-volume",
            "create a PersistentVolume that fits the claim on a node that the pod may go to",
        ),
        ("ReadWriteOncePod", "claim-in-use", "delete the other pod that uses the claim"),
    ];
    let found = phrases.into_iter().find(|(phrase, ..)| text.contains(phrase));
    match found {
        Some((_, id, way_out)) => (id, way_out.to_owned()),
        None => ("unschedulable", "change what the pod asks for, or the nodes, as the scheduler says".to_owned()),
    }
}

/// The nodes that reach a volume are none, or take nobody.
fn out_of_reach(view: &View<'_>, pod: &Pod, volume: &Volume) -> Option<Cause> {
    let nodes = &view.g.nodes;
    if !nodes.is_known || volume.spec.node_affinity.is_none() {
        return None;
    }
    let reaching: Vec<&Node> =
        nodes.all().iter().filter(|node| topology::reaches(volume, node).unwrap_or(false)).collect();
    let name = &volume.meta.name;
    let places = places(volume);
    let show = format!("`kubectl get pv {name} -o jsonpath='{{.spec.nodeAffinity}}'`");
    if reaching.is_empty() {
        let why = format!("spec.nodeAffinity of PersistentVolume {name:?} ({places}) is met by no node");
        let way_out = format!("bring the node back that has the volume ({show}); its data is only there");
        return Some(Cause::stuck("volume-unreachable", Who::user(), why, way_out));
    }
    let obstacle = |node: &&&Node| !node.is_ready() || node.spec.unschedulable;
    if reaching.iter().all(|node| obstacle(&node)) {
        let state = |node: &&Node| match node.is_ready() {
            true => format!("{} is cordoned", node.meta.name),
            false => format!("{} is not ready", node.meta.name),
        };
        let states: Vec<String> = reaching.iter().map(state).collect();
        let why = format!(
            "only {} can reach PersistentVolume {name:?} ({places}): {}",
            some(reaching.iter().map(|node| node.meta.name.as_str())),
            some(states.iter().map(String::as_str))
        );
        let cordoned = reaching.iter().find(|node| node.is_ready());
        let way_out = match cordoned {
            Some(node) => format!("kubectl uncordon {}", node.meta.name),
            None => "bring one of these nodes back: `kubectl get nodes`".to_owned(),
        };
        return Some(Cause::stuck("volume-unreachable", Who::user(), why, way_out));
    }
    let selector = &pod.spec.node_selector;
    let fits = |node: &&&Node| selector.iter().all(|(key, value)| node.meta.labels.get(key) == Some(value));
    if !selector.is_empty() && !reaching.iter().any(|node| fits(&node)) {
        let wanted: Vec<String> = selector.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let why = format!(
            "spec.nodeSelector of pod {} ({}) excludes every node that can reach PersistentVolume {name:?} ({places})",
            pod.meta.name,
            wanted.join(", ")
        );
        let way_out = format!("let the pod go to {}", some(reaching.iter().map(|node| node.meta.name.as_str())));
        return Some(Cause::stuck("volume-unreachable", Who::user(), why, way_out));
    }
    None
}

/// A volume's places in words.
fn places(volume: &Volume) -> String {
    let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let Some(required) = required else { return "everywhere".to_owned() };
    let terms = required.node_selector_terms.iter().map(|term| {
        let conditions = term.match_expressions.iter().chain(&term.match_fields);
        let conditions: Vec<String> =
            conditions.map(|one| format!("{} {} [{}]", one.key, one.operator, one.values.join(","))).collect();
        conditions.join(" and ")
    });
    terms.collect::<Vec<_>>().join(" or ")
}

/// Every node that reaches the volume has as many of its driver as it can take.
fn no_room_on_nodes(view: &View<'_>, volume: &Volume) -> Option<Cause> {
    let driver = &volume.spec.csi.as_ref()?.driver;
    if !view.g.nodes.is_known || !view.g.attachments.is_known {
        return None;
    }
    let nodes = view.g.nodes.all().iter().filter(|node| topology::reaches(volume, node).unwrap_or(false));
    let mut full = Vec::new();
    for node in nodes.filter(|node| node.is_ready() && !node.spec.unschedulable) {
        let limit = view.g.csi_nodes.named(&node.meta.name).there()?.limit(driver)?;
        let on_node = view.index.attachments_on(&node.meta.name).iter().filter(|one| one.spec.attacher == *driver);
        let volumes: BTreeSet<&str> = on_node.filter_map(|one| one.volume_name()).collect();
        if volumes.contains(volume.meta.name.as_str()) || volumes.len() < limit as usize {
            return None;
        }
        full.push(format!("{} has {} of {limit}", node.meta.name, volumes.len()));
    }
    if full.is_empty() {
        return None;
    }
    let why = format!(
        "every node has as many volumes of {driver} as spec.drivers.allocatable.count of its CSINode allows: {}",
        some(full.iter().map(String::as_str))
    );
    Some(Cause::stuck("attach-limit", Who::user(), why, "add a node, or move pods with volumes of this driver away"))
}
