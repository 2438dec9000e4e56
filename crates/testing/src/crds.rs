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
        strip_rules(&mut object);
        admin.create(DEFINITION, object).await?;
    }
    Ok(())
}

/// The embedded server refuses rules in CEL; this goes when it no longer does.
fn strip_rules(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.remove("x-kubernetes-validations");
            fields.values_mut().for_each(strip_rules);
        }
        Value::Array(items) => items.iter_mut().for_each(strip_rules),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
