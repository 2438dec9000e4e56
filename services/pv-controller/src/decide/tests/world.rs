//! A claim, some volumes and a pod as plain JSON, changed by exactly the bodies the service would send.

use std::sync::Arc;

use serde_json::{Value, json};

use stowage_model::{Claim, Pod, StorageClass, Volume, annotations, finalizers};
use stowage_runtime::cache::View;
use stowage_runtime::events::Note;

use crate::decide::{self, ClaimAction, VolumeAction};
use crate::snapshot::{ClaimSnapshot, VolumeSnapshot};
use crate::write;

/// One object under construction.
#[derive(Clone)]
pub struct Fixture(Value);

pub fn claim() -> Fixture {
    Fixture(json!({
        "metadata": {
            "namespace": "n", "name": "c", "uid": "u", "resourceVersion": "1",
            "finalizers": [finalizers::CLAIM_PROTECTION],
        },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } },
        "status": { "phase": "Pending" },
    }))
}

pub fn volume(name: &str, size: &str) -> Fixture {
    Fixture(json!({
        "metadata": {
            "name": name, "uid": format!("u-{name}"), "resourceVersion": "1",
            "finalizers": [finalizers::VOLUME_PROTECTION],
        },
        "spec": {
            "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
            "capacity": { "storage": size },
            "persistentVolumeReclaimPolicy": "Retain",
            "hostPath": { "path": "/x" },
        },
        "status": { "phase": "Pending" },
    }))
}

impl Fixture {
    fn with(mut self, pointer: &str, value: impl Into<Value>) -> Self {
        let mut at = &mut self.0;
        for part in pointer.split('.') {
            at = &mut at[part];
        }
        *at = value.into();
        self
    }

    pub fn build<T: serde::de::DeserializeOwned>(&self) -> T {
        serde_json::from_value(self.0.clone()).unwrap()
    }

    pub fn name(self, name: &str) -> Self {
        self.with("metadata.name", name).with("metadata.uid", format!("u-{name}"))
    }

    pub fn uid(self, uid: &str) -> Self {
        self.with("metadata.uid", uid)
    }

    pub fn size(self, size: &str) -> Self {
        self.with("spec.resources.requests.storage", size)
    }

    pub fn modes(self, modes: &[&str]) -> Self {
        self.with("spec.accessModes", modes)
    }

    pub fn class(self, class: &str) -> Self {
        self.with("spec.storageClassName", class)
    }

    pub fn names(self, volume: &str) -> Self {
        self.with("spec.volumeName", volume)
    }

    pub fn bound(self, size: &str) -> Self {
        self.with("status.phase", "Bound")
            .with("status.capacity", json!({ "storage": size }))
            .with("status.accessModes", json!(["ReadWriteOnce", "ReadOnlyMany"]))
    }

    pub fn completed(self, volume: &str) -> Self {
        self.names(volume).annotate(annotations::BIND_COMPLETED, "yes")
    }

    pub fn marked(self) -> Self {
        self.annotate(annotations::BOUND_BY_CONTROLLER, "yes")
    }

    pub fn annotate(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["annotations"][key] = value.into();
        self
    }

    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.0["metadata"]["labels"][key] = value.into();
        self
    }

    pub fn selects(self, key: &str, value: &str) -> Self {
        self.with("spec.selector", json!({ "matchLabels": { key: value } }))
    }

    pub fn deleting(self) -> Self {
        self.with("metadata.deletionTimestamp", "2026-01-01T00:00:00Z")
    }

    pub fn unprotected(self) -> Self {
        self.with("metadata.finalizers", json!([]))
    }

    pub fn phase(self, phase: &str) -> Self {
        self.with("status.phase", phase)
    }

    pub fn available(self) -> Self {
        self.phase("Available")
    }

    pub fn refers(self, name: &str, uid: &str) -> Self {
        self.with("spec.claimRef", json!({ "namespace": "n", "name": name, "uid": uid }))
    }

    pub fn policy(self, policy: &str) -> Self {
        self.with("spec.persistentVolumeReclaimPolicy", policy)
    }

    pub fn csi(self) -> Self {
        self.with("spec.hostPath", Value::Null).with("spec.csi", json!({ "driver": "d", "volumeHandle": "h" }))
    }

    pub fn provisioned(self, driver: &str) -> Self {
        self.annotate(annotations::PROVISIONED_BY, driver)
    }

    fn merge(&mut self, body: &Value) {
        json_patch::merge(&mut self.0, body);
    }
}

/// Everything one scenario has.
pub struct World {
    claim: Option<Fixture>,
    volumes: Vec<Fixture>,
    class: Option<Arc<StorageClass>>,
    pods: Vec<Arc<Pod>>,
    told: Option<Note>,
}

impl World {
    pub fn new(claim: Fixture, volumes: impl IntoIterator<Item = Fixture>) -> Self {
        let volumes = volumes.into_iter().collect();
        Self { claim: Some(claim), volumes, class: None, pods: vec![], told: None }
    }

    pub fn alone(volumes: impl IntoIterator<Item = Fixture>) -> Self {
        Self { claim: None, ..Self::new(claim(), volumes) }
    }

    fn with_class(mut self, name: &str, provisioner: &str, mode: &str, default: &str) -> Self {
        let class = json!({
            "metadata": { "name": name, "annotations": { annotations::DEFAULT_CLASS: default } },
            "provisioner": provisioner,
            "volumeBindingMode": mode,
        });
        self.class = Some(Arc::new(serde_json::from_value(class).unwrap()));
        self
    }

    pub fn class(self, name: &str, provisioner: &str) -> Self {
        self.with_class(name, provisioner, "Immediate", "false")
    }

    pub fn late_class(self, name: &str) -> Self {
        self.with_class(name, "driver.example", "WaitForFirstConsumer", "false")
    }

    pub fn default_class(self, name: &str, provisioner: &str) -> Self {
        self.with_class(name, provisioner, "Immediate", "true")
    }

    pub fn pod(mut self, placed: bool) -> Self {
        let pod = json!({
            "metadata": { "namespace": "n", "name": "p", "uid": "p" },
            "spec": {
                "nodeName": if placed { "node" } else { "" },
                "volumes": [{ "name": "data", "persistentVolumeClaim": { "claimName": "c" } }],
            },
        });
        self.pods.push(Arc::new(serde_json::from_value(pod).unwrap()));
        self
    }

    /// Decides and writes until nothing is left to do, the claim first; says what was done.
    pub fn settle(&mut self) -> Vec<String> {
        let mut steps = Vec::new();
        while self.step(&mut steps) {
            assert!(steps.len() < 20, "no fixpoint: {steps:?}");
        }
        steps
    }

    fn step(&mut self, steps: &mut Vec<String>) -> bool {
        if let Some(fixture) = &self.claim {
            let claim: Arc<Claim> = Arc::new(fixture.build());
            let actions = decide::claim::decide(&self.claim_snapshot(&claim)).actions;
            if !actions.is_empty() {
                actions.into_iter().for_each(|action| steps.push(self.write_claim(&claim, action)));
                return true;
            }
        }
        for index in 0..self.volumes.len() {
            let volume: Arc<Volume> = Arc::new(self.volumes[index].build());
            let claim = match (&self.claim, &volume.spec.claim_ref) {
                (Some(claim), Some(held)) if held.name == claim.build::<Claim>().meta.name => {
                    View::Known(Arc::new(claim.build()))
                }
                _ => View::Absent,
            };
            let snapshot = VolumeSnapshot { volume: Arc::clone(&volume), claim, told: None };
            let actions = decide::volume::decide(&snapshot).actions;
            if !actions.is_empty() {
                actions.into_iter().for_each(|action| steps.push(self.write_volume(index, &volume, action)));
                return true;
            }
        }
        false
    }

    fn claim_snapshot(&self, claim: &Arc<Claim>) -> ClaimSnapshot {
        let volumes: Vec<Arc<Volume>> = self.volumes.iter().map(|volume| Arc::new(volume.build())).collect();
        let named = volumes.iter().find(|volume| volume.meta.name == claim.spec.volume_name).cloned();
        let default = self.class.iter().find(|class| class.is_default());
        ClaimSnapshot {
            class: self.class.iter().find(|class| class.meta.name == claim.class_name()).cloned(),
            default_class: default.map(|class| class.meta.name.clone()),
            named: named.map_or(View::Absent, View::Known),
            candidates: volumes,
            pods: self.pods.clone(),
            told: self.told.clone(),
            provisioning: true,
            claim: Arc::clone(claim),
        }
    }

    fn write_claim(&mut self, claim: &Claim, action: ClaimAction) -> String {
        let fixture = self.claim.as_mut().unwrap();
        let mark = |marked| if marked { " marked" } else { "" };
        match action {
            ClaimAction::Reserve { volume, marked } => {
                let target = self.volumes.iter_mut().find(|v| v.build::<Volume>().meta.name == volume).unwrap();
                target.merge(&write::reserve(claim, marked));
                format!("reserve {volume}{}", mark(marked))
            }
            ClaimAction::Complete { volume, marked } => {
                fixture.merge(&write::complete(&volume, marked));
                format!("complete {volume}{}", mark(marked))
            }
            ClaimAction::Status(status) => {
                fixture.merge(&write::status(&status));
                format!(
                    "status {} {}",
                    status.phase,
                    status.capacity.map_or_else(|| "-".into(), |size| size.to_string())
                )
            }
            ClaimAction::AskProvisioner { provisioner } => {
                fixture.merge(&write::ask(&provisioner));
                format!("ask {provisioner}")
            }
            ClaimAction::AssignClass { class } => {
                fixture.merge(&write::class(&class));
                format!("class {class}")
            }
            ClaimAction::Protect => {
                fixture.0["metadata"]["finalizers"] = json!([finalizers::CLAIM_PROTECTION]);
                "protect".into()
            }
            ClaimAction::Unprotect => {
                // Nothing else holds a deleted claim, so it goes.
                self.claim = None;
                self.volumes.retain(|volume| volume.build::<Volume>().spec.claim_ref.is_none());
                "unprotect".into()
            }
            ClaimAction::Tell(note) => {
                self.told = Some(note.clone());
                format!("tell {}", note.reason)
            }
        }
    }

    fn write_volume(&mut self, index: usize, volume: &Volume, action: VolumeAction) -> String {
        let fixture = &mut self.volumes[index];
        let step = match action {
            VolumeAction::Phase { phase, message } => {
                fixture.merge(&write::phase(phase, &message));
                format!("phase {phase}")
            }
            VolumeAction::Release => {
                fixture.merge(&write::phase(stowage_model::phase::VolumePhase::Released, ""));
                "release".into()
            }
            VolumeAction::Unbind => {
                fixture.merge(&write::unbind(volume));
                "unbind".into()
            }
            VolumeAction::Protect => {
                fixture.0["metadata"]["finalizers"] = json!([finalizers::VOLUME_PROTECTION]);
                "protect".into()
            }
            VolumeAction::Unprotect => {
                fixture.0["metadata"]["finalizers"] = json!([]);
                "unprotect".into()
            }
            VolumeAction::Tell(note) => format!("tell {}", note.reason),
            VolumeAction::TellClaim(note) => format!("tell claim {}", note.reason),
        };
        format!("{}: {step}", volume.meta.name)
    }
}
