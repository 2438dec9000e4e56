//! A definition around its schemas: names, versions, columns.

use serde_json::{Value, json};

use stowage_model::object::Kind;

use crate::schema::Schema;

/// One CustomResourceDefinition.
#[derive(Debug, Clone)]
pub struct Definition {
    pub(crate) kind: Kind,
    pub(crate) short_names: &'static [&'static str],
    /// Where the API was approved; without it no API server takes a definition in a group of Kubernetes.
    pub(crate) approved: &'static str,
    pub(crate) columns: Vec<Column>,
    pub(crate) versions: Vec<Version>,
}

/// One version of a kind.
#[derive(Debug, Clone)]
pub(crate) struct Version {
    pub name: &'static str,
    pub schema: Schema,
    pub served: bool,
    pub stored: bool,
    pub deprecated: bool,
    pub warning: Option<String>,
    pub has_status: bool,
}

/// A column of `kubectl get`: name, type and path.
pub(crate) type Column = (&'static str, &'static str, &'static str);

/// The last column of every kind.
pub(crate) const AGE: Column = ("Age", "date", ".metadata.creationTimestamp");

impl Definition {
    /// The kind, in the version that services use.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// `plural.group`.
    pub fn name(&self) -> String {
        format!("{}.{}", self.kind.plural, self.kind.group)
    }

    /// Of the file in `deploy/crds`.
    pub fn file_name(&self) -> String {
        format!("{}_{}.yaml", self.kind.group, self.kind.plural)
    }

    /// The object to create.
    pub fn object(&self) -> Value {
        let kind = self.kind.kind;
        let scope = if self.kind.namespaced { "Namespaced" } else { "Cluster" };
        let names = json!({
            "kind": kind,
            "listKind": format!("{kind}List"),
            "plural": self.kind.plural,
            "shortNames": self.short_names,
            "singular": kind.to_lowercase(),
        });
        let versions: Vec<Value> = self.versions.iter().map(|version| self.version(version)).collect();
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {
                "name": self.name(),
                "annotations": {"api-approved.kubernetes.io": self.approved},
            },
            "spec": {"group": self.kind.group, "names": names, "scope": scope, "versions": versions},
        })
    }

    fn version(&self, version: &Version) -> Value {
        let column = |(name, kind, path): &Column| {
            let mut column = json!({"name": name, "type": kind, "jsonPath": path});
            if let Some(says) = version.schema.says_of(path) {
                column["description"] = says.into();
            }
            column
        };
        let mut value = json!({
            "name": version.name,
            "served": version.served,
            "storage": version.stored,
            "schema": {"openAPIV3Schema": Value::from(version.schema.clone())},
            "subresources": if version.has_status { json!({"status": {}}) } else { json!({}) },
            "additionalPrinterColumns": self.columns.iter().map(column).collect::<Vec<_>>(),
        });
        if version.deprecated {
            value["deprecated"] = true.into();
        }
        if let Some(warning) = &version.warning {
            value["deprecationWarning"] = warning.as_str().into();
        }
        value
    }
}

/// An object of a kind, without what is its own.
pub(crate) fn object(says: &str) -> Schema {
    Schema::object(says)
        .field("apiVersion", Schema::string("Group and version of this object."))
        .field("kind", Schema::string("Kind of this object."))
}

/// The metadata of an object, which the API server knows better than any schema.
pub(crate) fn metadata() -> Schema {
    Schema::object("").silent()
}
