//! ReferenceGrant of the Gateway API: who may refer to objects of a namespace from another one.

use crate::object::{Kind, Meta, Projection, kinds};

projection! {
    /// A permission, given in the namespace of what is referred to.
    pub struct ReferenceGrant {
        /// Metadata.
        #[serde(rename = "metadata")]
        pub meta: Meta,
        /// What is permitted.
        pub spec: ReferenceGrantSpec,
    }

    /// Any of the first may refer to any of the second.
    pub struct ReferenceGrantSpec {
        /// Who refers.
        pub from: Vec<ReferenceGrantFrom>,
        /// What is referred to.
        pub to: Vec<ReferenceGrantTo>,
    }

    /// Objects of one kind in one namespace.
    pub struct ReferenceGrantFrom {
        /// API group, empty for the core group.
        pub group: String,
        /// Kind.
        pub kind: String,
        /// Namespace.
        pub namespace: String,
    }

    /// One object of the grant's namespace, or all of a kind.
    pub struct ReferenceGrantTo {
        /// API group, empty for the core group.
        pub group: String,
        /// Kind.
        pub kind: String,
        /// Name; absent or empty for all.
        pub name: Option<String>,
    }
}

impl Projection for ReferenceGrant {
    const KIND: Kind = kinds::REFERENCE_GRANT;

    fn meta(&self) -> &Meta {
        &self.meta
    }
}

impl ReferenceGrant {
    /// Whether objects of this kind and namespace may refer to the one of that kind and name in the grant's namespace.
    pub fn permits(&self, from: Kind, namespace: &str, to: Kind, name: &str) -> bool {
        let is_from = |entry: &ReferenceGrantFrom| {
            entry.group == from.group && entry.kind == from.kind && entry.namespace == namespace
        };
        let is_to = |entry: &ReferenceGrantTo| {
            let named = entry.name.as_deref().filter(|name| !name.is_empty());
            entry.group == to.group && entry.kind == to.kind && named.is_none_or(|named| named == name)
        };
        self.spec.from.iter().any(is_from) && self.spec.to.iter().any(is_to)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_grant_permits_its_kinds_its_namespace_and_its_names_and_nothing_else() {
        let group = kinds::VOLUME_SNAPSHOT.group;
        let to = json!([
            { "group": group, "kind": "VolumeSnapshot", "name": "nightly" },
            { "group": "", "kind": "PersistentVolumeClaim" },
        ]);
        let from = json!([{ "group": "", "kind": "PersistentVolumeClaim", "namespace": "dev" }]);
        let grant: ReferenceGrant = serde_json::from_value(json!({ "spec": { "from": from, "to": to } })).unwrap();
        let cases = [
            (kinds::CLAIM, "dev", kinds::VOLUME_SNAPSHOT, "nightly", true),
            (kinds::CLAIM, "dev", kinds::VOLUME_SNAPSHOT, "weekly", false),
            (kinds::CLAIM, "dev", kinds::CLAIM, "anything", true),
            (kinds::CLAIM, "test", kinds::CLAIM, "anything", false),
            (kinds::POD, "dev", kinds::CLAIM, "anything", false),
            (kinds::CLAIM, "dev", kinds::SECRET, "anything", false),
        ];
        for (from, namespace, to, name, permitted) in cases {
            assert_eq!(grant.permits(from, namespace, to, name), permitted, "{namespace} {} {name}", to.kind);
        }
        assert!(!ReferenceGrant::default().permits(kinds::CLAIM, "dev", kinds::CLAIM, "a"));
    }
}
