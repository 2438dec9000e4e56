//! Makes the claim of a pod's ephemeral volume.

use serde_json::{Value, json};

use stowage_model::Pod;
use stowage_model::object::{self, ObjectId, Projection, kinds};
use stowage_runtime::engine::Error;
use stowage_runtime::events::Note;

use crate::controller::Controller;
use crate::decide::Source;
use crate::watches::Key;
use crate::write::Write;

#[derive(Debug, thiserror::Error)]
#[error("pod {pod} has no template for ephemeral volume {volume:?}")]
struct NoTemplate {
    pod: object::Key,
    volume: String,
}

impl Controller {
    /// The template is read with the pod: no claim is made for a pod that is gone, and no template is kept in memory.
    pub(super) async fn create_claim(&self, pod: &Pod, volume: &str, claim: &object::Key) -> Result<(), Error> {
        let id = ObjectId { kind: kinds::POD, key: pod.key() };
        let raw = self.context.api.get_raw(&id).await.map_err(Error::read("the pod"))?;
        let Some(raw) = raw.filter(|raw| raw["metadata"]["uid"] == pod.meta.uid.as_str()) else {
            self.context.api.refresh(&self.caches.pods, &pod.key()).await.map_err(Error::read("the pod"))?;
            return Err(Error::Stale("the pod"));
        };
        if raw["metadata"]["deletionTimestamp"].is_string() {
            self.context.api.refresh(&self.caches.pods, &pod.key()).await.map_err(Error::read("the pod"))?;
            return Err(Error::Stale("the pod"));
        }
        let body = claim_for(&raw, pod, volume, claim)
            .ok_or_else(|| Error::other(NoTemplate { pod: pod.key(), volume: volume.to_owned() }))?;
        self.metrics.ephemeral_created.inc();
        let result = self.send(vec![Write::Create { kind: kinds::CLAIM, body }]).await;
        if let Err(error) = &result {
            self.metrics.ephemeral_failures.inc();
            if let Error::Write { source, .. } = error
                && source.must_be_told()
            {
                let note = Note::warning("FailedBinding", format!("cannot create claim {claim}: {source}"));
                self.tell(Source::Ephemeral, Key::Pod(pod.key()), &pod.reference(), &note);
            }
        }
        result
    }
}

/// The claim of an ephemeral volume: the template's labels, annotations and spec, owned by the pod.
pub fn claim_for(raw: &Value, pod: &Pod, volume: &str, claim: &object::Key) -> Option<Value> {
    let volumes = raw["spec"]["volumes"].as_array()?;
    let template =
        volumes.iter().find(|candidate| candidate["name"] == volume)?["ephemeral"].get("volumeClaimTemplate")?;
    let mut body = json!({
        "metadata": {
            "namespace": claim.namespace,
            "name": claim.name,
            "ownerReferences": [{
                "apiVersion": "v1",
                "kind": "Pod",
                "name": pod.meta.name,
                "uid": pod.meta.uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": template["spec"],
    });
    for member in ["labels", "annotations"] {
        if let Some(found) = template["metadata"].get(member).filter(|found| found.is_object()) {
            body["metadata"][member] = found.clone();
        }
    }
    Some(body)
}
