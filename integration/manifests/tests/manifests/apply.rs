//! Everything applies to the embedded server, with roles enforced, twice.

use std::process::Command;

use kube::Client;
use manifest_suite::{KUSTOMIZATIONS, repository, shipped};
use serde_json::Value;
use stowage_apiserver::{Options, Server};

/// Where objects of this kind are.
fn path(object: &Value) -> String {
    let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
    let plural = match kind {
        "StorageClass" => "storageclasses".to_owned(),
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
        // The directory itself holds the same objects as its part `shared`, which are there by then.
        for name in KUSTOMIZATIONS.into_iter().filter(|name| *name != "shared") {
            for round in ["created", "unchanged"] {
                let mut command = Command::new("kubectl");
                command.arg("--kubeconfig").arg(&kubeconfig).args(["apply", "-k"]);
                let output = command.arg(repository().join("deploy/kubernetes").join(name)).output().unwrap();
                let said = String::from_utf8_lossy(&output.stdout).into_owned();
                assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
                let done = |line: &str| line.ends_with(round) || line.starts_with("namespace/");
                assert!(said.lines().count() > 3 && said.lines().all(done), "{name}, to be {round}:\n{said}");
            }
        }
    });
    let applied = applied.await;
    stop.send(()).unwrap();
    served.await.unwrap().unwrap();
    applied.unwrap();
}
