//! Carries out one action through the API, guarded by the versions that were decided on.

mod fields;

use jiff::Timestamp;
use serde_json::json;

use stowage_model::condition::ConditionStatus;
use stowage_model::object::{Key, ObjectId, Projection, kinds};
use stowage_model::{Meta, Node, Pod, annotations};
use stowage_runtime::api::{Deletion, Part, Patch, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::Error;
use stowage_runtime::events::Note;

use self::fields::{Said, say, taint};
use crate::controller::Controller;
use crate::decide::node::{NEVER_HEARD, SILENT};
use crate::decide::pod::is_said;
use crate::decide::{Action, Leftover, NodeAction, PodAction, Reservation, Unseen};

/// Conditions that nobody can vouch for once a node is silent, as far as the node has them.
const PRESSURES: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

/// The claims and volumes these write. A pod and a node are written for their own key only.
pub fn touches(actions: &[Action]) -> Vec<ObjectId> {
    let volume = |target: &Target| ObjectId { kind: kinds::VOLUME, key: target.key.clone() };
    let claim = |target: &Target| ObjectId { kind: kinds::CLAIM, key: target.key.clone() };
    let mut touched = Vec::new();
    for action in actions {
        match action {
            // The claim is not written, but its volume is chosen with this: nobody else may choose one meanwhile.
            Action::Pod(PodAction::Reserve(pair)) => touched.extend([volume(&pair.volume), claim(&pair.claim)]),
            Action::Pod(PodAction::Select { claim: target, .. }) => touched.push(claim(target)),
            Action::Pod(_) | Action::Node(_) => {}
        }
    }
    touched
}

impl Controller {
    pub(crate) async fn carry_out(&self, key: &Key, action: Action) -> Result<(), Error> {
        match action {
            Action::Pod(action) => self.carry_out_for_pod(key, action).await,
            Action::Node(action) => self.carry_out_for_node(key, action).await,
        }
    }

    async fn carry_out_for_pod(&self, key: &Key, action: PodAction) -> Result<(), Error> {
        let pods = &self.caches.pods;
        let known = || pods.get(key).ok_or(Error::Stale("the pod"));
        match action {
            PodAction::Look(Unseen::Pod(key)) => self.look(pods, &key).await,
            PodAction::Look(Unseen::Claim(key)) => self.look(&self.caches.claims, &key).await,
            PodAction::Look(Unseen::Volume(key)) => self.look(&self.caches.volumes, &key).await,
            PodAction::Reserve(pair) => self.reserve(&pair).await,
            PodAction::Select { claim, node } => self.select(&claim, &node).await,
            PodAction::Bind { node } => {
                let pod = known()?;
                self.bind(&pod, &node).await
            }
            PodAction::Report { message } => {
                let pod = known()?;
                let now = self.context.clock.now();
                if !is_said(&pod, &message) {
                    let said = Said::new("PodScheduled", ConditionStatus::False, "Unschedulable", message.clone());
                    let patch = say(&pod.status.conditions, &[said], now);
                    self.patch(pods, &pod.meta, Part::Status, patch, "say why the pod cannot be placed").await?;
                }
                let taken = self.recorder.record(&pod.reference(), Note::warning("FailedScheduling", message.clone()));
                self.told.note(key.clone(), (), message, taken, now);
                Ok(())
            }
            PodAction::Collect(leftover) => {
                let pod = known()?;
                self.collect(&pod, &leftover).await
            }
        }
    }

    async fn look<T: Projection>(&self, cache: &Cache<T>, key: &Key) -> Result<(), Error> {
        self.context.objects(cache).refresh(key).await.map(drop)
    }

    async fn reserve(&self, reservation: &Reservation) -> Result<(), Error> {
        let Reservation { claim, volume, marked } = reservation;
        let mut body = json!({ "spec": { "claimRef": {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "namespace": claim.key.namespace,
            "name": claim.key.name,
            "uid": claim.uid,
            "resourceVersion": claim.revision.map(|revision| revision.to_string()),
        } } });
        if *marked {
            body["metadata"] = json!({ "annotations": { annotations::BOUND_BY_CONTROLLER: "yes" } });
        }
        let answer = self.context.api.patch(&self.caches.volumes, volume, Part::Main, Patch::Merge(body)).await;
        answer.map(|_| ()).map_err(Error::write("reserve the volume"))
    }

    async fn select(&self, claim: &Target, node: &str) -> Result<(), Error> {
        let body = json!({ "metadata": { "annotations": { annotations::SELECTED_NODE: node } } });
        let answer = self.context.api.patch(&self.caches.claims, claim, Part::Main, Patch::Merge(body)).await;
        answer.map(|_| ()).map_err(Error::write("select the claim's node"))
    }

    /// The answer to a binding says nothing about the pod, so it is read: the next decision counts on knowing it.
    async fn bind(&self, pod: &Pod, node: &str) -> Result<(), Error> {
        let key = pod.key();
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": { "namespace": key.namespace, "name": key.name, "uid": pod.meta.uid },
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let id = ObjectId { kind: kinds::POD, key: key.clone() };
        let posted = self.context.api.post(&id, "binding", &body).await;
        if posted.as_ref().is_err_and(|error| !error.is_stale()) {
            return posted.map(|_| ()).map_err(Error::write("bind the pod"));
        }
        if let Err(error) = self.context.api.refresh(&self.caches.pods, &key).await {
            self.caches.pods.mark_unknown(&key);
            return Err(Error::read("the pod")(error));
        }
        posted.map_err(Error::write("bind the pod"))?;
        let message = format!("pod {key} is placed on node {node}");
        self.recorder.record(&pod.reference(), Note::normal("Scheduled", message));
        Ok(())
    }

    /// Deleting a pod at once lets others have its volumes, so what justifies it is read once more.
    async fn collect(&self, pod: &Pod, leftover: &Leftover) -> Result<(), Error> {
        let node = match leftover {
            Leftover::NodeGone(name) | Leftover::OutOfService(name) => {
                let key = Key::cluster(name.clone());
                self.context.api.refresh(&self.caches.nodes, &key).await.map_err(Error::read("the pod's node"))?
            }
            Leftover::NeverPlaced => None,
        };
        let (target, justified) = match leftover {
            Leftover::NodeGone(_) => (Target::any_version(&pod.meta), node.is_none()),
            Leftover::OutOfService(_) => {
                let dead = node.is_none_or(|node| node.is_out_of_service() && !node.is_ready());
                (Target::any_version(&pod.meta), dead)
            }
            // Somebody may have placed it meanwhile; then its version is another.
            Leftover::NeverPlaced => (Target::exact(&pod.meta), true),
        };
        if !justified {
            return Err(Error::Stale("the pod's node"));
        }
        tracing::info!(pod = %pod.key(), ?leftover, "deleting a pod that nobody is left to end");
        let at_once = Deletion { grace_period_seconds: Some(0) };
        self.context.api.delete(&self.caches.pods, &target, at_once).await.map_err(Error::write("delete the pod"))
    }

    async fn carry_out_for_node(&self, key: &Key, action: NodeAction) -> Result<(), Error> {
        let nodes = &self.caches.nodes;
        let known = || nodes.get(key).ok_or(Error::Stale("the node"));
        let now = self.context.clock.now();
        match action {
            NodeAction::Look => self.look(nodes, key).await,
            NodeAction::MarkUnknown => {
                let node = known()?;
                let patch = say(&node.status.conditions, &unknown(&node), now);
                self.patch(nodes, &node.meta, Part::Status, patch, "say that the node is silent").await?;
                self.tell(&node, "NodeNotReady", "the node was not heard of for too long")
            }
            NodeAction::MarkBack => {
                let node = known()?;
                let patch = say(&node.status.conditions, &back(&node), now);
                self.patch(nodes, &node.meta, Part::Status, patch, "say that the node is back").await?;
                self.tell(&node, "NodeReady", "the node renews its lease again")
            }
            NodeAction::Taint(health) => {
                let node = known()?;
                let patch = taint(&node.spec.taints, health, now);
                self.patch(nodes, &node.meta, Part::Main, patch, "taint the node").await
            }
        }
    }

    fn tell(&self, node: &Node, reason: &'static str, message: &str) -> Result<(), Error> {
        self.recorder.record(&node.reference(), Note::normal(reason, message));
        Ok(())
    }

    async fn patch<T: Projection>(
        &self,
        cache: &Cache<T>,
        meta: &Meta,
        part: Part,
        patch: Patch,
        what: &'static str,
    ) -> Result<(), Error> {
        let answer = self.context.api.patch(cache, &Target::exact(meta), part, patch).await;
        answer.map(|_| ()).map_err(Error::write(what))
    }
}

fn unknown(node: &Node) -> Vec<Said> {
    let (reason, message) = match node.ready() {
        Some(_) => (SILENT, "the node stopped renewing its lease and reporting its status"),
        None => (NEVER_HEARD, "the node never reported its status"),
    };
    let present = PRESSURES.into_iter().filter(|kind| has(node, kind));
    let kinds = std::iter::once("Ready").chain(present);
    kinds.map(|kind| Said::new(kind, ConditionStatus::Unknown, reason, message)).collect()
}

/// What we said for the node is taken back; the node's own next report replaces it.
fn back(node: &Node) -> Vec<Said> {
    let message = "the node renews its lease again";
    let present = PRESSURES.into_iter().filter(|kind| has(node, kind));
    let pressures = present.map(|kind| Said::new(kind, ConditionStatus::False, "NodeLeaseRenewed", message));
    std::iter::once(Said::new("Ready", ConditionStatus::True, "NodeLeaseRenewed", message)).chain(pressures).collect()
}

fn has(node: &Node, kind: &str) -> bool {
    stowage_model::condition::find(&node.status.conditions, kind).is_some()
}

/// Kubernetes timestamps carry whole seconds.
fn at(now: Timestamp) -> String {
    stowage_runtime::events::seconds(now)
}
