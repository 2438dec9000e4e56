//! A volume for one pod: set up, set up again, tear down.

use std::sync::Arc;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::NodePod;
use stowage_plugins::plugin::{IsSetUp, SetUp, TearDown};
use stowage_plugins::traits::Remount;
use stowage_plugins::{Certainty, Fault, VolumeSpec};

use crate::actual_state::{MountState, MountedVolume};
use crate::controller::Controller;
use crate::decide::expand::Expansion;
use crate::desired_state::VolumeToMount;
use crate::executor::{OperationName, VolumeOperation};
use crate::populator;
use crate::watches;

use super::{after_failure, mapped_reason};

impl Controller {
    pub(crate) fn start_set_up(self: Arc<Self>, volume: UniqueVolumeName, pod: Arc<NodePod>, mut mount: VolumeToMount) {
        let (spec, uid) = (mount.spec.clone(), pod.meta.uid.clone());
        let expansion = self.expansion_of(&volume, &mount);
        let noted = self.state.with(|states| {
            self.may_mount(&volume, &spec, states).then(|| {
                let known = states.actual.get(&volume);
                let before = known.and_then(|known| known.pods.get(&uid)).cloned();
                let is_remount = before.as_ref().is_some_and(|before| before.state == MountState::Mounted);
                let is_reconstructed = before.as_ref().is_some_and(|before| before.is_reconstructed);
                let device_path = known.map(|known| known.device_path.clone()).unwrap_or_default();
                let during = MountedVolume {
                    spec: spec.clone(),
                    // What is mounted stays so whatever comes of setting it up again.
                    state: if is_remount { MountState::Mounted } else { MountState::Uncertain },
                    is_reconstructed,
                    inputs: before.as_ref().map(|before| before.inputs.clone()).unwrap_or_default(),
                    again_at: before.as_ref().and_then(|before| before.again_at),
                };
                states.actual.set_pod(&volume, &spec, &uid, Some(during));
                states.pod_dirs.insert(uid.clone());
                (before, is_remount, is_reconstructed, device_path)
            })
        });
        let Some((before, is_remount, is_reconstructed, device_path)) = noted else { return };
        let operation = VolumeOperation::of(&volume, &uid, OperationName::SetUp);
        let controller = Arc::clone(&self);
        let steps = {
            let controller = Arc::clone(&controller);
            move || async move {
                controller.look_at_inputs(&pod, &mut mount).await;
                let request = SetUp {
                    spec: &mount.spec,
                    pod: &pod,
                    volume: &volume,
                    device_path: &device_path,
                    fs_group: pod.spec.security_context.fs_group,
                    fs_group_change_policy: pod.spec.security_context.fs_group_change_policy,
                    fs_user: pod.common_user(),
                    se_linux_label: mount.se_linux_label.as_deref(),
                    is_remount,
                    is_reconstructed,
                };
                let mut result = controller.set_up(&request).await;
                if let (Ok(_), Expansion::Needed { .. } | Expansion::ReadOnly { .. }, false) =
                    (&result, &expansion, is_remount)
                {
                    // Mounted, but smaller than it should be: not to be used like this.
                    let grown = Box::pin(controller.expand(&volume, &pod, &mount, &expansion)).await;
                    result = grown.and(result).map_err(|fault| fault.with_certainty(Certainty::Uncertain));
                }
                controller.volume_set_up(&volume, &pod, &mount, &result, before, is_remount);
                result.map(drop)
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }

    /// What a driver is told is read after this, so it is at least as new. Before the first look at a Secret nobody knew
    /// its version, and coming to know it would pass for a change.
    async fn look_at_inputs(&self, pod: &NodePod, mount: &mut VolumeToMount) {
        if watches::driver_of(&mount.spec).is_some() && mount.traits.remount == Remount::OnChange {
            self.made_of.settled(pod, &mount.spec).await;
            mount.inputs = populator::inputs(pod, &mount.spec, &self.host, &self.made_of);
        }
    }

    async fn set_up(&self, request: &SetUp<'_>) -> Result<IsSetUp, Fault> {
        let plugin = self.plugin_of(request.spec)?;
        self.make_pod_dirs(&request.pod.meta.uid).await?;
        match (request.spec.is_block(), plugin.block_mapper(), plugin.mounter()) {
            (true, Some(mapper), _) => {
                let published = mapper.map_pod_device(&self.host, request).await?;
                // It is published from here on: any failure leaves it to be unmapped.
                let mapped = self.map_device(request, mapper, plugin.name(), &published).await;
                let device = mapped.map_err(|fault| fault.with_certainty(Certainty::Uncertain))?;
                Ok(IsSetUp { device: Some(device), again_at: None })
            }
            (false, _, Some(mounter)) => mounter.set_up(&self.host, request).await,
            _ => Err(Fault::refused(format!("plugin {} cannot mount volume {}", plugin.name(), request.spec))),
        }
    }

    /// As the kubelet has them, before any volume is there.
    async fn make_pod_dirs(&self, uid: &str) -> Result<(), Fault> {
        let layout = &self.host.layout;
        for dir in [layout.pod_volumes(uid), layout.pod(uid).join("plugins")] {
            self.host.mounter.create_dir(&dir).await.map_err(Fault::before("make the pod's directory"))?;
        }
        Ok(())
    }

    fn volume_set_up(
        &self,
        volume: &UniqueVolumeName,
        pod: &NodePod,
        mount: &VolumeToMount,
        result: &Result<IsSetUp, Fault>,
        before: Option<MountedVolume>,
        is_remount: bool,
    ) {
        let (spec, uid) = (&mount.spec, &pod.meta.uid);
        let is_reconstructed = before.as_ref().is_some_and(|before| before.is_reconstructed);
        let with = |state, is_reconstructed, again_at| MountedVolume {
            spec: spec.clone(),
            state,
            is_reconstructed,
            inputs: mount.inputs.clone(),
            again_at,
        };
        let mounted = match result {
            Ok(is) => Some(with(MountState::Mounted, false, is.again_at)),
            Err(_) if is_remount => before,
            Err(fault) => {
                after_failure(fault, is_reconstructed, before, with(MountState::Uncertain, is_reconstructed, None))
            }
        };
        let wanted_since = self.state.with(|states| {
            if result.is_ok() {
                let layout = &self.host.layout;
                let place = match spec.is_block() {
                    true => layout.pod_device(uid, &mount.plugin, &spec.name),
                    false => layout.pod_volume(uid, &mount.plugin, &spec.name),
                };
                states.report.explained(&place, layout);
            }
            states.actual.set_pod(volume, spec, uid, mounted);
            if let Ok(IsSetUp { device: Some(device), .. }) = result {
                let device = device.display().to_string();
                states.actual.update(volume, spec, |known| known.device_path = device);
            }
            states.desired.wanted_since(uid, volume)
        });
        if let (Ok(_), false, Some(since)) = (result, is_remount || spec.is_block(), wanted_since) {
            let waited = self.context.clock.now().duration_since(since);
            self.metrics.mounted_after(super::plugin_label(spec), waited.try_into().unwrap_or_default());
        }
        if let Err(fault) = result {
            self.tell_failure(pod, spec, mapped_reason(spec), fault);
        }
    }

    pub(crate) fn start_tear_down(self: Arc<Self>, volume: UniqueVolumeName, uid: String, spec: Arc<VolumeSpec>) {
        self.state.with(|states| {
            states.actual.update(&volume, &spec, |known| {
                if let Some(mounted) = known.pods.get_mut(&uid) {
                    mounted.state = MountState::Uncertain;
                }
            });
        });
        let operation = VolumeOperation::of(&volume, &uid, OperationName::TearDown);
        let controller = Arc::clone(&self);
        let steps = {
            let (controller, spec) = (Arc::clone(&controller), spec.clone());
            move || async move {
                if let Err(fault) = controller.tear_down(&uid, &spec).await {
                    return Err(controller.with_holders(fault, controller.pod_places(&uid, &spec)).await);
                }
                let set_up = VolumeOperation::of(&volume, &uid, OperationName::SetUp);
                controller.executor.forget(&crate::executor::Operation::Volume(set_up));
                controller.state.with(|states| states.actual.set_pod(&volume, &spec, &uid, None));
                Ok(())
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }

    async fn tear_down(&self, uid: &str, spec: &VolumeSpec) -> Result<(), Fault> {
        let plugin = self.plugin_of(spec)?;
        let request = TearDown { name: &spec.name, pod_uid: uid };
        match (spec.is_block(), plugin.block_mapper(), plugin.unmounter()) {
            (true, Some(mapper), _) => {
                self.unmap_device(&request, mapper, plugin.name()).await?;
                mapper.unmap_pod_device(&self.host, &request).await
            }
            (false, _, Some(unmounter)) => {
                self.clean_sub_paths(uid, &spec.name).await?;
                unmounter.tear_down(&self.host, &request).await
            }
            _ => Ok(()),
        }
    }
}
