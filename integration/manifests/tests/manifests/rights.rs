//! Roles grant what docs/rights.md says a service needs, and nothing else.

use std::collections::{BTreeMap, BTreeSet};

use manifest_suite::{containers, pods, repository, service_of, shipped, words};
use serde_json::Value;

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

/// Our own drivers need no secrets, so the sidecars beside them get none to read; all else is as documented.
fn needed(services: &[&str]) -> Rights {
    let mut rights = Rights::new();
    for service in services {
        for (resource, verbs) in documented(service) {
            if resource != "secrets" {
                rights.entry(resource).or_default().extend(verbs);
            }
        }
    }
    rights
}

#[test]
fn the_account_of_each_workload_has_the_rights_its_services_need_and_no_others() {
    for name in manifest_suite::KUSTOMIZATIONS {
        let objects = shipped(name).unwrap();
        for (workload, pod) in pods(&objects) {
            let account = pod["serviceAccountName"].as_str().unwrap();
            let exists = |object: &Value| object["kind"] == "ServiceAccount" && object["metadata"]["name"] == account;
            assert!(objects.iter().any(exists), "{workload}: no ServiceAccount {account}");
            let services: Vec<&str> =
                containers(pod).filter_map(|container| service_of(container["image"].as_str()?)).collect();
            assert_eq!(granted(&objects, account), needed(&services), "{workload}");
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
