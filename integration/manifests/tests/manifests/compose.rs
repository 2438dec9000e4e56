//! compose.kubernetes.yaml changes the API server and adds what that needs; nothing else.

use std::collections::BTreeSet;

use manifest_suite::{documents, repository};
use serde_json::Value;

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
