//! One container is privileged, because Bidirectional mounts demand it; one is root with two named rights, to delete what
//! pods own; every other is restricted. The controller for NFS servers is privileged too, because it mounts.

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
fn every_container_but_those_that_mount_is_restricted() {
    for name in KUSTOMIZATIONS {
        let mut privileged = Vec::new();
        for (workload, pod) in pods(&shipped(name).unwrap()) {
            for field in ["hostNetwork", "hostPID", "hostIPC"] {
                // The mounts of a node outlive the pod that made them, and so must their network.
                let outlives = workload == "nfs-node" && field == "hostNetwork";
                assert_eq!(pod[field] == true, outlives, "{workload}: {field}");
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
            "nfs" => &["nfs-controller/driver", "nfs-node/node-plugin"],
            _ => &[],
        };
        assert_eq!(privileged, expected, "{name}");
    }
}

#[test]
fn only_the_privileged_container_of_a_node_mounts_bidirectionally() {
    for name in KUSTOMIZATIONS {
        for (workload, pod) in pods(&shipped(name).unwrap()) {
            for container in containers(pod) {
                let mounts = container["volumeMounts"].as_array().into_iter().flatten();
                let both_ways = mounts.filter(|mount| mount["mountPropagation"] == "Bidirectional").count();
                let privileged = container["securityContext"]["privileged"] == true && workload != "nfs-controller";
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
                if !matches!(service, "node-plugin" | "registrar" | "livenessprobe" | "apiserver") {
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

/// A pool that is full or away is not cured by a restart: Probe, which tells of it, is asked for readiness only.
#[test]
fn beside_every_driver_stands_a_probe_that_its_readiness_asks() {
    let mut drivers = 0;
    for name in KUSTOMIZATIONS {
        for (workload, pod) in pods(&shipped(name).unwrap()) {
            let named = |service: &str| {
                let is_it = |container: &&Value| service_of(container["image"].as_str().unwrap()) == Some(service);
                containers(pod).find(is_it).cloned()
            };
            let Some(driver) = named("node-plugin") else { continue };
            drivers += 1;
            let probe = named("livenessprobe").unwrap_or_else(|| panic!("{workload} has no livenessprobe"));
            let ready = &driver["readinessProbe"]["httpGet"];
            assert_eq!(ready["path"], "/healthz", "{workload}");
            assert_eq!(ready["port"], probe["ports"][0]["containerPort"], "{workload}");
            assert_eq!(driver["livenessProbe"]["exec"]["command"][1], "alive", "{workload}");
            assert_eq!(words(&probe["args"])[0], "--csi-address=/csi/csi.sock", "{workload}");
        }
    }
    assert!(drivers >= 3, "{drivers}");
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
