//! From any state, deciding and doing comes to rest after a few rounds.

use std::sync::Arc;

use proptest::prelude::*;

use stowage_model::Volume;
use stowage_model::object::Projection;
use stowage_runtime::engine::Controller as _;

use super::*;
use crate::decide::Action;

/// The API server of one snapshot, as far as its writes go.
struct Small {
    controller: Controller,
    snapshot: Value,
    content: Option<Value>,
    claim: Value,
    revision: u64,
}

impl Small {
    fn store(&mut self) {
        self.revision += 1;
        let revision = self.revision;
        fn put<T: Projection>(cache: &Cache<T>, object: Option<&Value>, revision: u64) {
            let read = |object: &Value| {
                let mut object = object.clone();
                object["metadata"]["resourceVersion"] = json!(revision.to_string());
                serde_json::from_value(object).unwrap()
            };
            cache.relist(object.into_iter().map(read).collect(), revision);
        }
        let caches = &self.controller.caches;
        put(&caches.snapshots, Some(&self.snapshot), revision);
        put(&caches.contents, self.content.as_ref(), revision);
        put(&caches.claims, Some(&self.claim), revision);
    }

    fn carry_out(&mut self, action: Action) {
        match action {
            Action::LookAtVolume { name, .. } => {
                let volume: Volume = serde_json::from_value(json!({
                    "metadata": { "name": name },
                    "spec": {
                        "claimRef": { "namespace": "shop", "name": "data", "uid": "data-uid" },
                        "csi": { "driver": DRIVER, "volumeHandle": "h" },
                    },
                }))
                .unwrap();
                self.controller.memory.looked(name, Some(Arc::new(volume)), at(100));
            }
            Action::PrepareSnapshot { operations, .. } | Action::ReleaseSnapshot { operations, .. } => {
                patch(&mut self.snapshot, &operations);
            }
            Action::GuardContent { operations, .. } => patch(self.content.as_mut().unwrap(), &operations),
            Action::CreateContent { mut body, .. } => {
                body["metadata"]["uid"] = json!("content-uid");
                body["metadata"]["creationTimestamp"] = json!("1970-01-01T00:01:40Z");
                self.content = Some(body);
            }
            Action::BindContent { body, .. } | Action::MarkContent { body, .. } => {
                merge(self.content.as_mut().unwrap(), body);
            }
            Action::WriteStatus { status, tell, .. } => {
                merge(&mut self.snapshot["status"], status);
                let key = Key::Snapshot(object::Key::namespaced("shop", "s"));
                tell.into_iter()
                    .for_each(|note| self.controller.memory.told.note(key.clone(), (), note, true, at(100)));
            }
            Action::ConfirmContentGone { .. } => assert_eq!(self.content, None),
            Action::DeleteContent { .. } => self.content = None,
            Action::ProtectClaim { keep, .. } => {
                let list = if keep { json!([finalizers::CLAIM_AS_SNAPSHOT_SOURCE]) } else { json!([]) };
                self.claim["metadata"]["finalizers"] = list;
            }
            Action::Tell { about, note } => {
                let key = match about.kind.kind {
                    "VolumeSnapshot" => Key::Snapshot(about.key),
                    "PersistentVolumeClaim" => Key::Claim(about.key),
                    _ => Key::Content(about.key.name),
                };
                self.controller.memory.told.note(key, (), note, true, at(100));
            }
            other => panic!("{other:?}"),
        }
    }
}

fn merge(target: &mut Value, patch: Value) {
    match patch {
        Value::Object(patch) => {
            if !target.is_object() {
                *target = json!({});
            }
            for (key, value) in patch {
                if value.is_null() {
                    target.as_object_mut().unwrap().remove(&key);
                } else {
                    merge(&mut target[key.as_str()], value);
                }
            }
        }
        other => *target = other,
    }
}

fn patch(target: &mut Value, operations: &[Value]) {
    for operation in operations {
        let path = operation["path"].as_str().unwrap();
        let (parent, last) = path.rsplit_once('/').unwrap();
        match operation["op"].as_str().unwrap() {
            "test" => assert_eq!(target.pointer(path), Some(&operation["value"])),
            "remove" => drop(target.pointer_mut(parent).unwrap().as_array_mut().unwrap().remove(last.parse().unwrap())),
            _ if last == "-" => {
                target.pointer_mut(parent).unwrap().as_array_mut().unwrap().push(operation["value"].clone());
            }
            _ => target.pointer_mut(parent).unwrap()[last] = operation["value"].clone(),
        }
    }
}

fn some_snapshot() -> impl Strategy<Value = Value> {
    let finalizers = proptest::sample::subsequence(
        vec![finalizers::SNAPSHOT_AS_SOURCE, finalizers::SNAPSHOT_BOUND, finalizers::SNAPSHOT_IN_GROUP, "other"],
        0..=4,
    );
    let sources = prop_oneof![
        4 => Just(json!({ "persistentVolumeClaimName": "data" })),
        1 => Just(json!({ "persistentVolumeClaimName": "" })),
        1 => Just(json!({ "volumeSnapshotContentName": "snapcontent-s-uid" })),
        1 => Just(json!({})),
    ];
    let classes = prop_oneof![Just(Value::Null), Just(json!("gold")), Just(json!("gone"))];
    let status = prop_oneof![
        Just(Value::Null),
        Just(json!({ "boundVolumeSnapshotContentName": "snapcontent-s-uid", "readyToUse": false })),
        Just(json!({ "boundVolumeSnapshotContentName": "snapcontent-s-uid", "readyToUse": true,
            "creationTime": "1970-01-01T00:00:05Z" })),
        Just(json!({ "readyToUse": false, "error": { "message": "old" } })),
    ];
    (finalizers, sources, classes, status, any::<bool>()).prop_map(|(finalizers, source, class, status, deleting)| {
        let mut body = json!({
            "metadata": { "namespace": "shop", "name": "s", "uid": "s-uid", "finalizers": finalizers },
            "spec": { "source": source, "volumeSnapshotClassName": class },
            "status": status,
        });
        if deleting {
            body["metadata"]["deletionTimestamp"] = json!("1970-01-01T00:01:00Z");
        }
        body
    })
}

fn some_content() -> impl Strategy<Value = Option<Value>> {
    let uid = prop_oneof![Just("s-uid"), Just("older"), Just("")];
    let source = prop_oneof![
        3 => Just(json!({ "volumeHandle": "h" })),
        1 => Just(json!({ "snapshotHandle": "x" })),
        1 => Just(json!({ "volumeHandle": "h", "snapshotHandle": "x" })),
    ];
    let status = prop_oneof![
        Just(Value::Null),
        Just(json!({ "readyToUse": false, "error": { "message": "no", "time": "1970-01-01T00:00:09Z" } })),
        Just(json!({ "readyToUse": true, "snapshotHandle": "x", "creationTime": 7, "restoreSize": 0 })),
    ];
    let policy = prop_oneof![Just("Delete"), Just("Retain")];
    let content = (uid, source, status, policy, any::<bool>(), any::<bool>());
    let body = content.prop_map(|(uid, source, status, policy, guarded, deleting)| {
        let mut metadata = json!({
            "name": "snapcontent-s-uid", "uid": "content-uid", "creationTimestamp": "1970-01-01T00:00:10Z",
            "finalizers": if guarded { json!([finalizers::SNAPSHOT_CONTENT_BOUND]) } else { json!([]) },
        });
        if deleting {
            metadata["deletionTimestamp"] = json!("1970-01-01T00:00:20Z");
        }
        json!({
            "metadata": metadata,
            "spec": {
                "volumeSnapshotRef": { "namespace": "shop", "name": "s", "uid": uid },
                "deletionPolicy": policy, "driver": DRIVER, "source": source,
            },
            "status": status,
        })
    });
    proptest::option::of(body)
}

proptest! {
    #[test]
    fn from_any_state_deciding_and_doing_comes_to_rest(
        snapshot in some_snapshot(),
        content in some_content(),
        kept: bool,
        bound: bool,
        going: bool,
    ) {
        let tasks = Tasks::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let _entered = runtime.enter();
        let setup = Setup::new(World::new(1).life("test").context, tasks.spawner());
        let mut metadata = json!({ "namespace": "shop", "name": "data", "uid": "data-uid", "finalizers": [] });
        if kept {
            metadata["finalizers"] = json!([finalizers::CLAIM_AS_SNAPSHOT_SOURCE]);
        }
        if going {
            metadata["deletionTimestamp"] = json!("1970-01-01T00:00:20Z");
        }
        let phase = if bound { "Bound" } else { "Pending" };
        let mut small = Small {
            controller: Controller::new(&setup, &Options::default()),
            snapshot,
            content,
            claim: json!({ "metadata": metadata, "spec": { "volumeName": "pv" }, "status": { "phase": phase } }),
            revision: 1,
        };
        let default = json!({ annotations::DEFAULT_SNAPSHOT_CLASS: "true" });
        let class = json!({
            "metadata": { "name": "gold", "annotations": default }, "driver": DRIVER, "deletionPolicy": "Delete",
        });
        fill(&small.controller.caches.classes, vec![class]);
        let keys = [
            Key::Snapshot(object::Key::namespaced("shop", "s")),
            Key::Claim(object::Key::namespaced("shop", "data")),
            Key::Content("snapcontent-s-uid".into()),
        ];
        let mut rounds = 0;
        loop {
            small.store();
            let next = keys.iter().find_map(|key| {
                let decision = decide(&small.controller.gather(key, &Reserved::default(), at(100)), at(100));
                (!decision.actions.is_empty()).then_some(decision)
            });
            let Some(decision) = next else { break };
            for action in decision.actions {
                small.carry_out(action);
            }
            rounds += 1;
            prop_assert!(rounds < 12, "{} {:?} {}", small.snapshot, small.content, small.claim);
        }
    }
}
