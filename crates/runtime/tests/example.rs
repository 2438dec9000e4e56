//! The controller of `docs/new-service.md` against the embedded API server.
#![allow(clippy::unwrap_used)]

#[path = "../examples/namespace_labels.rs"]
#[allow(dead_code, reason = "its flags are for people")]
mod namespace_labels;

use std::sync::Arc;

use serde_json::{Value, json};

use stowage_apiserver::{Options, Server};
use stowage_csi::UnixConnector;
use stowage_model::object::{Key, ObjectId, kinds};
use stowage_runtime::Context;

#[tokio::test(start_paused = true)]
async fn a_volume_is_labelled_with_the_namespace_of_its_claim_and_loses_the_label_with_it() {
    let server = Server::in_memory(Options::system());
    let context = Context::real(kube::Client::new(server.service(), "default"), Arc::new(UnixConnector), "test");
    let (api, shutdown) = (context.api.clone(), context.shutdown.clone());
    let id = ObjectId { kind: kinds::VOLUME, key: Key::cluster("v") };
    let story = async {
        let body = json!({
            "metadata": { "name": "v" },
            "spec": {
                "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteOnce"],
                "hostPath": { "path": "/tmp" }, "claimRef": { "namespace": "shop", "name": "c" },
            },
        });
        api.create_raw(kinds::VOLUME, body).await.unwrap();
        let label =
            async || api.get_raw(&id).await.unwrap().unwrap()["metadata"]["labels"]["example.dev/namespace"].take();
        while label().await != "shop" {
            tokio::task::yield_now().await;
        }
        api.patch_raw(&id, json!({ "spec": { "claimRef": null } })).await.unwrap();
        while label().await != Value::Null {
            tokio::task::yield_now().await;
        }
        shutdown.trigger();
    };
    let (ended, ()) = tokio::join!(namespace_labels::run(context), story);
    ended.unwrap();
}
