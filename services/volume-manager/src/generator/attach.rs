//! Attaching and detaching from the node itself, where no controller does.

use std::sync::Arc;

use stowage_model::attachment::VolumeAttachment;
use stowage_model::names::{self, UniqueVolumeName};
use stowage_model::node_view::NodePod;
use stowage_model::object::{Key, Projection as _};
use stowage_model::volume_source::VolumeSource;
use stowage_plugins::{Certainty, Fault, VolumeSpec, translate};
use stowage_runtime::events::Note;

use crate::controller::Controller;
use crate::desired_state::VolumeToMount;
use crate::executor::{Operation, OperationName};

use super::device_operation;

impl Controller {
    pub(crate) fn start_attach(self: Arc<Self>, volume: UniqueVolumeName, pod: Arc<NodePod>, mount: VolumeToMount) {
        // From here on somebody may attach it, so it has to be detached.
        self.note_attached(&volume, &mount.spec, true);
        let operation = device_operation(&volume, OperationName::Attach);
        let (controller, spec) = (Arc::clone(&self), mount.spec.clone());
        let steps = {
            let controller = Arc::clone(&controller);
            move || async move {
                let result = controller.attach(&volume, &mount.spec).await;
                match &result {
                    Ok(()) => {
                        let message =
                            format!("volume {} is attached to node {}", mount.spec, controller.host.node_name);
                        controller.recorder.record(&pod.reference(), Note::normal("SuccessfulAttachVolume", message));
                    }
                    Err(fault) => {
                        if fault.certainty == Certainty::Final {
                            controller.note_attached(&volume, &mount.spec, false);
                        }
                        controller.tell_failure(&pod, &mount.spec, "FailedAttachVolume", fault);
                    }
                }
                result
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }

    async fn attach(&self, volume: &UniqueVolumeName, spec: &Arc<VolumeSpec>) -> Result<(), Fault> {
        let plugin = self.plugin_of(spec)?;
        let attacher = plugin.attacher().ok_or_else(|| {
            Fault::refused(format!(
                "plugin {} cannot attach from the node; start with --enable-controller-attach-detach=true",
                plugin.name()
            ))
        })?;
        let device_path = attacher.attach(&self.host, spec).await?;
        // One that tells no device leaves what is known of it.
        if !device_path.is_empty() {
            self.state.with(|states| states.actual.update(volume, spec, |known| known.device_path = device_path));
        }
        Ok(())
    }

    fn note_attached(&self, volume: &UniqueVolumeName, spec: &Arc<VolumeSpec>, is: bool) {
        self.state.with(|states| states.actual.update(volume, spec, |known| known.is_attached_here = is));
    }

    /// What this node attached before it was restarted is its to detach: nobody else does, where no controller attaches.
    pub(crate) fn adopt_attachments(&self) {
        if self.options.controller_attach {
            return;
        }
        let ours = self.caches.attachments.list().into_iter();
        for attachment in ours.filter(|attachment| attachment.spec.node_name == self.options.node_name) {
            let Some(spec) = self.attached_spec(&attachment) else {
                tracing::warn!(
                    attachment = attachment.meta.name,
                    "an attachment of this node names no volume that is there"
                );
                continue;
            };
            let VolumeSource::Csi(source) = &spec.source else { continue };
            // One of another name is somebody else's.
            let name = names::attachment(&source.volume_handle, &source.driver, &self.options.node_name);
            if attachment.meta.name == name {
                let volume = UniqueVolumeName::csi(&source.driver, &source.handle());
                self.note_attached(&volume, &Arc::new(spec.clone()), true);
            }
        }
    }

    fn attached_spec(&self, attachment: &VolumeAttachment) -> Option<VolumeSpec> {
        if let Some(csi) = attachment.inline_csi() {
            return Some(VolumeSpec::inline(attachment.meta.name.clone(), VolumeSource::Csi(csi.clone())));
        }
        let volume = self.caches.volumes.get(&Key::cluster(attachment.volume_name()?))?;
        let claim = volume.spec.claim_ref.as_ref().map(|claim| claim.key()).unwrap_or_default();
        translate::persistent(&volume, claim, false).ok()?
    }

    pub(crate) fn start_detach(self: Arc<Self>, volume: UniqueVolumeName, spec: Arc<VolumeSpec>) {
        let operation = device_operation(&volume, OperationName::Detach);
        let controller = Arc::clone(&self);
        let steps = {
            let (controller, spec) = (Arc::clone(&controller), spec.clone());
            move || async move {
                let plugin = controller.plugin_of(&spec)?;
                if let Some(attacher) = plugin.attacher() {
                    attacher.detach(&controller.host, &volume).await?;
                }
                controller.note_attached(&volume, &spec, false);
                let attach = device_operation(&volume, OperationName::Attach);
                controller.executor.forget(&Operation::Volume(attach));
                Ok(())
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }
}
