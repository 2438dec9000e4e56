//! The pod that stands for the command: one of claims alone, or what a file says.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Map, Value, json};

use volume_manager::api::RUN_LABEL;

use super::ClaimMount;
use crate::manifest;

const CONTAINER: &str = "command";
/// Nothing is pulled, but a pod without an image is none.
const IMAGE: &str = "stowage.dev/run";

/// A pod that is about to be made.
#[derive(Debug, Clone, PartialEq)]
pub struct CommandPod {
    metadata: Map<String, Value>,
    spec: Value,
    /// The container whose place the command takes.
    container: usize,
}

/// A claim that a pod names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedClaim {
    pub name: String,
    /// It is wanted as a device.
    pub is_block: bool,
}

impl CommandPod {
    /// One that has nothing yet.
    pub fn of_claims() -> Self {
        let spec = json!({
            "containers": [{ "name": CONTAINER, "image": IMAGE }],
            "automountServiceAccountToken": false,
        });
        Self { metadata: Map::new(), spec, container: 0 }
    }

    /// The pod of a file, whose container's place the command takes.
    pub fn read(file: &Path, container: Option<&str>) -> anyhow::Result<Self> {
        let named = || format!("--pod {}", file.display());
        Self::of(manifest::read(file).with_context(named)?, container).with_context(named)
    }

    fn of(objects: Vec<Value>, container: Option<&str>) -> anyhow::Result<Self> {
        let kinds: Vec<&str> = objects.iter().map(|object| object["kind"].as_str().unwrap_or("no kind")).collect();
        let object = match <[Value; 1]>::try_from(objects.clone()) {
            Ok([object]) => object,
            Err(none) if none.is_empty() => bail!("there is no object in it; write one Pod"),
            Err(_) => bail!(
                "it has {} objects ({}); leave one Pod in it, and create the others with kubectl first",
                kinds.len(),
                kinds.join(", ")
            ),
        };
        if object["kind"] != "Pod" || object["apiVersion"] != "v1" {
            bail!("it has {} {}, not kind \"Pod\" of apiVersion \"v1\"", object["apiVersion"], object["kind"]);
        }
        let metadata = match &object["metadata"] {
            Value::Object(metadata) => metadata.clone(),
            Value::Null => Map::new(),
            _ => bail!(
                "metadata is not a map; write for example `metadata: {{name: web, namespace: default}}`, or leave it out"
            ),
        };
        let spec = object["spec"].clone();
        ensure!(
            spec.is_object(),
            "spec is missing, or not a map; write for example `spec: {{containers: [{{name: main, volumeMounts: [{{name: data, \
             mountPath: /data}}]}}], volumes: [{{name: data, persistentVolumeClaim: {{claimName: data}}}}]}}`"
        );
        let container = choose(&spec, container)?;
        let mut pod = Self { metadata, spec, container };
        pod.check()?;
        let chosen = &mut pod.spec["containers"][container];
        for (field, default) in [("name", CONTAINER), ("image", IMAGE)] {
            if chosen[field].is_null() {
                chosen[field] = default.into();
            }
        }
        Ok(pod)
    }

    /// Where each volume goes must be said, and nothing may be asked for that the command would not get.
    fn check(&self) -> anyhow::Result<()> {
        let volumes = list(&self.spec["volumes"], "spec.volumes")?;
        let volumes: BTreeSet<&str> = volumes.iter().filter_map(|volume| volume["name"].as_str()).collect();
        let container = self.chosen();
        let mut paths = BTreeSet::new();
        for (field, path_field) in [("volumeMounts", "mountPath"), ("volumeDevices", "devicePath")] {
            let whole = format!("spec.containers[{}].{field}", self.container);
            for (index, mount) in list(&container[field], &whole)?.iter().enumerate() {
                let at = format!("{whole}[{index}]");
                let name = required(mount, "name", &at)?;
                ensure!(volumes.contains(name), "{at}.name: spec.volumes has no {name:?}");
                let path = required(mount, path_field, &at)?;
                check_path(path).with_context(|| format!("{at}.{path_field}"))?;
                ensure!(paths.insert(normal(path)), "{at}.{path_field}: {path:?} is there twice");
                ensure!(
                    mount["mountPropagation"] != "Bidirectional",
                    "{at}.mountPropagation: what the command mounts is seen by nobody else; leave Bidirectional out"
                );
            }
        }
        Ok(())
    }

    fn chosen(&self) -> &Value {
        &self.spec["containers"][self.container]
    }

    /// The container whose place the command takes.
    pub fn container(&self) -> &str {
        self.chosen()["name"].as_str().unwrap_or(CONTAINER)
    }

    /// The namespace of the command line, or else of the file; two that differ are a mistake.
    pub fn namespace(&self, asked: Option<&str>) -> anyhow::Result<String> {
        agreed(asked, self.metadata.get("namespace").and_then(Value::as_str), "--namespace", "metadata.namespace")
            .map(|namespace| namespace.unwrap_or_else(|| "default".to_owned()))
    }

    /// The node that it must come to, if one is named.
    pub fn node(&self, asked: Option<&str>) -> anyhow::Result<Option<String>> {
        agreed(asked, self.spec["nodeName"].as_str(), "--node", "spec.nodeName")
    }

    /// A name that no pod has: those of the file may be in use, and who holds a pod of that name would end it.
    pub fn name(&self, suffix: &str) -> String {
        const MOST: usize = 63;
        let given =
            |field: &str| self.metadata.get(field).and_then(Value::as_str).map(|name| name.trim_end_matches('-'));
        let prefix = given("name").or_else(|| given("generateName")).filter(|name| !name.is_empty()).unwrap_or("run");
        let room = MOST.saturating_sub(suffix.len() + 1);
        let prefix: String = prefix.chars().take(room).collect();
        format!("{prefix}-{suffix}")
    }

    /// The claims it names.
    pub fn claims(&self) -> Vec<NamedClaim> {
        let devices = self.chosen()["volumeDevices"].as_array().into_iter().flatten();
        let devices: BTreeSet<&str> = devices.filter_map(|device| device["name"].as_str()).collect();
        let volumes = self.spec["volumes"].as_array().into_iter().flatten();
        let claim = |volume: &Value| {
            let name = volume["persistentVolumeClaim"]["claimName"].as_str()?.to_owned();
            let is_block = volume["name"].as_str().is_some_and(|name| devices.contains(name));
            Some(NamedClaim { name, is_block })
        };
        volumes.filter_map(claim).collect()
    }

    /// Adds a claim of the command line.
    pub fn add_claim(&mut self, index: usize, claim: &ClaimMount, is_block: bool) -> anyhow::Result<()> {
        let container = self.chosen();
        let taken = ["volumeMounts", "volumeDevices"].into_iter().any(|field| {
            let mounts = container[field].as_array().into_iter().flatten();
            let mut paths =
                mounts.filter_map(|mount| mount["mountPath"].as_str().or_else(|| mount["devicePath"].as_str()));
            paths.any(|path| normal(path) == normal(&claim.path))
        });
        ensure!(!taken, "--claim {}: something else is at {:?} already", claim.claim, claim.path);
        let name = format!("stowage-run-{index}");
        ensure!(!is_block || claim.part.is_empty(), "--claim {}: a device has no parts", claim.claim);
        push(&mut self.spec["volumes"], claim.volume(&name));
        let container = &mut self.spec["containers"][self.container];
        match is_block {
            true => push(&mut container["volumeDevices"], json!({ "name": name, "devicePath": claim.path })),
            false => push(&mut container["volumeMounts"], claim.mount(&name)),
        }
        Ok(())
    }

    /// What the API server is told: a pod that stays on nodes that hold it, and goes when nobody does.
    pub fn body(mut self, name: &str, namespace: &str, nodes: &[&str]) -> Value {
        let held = json!({ "key": "kubernetes.io/hostname", "operator": "In", "values": nodes });
        self.spec["restartPolicy"] = "Never".into();
        let required = &mut self.spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        let terms = &mut required["nodeSelectorTerms"];
        match terms.as_array_mut().filter(|terms| !terms.is_empty()) {
            // Any of them may be met.
            Some(terms) => terms.iter_mut().for_each(|term| push(&mut term["matchExpressions"], held.clone())),
            None => *terms = json!([{ "matchExpressions": [held] }]),
        }
        let own = |field: &str| self.metadata.get(field).filter(|value| value.is_object()).cloned();
        let (mut labels, annotations) = (own("labels").unwrap_or_else(|| json!({})), own("annotations"));
        labels[RUN_LABEL] = "true".into();
        let mut metadata = json!({ "name": name, "namespace": namespace, "labels": labels });
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        json!({ "metadata": metadata, "spec": self.spec })
    }
}

fn choose(spec: &Value, wanted: Option<&str>) -> anyhow::Result<usize> {
    let containers = list(&spec["containers"], "spec.containers")?;
    let names: Vec<&str> = containers.iter().map(|one| one["name"].as_str().unwrap_or("without a name")).collect();
    match (wanted, &names[..]) {
        (_, []) => bail!("spec.containers is empty: one container says where the volumes go"),
        (Some(wanted), _) => names.iter().position(|name| *name == wanted).with_context(|| {
            format!("spec.containers has no {wanted:?}, which --container names, but {}", names.join(", "))
        }),
        (None, [_]) => Ok(0),
        (None, _) => {
            bail!("spec.containers has {}: say with --container whose mounts the command gets", names.join(", "))
        }
    }
}

/// A list; one that is not there is empty.
fn list<'a>(value: &'a Value, field: &str) -> anyhow::Result<&'a [Value]> {
    match value {
        Value::Array(list) => Ok(list),
        Value::Null => Ok(&[]),
        _ => bail!("{field} is not a list"),
    }
}

fn required<'a>(object: &'a Value, field: &str, at: &str) -> anyhow::Result<&'a str> {
    match &object[field] {
        Value::String(text) if !text.is_empty() => Ok(text),
        Value::String(_) | Value::Null => bail!("{at}.{field} is missing"),
        _ => bail!("{at}.{field} is not a text"),
    }
}

/// Also of what `--claim` says: the way there is gone name by name.
pub(super) fn check_path(path: &str) -> anyhow::Result<()> {
    ensure!(path.starts_with('/'), "path {path:?} must be absolute");
    let names: Vec<Component<'_>> = Path::new(path).components().skip(1).collect();
    ensure!(!names.is_empty(), "nothing can be mounted at \"/\", which the command runs in");
    let is_plain = names.iter().all(|name| matches!(name, Component::Normal(_)));
    ensure!(is_plain && !path.contains('\0'), "path {path:?} must be of plain names, without \"..\"");
    Ok(())
}

fn normal(path: &str) -> std::path::PathBuf {
    Path::new(path).components().collect()
}

fn agreed(asked: Option<&str>, written: Option<&str>, flag: &str, field: &str) -> anyhow::Result<Option<String>> {
    match (asked, written.filter(|text| !text.is_empty())) {
        (Some(asked), Some(written)) if asked != written => {
            bail!("{flag} {asked} and the file's {field} {written} are not the same; leave one out")
        }
        (asked, written) => Ok(asked.or(written).map(str::to_owned)),
    }
}

fn push(list: &mut Value, value: Value) {
    match list {
        Value::Array(list) => list.push(value),
        _ => *list = json!([value]),
    }
}

#[cfg(test)]
mod tests;
