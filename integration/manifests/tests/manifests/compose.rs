//! compose.kubernetes.yaml changes the API server and adds what that needs; nothing else.

use std::collections::BTreeSet;
use std::process::Command;

use manifest_suite::{documents, objects, repository, words};
use serde_json::{Value, json};

fn services(file: &str) -> serde_json::Map<String, Value> {
    documents(&repository().join(file)).unwrap()[0]["services"].as_object().unwrap().clone()
}

#[test]
fn the_override_changes_the_api_server_and_nothing_else() {
    let (base, over) = (services("compose.yaml"), services("compose.kubernetes.yaml"));
    let names = |map: &serde_json::Map<String, Value>| map.keys().cloned().collect::<BTreeSet<_>>();
    let both: Vec<String> = names(&base).intersection(&names(&over)).cloned().collect();
    assert_eq!(both, ["apiserver"]);
    let added: Vec<String> = names(&over).difference(&names(&base)).cloned().collect();
    assert_eq!(added, ["certificates", "etcd"]);
}

#[test]
fn images_and_versions_of_the_override_are_variables() {
    for name in ["apiserver", "etcd"] {
        let image = services("compose.kubernetes.yaml")[name]["image"].as_str().unwrap().to_owned();
        let (image, version) = image.split_once("}:${").unwrap();
        assert!(image.starts_with("${") && version.ends_with('}'), "{name}: {image} {version}");
    }
}

#[test]
fn the_server_keeps_the_name_and_the_port_by_which_the_services_know_it() {
    let (base, over) = (services("compose.yaml"), services("compose.kubernetes.yaml"));
    assert!(over["apiserver"]["networks"].is_null() && over["apiserver"]["ports"].is_null());
    assert_eq!(base["apiserver"]["networks"]["default"]["aliases"][0], "kubernetes");
    let command = over["apiserver"]["command"].to_string();
    assert!(command.contains("--secure-port=${STOWAGE_PORT:-6443}"), "{command}");
}

/// Both files as the tool itself merges them, if it is installed.
fn merged() -> Option<Value> {
    let tools: [(&str, &[&str]); 2] = [("docker-compose", &[]), ("docker", &["compose"])];
    for (program, before) in tools {
        let mut command = Command::new(program);
        command.args(before).args(["-f", "compose.yaml", "-f", "compose.kubernetes.yaml", "config"]);
        match command.current_dir(repository()).output() {
            Ok(output) if output.status.success() => return Some(serde_saphyr::from_slice(&output.stdout).unwrap()),
            Ok(output) if before.is_empty() => panic!("{}", String::from_utf8_lossy(&output.stderr)),
            _ => {}
        }
    }
    None
}

#[test]
fn what_is_merged_starts_no_container_with_more_rights_than_it_needs() {
    let Some(merged) = merged() else {
        eprintln!("skipped: neither docker-compose nor docker compose is installed");
        return;
    };
    let service = |name: &str| &merged["services"][name];
    for name in ["apiserver", "etcd", "certificates"] {
        assert_eq!(words(&service(name)["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(service(name)["read_only"], true, "{name}");
        assert_eq!(words(&service(name)["security_opt"]), ["no-new-privileges:true"], "{name}");
        assert!(service(name)["privileged"].is_null(), "{name}");
    }
    // A file with a capability in it is not executed where the bounding set has not got it.
    assert_eq!(words(&service("apiserver")["cap_add"]), ["NET_BIND_SERVICE"]);
    assert_eq!(words(&service("etcd")["cap_add"]), Vec::<String>::new());
    assert_eq!(service("etcd")["healthcheck"]["test"][1], "etcdctl");
    assert_eq!(service("apiserver")["depends_on"]["etcd"], json!({ "condition": "service_healthy" }));
}

#[test]
fn setup_waits_for_a_server_that_takes_minutes() {
    let command = words(&services("compose.yaml")["setup"]["command"]);
    assert!(command.contains(&"--timeout=5m".to_owned()), "{command:?}");
}

#[test]
fn setup_creates_every_kind_of_snapshots_and_the_classes_of_the_driver() {
    let setup = &services("compose.yaml")["setup"];
    let folders = [("/objects/", "deploy/kubernetes/shared"), ("/crds/", "deploy/crds")];
    let mut made = Vec::new();
    for file in words(&setup["command"]).iter().filter_map(|word| word.strip_prefix("--filename=")) {
        let (inside, outside) = folders.into_iter().find(|(inside, _)| file.starts_with(inside)).unwrap();
        let mount = format!("./{outside}:{}:ro", inside.trim_end_matches('/'));
        assert!(words(&setup["volumes"]).contains(&mount), "{file}: no {mount}");
        made.extend(documents(&repository().join(outside).join(file.trim_start_matches(inside))).unwrap());
    }
    for definition in objects(&repository().join("deploy/crds")).unwrap() {
        assert!(made.contains(&definition), "{} is not created", definition["metadata"]["name"]);
    }
    for kind in ["CSIDriver", "StorageClass", "VolumeSnapshotClass", "VolumeGroupSnapshotClass"] {
        assert!(made.iter().any(|object| object["kind"] == kind), "no {kind} is created");
    }
}

/// Whoever adds a service to the table adds it to the stack of containers.
#[test]
fn every_process_of_the_table_runs_in_compose() {
    let base = services("compose.yaml");
    let images: BTreeSet<&str> = base.values().map(|service| service["image"].as_str().unwrap()).collect();
    for name in stowage_services::names(|service| service.is_process()) {
        assert!(images.iter().any(|image| image.contains(&format!("/{name}:"))), "{name}");
    }
}
