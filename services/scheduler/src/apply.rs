//! Carries out one action through the API, guarded by the versions that were decided on.

mod fields;

use futures::future::join_all;
use jiff::Timestamp;
use serde_json::json;

use stowage_model::condition::ConditionStatus;
use stowage_model::object::{Key, ObjectId, Projection, kinds};
use stowage_model::{Meta, Node, Pod, annotations};
use stowage_runtime::api::{Deletion, Part, Patch, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::events::Note;

use self::fields::{Said, say, taint};
use crate::controller::Scheduler;
use crate::decide::node::{NEVER_HEARD, SILENT};
use crate::decide::pod::is_said;
use crate::decide::{Leftover, NodeAction, PodAction, Reservation, Unseen};
use crate::error::Error;

/// Conditions that nobody can vouch for once a node is silent, as far as the node has them.
const PRESSURES: [&str; 3] = ["MemoryPressure", "DiskPressure", "PIDPressure"];

impl Scheduler {
    pub(crate) async fn carry_out_for_pod(&self, key: &Key, action: PodAction) -> Result<(), Error> {
        let pods = &self.caches.pods;
        match action {
            PodAction::Look(Unseen::Pod(key)) => self.look(pods, &key).await,
            PodAction::Look(Unseen::Claim(key)) => self.look(&self.caches.claims, &key).await,
            PodAction::Look(Unseen::Volume(key)) => self.look(&self.caches.volumes, &key).await,
            PodAction::Prepare { reserve, select, node } => {
                let prepared = self.prepare(&reserve, &select, &node).await;
                prepared.inspect_err(|error| self.give_up(key, error))
            }
            PodAction::Bind { node } => {
                let pod = pods.get(key).ok_or(Error::Stale("the pod is gone"))?;
                self.bind(&pod, &node).await.inspect_err(|error| self.give_up(key, error))
            }
            PodAction::Report { message } => {
                let pod = pods.get(key).ok_or(Error::Stale("the pod is gone"))?;
                let now = self.context.clock.now();
                if !is_said(&pod, &message) {
                    let said = Said::new("PodScheduled", ConditionStatus::False, "Unschedulable", message.clone());
                    self.patch(pods, &pod.meta, Part::Status, say(&pod.status.conditions, &[said], now)).await?;
                }
                let taken = self.recorder.record(&pod.reference(), Note::warning("FailedScheduling", message.clone()));
                self.ledger.told.note(key.clone(), (), message, taken, now);
                Ok(())
            }
            PodAction::Collect(leftover) => {
                let pod = pods.get(key).ok_or(Error::Stale("the pod is gone"))?;
                self.collect(&pod, &leftover).await
            }
        }
    }

    async fn look<T: Projection>(&self, cache: &Cache<T>, key: &Key) -> Result<(), Error> {
        self.context.api.refresh(cache, key).await.map(|_| ()).map_err(Error::Read)
    }

    /// All writes are sent side by side, and all answers are waited for: a write that is dropped is a write unknown.
    async fn prepare(&self, reserve: &[Reservation], select: &[Target], node: &str) -> Result<(), Error> {
        let reserved = join_all(reserve.iter().map(|reservation| self.reserve(reservation)));
        let selected = join_all(select.iter().map(|claim| self.select(claim, node)));
        let (reserved, selected) = futures::join!(reserved, selected);
        reserved.into_iter().chain(selected).collect()
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
        answer.map(|_| ()).map_err(Error::Write)
    }

    async fn select(&self, claim: &Target, node: &str) -> Result<(), Error> {
        let body = json!({ "metadata": { "annotations": { annotations::SELECTED_NODE: node } } });
        let answer = self.context.api.patch(&self.caches.claims, claim, Part::Main, Patch::Merge(body)).await;
        answer.map(|_| ()).map_err(Error::Write)
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
            return posted.map(|_| ()).map_err(Error::Bind);
        }
        if let Err(error) = self.context.api.refresh(&self.caches.pods, &key).await {
            self.caches.pods.mark_unknown(&key);
            return Err(Error::Read(error));
        }
        posted.map_err(Error::Bind)?;
        let message = format!("pod {key} is placed on node {node}");
        self.recorder.record(&pod.reference(), Note::normal("Scheduled", message));
        Ok(())
    }

    /// Deleting a pod at once lets others have its volumes, so what justifies it is read once more.
    async fn collect(&self, pod: &Pod, leftover: &Leftover) -> Result<(), Error> {
        let node = match leftover {
            Leftover::NodeGone(name) | Leftover::OutOfService(name) => {
                let key = Key::cluster(name.clone());
                self.context.api.refresh(&self.caches.nodes, &key).await.map_err(Error::Read)?
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
            return Err(Error::Stale("the node is there after all"));
        }
        tracing::info!(pod = %pod.key(), ?leftover, "deleting a pod that nobody is left to end");
        let at_once = Deletion { grace_period_seconds: Some(0) };
        self.context.api.delete(&self.caches.pods, &target, at_once).await.map_err(Error::Write)
    }

    pub(crate) async fn carry_out_for_node(&self, name: &str, action: NodeAction) -> Result<(), Error> {
        let nodes = &self.caches.nodes;
        let key = Key::cluster(name);
        if action == NodeAction::Look {
            return self.look(nodes, &key).await;
        }
        let node = nodes.get(&key).ok_or(Error::Stale("the node is gone"))?;
        let now = self.context.clock.now();
        match action {
            NodeAction::Look => Ok(()),
            NodeAction::MarkUnknown => {
                let said = unknown(&node);
                self.patch(nodes, &node.meta, Part::Status, say(&node.status.conditions, &said, now)).await?;
                self.tell(&node, "NodeNotReady", "the node was not heard of for too long")
            }
            NodeAction::MarkBack => {
                let said = back(&node);
                self.patch(nodes, &node.meta, Part::Status, say(&node.status.conditions, &said, now)).await?;
                self.tell(&node, "NodeReady", "the node renews its lease again")
            }
            NodeAction::Taint(health) => {
                self.patch(nodes, &node.meta, Part::Main, taint(&node.spec.taints, health, now)).await
            }
        }
    }

    fn tell(&self, node: &Node, reason: &'static str, message: &str) -> Result<(), Error> {
        self.recorder.record(&node.reference(), Note::normal(reason, message));
        Ok(())
    }

    async fn patch<T: Projection>(&self, cache: &Cache<T>, meta: &Meta, part: Part, patch: Patch) -> Result<(), Error> {
        let answer = self.context.api.patch(cache, &Target::exact(meta), part, patch).await;
        answer.map(|_| ()).map_err(Error::Write)
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
