//! `compose.yaml`, read as the engine's own tools read it: what is tested is what is shipped.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use serde::Deserialize;
use serde_json::Value;

/// Where callers look for a driver.
pub const SOCKET: &str = "/csi.sock";
/// Where the driver is instead, behind a relay.
pub const DRIVER_SOCKET: &str = "/driver.sock";

/// The file, as far as containers are concerned.
#[derive(Debug, Clone, Deserialize)]
pub struct Compose {
    pub services: BTreeMap<String, Spec>,
    pub volumes: BTreeMap<String, Option<Volume>>,
}

/// A volume that may have a name of its own.
#[derive(Debug, Clone, Deserialize)]
pub struct Volume {
    pub name: String,
}

/// One service.
#[derive(Debug, Clone, Deserialize)]
pub struct Spec {
    pub image: String,
    #[serde(default)]
    pub command: Vec<String>,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    #[serde(default)]
    pub user: Option<String>,
    #[serde(default)]
    pub restart: String,
    #[serde(default)]
    pub read_only: bool,
    #[serde(default)]
    pub privileged: bool,
    #[serde(default)]
    pub cap_add: Vec<String>,
    #[serde(default)]
    pub cap_drop: Vec<String>,
    #[serde(default)]
    pub devices: Vec<String>,
    #[serde(default)]
    pub device_cgroup_rules: Vec<String>,
    #[serde(default)]
    pub security_opt: Vec<String>,
    #[serde(default)]
    pub volumes: Vec<String>,
    #[serde(default)]
    pub depends_on: BTreeMap<String, Value>,
    #[serde(default)]
    pub healthcheck: Option<Value>,
}

/// The top of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

impl Compose {
    /// The repository's `compose.yaml`, with the defaults of its variables.
    pub fn shipped() -> anyhow::Result<Self> {
        let file = repository().join("compose.yaml");
        let text = fs::read_to_string(&file).with_context(|| format!("cannot read {}", file.display()))?;
        Self::read(&text).with_context(|| format!("cannot understand {}", file.display()))
    }

    /// The same with all drivers at another socket, so that a relay can be where they were.
    pub fn relayed(mut self) -> Self {
        for spec in self.services.values_mut() {
            for word in spec.command.iter_mut().filter(|word| word.starts_with("--endpoint=")) {
                *word = word.replace(SOCKET, DRIVER_SOCKET);
            }
        }
        self
    }

    /// Reads a compose file.
    pub fn read(text: &str) -> anyhow::Result<Self> {
        // Not straight into our types: those would take a number for a text, which the engine's tools do not.
        let whole: Value = serde_saphyr::from_str(&with_defaults(text)?)?;
        Ok(serde_json::from_value(whole)?)
    }
}

/// `${NAME:-default}` becomes its default.
fn with_defaults(text: &str) -> anyhow::Result<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let (variable, after) = after.split_once('}').context("a variable without its closing brace")?;
        let Some((_, default)) = variable.split_once(":-") else { bail!("${{{variable}}} has no default") };
        out.push_str(before);
        out.push_str(default);
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_container_is_privileged_and_each_gives_up_all_capabilities_before_it_takes_any() {
        let compose = Compose::shipped().unwrap();
        assert_eq!(compose.services.len(), 21);
        for (name, spec) in &compose.services {
            assert!(!spec.privileged && spec.read_only, "{name}");
            assert_eq!(spec.cap_drop, ["ALL"], "{name}");
            let root = spec.user.as_deref().unwrap_or_default().starts_with('0');
            let node =
                spec.image.contains("/node-plugin:") && name != "driver" || spec.image.contains("/volume-manager:");
            assert!(spec.cap_add.is_empty() || root || node, "{name} takes {:?}", spec.cap_add);
            assert!(!spec.cap_add.contains(&"SYS_ADMIN".to_owned()) || name.ends_with("-plugin"), "{name}");
        }
    }

    #[test]
    fn every_service_that_stays_has_a_health_check_but_the_last_one() {
        for (name, spec) in Compose::shipped().unwrap().services {
            let waits = matches!(name.as_str(), "setup" | "drain");
            assert_eq!(spec.healthcheck.is_none(), waits, "{name}");
        }
    }

    #[test]
    fn what_drains_depends_on_everything_and_so_is_stopped_first() {
        let compose = Compose::shipped().unwrap();
        let mut below: Vec<&str> = vec!["drain"];
        let mut seen = 0;
        while seen < below.len() {
            for name in compose.services[below[seen]].depends_on.keys() {
                if !below.contains(&name.as_str()) {
                    below.push(name);
                }
            }
            seen += 1;
        }
        assert_eq!(below.len(), compose.services.len());
    }

    #[test]
    fn a_variable_without_a_default_is_refused() {
        assert!(Compose::read("services: {a: {image: \"${NAME}\"}}").is_err());
    }
}
