//! The node's part in a volume's growth: the driver's call, and what the claim says before and after.

use std::path::PathBuf;
use std::sync::Arc;

use stowage_csi::code::Outcome;
use stowage_model::claim::{Claim, ResizeStatus};
use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::NodePod;
use stowage_model::object::Projection;
use stowage_model::quantity::Quantity;
use stowage_plugins::plugin::{Expand, Expanded};
use stowage_plugins::{Certainty, Fault, VolumeSpec};
use stowage_runtime::events::Note;

use crate::controller::Controller;
use crate::decide::expand::{Expansion, Protocol, expansion};
use crate::desired_state::VolumeToMount;
use crate::executor::OperationName;

use super::{claim_status, device_operation};

impl Controller {
    /// Whether the volume must grow on this node.
    pub(crate) fn expansion_of(&self, volume: &UniqueVolumeName, mount: &VolumeToMount) -> Expansion {
        let claim = mount.spec.persistent.as_ref().and_then(|persistent| self.caches.claims.get(&persistent.claim));
        let (recorded, told) = self.state.read(|states| {
            let known = states.actual.get(volume);
            (known.and_then(|known| known.size), known.and_then(|known| known.told_read_only))
        });
        match claim.map(|claim| expansion(&mount.spec, &mount.traits, &claim, recorded)) {
            Some(Expansion::ReadOnly { size, .. }) if told == Some(size) => Expansion::NotNeeded,
            Some(expansion) => expansion,
            None => Expansion::NotNeeded,
        }
    }

    pub(crate) fn start_expand(
        self: Arc<Self>,
        volume: UniqueVolumeName,
        pod: Arc<NodePod>,
        mount: VolumeToMount,
        expansion: Expansion,
    ) {
        let operation = device_operation(&volume, OperationName::Expand);
        let (controller, spec) = (Arc::clone(&self), mount.spec.clone());
        let steps = {
            let controller = Arc::clone(&controller);
            move || async move {
                let result = controller.expand(&volume, &pod, &mount, &expansion).await;
                if let Err(fault) = &result {
                    controller.tell_failure(&pod, &mount.spec, "VolumeResizeFailed", fault);
                }
                result
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }

    /// Grows the volume, and says in its claim what came of it.
    pub(super) async fn expand(
        &self,
        volume: &UniqueVolumeName,
        pod: &NodePod,
        mount: &VolumeToMount,
        expansion: &Expansion,
    ) -> Result<(), Fault> {
        match expansion {
            Expansion::NotNeeded => Ok(()),
            Expansion::ReadOnly { claim, size } => {
                let message = format!("volume {} is to grow to {size}, but this use may only read", mount.spec);
                self.tell_both(pod, claim, Note::warning("FileSystemResizeFailed", message));
                let told = Some(*size);
                self.state
                    .with(|states| states.actual.update(volume, &mount.spec, |known| known.told_read_only = told));
                Ok(())
            }
            Expansion::Needed { claim, size, protocol } => {
                let mut claim = Arc::clone(claim);
                let at_size = claim.status.capacity.storage.is_some_and(|capacity| capacity >= *size);
                let writes = *protocol == Protocol::Recovery && !at_size;
                if writes && claim.status.allocated_resource_statuses.storage != ResizeStatus::NodeResizeInProgress {
                    claim = self.write_claim(&claim, claim_status::in_progress()).await?;
                }
                let grown = self.expand_volume(pod, mount, *size).await;
                self.expanded(volume, pod, mount, &claim, *size, *protocol, grown).await
            }
        }
    }

    async fn expand_volume(&self, pod: &NodePod, mount: &VolumeToMount, size: Quantity) -> Result<Expanded, Fault> {
        let plugin = self.plugin_of(&mount.spec)?;
        let Some(expander) = plugin.expander() else { return Ok(Expanded::NotSupported) };
        let uid = &pod.meta.uid;
        let volume_path = match plugin.mounter() {
            Some(mounter) if !mount.spec.is_block() => mounter.path(&self.host, &mount.spec, uid),
            _ => self.device_of(uid, plugin.name(), &mount.spec).await?,
        };
        let new_size = size.size().ok().and_then(|bytes| u64::try_from(bytes).ok());
        let new_size = new_size.ok_or_else(|| Fault::refused(format!("size {size} is not a number of bytes")))?;
        expander.expand(&self.host, &Expand { spec: &mount.spec, volume_path: &volume_path, new_size }).await
    }

    /// The device itself, where the driver put it: the pod's link leads there.
    async fn device_of(&self, uid: &str, plugin: &str, spec: &VolumeSpec) -> Result<PathBuf, Fault> {
        let link = self.host.layout.pod_device(uid, plugin, &spec.name);
        let device = self.host.mounter.canonical(&link).await.map_err(Fault::before("find the device"))?;
        device.ok_or_else(|| Fault::transient(format!("volume {spec}: {} leads to no device", link.display())))
    }

    #[allow(clippy::too_many_arguments)]
    async fn expanded(
        &self,
        volume: &UniqueVolumeName,
        pod: &NodePod,
        mount: &VolumeToMount,
        claim: &Arc<Claim>,
        size: Quantity,
        protocol: Protocol,
        grown: Result<Expanded, Fault>,
    ) -> Result<(), Fault> {
        let at_size = claim.status.capacity.storage.is_some_and(|capacity| capacity >= size);
        let grown = match grown {
            // A driver without a part on the node: its controller has done everything, or the claim would not be here.
            Ok(Expanded::NotSupported) if protocol == Protocol::Recovery && !at_size => Err(Fault::refused(format!(
                "volume {} is to grow on the node, but its driver cannot grow volumes there",
                mount.spec
            ))),
            grown => grown,
        };
        match grown {
            Ok(done) => {
                if !at_size {
                    self.write_claim(claim, claim_status::finished(claim, size)).await?;
                }
                if done == Expanded::Done {
                    let note = Note::normal("FileSystemResizeSuccessful", format!("volume {} has {size}", mount.spec));
                    self.tell_both(pod, claim, note);
                }
                self.note_size(volume, mount, size);
                Ok(())
            }
            // Not while it is in use here: mounted anew it is tried again.
            Err(fault) if fault.outcome == Some(Outcome::InUse) => {
                tracing::warn!(%volume, error = %fault, "the volume cannot grow while it is in use on this node");
                self.tell_failure(pod, &mount.spec, "VolumeResizeFailed", &fault);
                self.state.with(|states| states.actual.update(volume, &mount.spec, |known| known.cannot_grow = true));
                Ok(())
            }
            Err(fault) if fault.certainty == Certainty::Final && !at_size => {
                let is_refused_again = self.note_refusal(volume, mount, size);
                // Nobody asks for this size any more: the resizer may choose another only once this one is given up.
                let is_taken_back = is_refused_again && claim.requested() != size;
                let is_infeasible = fault.outcome == Some(Outcome::Infeasible) || is_taken_back;
                let infeasible = is_infeasible && protocol == Protocol::Recovery;
                let now = self.context.clock.now();
                let patch = claim_status::failed(claim, infeasible, &fault.message, now);
                self.write_claim(claim, patch).await?;
                Err(fault)
            }
            Err(fault) => Err(fault),
        }
    }

    fn note_size(&self, volume: &UniqueVolumeName, mount: &VolumeToMount, size: Quantity) {
        self.state.with(|states| {
            states.actual.update(volume, &mount.spec, |known| {
                known.size = Some(size);
                known.refused_size = None;
            });
        });
    }

    /// Notes that the volume will not have the size; says whether that was so before.
    fn note_refusal(&self, volume: &UniqueVolumeName, mount: &VolumeToMount, size: Quantity) -> bool {
        let mut before = None;
        self.state.with(|states| {
            states.actual.update(volume, &mount.spec, |known| before = known.refused_size.replace(size));
        });
        before == Some(size)
    }

    async fn write_claim(&self, claim: &Claim, patch: stowage_runtime::api::Patch) -> Result<Arc<Claim>, Fault> {
        use stowage_runtime::api::{Part, Target};
        let target = Target::exact(&claim.meta);
        let written = self.context.api.patch(&self.caches.claims, &target, Part::Status, patch).await;
        written.map_err(|error| Fault::transient(format!("write the status of claim {}: {error}", claim.key())))
    }

    fn tell_both(&self, pod: &NodePod, claim: &Claim, note: Note) {
        self.recorder.record(&pod.reference(), note.clone());
        self.recorder.record(&claim.reference(), note);
    }
}
