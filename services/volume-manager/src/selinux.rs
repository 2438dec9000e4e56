//! The SELinux label a pod's volume is mounted with, so that no file has to be labelled one by one.

mod counted;

use std::fs;
use std::path::Path;

use stowage_model::access_mode::AccessMode;
use stowage_model::node_view::{NodePod, SeLinuxOptions};
use stowage_plugins::{Traits, VolumeSpec};

/// The pod wants its files labelled one by one instead.
const RECURSIVE: &str = "Recursive";

/// A machine on which SELinux is on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeLinux {
    /// The label of containers' files as its policy has it: user, role, type and level.
    file_label: [String; 4],
    /// Whether volumes of every access mode are mounted with a label (gate `SELinuxMount`), and not only those of
    /// `ReadWriteOncePod`.
    pub every_mode: bool,
}

/// Why a volume cannot be mounted with one label.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "its containers have different SELinux labels, {first} and {second}; give them the same seLinuxOptions, \
     or set the pod's seLinuxChangePolicy to Recursive"
)]
pub struct Conflict {
    first: String,
    second: String,
}

impl SeLinux {
    /// What this machine says; none where SELinux is off.
    pub fn read(system: &Path) -> Option<Self> {
        fs::metadata(system.join("sys/fs/selinux/enforce")).ok()?;
        let config = fs::read_to_string(system.join("etc/selinux/config")).unwrap_or_default();
        let policy = config.lines().find_map(|line| line.trim().strip_prefix("SELINUXTYPE=")).unwrap_or("targeted");
        let contexts = system.join("etc/selinux").join(policy.trim()).join("contexts/lxc_contexts");
        let contexts = fs::read_to_string(contexts).unwrap_or_default();
        let file = contexts.lines().find_map(|line| {
            let (name, value) = line.split_once('=')?;
            (name.trim() == "file").then(|| value.trim().trim_matches('"'))
        });
        Some(Self::of(file.unwrap_or_default()).unwrap_or_default())
    }

    fn of(label: &str) -> Option<Self> {
        let parts: Vec<String> = label.splitn(4, ':').map(str::to_owned).collect();
        Some(Self { file_label: parts.try_into().ok()?, every_mode: true })
    }

    /// The label of files that a container with these options may use. Without a level the container's is drawn when it
    /// starts, and nobody knows it yet.
    fn file_label(&self, options: &SeLinuxOptions) -> Option<String> {
        let [user, role, kind, _] = &self.file_label;
        let user = if options.user.is_empty() { user } else { &options.user };
        (!options.level.is_empty()).then(|| format!("{user}:{role}:{kind}:{}", options.level))
    }

    /// The label to mount a pod's volume with; none to mount it without one.
    pub fn label(
        &self,
        pod: &NodePod,
        name: &str,
        spec: &VolumeSpec,
        traits: &Traits,
    ) -> Result<Option<String>, Conflict> {
        if self.labels(spec) { self.original(pod, name, spec, traits) } else { Ok(None) }
    }

    /// Whether volumes of its access mode are mounted with a label.
    fn labels(&self, spec: &VolumeSpec) -> bool {
        spec.persistent.is_some() && (self.every_mode || spec.is_once_per_pod())
    }

    /// The label if volumes of every access mode were mounted with one.
    fn original(
        &self,
        pod: &NodePod,
        name: &str,
        spec: &VolumeSpec,
        traits: &Traits,
    ) -> Result<Option<String>, Conflict> {
        let is_eligible = traits.supports_se_linux_mount
            && spec.persistent.is_some()
            && !spec.is_block()
            && pod.security.se_linux_change_policy != RECURSIVE;
        if !is_eligible {
            return Ok(None);
        }
        let users =
            pod.containers.iter().filter(|container| container.volume_mounts.iter().any(|mount| mount.name == name));
        // A container's options take the place of all of the pod's.
        let mut labels = users.map(|container| {
            let own = container.security_context.se_linux_options.as_ref();
            own.or(pod.security.se_linux_options.as_ref()).and_then(|options| self.file_label(options))
        });
        let Some(first) = labels.next() else { return Ok(None) };
        match labels.find(|label| *label != first) {
            None => Ok(first),
            Some(second) => {
                let text = |label: Option<String>| label.unwrap_or_else(|| "one drawn at its start".to_owned());
                Err(Conflict { first: text(first), second: text(second) })
            }
        }
    }
}

/// The widest access mode of a volume, as metrics have it.
pub fn access_mode(spec: &VolumeSpec) -> &'static str {
    let Some(persistent) = &spec.persistent else { return "inline" };
    let modes = [
        (AccessMode::ReadWriteMany, "RWX"),
        (AccessMode::ReadOnlyMany, "ROX"),
        (AccessMode::ReadWriteOnce, "RWO"),
        (AccessMode::ReadWriteOncePod, "RWOP"),
    ];
    modes.into_iter().find(|(mode, _)| persistent.access_modes.contains(*mode)).map_or("", |(_, short)| short)
}

impl Default for SeLinux {
    /// The label that container-selinux has.
    fn default() -> Self {
        Self { file_label: ["system_u", "object_r", "container_file_t", "s0"].map(str::to_owned), every_mode: true }
    }
}

#[cfg(test)]
mod tests;
