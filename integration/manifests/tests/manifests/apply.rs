//! Everything applies to the embedded server, with roles enforced, twice.

use std::path::{Path, PathBuf};
use std::process::Command;

use kube::Client;
use manifest_suite::{KUSTOMIZATIONS, SNAPSHOT_CLASSES, documents, objects, repository, shipped, snapshot_classes};
use serde_json::Value;
use stowage_apiserver::{Options, Server};

/// Where objects of this kind are.
fn path(object: &Value) -> String {
    let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let plural = match kind {
        kind if kind.ends_with("Class") => format!("{}es", kind.to_lowercase()),
        _ => format!("{}s", kind.to_lowercase()),
    };
    match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("{root}/namespaces/{namespace}/{plural}"),
        None => format!("{root}/{plural}"),
    }
}

pub async fn create(client: &Client, object: &Value) -> Result<Value, String> {
    let request = http::Request::post(format!("{}?fieldValidation=Strict", path(object)))
        .header("content-type", "application/json")
        .body(serde_json::to_vec(object).unwrap())
        .unwrap();
    client.request::<Value>(request).await.map_err(|error| error.to_string())
}

#[tokio::test]
async fn every_kustomization_is_taken_by_the_embedded_server() {
    for name in KUSTOMIZATIONS {
        let server = Server::in_memory(Options::system());
        server.enable_rbac().await.unwrap();
        let client = Client::new(server.service(), "default");
        for object in shipped(name).unwrap() {
            let made = create(&client, &object).await;
            let who = format!("{name}: {} {}", object["kind"], object["metadata"]["name"]);
            assert_eq!(made.unwrap_or_else(|error| panic!("{who}: {error}"))["kind"], object["kind"], "{who}");
        }
    }
}

#[tokio::test]
async fn the_kinds_of_snapshots_come_first_and_take_the_classes_of_all_drivers() {
    for name in ["", "shared", "local", "nfs", "snapshots"] {
        let objects = shipped(name).unwrap();
        let kinds: Vec<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap()).collect();
        assert_eq!(kinds[..6], ["CustomResourceDefinition"; 6], "{name}");
        let classes = kinds.iter().filter(|kind| kind.contains("SnapshotClass")).count();
        assert_eq!(classes, 0, "{name}: kubectl does not know the kinds yet when it is applied");
    }
    let server = Server::in_memory(Options::system());
    let client = Client::new(server.service(), "default");
    for object in shipped("snapshots").unwrap() {
        create(&client, &object).await.unwrap();
    }
    let classes = snapshot_classes().unwrap();
    assert_eq!(classes.len(), 5, "of snapshots for each driver, and of groups for those that have them");
    for class in classes {
        create(&client, &class).await.unwrap_or_else(|error| panic!("{class}: {error}"));
        let driver = match class["metadata"]["name"].as_str().unwrap() {
            "stowage" => "shared",
            "nfs-csi" => "nfs",
            _ => "local",
        };
        let driver = shipped(driver).unwrap();
        let known = |object: &Value| object["kind"] == "CSIDriver" && object["metadata"]["name"] == class["driver"];
        assert!(driver.iter().any(known), "{class} is of no driver that is shipped with it");
    }
}

#[tokio::test]
async fn every_example_is_taken_by_the_embedded_server() {
    let definitions = objects(&repository().join("deploy/crds")).unwrap();
    for (example, found) in examples(&repository().join("examples")) {
        let server = Server::in_memory(Options::system());
        let client = Client::new(server.service(), "default");
        for object in definitions.iter().chain(&found) {
            create(&client, object).await.unwrap_or_else(|error| panic!("{}: {error}", example.display()));
        }
    }
}

/// What people apply at once: a directory with a kustomization, or a file.
fn examples(folder: &Path) -> Vec<(PathBuf, Vec<Value>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.join("kustomization.yaml").is_file() {
            let objects = objects(&path).unwrap();
            found.push((path, objects));
        } else if path.is_dir() {
            found.extend(examples(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let documents = documents(&path).unwrap();
            found.push((path, documents));
        }
    }
    found
}

#[tokio::test]
async fn kubectl_applies_every_kustomization_and_finds_nothing_to_change_the_second_time() {
    if Command::new("kubectl").args(["version", "--client"]).output().is_err() {
        eprintln!("skipped: no kubectl in PATH");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = folder.path().join("kubeconfig");
    let options = apiserver::Options {
        listen: "127.0.0.1:0".parse().unwrap(),
        data_dir: None,
        kubeconfig_out: Some(kubeconfig.clone()),
    };
    let bound = apiserver::bind(options).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(bound.run(async { _ = stopped.await }));
    let applied = tokio::task::spawn_blocking(move || {
        let apply = |what: &str, flag: &str, round: &str| {
            let mut command = Command::new("kubectl");
            command.arg("--kubeconfig").arg(&kubeconfig).args(["apply", flag]);
            let output = command.arg(repository().join("deploy/kubernetes").join(what)).output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(output.status.success(), "{what}: {}", String::from_utf8_lossy(&output.stderr));
            // Several bring these along.
            let shared = |line: &str| line.starts_with("namespace/") || line.starts_with("customresourcedefinition");
            let done = |line: &str| line.ends_with(round) || shared(line) && line.ends_with("unchanged");
            assert!(!said.is_empty() && said.lines().all(done), "{what}, to be {round}:\n{said}");
        };
        // The directory itself holds the same objects as its part `shared`, which are there by then.
        for name in KUSTOMIZATIONS.into_iter().filter(|name| *name != "shared") {
            apply(name, "-k", "created");
            apply(name, "-k", "unchanged");
        }
        for file in SNAPSHOT_CLASSES {
            apply(file, "-f", "created");
            apply(file, "-f", "unchanged");
        }
    });
    let applied = applied.await;
    stop.send(()).unwrap();
    served.await.unwrap().unwrap();
    applied.unwrap();
}
