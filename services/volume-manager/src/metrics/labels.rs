//! SELinux labels that do not go together, under the kubelet's names. They only grow, and are gauges as the kubelet's are.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use stowage_plugins::VolumeSpec;

use crate::generator::plugin_label;
use crate::selinux::access_mode;

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfMode {
    access_mode: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfVolume {
    volume_plugin: String,
    access_mode: &'static str,
}

/// Whether a conflict keeps a pod from its volume, or would if such volumes were mounted with a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    Error,
    Warning,
}

#[derive(Clone, Default)]
pub struct Labels {
    container_errors: Family<OfMode, Gauge>,
    container_warnings: Family<OfMode, Gauge>,
    pod_errors: Family<OfMode, Gauge>,
    pod_warnings: Family<OfMode, Gauge>,
    volume_errors: Family<OfVolume, Gauge>,
    volume_warnings: Family<OfVolume, Gauge>,
    admitted: Family<OfVolume, Gauge>,
}

impl Labels {
    pub fn add_to(&self, r: &mut Registry) {
        let mut register =
            |name: &str, help: &str, errors: &Family<OfMode, Gauge>, warnings: &Family<OfMode, Gauge>| {
                r.register(format!("volume_manager_selinux_{name}_errors_total"), help, errors.clone());
                r.register(
                    format!("volume_manager_selinux_{name}_warnings_total"),
                    format!("{help}; not an error yet"),
                    warnings.clone(),
                );
            };
        register(
            "container",
            "Containers whose SELinux label cannot be told",
            &self.container_errors,
            &self.container_warnings,
        );
        register(
            "pod_context_mismatch",
            "Volumes whose containers have different SELinux labels",
            &self.pod_errors,
            &self.pod_warnings,
        );
        let help = "Volumes that another pod uses with another SELinux label";
        r.register("volume_manager_selinux_volume_context_mismatch_errors_total", help, self.volume_errors.clone());
        r.register(
            "volume_manager_selinux_volume_context_mismatch_warnings_total",
            format!("{help}; not an error yet"),
            self.volume_warnings.clone(),
        );
        r.register(
            "volume_manager_selinux_volumes_admitted_total",
            "Volumes whose SELinux label was fine and that are mounted with it, or would be",
            self.admitted.clone(),
        );
    }

    /// A volume's containers have different labels.
    pub fn containers_differ(&self, access_mode: &'static str, severity: Severity) {
        let family = if severity == Severity::Error { &self.pod_errors } else { &self.pod_warnings };
        family.get_or_create_owned(&OfMode { access_mode }).inc();
    }

    /// A volume is used by pods with different labels.
    pub fn pods_differ(&self, spec: &VolumeSpec, severity: Severity) {
        let family = if severity == Severity::Error { &self.volume_errors } else { &self.volume_warnings };
        family.get_or_create_owned(&of_volume(spec)).inc();
    }

    /// A volume has come whose label is known.
    pub fn admitted(&self, spec: &VolumeSpec) {
        self.admitted.get_or_create_owned(&of_volume(spec)).inc();
    }
}

fn of_volume(spec: &VolumeSpec) -> OfVolume {
    OfVolume { volume_plugin: plugin_label(spec), access_mode: access_mode(spec) }
}
