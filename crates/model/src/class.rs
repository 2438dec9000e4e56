//! StorageClass.

use std::collections::BTreeMap;

use crate::annotations;
use crate::object::{Kind, Meta, Projection, kinds};
use crate::phase::{BindingMode, ReclaimPolicy};

/// The provisioner's name that says volumes of the class are made by hand.
pub const NO_PROVISIONER: &str = "kubernetes.io/no-provisioner";

projection! {
    /// A way to make volumes.
    pub struct StorageClass {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// Who makes the volumes: a driver's name.
        pub provisioner: String,
        /// What the driver is told.
        pub parameters: BTreeMap<String, String>,
        /// The policy of volumes made; see [`StorageClass::reclaim_policy`].
        pub reclaim_policy: Option<ReclaimPolicy>,
        /// The mount options of volumes made.
        pub mount_options: Vec<String>,
        /// When claims are bound; the API server always fills it.
        #[serde(rename = "volumeBindingMode")]
        pub binding_mode: Option<BindingMode>,
        /// Where volumes may be made.
        pub allowed_topologies: Vec<TopologySelectorTerm>,
        /// Whether its claims may grow.
        pub allow_volume_expansion: bool,
    }

    /// One alternative of places: all of its conditions must hold; an empty one holds nowhere.
    pub struct TopologySelectorTerm {
        /// The conditions.
        pub match_label_expressions: Vec<TopologyRequirement>,
    }

    /// One condition on a place.
    pub struct TopologyRequirement {
        /// The topology key, which is a node label.
        pub key: String,
        /// The values allowed.
        pub values: Vec<String>,
    }
}

impl Projection for StorageClass {
    const KIND: Kind = kinds::STORAGE_CLASS;

    fn meta(&self) -> &Meta {
        &self.meta
    }

    fn read(json: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(json)
    }
}

impl StorageClass {
    /// The policy of volumes made: `Delete` unless the class says otherwise.
    pub fn reclaim_policy(&self) -> ReclaimPolicy {
        self.reclaim_policy.unwrap_or(ReclaimPolicy::Delete)
    }

    /// Whether claims wait for their first consumer.
    pub fn waits_for_consumer(&self) -> bool {
        self.binding_mode == Some(BindingMode::WaitForFirstConsumer)
    }

    /// Whether somebody makes volumes of this class.
    pub fn provisions(&self) -> bool {
        !self.provisioner.is_empty() && self.provisioner != NO_PROVISIONER
    }

    /// Whether it is marked as the default, by the current or the legacy annotation.
    pub fn is_default(&self) -> bool {
        [annotations::DEFAULT_CLASS, annotations::BETA_DEFAULT_CLASS]
            .iter()
            .any(|key| self.meta.annotation(key) == Some("true"))
    }
}

/// The default among the classes: the newest that is marked, and the first by name among equally new ones.
pub fn default_class<'a>(classes: impl IntoIterator<Item = &'a StorageClass>) -> Option<&'a StorageClass> {
    classes.into_iter().filter(|class| class.is_default()).max_by(|a, b| {
        let newer = a.meta.creation_timestamp.cmp(&b.meta.creation_timestamp);
        newer.then_with(|| b.meta.name.cmp(&a.meta.name))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn class(name: &str, created: &str, default: &str) -> StorageClass {
        serde_json::from_value(json!({
            "metadata": {
                "name": name,
                "creationTimestamp": created,
                "annotations": {"storageclass.kubernetes.io/is-default-class": default},
            },
            "provisioner": "shared.csi.stowage.dev",
        }))
        .unwrap()
    }

    fn chosen(classes: &[StorageClass]) -> Option<&str> {
        default_class(classes).map(|class| class.meta.name.as_str())
    }

    const OLD: &str = "2024-01-01T00:00:00Z";
    const NEW: &str = "2025-01-01T00:00:00Z";

    #[test]
    fn no_class_and_no_marked_class_give_no_default() {
        assert_eq!(chosen(&[]), None);
        assert_eq!(chosen(&[class("a", OLD, "false"), class("b", OLD, "True")]), None);
    }

    #[test]
    fn the_newest_marked_class_is_the_default() {
        assert_eq!(chosen(&[class("a", OLD, "true"), class("b", NEW, "true"), class("c", NEW, "")]), Some("b"));
    }

    #[test]
    fn of_equally_new_marked_classes_the_first_by_name_is_the_default() {
        assert_eq!(chosen(&[class("b", NEW, "true"), class("a", NEW, "true")]), Some("a"));
    }

    #[test]
    fn a_class_without_a_policy_deletes() {
        assert_eq!(class("a", OLD, "").reclaim_policy(), ReclaimPolicy::Delete);
    }

    #[test]
    fn a_class_of_the_special_provisioner_makes_no_volumes() {
        let mut class = class("a", OLD, "");
        assert!(class.provisions());
        class.provisioner = NO_PROVISIONER.to_owned();
        assert!(!class.provisions());
    }
}
