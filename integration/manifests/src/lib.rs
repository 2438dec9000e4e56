//! What is shipped in `deploy/` and the compose files, as data: read for tests that need no engine and no cluster.

#![forbid(unsafe_code)]

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

/// What can be given to `kubectl apply -k`, below `deploy/kubernetes`; the first is that directory itself.
pub const KUSTOMIZATIONS: [&str; 8] =
    ["", "shared", "local", "nfs", "snapshots", "controllers", "scheduler", "apiserver"];

/// What comes after them, below `deploy/kubernetes`: objects of kinds that they define.
pub const SNAPSHOT_CLASSES: [&str; 3] =
    ["shared/snapshotclass.yaml", "local/snapshotclass.yaml", "nfs/snapshotclass.yaml"];

/// The top of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// All documents of a YAML file, merge keys resolved.
pub fn documents(file: &Path) -> anyhow::Result<Vec<Value>> {
    let unreadable = || format!("cannot read {}", file.display());
    let text = fs::read_to_string(file).with_context(unreadable)?;
    serde_saphyr::from_multiple(&text).with_context(unreadable)
}

/// The objects of a kustomization, by following its resources.
pub fn objects(folder: &Path) -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for kustomization in documents(&folder.join("kustomization.yaml"))? {
        for resource in kustomization["resources"].as_array().into_iter().flatten() {
            let path = folder.join(resource.as_str().unwrap_or_default());
            match path.is_dir() {
                true => found.extend(objects(&path)?),
                false => found.extend(documents(&path)?),
            }
        }
    }
    Ok(found)
}

/// The objects of one of [`KUSTOMIZATIONS`].
pub fn shipped(name: &str) -> anyhow::Result<Vec<Value>> {
    objects(&repository().join("deploy/kubernetes").join(name))
}

/// The objects of [`SNAPSHOT_CLASSES`].
pub fn snapshot_classes() -> anyhow::Result<Vec<Value>> {
    let mut found = Vec::new();
    for file in SNAPSHOT_CLASSES {
        found.extend(documents(&repository().join("deploy/kubernetes").join(file))?);
    }
    Ok(found)
}

/// The pods that workloads make, with the workload's name.
pub fn pods(objects: &[Value]) -> Vec<(String, &Value)> {
    let makes_pods = |object: &&Value| object["spec"]["template"]["spec"].is_object();
    let name = |object: &Value| object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    objects.iter().filter(makes_pods).map(|object| (name(object), &object["spec"]["template"]["spec"])).collect()
}

/// A pod's containers, those that run first included.
pub fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"].into_iter().flat_map(|kind| pod[kind].as_array().into_iter().flatten())
}

/// A list of texts.
pub fn words(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// The service in `prefix/SERVICE:tag`.
pub fn service_of(image: &str) -> Option<&str> {
    image.strip_prefix("stowage/")?.split(':').next()
}
