use std::time::Duration;

use serde_json::{Value, json};
use tonic::Code;

use stowage_csi::code;
use stowage_csi::identity::ControllerCapabilities;
use stowage_model::Volume;
use stowage_model::annotations::{NODE_EXPANSION_NOT_REQUIRED, PRE_RESIZE_CAPACITY};
use stowage_runtime::operation::{Failure, State};
use stowage_runtime::told::Known;

use super::*;
use crate::calls::{Expanded, REVOKED, TOO_SMALL};
use crate::options::{Gates, Options};
use crate::projections::Class;
use crate::snapshot::{ClassView, Expansion, Tried};
use crate::users::Users;

mod modify;
mod properties;
mod resize;
mod takeover;

const GI: i64 = 1 << 30;

fn now() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

fn facts() -> Facts {
    Facts {
        name: "d.example".into(),
        expansion: Expansion::Controller,
        modifies: true,
        calls: ControllerCapabilities::new(),
        options: Options::default(),
    }
}

/// A world of one claim, played without a server: writes are merged, calls begin and are ended by the test.
#[derive(Debug, Clone)]
struct World {
    facts: Facts,
    claim: Value,
    volume: Value,
    class: Option<&'static str>,
    expand: Option<Tried>,
    modify: Option<Tried>,
    users: Users,
    known: Known<Topic>,
    now: Timestamp,
    /// Writes and calls, in order.
    log: Vec<Value>,
    told: Vec<&'static str>,
}

/// A claim of 1Gi that asks for 5Gi.
fn growing() -> World {
    World {
        facts: facts(),
        claim: json!({
            "metadata": { "namespace": "shop", "name": "data", "uid": "c-uid", "resourceVersion": "1" },
            "spec": { "volumeName": "pv", "resources": { "requests": { "storage": "5Gi" } } },
            "status": { "phase": "Bound", "capacity": { "storage": "1Gi" } },
        }),
        volume: json!({
            "metadata": { "name": "pv", "uid": "v-uid", "resourceVersion": "1" },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                "claimRef": { "namespace": "shop", "name": "data", "uid": "c-uid" },
                "csi": { "driver": "d.example", "volumeHandle": "h" },
            },
        }),
        class: Some("d.example"),
        expand: None,
        modify: None,
        users: Users::Unwatched,
        known: Known::default(),
        now: now(),
        log: Vec::new(),
        told: Vec::new(),
    }
}

/// A claim of class silver that asks for gold.
fn changing() -> World {
    let mut world = growing();
    world.request("1Gi");
    world.claim["spec"]["volumeAttributesClassName"] = json!("gold");
    world.claim["status"]["currentVolumeAttributesClassName"] = json!("silver");
    world
}

fn record(state: State<Answer>, since: Timestamp) -> Record<Answer> {
    let retry_at = since + SignedDuration::from_secs(1);
    Record { state, since, failures: 1, retry_at }
}

fn failure(code: Code) -> Failure {
    Failure { code: code::name(code).into(), message: format!("no: {}", code::name(code)) }
}

fn merge(target: &mut Value, patch: &Value) {
    let Some(members) = patch.as_object() else { return *target = patch.clone() };
    if !target.is_object() {
        *target = json!({});
    }
    for (name, value) in members {
        if value.is_null() {
            target.as_object_mut().unwrap().remove(name);
        } else {
            merge(&mut target[name], value);
        }
    }
}

impl World {
    fn request(&mut self, size: &str) {
        self.claim["spec"]["resources"]["requests"]["storage"] = json!(size);
    }

    fn claim(&self) -> Claim {
        serde_json::from_value(self.claim.clone()).unwrap()
    }

    fn volume(&self) -> Volume {
        serde_json::from_value(self.volume.clone()).unwrap()
    }

    fn snapshot(&self) -> Snapshot {
        let claim = self.claim();
        let view = |name: &str| match self.class {
            _ if name.is_empty() => ClassView::Missing,
            Some(driver) => ClassView::Found(Arc::new(Class {
                driver_name: driver.into(),
                parameters: [("class".to_owned(), name.to_owned())].into(),
                ..Class::default()
            })),
            None => ClassView::Missing,
        };
        let target = claim.modifying().map(|modifying| modifying.target.clone()).unwrap_or_default();
        let case = Case {
            is_unknown: false,
            source: Source::Ours(Arc::new(self.volume())),
            wanted: view(claim.wanted_class()),
            aimed_at: view(&target),
            expand: self.expand.clone(),
            modify: self.modify.clone(),
            users: self.users.clone(),
            known: self.known.clone(),
            claim: Arc::new(claim),
        };
        Snapshot { facts: Arc::new(self.facts.clone()), case: Some(case), abandoned: Vec::new() }
    }

    fn decide(&self) -> Decision {
        decide(&self.snapshot(), self.now)
    }

    /// Decides and acts until nothing is left to do.
    fn settle(&mut self) -> Decision {
        for _ in 0..20 {
            let decision = self.decide();
            if decision.actions.is_empty() {
                return decision;
            }
            decision.actions.into_iter().for_each(|action| self.act(action));
        }
        panic!("no rest: {:#?}", self.log);
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Save { claim, change } => self.write_claim(&claim, &change),
            Action::Finish { claim, change, kind, note } => {
                self.write_claim(&claim, &change);
                match kind {
                    Kind::Expand => self.expand = None,
                    Kind::Modify => self.modify = None,
                }
                self.known = Known::default();
                self.told.push(note.reason);
            }
            Action::SaveVolume { change, .. } => {
                let mut patch = json!({});
                if let Some(capacity) = change.capacity {
                    patch["spec"]["capacity"]["storage"] = json!(capacity.to_string());
                }
                if let Some(class) = change.class {
                    patch["spec"]["volumeAttributesClassName"] = json!(class);
                }
                if let Some(before) = change.before {
                    patch["metadata"]["annotations"][PRE_RESIZE_CAPACITY] = json!(before.map(|size| size.to_string()));
                }
                merge(&mut self.volume, &patch);
                self.log.push(json!({ "volume": patch }));
            }
            Action::Call { planned, in_doubt, is_written, .. } => {
                let called = match &*planned {
                    Planned::Expand { target, request, .. } => {
                        json!({ "expand": target.to_string(), "by driver": request.is_some() })
                    }
                    Planned::Modify { class, .. } => json!({ "modify": class }),
                };
                let record = record(State::Running, self.now);
                let running = Some(Tried { aim: planned.aim(), record, is_in_line: false });
                match planned.aim().kind() {
                    Kind::Expand => self.expand = running,
                    Kind::Modify => self.modify = running,
                }
                self.log.push(json!({ "call": called, "in doubt": in_doubt, "read first": !is_written }));
            }
            Action::StepAside { kind, .. } => {
                self.log.push(json!({ "aside": format!("{kind:?}") }));
                let revoked = Failure { code: REVOKED.into(), message: "the driver was not called".into() };
                self.end(kind, State::Failed(revoked));
            }
            Action::Tell { topic, note, .. } => {
                self.told.push(note.reason);
                self.known = self.known.clone().and(topic, note, self.now + SignedDuration::from_mins(45));
            }
            Action::Watch => self.users = Users::Unlisted,
            Action::RefreshClaim | Action::RefreshVolume(_) => panic!("nothing is unknown"),
        }
    }

    fn write_claim(&mut self, decided: &Claim, change: &Change) {
        let patch = change.body(decided, self.now).unwrap();
        merge(&mut self.claim, &patch);
        let revision: u64 = self.claim["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        self.claim["metadata"]["resourceVersion"] = json!((revision + 1).to_string());
        self.log.push(json!({ "claim": patch }));
    }

    fn end(&mut self, kind: Kind, state: State<Answer>) {
        let tried = match kind {
            Kind::Expand => self.expand.as_mut(),
            Kind::Modify => self.modify.as_mut(),
        };
        let tried = tried.expect("only what was begun ends");
        (tried.record, tried.is_in_line) = (record(state, self.now), false);
    }

    fn expanded(&mut self, target: &str, gibibytes: i64, for_node: bool) {
        let size = Quantity::from_bytes(gibibytes * GI);
        let expanded = Expanded { target: target.parse().unwrap(), size, for_node };
        self.end(Kind::Expand, State::Done(Answer::Expanded(expanded)));
    }

    /// How a call with this code ends.
    fn fail(&mut self, kind: Kind, code: Code) {
        let uncertain = outcome(kind, &failure(code)) == Some(Outcome::Uncertain);
        self.end(kind, if uncertain { State::Uncertain(failure(code)) } else { State::Failed(failure(code)) });
    }

    fn pass(&mut self, seconds: u64) {
        self.now += SignedDuration::try_from(Duration::from_secs(seconds)).unwrap();
    }

    fn status(&self) -> &Value {
        &self.claim["status"]
    }

    fn conditions(&self) -> Vec<&str> {
        let list = self.status()["conditions"].as_array();
        list.into_iter().flatten().map(|condition| condition["type"].as_str().unwrap()).collect()
    }

    fn calls(&self) -> Vec<&Value> {
        self.log.iter().filter(|entry| entry.get("call").is_some()).collect()
    }
}
