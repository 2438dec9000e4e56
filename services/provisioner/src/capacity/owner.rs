//! Who owns what is published: when the provisioner's Deployment goes, the garbage collector takes the objects with it.

use serde_json::{Value, json};

use stowage_runtime::Stop;
use stowage_runtime::api::Api;

use crate::options::OwnerLevel;

/// An owner reference, and always that of the managing owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    pub api_version: String,
    pub kind: String,
    pub name: String,
    pub uid: String,
}

impl Owner {
    pub fn reference(&self) -> Value {
        let Self { api_version, kind, name, uid } = self;
        json!({ "apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": true })
    }

    /// The object so many levels above the pod: 0 is the pod, 1 its StatefulSet, DaemonSet or ReplicaSet, 2 a Deployment.
    pub async fn find(api: &Api, namespace: &str, level: &OwnerLevel) -> Result<Self, Stop> {
        let unable = |reason: String| Stop::Unable {
            reason: format!(
                "--capacity-ownerref-level {}: {reason}; give the number of owners above the pod, or -1 for none",
                level.level
            ),
        };
        let mut owner =
            Self { api_version: "v1".into(), kind: "Pod".into(), name: level.pod.clone(), uid: String::new() };
        // The last one need not be read: its child says all about it, and the role does not let us read every kind.
        for above in (0..level.level.max(1)).rev() {
            let path = owner.path(namespace);
            let request = http::Request::get(&path).body(Vec::new()).map_err(|error| unable(error.to_string()))?;
            let object: Value = api.client().request(request).await.map_err(|error| {
                unable(format!("{} {:?} in namespace {namespace:?}: {error}", owner.kind, owner.name))
            })?;
            if level.level == 0 {
                owner.uid = text(&object["metadata"], "uid");
                break;
            }
            let references = object["metadata"]["ownerReferences"].as_array();
            let managing = references.into_iter().flatten().find(|reference| reference["controller"] == true);
            let Some(managing) = managing else {
                let message =
                    format!("{} {:?} has no managing owner, {} more wanted", owner.kind, owner.name, above + 1);
                return Err(unable(message));
            };
            let field = |name| text(managing, name);
            owner =
                Self { api_version: field("apiVersion"), kind: field("kind"), name: field("name"), uid: field("uid") };
        }
        Ok(owner)
    }

    fn path(&self, namespace: &str) -> String {
        let root = if self.api_version.contains('/') { "apis" } else { "api" };
        format!("/{root}/{}/namespaces/{namespace}/{}/{}", self.api_version, plural(&self.kind), self.name)
    }
}

fn text(object: &Value, field: &str) -> String {
    object[field].as_str().unwrap_or_default().to_owned()
}

/// The name of the collection, guessed as Kubernetes tools do.
fn plural(kind: &str) -> String {
    let kind = kind.to_lowercase();
    match kind.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn collections_are_guessed_from_kinds() {
        for (kind, collection) in
            [("Pod", "pods"), ("ReplicaSet", "replicasets"), ("Ingress", "ingresses"), ("Policy", "policies")]
        {
            assert_eq!(plural(kind), collection);
        }
    }
}
