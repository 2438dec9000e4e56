//! Carries out one action.

use serde_json::{Value, json};

use stowage_model::Volume;
use stowage_model::object::Key;
use stowage_runtime::api::{Deletion, Target};
use stowage_runtime::engine::Error;

use crate::controller::Controller;
use crate::decide::Action;
use crate::report::Entry;
use crate::snapshot::{Force, mentions};

impl Controller {
    pub(crate) async fn carry_out(&self, action: Action) -> Result<(), Error> {
        match action {
            Action::CreateAttachment { name, driver, node, volume_name, inline } => {
                self.check_lease()?;
                let source = match inline.as_deref().and_then(inline_spec) {
                    Some(spec) => json!({ "inlineVolumeSpec": spec }),
                    None => json!({ "persistentVolumeName": volume_name }),
                };
                let body = json!({
                    "metadata": { "name": name },
                    "spec": {
                        "attacher": driver,
                        "nodeName": node,
                        "source": source,
                    },
                });
                let created = self.context.api.create(&self.caches.attachments, body).await;
                created.map(|_| ()).map_err(Error::write("create the attachment"))
            }
            Action::DeleteAttachment { name, uid, node, force } => self.delete(name, uid, &node, force).await,
            Action::List { node, node_uid, volume, tell } => {
                // Only what is written is told: a pod that hears of it is mounted next.
                self.report(&node, Entry { node_uid, volume, listed: true }).await?;
                for (pod, note) in tell {
                    self.recorder.record(&pod, note);
                }
                Ok(())
            }
            Action::Unlist { node, node_uid, volume } => {
                self.report(&node, Entry { node_uid, volume, listed: false }).await
            }
            Action::Tell { volume, pod, notice, note } => {
                let taken = self.recorder.record(&pod, note);
                self.memory.told.note(volume, pod.uid, notice, taken, self.context.clock.now());
                Ok(())
            }
            Action::RefreshNode(name) => {
                self.context.objects(&self.caches.nodes).refresh(&Key::cluster(name)).await.map(drop)
            }
            Action::RefreshAttachment(name) => {
                self.context.objects(&self.caches.attachments).refresh(&Key::cluster(name)).await.map(drop)
            }
        }
    }

    async fn report(&self, node: &str, entry: Entry) -> Result<(), Error> {
        self.check_lease()?;
        let written = self.reports.write(node, entry).await.map_err(Error::other)?;
        written.map_err(|source| Error::Write { what: "write volumesAttached", source })
    }

    /// Deleting the attachment cannot be taken back, so the node is read once more: also a leader that was deposed and
    /// does not know it yet sees what its successor listed.
    async fn delete(&self, name: String, uid: String, node: &str, force: Option<Force>) -> Result<(), Error> {
        let fresh = self.context.objects(&self.caches.nodes).refresh(&Key::cluster(node)).await?;
        if let Some(node) = fresh {
            let (listed, in_use) = mentions(&node, &name);
            let forced = match force {
                None => false,
                Some(Force::OutOfService) => node.is_out_of_service(),
                Some(Force::Timeout) => !node.is_ready(),
            };
            if listed || (in_use && !forced) {
                return Err(Error::Stale("what the node lists or uses"));
            }
            if let Some(force) = force.filter(|_| in_use) {
                tracing::warn!(attachment = name, node = node.meta.name, ?force, "detaching without the node's word");
                self.metrics.forced(force);
            }
        }
        // Again, for the read may have taken longer than the lease lasts.
        self.check_lease()?;
        let target = Target { key: Key::cluster(name), uid, revision: None };
        let deleted = self.context.api.delete(&self.caches.attachments, &target, Deletion::default()).await;
        deleted.map_err(Error::write("delete the attachment"))
    }

    fn check_lease(&self) -> Result<(), Error> {
        if self.context.may_call_driver() { Ok(()) } else { Err(Error::Deposed) }
    }
}

/// A volume that has no object of its own, as an attachment carries it.
fn inline_spec(volume: &Volume) -> Option<Value> {
    let csi = volume.spec.csi.as_ref()?;
    let mut source = json!({
        "driver": csi.driver,
        "volumeHandle": csi.volume_handle,
        "readOnly": csi.read_only,
        "fsType": csi.fs_type,
        "volumeAttributes": csi.volume_attributes,
    });
    if let Some(secret) = &csi.node_stage_secret_ref {
        source["nodeStageSecretRef"] = json!({ "namespace": secret.namespace, "name": secret.name });
    }
    let modes = volume.spec.access_modes.names();
    Some(json!({ "accessModes": modes, "volumeMode": volume.spec.volume_mode.as_str(), "csi": source }))
}
