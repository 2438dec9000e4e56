//! Whatever a crash leaves can be completed, and taken down.

use std::fs;

use serde_json::{Value, json};

use stowage_model::object::kinds;
use stowage_mount::Stop;

use crate::machine::{Asked, Machine, on_a_machine};

/// Stops set up at each of its changes, before and after it: taking down leaves nothing, and setting up succeeds. Stops
/// taking down the same way: repeating it leaves nothing.
async fn survives_crashes(machine: &Machine, asked: &Asked) {
    let (host, count) = machine.host(None);
    machine.set_up(&host, asked).await.unwrap();
    let changes = count.changes().len() as u64;
    machine.tear_down(&host, asked).await.unwrap();
    let undoing = count.changes().len() as u64 - changes;
    assert_eq!(machine.left(), Vec::<String>::new());
    let stops = |most: u64| (1..=most).flat_map(|at| [Stop::Before(at), Stop::After(at)]);
    for stop in stops(changes) {
        let (dying, _) = machine.host(Some(stop));
        assert!(machine.set_up(&dying, asked).await.is_err(), "{stop:?}");
        machine.tear_down(&host, asked).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new(), "taken down after {stop:?}");

        let (dying, _) = machine.host(Some(stop));
        assert!(machine.set_up(&dying, asked).await.is_err(), "{stop:?}");
        machine.set_up(&host, asked).await.unwrap();
        machine.set_up(&host, asked).await.unwrap();
        machine.tear_down(&host, asked).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new(), "completed after {stop:?}");
    }
    for stop in stops(undoing) {
        machine.set_up(&host, asked).await.unwrap();
        let (dying, _) = machine.host(Some(stop));
        assert!(machine.tear_down(&dying, asked).await.is_err(), "{stop:?}");
        machine.tear_down(&host, asked).await.unwrap();
        machine.tear_down(&host, asked).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new(), "taken down again after {stop:?}");
    }
}

#[test]
fn a_crash_at_any_change_of_any_plugin_is_survived() {
    on_a_machine(async |machine| {
        let data = json!({ "metadata": { "name": "c", "namespace": "default" }, "data": { "a": "1", "b": "2" } });
        machine.create(kinds::CONFIG_MAP, data).await;
        let data = json!({ "metadata": { "name": "s", "namespace": "default" }, "data": { "a": "AQ==" } });
        machine.create(kinds::SECRET, data).await;
        let exported = machine.dir.join("exported");
        fs::create_dir(&exported).unwrap();
        let fs_group = json!({ "securityContext": { "fsGroup": 777 } });
        let items = json!([{ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } }]);
        let sources = json!([{ "configMap": { "name": "c" } }, { "downwardAPI": { "items": items } }]);
        for (member, source) in [
            ("emptyDir", json!({})),
            ("emptyDir", json!({ "medium": "Memory", "sizeLimit": "1Mi" })),
            ("configMap", json!({ "name": "c", "defaultMode": 0o644 })),
            ("secret", json!({ "secretName": "s", "defaultMode": 0o400 })),
            ("downwardAPI", json!({ "items": items, "defaultMode": 0o644 })),
            ("projected", json!({ "sources": sources, "defaultMode": 0o644 })),
        ] {
            for more in [Value::Null, fs_group.clone()] {
                survives_crashes(&machine, &Asked::inline(member, source.clone(), more)).await;
            }
        }
        let local = json!({ "local": { "path": exported }, "nodeAffinity": { "required": {} } });
        survives_crashes(&machine, &Asked::persistent(local, false, fs_group)).await;
    });
}
