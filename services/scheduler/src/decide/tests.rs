//! A world of plain caches: what is decided on is gathered as in the service, and what is decided is written at once.

mod claims;
mod collect;
mod filters;
mod fixpoint;
mod limits;
mod nodes;
mod quiet;
mod room;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use stowage_csi::UnixConnector;
use stowage_model::object::{Key, Projection};
use stowage_runtime::Context;
use stowage_runtime::backoff::Backoff;
use stowage_runtime::cache::{Cache, View};
use stowage_runtime::clock::Clock;
use stowage_runtime::engine::{Controller as _, Reserved, Setup};
use stowage_runtime::queue::Queue;
use stowage_runtime::tasks::Tasks;

use super::{Action, Decision, PodAction, Why};
use crate::controller::{Controller, Options};
use crate::watches::{self, Caches};

const NOW: Timestamp = Timestamp::UNIX_EPOCH;
const DRIVER: &str = "shared.csi.stowage.dev";

/// A clock that stands where it was set.
struct Fixed(Mutex<Timestamp>);

impl Clock for Fixed {
    fn now(&self) -> Timestamp {
        *self.0.lock().unwrap()
    }

    fn boottime(&self) -> Duration {
        self.now().duration_since(NOW).unsigned_abs()
    }
}

struct World {
    controller: Controller,
    /// The controller's own.
    caches: Caches,
    queue: Queue<watches::Key>,
    clock: Arc<Fixed>,
    objects: BTreeMap<(&'static str, Key), Value>,
    revision: u64,
}

impl Default for World {
    fn default() -> Self {
        // The client wants one, but no request is ever sent.
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let entered = runtime.enter();
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| async {
            Err::<http::Response<kube::client::Body>, std::io::Error>(std::io::Error::other("unused"))
        });
        let mut context = Context::real(kube::Client::new(service, "default"), Arc::new(UnixConnector), "test");
        drop(entered);
        let clock = Arc::new(Fixed(Mutex::new(NOW)));
        context.clock = Arc::clone(&clock) as Arc<dyn Clock>;
        let queue = Queue::new(Backoff::QUEUE);
        let setup = Setup { queue: queue.clone(), ..Setup::new(context, Tasks::new().spawner()) };
        let controller = Controller::new(&setup, Options::default());
        let caches = controller.caches.clone();
        Self { controller, caches, queue, clock, objects: BTreeMap::new(), revision: 0 }
    }
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
        let key = watches::Key::Pod(key(name));
        *self.clock.0.lock().unwrap() = now;
        let snapshot = self.controller.gather(&key, &Reserved::default(), now);
        let decision = Controller::decide(&snapshot, now);
        self.controller.note(&key, &snapshot, &decision, now);
        decision.map(|action| match action {
            Action::Pod(action) => action,
            Action::Node(action) => panic!("for a pod: {action:?}"),
        })
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
            PodAction::Reserve(pair) => {
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
            PodAction::Select { claim, node } => {
                self.change(
                    |caches| &caches.claims,
                    &claim.key,
                    |claim| {
                        claim["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] = node.into();
                    },
                );
            }
            PodAction::Bind { node } => {
                self.change(|caches| &caches.pods, &pod, |pod| pod["spec"]["nodeName"] = node.into());
            }
            PodAction::Report { message } => {
                self.controller.told.note(pod.clone(), (), message.clone(), true, NOW);
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
