//! A world of plain caches: what is decided on is gathered as in the service, and what is decided is written at once.

mod claims;
mod collect;
mod filters;
mod fixpoint;
mod limits;
mod nodes;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_model::object::{Key, Projection};
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::engine::Reserved;

use super::{Decision, PodAction, Why, pod};
use crate::assumed::{Ledger, Planned};
use crate::snapshot::{Caches, PlacedSnapshot, PodSnapshot, is_ours};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const DRIVER: &str = "shared.csi.stowage.dev";

#[derive(Default)]
struct World {
    caches: Caches,
    ledger: Ledger,
    objects: BTreeMap<(&'static str, Key), Value>,
    revision: u64,
}

impl World {
    fn put<T: Projection>(&mut self, cache: impl Fn(&Caches) -> &Cache<T>, mut object: Value) {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = self.revision.to_string().into();
        if object["metadata"]["uid"].is_null() {
            object["metadata"]["uid"] = format!("uid-{}", object["metadata"]["name"].as_str().unwrap()).into();
        }
        let read: T = serde_json::from_value(object.clone()).unwrap();
        self.objects.insert((T::KIND.plural, read.key()), object);
        cache(&self.caches).observe(read);
    }

    fn change<T: Projection>(
        &mut self,
        cache: impl Fn(&Caches) -> &Cache<T>,
        key: &Key,
        edit: impl FnOnce(&mut Value),
    ) {
        let mut object = self.objects[&(T::KIND.plural, key.clone())].clone();
        edit(&mut object);
        self.put(cache, object);
    }

    fn pod(&mut self, object: Value) -> &mut Self {
        self.put(|caches| &caches.pods, object);
        self
    }

    fn node(&mut self, object: Value) -> &mut Self {
        self.put(|caches| &caches.nodes, object);
        self
    }

    fn claim(&mut self, object: Value) -> &mut Self {
        self.put(|caches| &caches.claims, object);
        self
    }

    fn volume(&mut self, object: Value) -> &mut Self {
        self.put(|caches| &caches.volumes, object);
        self
    }

    fn class(&mut self, object: Value) -> &mut Self {
        self.put(|caches| &caches.classes, object);
        self
    }

    /// A CSINode with room for so many volumes.
    fn limit(&mut self, node: &str, count: u32) -> &mut Self {
        let driver = json!({ "name": DRIVER, "nodeID": node, "allocatable": { "count": count } });
        self.put(|caches| &caches.csi_nodes, json!({ "metadata": { "name": node }, "spec": { "drivers": [driver] } }));
        self
    }

    fn decide(&self, name: &str) -> Decision<PodAction> {
        self.decide_at(name, NOW)
    }

    fn decide_at(&self, name: &str, now: Timestamp) -> Decision<PodAction> {
        let key = key(name);
        let snapshot = match self.caches.pods.view(&key) {
            View::Absent => PodSnapshot::Absent,
            View::Unknown => PodSnapshot::Unknown(key.clone()),
            View::Known(pod) if pod.is_scheduled() => PodSnapshot::Placed(PlacedSnapshot {
                node: self.caches.nodes.view(&Key::cluster(pod.spec.node_name.clone())),
                pod,
                missing_since: NOW,
                quarantine: SignedDuration::from_secs(40),
            }),
            View::Known(pod) if is_ours(&pod, "default-scheduler") => {
                PodSnapshot::Pending(Box::new(self.caches.pending(pod, &self.ledger, &Reserved::default())))
            }
            View::Known(pod) => PodSnapshot::Other(pod),
        };
        let decision = pod::decide(&snapshot, now);
        let uid = self.caches.pods.get(&key).map(|pod| pod.meta.uid.clone()).unwrap_or_default();
        let node = decision.why.planned().map(|node| Planned { uid, node: node.to_owned() });
        self.ledger.plan(&key, node);
        decision
    }

    /// Why the pod cannot be placed, as people read it.
    fn message(&self, name: &str) -> String {
        match self.decide(name).why {
            Why::Unschedulable(why) => why.to_string(),
            why => panic!("the pod can be placed: {why:?}"),
        }
    }

    /// Writes what was decided as the API server would.
    fn write(&mut self, name: &str, action: PodAction) {
        let pod = key(name);
        match action {
            PodAction::Prepare { reserve, select, node } => {
                for pair in reserve {
                    let reference = json!({
                        "namespace": pair.claim.key.namespace, "name": pair.claim.key.name, "uid": pair.claim.uid,
                    });
                    self.change(
                        |caches| &caches.volumes,
                        &pair.volume.key,
                        |volume| {
                            volume["spec"]["claimRef"] = reference;
                        },
                    );
                }
                for claim in select {
                    self.change(
                        |caches| &caches.claims,
                        &claim.key,
                        |claim| {
                            claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] =
                                node.as_str().into();
                        },
                    );
                }
            }
            PodAction::Bind { node } => {
                self.change(|caches| &caches.pods, &pod, |pod| pod["spec"]["nodeName"] = node.into());
            }
            PodAction::Report { message } => {
                self.ledger.told.note(pod.clone(), (), message.clone(), true, NOW);
                let condition = json!({
                    "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message,
                });
                self.change(|caches| &caches.pods, &pod, |pod| pod["status"]["conditions"] = json!([condition]));
            }
            PodAction::Collect(_) => {
                let uid = self.caches.pods.get(&pod).unwrap().meta.uid.clone();
                self.caches.pods.observe_gone(&pod, &uid);
            }
            PodAction::Look(unseen) => panic!("nothing is unknown here: {unseen:?}"),
        }
    }

    /// Decides and writes until there is nothing to do, and says why it rests.
    fn settle(&mut self, name: &str) -> Why {
        for _ in 0..8 {
            let decision = self.decide(name);
            if decision.actions.is_empty() {
                return decision.why;
            }
            for action in decision.actions {
                self.write(name, action);
            }
        }
        panic!("no rest after eight rounds: {:?}", self.decide(name));
    }

    fn node_of(&self, name: &str) -> String {
        self.caches.pods.get(&key(name)).unwrap().spec.node_name.clone()
    }
}

fn key(name: &str) -> Key {
    Key::namespaced("default", name)
}

/// A pod with claims of these names.
fn pod(name: &str, claims: &[&str]) -> Value {
    let volumes: Vec<Value> =
        claims.iter().map(|c| json!({ "name": c, "persistentVolumeClaim": { "claimName": c } })).collect();
    json!({ "metadata": { "namespace": "default", "name": name }, "spec": { "volumes": volumes } })
}

fn node(name: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "kubernetes.io/hostname": name } } })
}

/// An unbound claim of the class.
fn claim(name: &str, class: &str, size: &str) -> Value {
    json!({
        "metadata": { "namespace": "default", "name": name },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": class,
            "resources": { "requests": { "storage": size } },
        },
    })
}

/// A claim bound to the volume.
fn bound(name: &str, volume: &str) -> Value {
    let mut claim = claim(name, "waits", "1Gi");
    claim["spec"]["volumeName"] = volume.into();
    claim["metadata"]["annotations"] = json!({ "pv.kubernetes.io/bind-completed": "yes" });
    claim
}

/// An Available volume of the class, reachable from the node, or from everywhere if that is empty.
fn volume(name: &str, size: &str, on: &str) -> Value {
    let mut volume = json!({
        "metadata": { "name": name },
        "spec": {
            "capacity": { "storage": size },
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "waits",
            "csi": { "driver": DRIVER, "volumeHandle": name },
        },
        "status": { "phase": "Available" },
    });
    if !on.is_empty() {
        let term =
            json!({ "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [on] }] });
        volume["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [term] } });
    }
    volume
}

fn class(name: &str, mode: &str, provisioner: &str) -> Value {
    json!({ "metadata": { "name": name }, "provisioner": provisioner, "volumeBindingMode": mode })
}

/// Nodes a and b, and a class that waits and makes volumes.
fn two_nodes() -> World {
    let mut world = World::default();
    world.node(node("a")).node(node("b")).class(class("waits", "WaitForFirstConsumer", DRIVER));
    world
}

/// As [`two_nodes`], but nobody makes volumes of the class.
fn two_nodes_static() -> World {
    let mut world = two_nodes();
    world.class(class("waits", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"));
    world
}
