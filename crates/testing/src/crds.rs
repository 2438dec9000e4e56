//! The kinds of snapshots, installed into a world's API server.

use serde_json::Value;

use stowage_model::object::Kind;

use crate::admin::Admin;

const DEFINITION: Kind = Kind {
    group: "apiextensions.k8s.io",
    version: "v1",
    kind: "CustomResourceDefinition",
    plural: "customresourcedefinitions",
    namespaced: false,
};

/// Installs the definitions of snapshots and group snapshots, as `kubectl apply -k deploy/crds` does; they are served at once.
pub async fn install(admin: &Admin) -> Result<(), kube::Error> {
    for definition in stowage_crds::definitions() {
        let mut object = definition.object();
        strip(&mut object);
        admin.create(DEFINITION, object).await?;
    }
    Ok(())
}

/// Without rules: the embedded server refuses CEL, and this goes when it no longer does. Without words too, which take
/// most of the time that a world needs to begin.
fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("x-kubernetes-validations");
            if fields.get("description").is_some_and(Value::is_string) {
                fields.remove("description");
            }
            fields.values_mut().for_each(strip);
        }
        Value::Array(items) => items.iter_mut().for_each(strip),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
