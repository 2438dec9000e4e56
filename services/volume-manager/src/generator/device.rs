//! A volume once for the node: attach, mount, unmount, detach.

use std::path::PathBuf;
use std::sync::Arc;

use stowage_model::names::UniqueVolumeName;
use stowage_model::node_view::NodePod;
use stowage_plugins::plugin::{MountDevice, UnmountDevice};
use stowage_plugins::{Fault, VolumeSpec};

use crate::actual_state::MountState;
use crate::controller::Controller;
use crate::desired_state::VolumeToMount;
use crate::executor::{Operation, OperationName};

use super::{after_failure, device_operation, mapped_reason};

impl Controller {
    pub(crate) fn start_mount_device(
        self: Arc<Self>,
        volume: UniqueVolumeName,
        pod: Arc<NodePod>,
        mount: VolumeToMount,
    ) {
        let spec = &mount.spec;
        let noted = self.state.with(|states| {
            self.may_mount(&volume, spec, states).then(|| {
                let known = states.actual.get(&volume);
                let before = known.and_then(|known| known.device);
                let is_reconstructed = known.is_some_and(|known| known.is_reconstructed);
                let device_path = known.map(|known| known.device_path.clone()).unwrap_or_default();
                states.actual.update(&volume, spec, |known| {
                    known.device = Some(MountState::Uncertain);
                    known.spec = Arc::clone(spec);
                });
                (before, is_reconstructed, device_path)
            })
        });
        let Some((before, is_reconstructed, device_path)) = noted else { return };
        let operation = device_operation(&volume, OperationName::MountDevice);
        let controller = Arc::clone(&self);
        let spec = mount.spec.clone();
        let steps = {
            let controller = Arc::clone(&controller);
            async move {
                let result = controller.mount_device(&pod, &mount, &device_path, is_reconstructed).await;
                controller.device_mounted(&volume, &pod, &mount, &result, before, is_reconstructed);
                result
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }

    async fn mount_device(
        &self,
        pod: &NodePod,
        mount: &VolumeToMount,
        device_path: &str,
        is_reconstructed: bool,
    ) -> Result<(), Fault> {
        let plugin = self.plugin_of(&mount.spec)?;
        let request = MountDevice {
            spec: &mount.spec,
            pod,
            device_path,
            fs_group: pod.spec.security_context.fs_group,
            se_linux_label: mount.se_linux_label.as_deref(),
            is_reconstructed,
        };
        match (mount.spec.is_block(), plugin.block_mapper(), plugin.device_mounter()) {
            (true, Some(mapper), _) => mapper.set_up_device(&self.host, &request).await,
            (false, _, Some(mounter)) => mounter.mount_device(&self.host, &request).await,
            _ => Ok(()),
        }
    }

    fn device_mounted(
        &self,
        volume: &UniqueVolumeName,
        pod: &NodePod,
        mount: &VolumeToMount,
        result: &Result<(), Fault>,
        before: Option<MountState>,
        is_reconstructed: bool,
    ) {
        let state = match result {
            Ok(()) => Some(MountState::Mounted),
            Err(fault) => after_failure(fault, is_reconstructed, before, MountState::Uncertain),
        };
        let place = result.is_ok().then(|| self.device_place(&mount.spec)).flatten();
        self.state.with(|states| {
            if let Some(place) = place {
                states.report.explained(&place, &self.host.layout);
            }
            states.actual.update(volume, &mount.spec, |known| {
                known.device = state;
                if result.is_ok() {
                    known.is_reconstructed = false;
                    known.se_linux_label.clone_from(&mount.se_linux_label);
                }
            });
        });
        if let Err(fault) = result {
            self.tell_failure(pod, &mount.spec, mapped_reason(&mount.spec), fault);
        }
    }

    /// Where the node has a volume that is mounted, or mapped, once for all pods.
    fn device_place(&self, spec: &VolumeSpec) -> Option<PathBuf> {
        let plugin = self.plugin_of(spec).ok()?;
        match (spec.is_block(), plugin.block_mapper(), plugin.device_mounter()) {
            (true, Some(mapper), _) => Some(mapper.global_map_path(&self.host, &spec.name)),
            (false, _, Some(mounter)) => mounter.device_mount_path(&self.host, spec).ok(),
            _ => None,
        }
    }

    pub(crate) fn start_unmount_device(self: Arc<Self>, volume: UniqueVolumeName, spec: Arc<VolumeSpec>) {
        self.state.with(|states| states.actual.set_device(&volume, &spec, Some(MountState::Uncertain)));
        let operation = device_operation(&volume, OperationName::UnmountDevice);
        let controller = Arc::clone(&self);
        let steps = {
            let (controller, spec) = (Arc::clone(&controller), spec.clone());
            async move {
                controller.unmount_device(&volume, &spec).await?;
                let mounted = device_operation(&volume, OperationName::MountDevice);
                controller.executor.forget(&Operation::Volume(mounted));
                controller.state.with(|states| states.actual.set_device(&volume, &spec, None));
                Ok(())
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }

    async fn unmount_device(&self, volume: &UniqueVolumeName, spec: &VolumeSpec) -> Result<(), Fault> {
        let plugin = self.plugin_of(spec)?;
        let request = UnmountDevice { volume, spec };
        match (spec.is_block(), plugin.block_mapper(), plugin.device_mounter()) {
            (true, Some(mapper), _) => {
                self.check_unmapped(&mapper.global_map_path(&self.host, &spec.name)).await?;
                mapper.tear_down_device(&self.host, &request).await
            }
            (false, _, Some(mounter)) => mounter.unmount_device(&self.host, &request).await,
            _ => Ok(()),
        }
    }

    pub(crate) fn start_attach(self: Arc<Self>, volume: UniqueVolumeName, mount: VolumeToMount) {
        let operation = device_operation(&volume, OperationName::Attach);
        let (controller, spec) = (Arc::clone(&self), mount.spec.clone());
        let steps = {
            let controller = Arc::clone(&controller);
            async move {
                let plugin = controller.plugin_of(&mount.spec)?;
                let attacher = plugin.attacher().ok_or_else(|| {
                    Fault::refused(format!(
                        "plugin {} cannot attach from the node; start with --enable-controller-attach-detach=true",
                        plugin.name()
                    ))
                })?;
                let device_path = attacher.attach(&controller.host, &mount.spec).await?;
                controller.state.with(|states| {
                    states.actual.update(&volume, &mount.spec, |known| {
                        known.is_attached_here = true;
                        known.device_path = device_path;
                    });
                });
                Ok(())
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }

    pub(crate) fn start_detach(self: Arc<Self>, volume: UniqueVolumeName, spec: Arc<VolumeSpec>) {
        let operation = device_operation(&volume, OperationName::Detach);
        let controller = Arc::clone(&self);
        let steps = {
            let (controller, spec) = (Arc::clone(&controller), spec.clone());
            async move {
                let plugin = controller.plugin_of(&spec)?;
                if let Some(attacher) = plugin.attacher() {
                    attacher.detach(&controller.host, &volume).await?;
                }
                controller.state.with(|states| {
                    states.actual.update(&volume, &spec, |known| known.is_attached_here = false);
                });
                Ok(())
            }
        };
        self.executor.start_on_volume(operation.clone(), controller.measured(operation, spec, steps));
    }
}
