//! Roles grant what docs/rights.md says a service needs, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use kube::Client;
use manifest_suite::{containers, pods, repository, service_of, shipped, words};
use serde_json::{Value, json};
use stowage_apiserver::{Options, Server};

use crate::apply::create;

type Rights = BTreeMap<String, BTreeSet<String>>;

fn documented(service: &str) -> Rights {
    let page = std::fs::read_to_string(repository().join("docs/rights.md")).unwrap();
    let rows = page.lines().filter(|line| line.starts_with(&format!("| {service} |")));
    let cells = |row: &str| -> Vec<String> { row.split('|').map(|cell| cell.trim().to_owned()).collect() };
    let verbs = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    rows.map(cells).map(|cells| (cells[2].clone(), verbs(&cells[3]))).collect()
}

/// What the roles bound to an account grant, together.
fn granted(objects: &[Value], account: &str) -> Rights {
    let mut rights = Rights::new();
    let is_for = |binding: &&Value| {
        let subjects = binding["subjects"].as_array().into_iter().flatten();
        let mut named = subjects.filter(|subject| subject["kind"] == "ServiceAccount" && subject["name"] == account);
        named.any(|subject| subject["namespace"] == "stowage-system")
    };
    for binding in objects.iter().filter(is_for) {
        let (kind, name) = (&binding["roleRef"]["kind"], &binding["roleRef"]["name"]);
        let same_place =
            |role: &&Value| *kind == "ClusterRole" || role["metadata"]["namespace"] == binding["metadata"]["namespace"];
        let role = objects.iter().filter(|role| role["kind"] == *kind && role["metadata"]["name"] == *name);
        let role = role.into_iter().find(same_place).unwrap_or_else(|| panic!("{kind} {name} does not exist"));
        for rule in role["rules"].as_array().unwrap() {
            for resource in words(&rule["resources"]) {
                rights.entry(resource).or_default().extend(words(&rule["verbs"]));
            }
        }
    }
    rights
}

/// The row of the page that speaks about a container.
fn row(container: &Value) -> Option<&str> {
    let service = service_of(container["image"].as_str()?)?;
    let leaves_nodes_alone = words(&container["args"]).iter().any(|word| word == "--node-lifecycle=false");
    Some(if leaves_nodes_alone { "scheduler without node lifecycle" } else { service })
}

/// What a provisioner needs only to publish how much room there is.
const FOR_CAPACITY: [&str; 3] = ["csistoragecapacities", "pods", "replicasets"];

/// Our own drivers need no secrets, so the sidecars beside them get none to read; all else is as documented.
fn rights_of(container: &Value) -> Option<(&str, Rights)> {
    let service = row(container)?;
    let publishes = words(&container["args"]).iter().any(|word| word == "--enable-capacity");
    let mut rights = documented(service);
    rights.retain(|resource, _| {
        let for_capacity = service == "provisioner" && FOR_CAPACITY.contains(&resource.as_str());
        resource != "secrets" && (publishes || !for_capacity)
    });
    Some((service, rights))
}

fn needed(pod: &Value) -> Rights {
    let mut needed = Rights::new();
    for (resource, verbs) in containers(pod).filter_map(rights_of).flat_map(|(_, rights)| rights) {
        needed.entry(resource).or_default().extend(verbs);
    }
    needed
}

#[test]
fn the_account_of_each_workload_has_the_rights_its_services_need_and_no_others() {
    for name in manifest_suite::KUSTOMIZATIONS {
        let objects = shipped(name).unwrap();
        for (workload, pod) in pods(&objects) {
            let account = pod["serviceAccountName"].as_str().unwrap();
            let exists = |object: &Value| object["kind"] == "ServiceAccount" && object["metadata"]["name"] == account;
            assert!(objects.iter().any(exists), "{workload}: no ServiceAccount {account}");
            assert_eq!(granted(&objects, account), needed(pod), "{workload}");
        }
    }
}

#[test]
fn no_role_uses_a_wildcard_and_none_is_unbound() {
    for name in manifest_suite::KUSTOMIZATIONS {
        let objects = shipped(name).unwrap();
        for role in objects.iter().filter(|object| object["kind"] == "Role" || object["kind"] == "ClusterRole") {
            assert!(!role["rules"].to_string().contains('*'), "{}", role["metadata"]["name"]);
            let bound = |object: &Value| {
                object["roleRef"]["kind"] == role["kind"] && object["roleRef"]["name"] == role["metadata"]["name"]
            };
            assert!(objects.iter().any(bound), "{}", role["metadata"]["name"]);
        }
    }
}

/// Where a thing of the page is: its group, the namespace it is asked for in, and its name where only one is meant.
fn place(kustomization: &str, service: &str, resource: &str) -> (&'static str, &'static str, &'static str) {
    match (resource.split('/').next().unwrap(), service) {
        ("leases", "snapshotter") if kustomization == "nfs" => {
            ("coordination.k8s.io", "stowage-system", "external-snapshotter-leader-nfs-csi-k8s-io")
        }
        ("leases", "pv-controller") => ("coordination.k8s.io", "kube-system", "pv-controller"),
        ("leases", "attach-detach-controller") => ("coordination.k8s.io", "kube-system", "attach-detach-controller"),
        ("leases", "scheduler without node lifecycle") => ("coordination.k8s.io", "kube-system", "stowage-scheduler"),
        ("leases", "attacher") => {
            ("coordination.k8s.io", "stowage-system", "external-attacher-leader-shared-csi-stowage-dev")
        }
        ("leases", "resizer") => ("coordination.k8s.io", "stowage-system", "external-resizer-shared-csi-stowage-dev"),
        ("leases", "snapshotter") => {
            ("coordination.k8s.io", "stowage-system", "external-snapshotter-leader-shared-csi-stowage-dev")
        }
        ("leases", "snapshot-controller") => ("coordination.k8s.io", "stowage-system", "snapshot-controller-leader"),
        ("leases", _) => ("coordination.k8s.io", "stowage-system", ""),
        ("pods", "provisioner") => ("", "stowage-system", ""),
        ("replicasets", _) => ("apps", "stowage-system", ""),
        ("csistoragecapacities", "provisioner") => ("storage.k8s.io", "stowage-system", ""),
        ("persistentvolumeclaims" | "pods" | "events", _) => ("", "default", ""),
        ("persistentvolumes" | "nodes", _) => ("", "", ""),
        ("volumesnapshots", _) => ("snapshot.storage.k8s.io", "default", ""),
        ("volumesnapshotcontents" | "volumesnapshotclasses", _) => ("snapshot.storage.k8s.io", "", ""),
        ("volumegroupsnapshots", _) => ("groupsnapshot.storage.k8s.io", "default", ""),
        ("volumegroupsnapshotcontents" | "volumegroupsnapshotclasses", _) => ("groupsnapshot.storage.k8s.io", "", ""),
        _ => ("storage.k8s.io", "", ""),
    }
}

/// Whether the server would let an account do this.
async fn may(client: &Client, account: &str, verb: &str, resource: &str, place: (&str, &str, &str)) -> bool {
    let (group, namespace, name) = place;
    let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
    let asked = json!({
        "verb": verb, "group": group, "resource": resource, "subresource": subresource,
        "namespace": namespace, "name": if verb == "create" { "" } else { name },
    });
    let body = json!({
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": { "user": format!("system:serviceaccount:stowage-system:{account}"), "resourceAttributes": asked },
    });
    let request = http::Request::post("/apis/authorization.k8s.io/v1/subjectaccessreviews")
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&body).unwrap())
        .unwrap();
    client.request::<Value>(request).await.unwrap()["status"]["allowed"] == true
}

#[tokio::test]
async fn the_embedded_server_lets_each_account_do_what_its_services_need_where_they_need_it() {
    for name in manifest_suite::KUSTOMIZATIONS {
        let objects = shipped(name).unwrap();
        let server = Server::in_memory(Options::system());
        server.enable_rbac().await.unwrap();
        let client = Client::new(server.service(), "default");
        for object in &objects {
            create(&client, object).await.unwrap();
        }
        for (workload, pod) in pods(&objects) {
            let account = pod["serviceAccountName"].as_str().unwrap();
            for (service, rights) in containers(pod).filter_map(rights_of) {
                for (resource, verbs) in &rights {
                    for verb in verbs {
                        let place = place(name, service, resource);
                        let allowed = may(&client, account, verb, resource, place).await;
                        assert!(allowed, "{workload}: {service} may not {verb} {resource} in {place:?}");
                    }
                }
            }
            let core = |namespace| ("", namespace, "");
            let lease = ("coordination.k8s.io", "kube-system", "kube-controller-manager");
            for (verb, resource, place) in [
                ("get", "secrets", core("stowage-system")),
                ("delete", "nodes", core("")),
                ("patch", "nodes", core("")),
                ("update", "leases", lease),
                ("get", "leases", lease),
                ("get", "persistentvolumes", ("storage.k8s.io", "", "")),
            ] {
                assert!(!may(&client, account, verb, resource, place).await, "{workload} may {verb} {resource}");
            }
        }
    }
}
