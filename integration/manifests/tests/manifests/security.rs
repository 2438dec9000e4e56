//! One container is privileged, because Bidirectional mounts demand it; one is root with two named rights, to delete what
//! pods own; every other is restricted.

use manifest_suite::{KUSTOMIZATIONS, containers, pods, service_of, shipped, words};
use serde_json::{Value, json};

fn is_restricted(container: &Value, workload: &str) -> bool {
    let context = &container["securityContext"];
    let deletes = workload == "shared-controller" && container["name"] == "driver";
    let rights = match deletes {
        true => json!({ "drop": ["ALL"], "add": ["DAC_OVERRIDE", "FOWNER"] }),
        false => json!({ "drop": ["ALL"] }),
    };
    context["allowPrivilegeEscalation"] == false
        && context["capabilities"] == rights
        && (deletes || context["runAsNonRoot"] == true)
        && context["seccompProfile"] == json!({ "type": "RuntimeDefault" })
        && context["readOnlyRootFilesystem"] == true
        && context["privileged"].is_null()
}

#[test]
fn every_container_but_the_node_plugin_of_a_node_is_restricted() {
    for name in KUSTOMIZATIONS {
        let mut privileged = Vec::new();
        for (workload, pod) in pods(&shipped(name).unwrap()) {
            for field in ["hostNetwork", "hostPID", "hostIPC"] {
                assert!(pod[field].is_null(), "{workload}: {field}");
            }
            for container in containers(pod) {
                if container["securityContext"]["privileged"] == true {
                    privileged.push(format!("{workload}/{}", container["name"].as_str().unwrap()));
                } else {
                    assert!(is_restricted(container, &workload), "{workload}: {}", container["name"]);
                }
            }
        }
        let expected: &[&str] = match name {
            "" | "shared" => &["shared-node/node-plugin"],
            "local" => &["local-node/node-plugin"],
            _ => &[],
        };
        assert_eq!(privileged, expected, "{name}");
    }
}

#[test]
fn only_the_privileged_container_mounts_bidirectionally() {
    for name in KUSTOMIZATIONS {
        for (workload, pod) in pods(&shipped(name).unwrap()) {
            for container in containers(pod) {
                let mounts = container["volumeMounts"].as_array().into_iter().flatten();
                let both_ways = mounts.filter(|mount| mount["mountPropagation"] == "Bidirectional").count();
                let privileged = container["securityContext"]["privileged"] == true;
                assert_eq!(both_ways == 1, privileged, "{workload}: {}", container["name"]);
            }
        }
    }
}

#[test]
fn every_container_has_probes_and_resources_and_mounts_only_what_its_pod_has() {
    for name in KUSTOMIZATIONS {
        let objects = shipped(name).unwrap();
        for (workload, pod) in pods(&objects) {
            let volumes: Vec<&Value> =
                pod["volumes"].as_array().into_iter().flatten().map(|volume| &volume["name"]).collect();
            for claim in pod["volumes"].as_array().into_iter().flatten().map(|volume| &volume["persistentVolumeClaim"])
            {
                let shipped = |object: &Value| {
                    object["kind"] == "PersistentVolumeClaim" && object["metadata"]["name"] == claim["claimName"]
                };
                assert!(claim.is_null() || objects.iter().any(shipped), "{workload}: {claim}");
            }
            for container in containers(pod) {
                let who = format!("{workload}: {}", container["name"]);
                assert!(container["livenessProbe"].is_object(), "{who}");
                let service = service_of(container["image"].as_str().unwrap()).unwrap();
                if !matches!(service, "node-plugin" | "registrar" | "apiserver") {
                    assert_eq!(container["readinessProbe"]["httpGet"]["path"], "/readyz", "{who}");
                }
                assert!(container["resources"]["requests"]["memory"].is_string(), "{who}");
                assert!(container["resources"]["limits"]["memory"].is_string(), "{who}");
                for mount in container["volumeMounts"].as_array().into_iter().flatten() {
                    assert!(volumes.contains(&&mount["name"]), "{who}: {mount}");
                }
            }
        }
    }
}

/// Whose nodes make their own snapshots: each must know which content is whose.
#[test]
fn the_snapshotters_of_the_local_driver_serve_their_node_and_the_controller_says_which() {
    let container = |name: &str, service: &str| {
        let objects = shipped(name).unwrap();
        let found = pods(&objects).into_iter().flat_map(|(_, pod)| containers(pod).cloned().collect::<Vec<_>>());
        found.into_iter().find(|container| container["name"] == service).unwrap()
    };
    let snapshotter = container("local", "snapshotter");
    assert!(words(&snapshotter["args"]).contains(&"--node-deployment".to_owned()));
    assert_eq!(snapshotter["env"][0]["valueFrom"]["fieldRef"]["fieldPath"], "spec.nodeName");
    let distributed = "--enable-distributed-snapshotting".to_owned();
    assert!(words(&container("snapshots", "snapshot-controller")["args"]).contains(&distributed));
}

/// A second controller would write the same pool; its sidecars may overlap, the driver may not.
#[test]
fn the_shared_pool_has_one_controller() {
    let objects = shipped("shared").unwrap();
    let controller = objects.iter().find(|object| object["kind"] == "Deployment").unwrap();
    assert_eq!(controller["metadata"]["name"], "shared-controller");
    assert_eq!(
        (&controller["spec"]["replicas"], &controller["spec"]["strategy"]["type"]),
        (&json!(1), &json!("Recreate"))
    );
}
