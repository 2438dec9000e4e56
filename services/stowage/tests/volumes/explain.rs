//! `stowage explain` of a stack in which things are really stuck.

use serde_json::{Value, json};

use stowage::explain::{Report, Wanted, diagnose, gather};
use stowage_model::object::Key;

use crate::world::{World, on_a_stack};

fn claim(name: &str, class: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": { "namespace": "default", "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": class,
                  "resources": { "requests": { "storage": "16Mi" } } },
    })
}

fn pod(name: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "namespace": "default", "name": name },
        "spec": { "containers": [{ "name": "c", "image": "i", "volumeMounts": [{ "name": "v", "mountPath": "/v" }] }],
                  "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": claim } }] },
    })
}

async fn report(world: &World, wanted: Wanted) -> Report {
    let gathered = gather(&world.stack.api, wanted).await.unwrap();
    diagnose(&gathered, jiff::Timestamp::now())
}

/// What people type, its exit code and all that it prints.
async fn typed(world: &World, args: &[&str]) -> (Option<i32>, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_stowage"));
    command.arg("explain").arg("--kubeconfig").arg(&world.stack.kubeconfig).args(args);
    let output = command.output().await.unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.code(), text)
}

fn key(name: &str) -> Key {
    Key::namespaced("default", name)
}

#[test]
fn a_missing_class_a_driver_that_refuses_and_one_that_is_not_on_the_node_are_told_as_they_are() {
    on_a_stack(async |world| {
        let driver = world.driver().to_owned();
        let class = json!({
            "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": { "name": "nowhere" },
            "provisioner": driver, "parameters": { "pool": "nowhere" }, "volumeBindingMode": "Immediate",
        });
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "foreign" },
            "spec": { "capacity": { "storage": "16Mi" }, "accessModes": ["ReadWriteOnce"], "storageClassName": "",
                      "csi": { "driver": "elsewhere.example.com", "volumeHandle": "v" } },
        });
        let objects = [
            class,
            volume,
            claim("classless", "gold"),
            claim("refused", "nowhere"),
            claim("abroad", ""),
            pod("traveller", "abroad"),
            claim("fine", "stowage"),
            pod("runner", "fine"),
        ];
        world.apply(&objects).await;
        world.runs("runner").await;
        world.is_warned("refused").await;

        let classless = report(world, Wanted::Claim(key("classless"))).await;
        assert_eq!(classless.stories[0].causes[0].id, "class-missing", "{classless:#?}");
        let refused = report(world, Wanted::Claim(key("refused"))).await;
        let cause = &refused.stories[0].causes[0];
        assert_eq!(cause.id, "provisioning-failed", "{refused:#?}");
        assert!(cause.why.contains("nowhere") && cause.who.component.contains(&driver), "{cause:#?}");
        world.placed("traveller").await;
        let abroad = report(world, Wanted::Pod(key("traveller"))).await;
        assert!(abroad.stories[0].causes.iter().any(|cause| cause.id == "driver-not-on-node"), "{abroad:#?}");
        let fine = report(world, Wanted::Pod(key("runner"))).await;
        assert!(!fine.is_stuck(), "{fine:#?}");

        for (args, code, words) in [
            (&["pvc", "classless"][..], 2, "spec.storageClassName is \"gold\""),
            (&["pvc", "refused"], 2, "provisioner of"),
            (&["pod", "traveller"], 2, "CSINode"),
            (&["pod", "runner"], 0, "fine"),
            (&["pvc", "nope"], 1, "there is no PersistentVolumeClaim default/nope"),
            (&[], 2, "stuck"),
        ] {
            let (found, text) = typed(world, args).await;
            println!("$ stowage explain {}\n{text}", args.join(" "));
            assert_eq!(found, Some(code), "{text}");
            assert!(text.contains(words), "{text}");
        }

        let all = report(world, Wanted::All { namespace: None }).await;
        let stuck: Vec<&str> = all.stories.iter().map(|story| story.key.name.as_str()).collect();
        for name in ["classless", "refused", "traveller"] {
            assert!(stuck.contains(&name), "{name} is not among {stuck:?}");
        }
        assert!(!stuck.contains(&"fine") && !stuck.contains(&"runner"), "{stuck:?}");
        assert!(world.stack.calls.all().is_empty(), "calls are remembered for ever where nobody asked for that");
        world.delete(&objects).await;
    });
}
