//! What operations are made of: the steps of plugins, with what is noted of them before and after.
//!
//! What a step may change is uncertain from the moment it is begun; its end says what is known.

mod attach;
mod block;
mod claim_status;
mod device;
mod expand;
mod holders;
mod pod;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::NodePod;
use stowage_model::object::{Key, ObjectRef, Projection};
use stowage_plugins::{Certainty, Fault, VolumePlugin, VolumeSpec};
use stowage_runtime::events::Note;
use stowage_runtime::operation::Ended;

use crate::controller::Controller;
use crate::decide::volume::Attachment;
use crate::executor::{OperationName, VolumeOperation};
use crate::state::States;

impl Controller {
    pub(crate) fn plugin_of(&self, spec: &VolumeSpec) -> Result<Arc<dyn VolumePlugin>, Fault> {
        self.plugins.by_spec(spec)
    }

    /// Whether the handshake still stands now that the mount is about to be noted: from then on every report has it.
    fn may_mount(&self, volume: &UniqueVolumeName, spec: &VolumeSpec, states: &States) -> bool {
        matches!(self.attachment(volume, spec, states), Attachment::NotNeeded | Attachment::Attached)
    }

    /// Runs the steps of an operation when it is its turn: how long they took is counted, how they ended is said.
    fn measured<F>(
        self: Arc<Self>,
        operation: VolumeOperation,
        spec: Arc<VolumeSpec>,
        steps: impl FnOnce() -> F + Send + 'static,
    ) -> impl Future<Output = Ended<()>> + Send + 'static
    where
        F: Future<Output = Result<(), Fault>> + Send + 'static,
    {
        // Boxed: what awaits them would hold them twice. Made only when they begin: hundreds may wait for that.
        self.watch(operation, spec, Box::new(move || Box::pin(steps())))
    }

    async fn watch(
        self: Arc<Self>,
        operation: VolumeOperation,
        spec: Arc<VolumeSpec>,
        steps: Box<dyn FnOnce() -> BoxFuture<'static, Result<(), Fault>> + Send>,
    ) -> Ended<()> {
        let _turn = self.turns.of(&turns_of(&spec), operation.name).await;
        let begin = self.context.clock.boottime();
        let result = steps().await;
        let took = self.context.clock.boottime().saturating_sub(begin);
        self.observe(&operation, &spec, result.is_ok(), took);
        let VolumeOperation { volume, pod, name } = &operation;
        match result {
            Ok(()) => {
                tracing::info!(%volume, pod, operation = name.as_str(spec.is_block()), "done");
                Ended::Done(())
            }
            Err(fault) => {
                tracing::warn!(%volume, pod, operation = name.as_str(spec.is_block()), error = %fault, "failed");
                fault.ended()
            }
        }
    }

    fn observe(&self, operation: &VolumeOperation, spec: &VolumeSpec, is_ok: bool, took: Duration) {
        self.metrics.operation(operation.name.as_str(spec.is_block()), &plugin_label(spec), is_ok, took);
    }

    fn tell_failure(&self, pod: &NodePod, spec: &VolumeSpec, reason: &'static str, fault: &Fault) {
        let about: ObjectRef = pod.reference();
        self.recorder.record(&about, Note::warning(reason, format!("volume {spec}: {fault}")));
        if fault.code == Fault::OTHER_FILE_SYSTEM
            && let Some(pv) = self.caches.volumes.get(&Key::cluster(&spec.name))
        {
            self.recorder.record(&pv.reference(), Note::warning("FailedMountOnFilesystemMismatch", fault.to_string()));
        }
    }
}

/// Whose turns the operations of a volume take: a server that is away keeps no volume of another one waiting.
fn turns_of(spec: &VolumeSpec) -> String {
    use stowage_model::volume_source::VolumeSource;
    match &spec.source {
        VolumeSource::Nfs(source) => format!("nfs {}", source.server),
        _ => plugin_label(spec),
    }
}

/// The label of a volume's plugin in metrics: CSI drivers are told apart.
pub fn plugin_label(spec: &VolumeSpec) -> String {
    use stowage_model::volume_source::VolumeSource;
    match &spec.source {
        VolumeSource::Csi(source) => format!("{}:{}", stowage_plugins::Csi::NAME, source.driver),
        VolumeSource::CsiInline(source) => format!("{}:{}", stowage_plugins::Csi::NAME, source.driver),
        source => format!("kubernetes.io/{}", kebab(source.member())),
    }
}

fn kebab(member: &str) -> String {
    match member {
        "configMap" => "configmap".into(),
        "local" => "local-volume".into(),
        "downwardAPI" => "downward-api".into(),
        _ => member.chars().fold(String::new(), |mut text, c| {
            if c.is_ascii_uppercase() {
                text.push('-');
            }
            text.push(c.to_ascii_lowercase());
            text
        }),
    }
}

/// What is known of a mount after a step towards it failed, given what was known before.
fn after_failure<T>(fault: &Fault, is_reconstructed: bool, before: Option<T>, uncertain: T) -> Option<T> {
    match fault.certainty {
        Certainty::Transient => before,
        Certainty::Final if !is_reconstructed => None,
        Certainty::Final | Certainty::Uncertain => Some(uncertain),
    }
}

fn mapped_reason(spec: &VolumeSpec) -> &'static str {
    if spec.is_block() { "FailedMapVolume" } else { "FailedMount" }
}

fn device_operation(volume: &UniqueVolumeName, name: OperationName) -> VolumeOperation {
    VolumeOperation::on(volume, name)
}
