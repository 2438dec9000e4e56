//! Carries out one action: a write to the API, or the start of an operation.

use std::sync::Arc;

use serde_json::json;

use stowage_model::object::ObjectRef;
use stowage_model::pod::Pod;
use stowage_runtime::api::{Deletion, Part, Patch, Target};
use stowage_runtime::engine::Error;
use stowage_runtime::events::Note;
use stowage_runtime::operation::{Ended, Failure};

use crate::controller::Controller;
use crate::decide::volume::Attachment;
use crate::decide::{Action, Operation};
use crate::desired::{Use, VolumeId};
use crate::registration::{self, Greeting};
use crate::resolve;
use crate::watches;
use crate::world::{Hold, Published, Staged};

impl Controller {
    pub(crate) async fn carry_out(self: Arc<Self>, action: Action) -> Result<(), Error> {
        match action {
            Action::ReadNode
            | Action::CreateNode(_)
            | Action::PatchNode { .. }
            | Action::PatchNodeStatus { .. }
            | Action::ReportInUse { .. } => self.write_node(action).await,
            Action::ReadCsiNode
            | Action::CreateCsiNode(_)
            | Action::PatchCsiNode { .. }
            | Action::DeleteCsiNode { .. } => self.write_csi_node(action).await,
            Action::ReadPod(_) | Action::PatchPodStatus { .. } | Action::DeletePod { .. } => {
                self.write_pod(action).await
            }
            Action::RemovePodDir { uid } => self.remove_pod_dir(&uid).await,
            Action::ForgetPod { uid } => {
                self.forget_pod(&uid);
                Ok(())
            }
            Action::ForgetVolume { volume } => {
                self.operations.forget(&Operation::Stage(volume.clone()));
                self.operations.forget(&Operation::Unstage(volume));
                Ok(())
            }
            Action::Explain { pod, message } => {
                let taken = self.recorder.record(&pod, Note::warning("FailedMount", message.clone()));
                let now = self.context.clock.now();
                self.state.with(|world| world.told.note(pod.uid, message, (), taken, now));
                Ok(())
            }
            Action::Accept { socket } => {
                self.state.with(|world| {
                    if let Some(plugin) = world.plugins.get_mut(&socket) {
                        plugin.accepted = true;
                        let name = plugin.greeted.as_ref().map(|driver| driver.info.name.clone());
                        name.map(|name| world.dismissed.remove(&name));
                    }
                });
                self.wake(watches::plugin(&socket));
                Ok(())
            }
            Action::Refuse { socket, message } => {
                tracing::error!(socket, message, "the plugin is refused");
                self.state.with(|world| {
                    if let Some(plugin) = world.plugins.get_mut(&socket) {
                        plugin.refused = Some(message);
                        plugin.greeted = None;
                    }
                });
                Ok(())
            }
            Action::Resolve { pod } => {
                self.start_resolve(pod);
                Ok(())
            }
            Action::Greet { .. }
            | Action::Notify { .. }
            | Action::Stage { .. }
            | Action::Publish { .. }
            | Action::Unpublish { .. }
            | Action::Unstage { .. } => self.start_call(action),
        }
    }

    async fn write_node(&self, action: Action) -> Result<(), Error> {
        let (api, nodes) = (&self.context.api, &self.caches.nodes);
        match action {
            Action::ReadNode => api.refresh(nodes, &self.node_key()).await.map(drop).map_err(Error::read("the Node")),
            Action::CreateNode(body) => {
                api.create(nodes, body).await.map(drop).map_err(Error::write("create the Node"))
            }
            Action::PatchNode { target, body } => {
                let patched = api.patch(nodes, &target, Part::Main, Patch::Merge(body)).await;
                patched.map(drop).map_err(Error::write("label the Node"))
            }
            Action::PatchNodeStatus { target, patch } => {
                let patched = api.patch(nodes, &target, Part::Status, patch).await;
                patched.map(drop).map_err(Error::write("say that the Node is ready"))
            }
            Action::ReportInUse { target } => self.report_in_use(&target).await,
            _ => Ok(()),
        }
    }

    /// Writes what is in use now. While the write is under way nothing that it leaves out may be staged: rule 7 of the
    /// design wants the report answered first, and a withdrawal answered last.
    async fn report_in_use(&self, target: &Target) -> Result<(), Error> {
        let list = self.state.with(|world| {
            let list = self.in_use(world);
            world.reporting = Some(list.clone());
            list
        });
        let patch = Patch::Merge(json!({ "status": { "volumesInUse": list } }));
        let result = self.context.api.patch(&self.caches.nodes, target, Part::Status, patch).await;
        self.state.with(|world| world.reporting = None);
        if result.is_err() {
            // A refusal leaves the Node as it was, so no event tells those who waited for the write to end.
            self.wake(self.state.read(|world| watches::left_out(world, &list)));
        }
        result.map(drop).map_err(Error::write("report the volumes in use"))
    }

    async fn write_csi_node(&self, action: Action) -> Result<(), Error> {
        let (api, csi_nodes) = (&self.context.api, &self.caches.csi_nodes);
        match action {
            Action::ReadCsiNode => {
                api.refresh(csi_nodes, &self.node_key()).await.map(drop).map_err(Error::read("the CSINode"))
            }
            Action::CreateCsiNode(body) => {
                api.create(csi_nodes, body).await.map(drop).map_err(Error::write("create the CSINode"))
            }
            Action::PatchCsiNode { target, patch } => {
                let patched = api.patch(csi_nodes, &target, Part::Main, patch).await;
                patched.map(drop).map_err(Error::write("list the drivers in the CSINode"))
            }
            Action::DeleteCsiNode { target } => {
                let deleted = api.delete(csi_nodes, &target, Deletion::default()).await;
                deleted.map_err(Error::write("delete the CSINode of an earlier Node"))
            }
            _ => Ok(()),
        }
    }

    async fn write_pod(&self, action: Action) -> Result<(), Error> {
        let (api, pods) = (&self.context.api, &self.caches.pods);
        match action {
            Action::ReadPod(key) => api.refresh(pods, &key).await.map(drop).map_err(Error::read("the pod")),
            Action::PatchPodStatus { target, patch } => {
                let patched = api.patch(pods, &target, Part::Status, patch).await;
                patched.map(drop).map_err(Error::write("write the pod's status"))
            }
            Action::DeletePod { target } => {
                let deleted = api.delete(pods, &target, Deletion { grace_period_seconds: Some(0) }).await;
                deleted.map_err(Error::write("finish the pod's deletion"))
            }
            _ => Ok(()),
        }
    }

    async fn remove_pod_dir(&self, uid: &str) -> Result<(), Error> {
        for dir in self.layout.pod_dirs(uid) {
            match self.host.remove_dir(&dir).await {
                Ok(()) => {}
                // Somebody else's files are not ours to remove, and no reason to keep the pod.
                Err(error) if error.os_error() == Some(nix::errno::Errno::ENOTEMPTY as i32) => {
                    tracing::warn!(dir = %dir.display(), "the pod's directory is not empty, it stays");
                    break;
                }
                Err(error) => return Err(Error::other(error)),
            }
        }
        self.state.with(|world| world.pod_dirs.remove(uid));
        Ok(())
    }

    fn forget_pod(&self, uid: &str) {
        self.state.with(|world| {
            world.told.forget(&uid.to_owned());
            world.resolutions.remove(uid);
        });
        self.operations.forget(&Operation::Resolve(uid.to_owned()));
        for operation in self.ended_mounts(uid) {
            self.operations.forget(&operation);
        }
    }

    fn start_resolve(self: Arc<Self>, pod: Arc<Pod>) {
        let uid = pod.meta.uid.clone();
        let controller = Arc::clone(&self);
        self.operations.start(Operation::Resolve(uid.clone()), async move {
            let node = controller.caches.nodes.get(&controller.node_key());
            let resolution = resolve::resolve(&controller.context.api, &pod, node.as_deref()).await;
            let problems = resolution.problems.join("; ");
            controller.state.with(|world| world.resolutions.insert(uid, resolution));
            match problems.is_empty() {
                true => Ended::Done(()),
                false => Ended::Failed(Failure { code: "Unresolved".into(), message: problems }),
            }
        });
    }

    /// Starts a call to a plugin or driver. What it may change is uncertain from this moment on.
    fn start_call(self: Arc<Self>, action: Action) -> Result<(), Error> {
        if !self.context.may_call_driver() {
            return Err(Error::Deposed);
        }
        match action {
            Action::Greet { socket, instance } => self.start_greeting(socket, instance),
            Action::Notify { socket, instance, refusal } => self.start_notification(socket, instance, refusal),
            Action::Stage { usage, pod } => self.start_stage(*usage, pod),
            Action::Publish { usage, pod } => self.start_publish(*usage, pod),
            Action::Unpublish { volume, uid, spec_name } => self.start_unpublish(volume, uid, spec_name),
            Action::Unstage { volume } => self.start_unstage(volume),
            _ => {}
        }
        Ok(())
    }

    fn start_greeting(self: Arc<Self>, socket: String, instance: u64) {
        let controller = Arc::clone(&self);
        self.operations.start(Operation::Greet(socket.clone()), async move {
            let greeting =
                registration::greet(&*controller.context.csi, &socket, controller.options.call_timeout).await;
            let (driver, refused) = match greeting {
                Ok(Greeting::Driver(driver)) => (Some(*driver), None),
                Ok(Greeting::Refused(message)) => {
                    tracing::error!(socket, message, "the plugin is refused");
                    (None, Some(message))
                }
                Err(error) => {
                    tracing::warn!(socket, %error, "the plugin cannot be registered yet");
                    return Ended::Failed(Failure { code: "Unanswered".into(), message: error.to_string() });
                }
            };
            controller.state.with(|world| {
                if let Some(plugin) = world.plugins.get_mut(&socket).filter(|plugin| plugin.instance == instance) {
                    (plugin.greeted, plugin.refused) = (driver, refused);
                }
            });
            Ended::Done(())
        });
    }

    fn start_notification(self: Arc<Self>, socket: String, instance: u64, refusal: Option<String>) {
        let controller = Arc::clone(&self);
        self.operations.start(Operation::Notify(socket.clone()), async move {
            if let Err(error) = registration::notify(&*controller.context.csi, &socket, refusal).await {
                tracing::warn!(socket, %error, "the plugin does not listen to how its registration went");
                return Ended::Failed(Failure { code: "Unanswered".into(), message: error.to_string() });
            }
            for driver in controller.state.with(|world| world.plugin_notified(&socket, instance)) {
                tracing::info!(socket, driver, "plugin registration settled");
                controller.wake(controller.state.read(|world| watches::driver(world, &driver)));
            }
            Ended::Done(())
        });
    }

    fn start_stage(self: Arc<Self>, usage: Use, pod: ObjectRef) {
        let before = self.state.with(|world| {
            self.may_mount(&usage.volume, world).then(|| {
                let before = world.staged.get(&usage.volume).cloned();
                let reconstructed = before.as_ref().is_some_and(|staged| staged.reconstructed);
                world.set_staged(&usage.volume, Some(Staged { hold: Hold::Uncertain, reconstructed }));
                before
            })
        });
        if let Some(before) = before {
            let call = Arc::clone(&self).stage(usage.clone(), pod, before);
            self.operations.start(Operation::Stage(usage.volume), call);
        }
    }

    fn start_publish(self: Arc<Self>, usage: Use, pod: Arc<Pod>) {
        let uid = pod.meta.uid.clone();
        let before = self.state.with(|world| {
            self.may_mount(&usage.volume, world).then(|| {
                let before = world.published.get(&usage.volume).and_then(|pods| pods.get(&uid)).cloned();
                let reconstructed = before.as_ref().is_some_and(|published| published.reconstructed);
                let spec_name = usage.spec_name.clone();
                let during = Published { spec_name, hold: Hold::Uncertain, reconstructed };
                world.set_published(&usage.volume, &uid, Some(during));
                world.pod_dirs.insert(uid.clone());
                before
            })
        });
        if let Some(before) = before {
            let call = Arc::clone(&self).publish(usage.clone(), pod, before);
            self.operations.start(Operation::Publish(usage.volume, uid), call);
        }
    }

    /// Whether the handshake still stands now that the mount is about to be noted: from then on every report has it.
    fn may_mount(&self, volume: &VolumeId, world: &crate::world::World) -> bool {
        matches!(self.attachment(volume, world), Attachment::NotNeeded | Attachment::Attached)
    }

    fn start_unpublish(self: Arc<Self>, volume: VolumeId, uid: String, spec_name: String) {
        self.state.with(|world| {
            if let Some(published) = world.published.get_mut(&volume).and_then(|pods| pods.get_mut(&uid)) {
                published.hold = Hold::Uncertain;
            }
        });
        let call = Arc::clone(&self).unpublish(volume.clone(), uid.clone(), spec_name);
        self.operations.start(Operation::Unpublish(volume, uid), call);
    }

    fn start_unstage(self: Arc<Self>, volume: VolumeId) {
        self.state.with(|world| {
            if let Some(staged) = world.staged.get_mut(&volume) {
                staged.hold = Hold::Uncertain;
            }
        });
        let call = Arc::clone(&self).unstage(volume.clone());
        self.operations.start(Operation::Unstage(volume), call);
    }
}
