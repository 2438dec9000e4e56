//! Carries out one action: a write to the API, or the start of an operation.

use std::sync::Arc;

use serde_json::json;

use stowage_runtime::api::{Deletion, Part, Patch, Target};
use stowage_runtime::engine::Error;
use stowage_runtime::events::Note;
use stowage_runtime::operation::{Ended, Failure};

use crate::controller::Controller;
use crate::decide::Action;
use crate::desired_state::PodVolumes;
use crate::executor::Operation;
use crate::registration::{self, Greeting};
use crate::state::Reported;
use crate::watches::{self, Key};

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
            Action::ReadPod(_) | Action::PatchPodStatus { .. } | Action::EndPod { .. } | Action::DeletePod { .. } => {
                self.write_pod(action).await
            }
            Action::RemovePodDir { uid } => self.remove_pod_dir(&uid).await,
            Action::Populate { uid, volumes } => {
                self.populate(&uid, *volumes);
                Ok(())
            }
            Action::ForgetPod { uid } => {
                self.forget_pod(&uid);
                Ok(())
            }
            Action::ForgetVolume { volume } => {
                self.executor.forget_volume(&volume);
                Ok(())
            }
            Action::Explain { pod, message } => {
                let taken = self.recorder.record(&pod, Note::warning("FailedMount", message.clone()));
                let now = self.context.clock.now();
                self.state.with(|states| states.told.note(pod.uid, message, (), taken, now));
                Ok(())
            }
            Action::TellEviction { pod, message } => {
                let taken = self.recorder.record(&pod, Note::warning("Evicted", message.clone()));
                let now = self.context.clock.now();
                self.state.with(|states| states.told.note(pod.uid, message, (), taken, now));
                Ok(())
            }
            Action::Accept { socket } => {
                self.accept(&socket);
                Ok(())
            }
            Action::Refuse { socket, message } => {
                tracing::error!(socket, message, "the plugin is refused");
                self.state.with_drivers(|drivers| {
                    if let Some(plugin) = drivers.plugins.get_mut(&socket) {
                        plugin.refused = Some(message);
                        plugin.greeted = None;
                    }
                });
                Ok(())
            }
            Action::Greet { .. }
            | Action::Notify { .. }
            | Action::Refresh { .. }
            | Action::Attach { .. }
            | Action::MountDevice { .. }
            | Action::SetUp { .. }
            | Action::Expand { .. }
            | Action::TearDown { .. }
            | Action::UnmountDevice { .. }
            | Action::Detach { .. } => self.start(action),
        }
    }

    async fn write_node(&self, action: Action) -> Result<(), Error> {
        let (api, nodes) = (&self.context.api, &self.caches.nodes);
        match action {
            Action::ReadNode => api.refresh(nodes, &self.node_key()).await.map(drop).map_err(Error::read("the Node")),
            Action::CreateNode(body) => {
                let mut status = body["status"].clone();
                status.as_object_mut().map(|fields| fields.remove("conditions"));
                let node = api.create(nodes, body).await.map_err(Error::write("create the Node"))?;
                let reported = Reported { uid: node.meta.uid.clone(), status };
                self.state.with(|states| states.report.reported = Some(reported));
                Ok(())
            }
            Action::PatchNode { target, body } => {
                let patched = api.patch(nodes, &target, Part::Main, Patch::Merge(body)).await;
                patched.map(drop).map_err(Error::write("label the Node"))
            }
            Action::PatchNodeStatus { target, patch, reported } => {
                let patched = api.patch(nodes, &target, Part::Status, patch).await;
                patched.map_err(Error::write("say how the Node is"))?;
                if reported.is_some() {
                    self.state.with(|states| states.report.reported = reported);
                    self.wake([Key::Node]);
                }
                Ok(())
            }
            Action::ReportInUse { target } => self.report_in_use(&target).await,
            _ => Ok(()),
        }
    }

    /// Writes what is in use now. While the write is under way nothing that it leaves out may be staged: rule 7 of the
    /// design wants the report answered first, and a withdrawal answered last.
    async fn report_in_use(&self, target: &Target) -> Result<(), Error> {
        let list = self.state.with(|states| {
            let list = self.in_use(states);
            states.report.writing = Some(list.clone());
            list
        });
        let patch = Patch::Merge(json!({ "status": { "volumesInUse": list } }));
        let result = self.context.api.patch(&self.caches.nodes, target, Part::Status, patch).await;
        self.state.with(|states| states.report.writing = None);
        if result.is_err() {
            // A refusal leaves the Node as it was, so no event tells those who waited for the write to end.
            self.wake(self.state.read(|states| watches::left_out(states, &list)));
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
            Action::EndPod { target } => {
                tracing::info!(pod = %target.key, "nobody holds the pod any more: it is deleted");
                let deleted = api.delete(pods, &target, Deletion::default()).await;
                deleted.map_err(Error::write("delete a pod that nobody holds"))
            }
            Action::DeletePod { target } => {
                let deleted = api.delete(pods, &target, Deletion { grace_period_seconds: Some(0) }).await;
                deleted.map_err(Error::write("finish the pod's deletion"))
            }
            _ => Ok(()),
        }
    }

    async fn remove_pod_dir(&self, uid: &str) -> Result<(), Error> {
        let mounter = &self.host.mounter;
        mounter.clean_sub_paths(&self.host.layout.sub_paths(uid)).await.map_err(Error::other)?;
        let removed = mounter.remove_orphan(&self.host.layout.pod(uid)).await;
        if self.pod(uid).is_none() {
            self.metrics.orphan_cleaned(removed.is_ok());
        }
        match removed {
            Ok(()) => {}
            Err(error @ stowage_mount::Error::RemoveMounted { .. }) => return Err(Error::other(error)),
            // Somebody else's files are not ours to remove, and no reason to keep the pod.
            Err(error @ stowage_mount::Error::RemoveOrphan { .. }) => {
                tracing::warn!(pod = uid, %error, "the pod's directory stays");
            }
            // The pod need not wait for it: once it is gone this is tried again.
            Err(error) if self.pod(uid).is_some_and(|pod| pod.meta.is_deleting() && pod.meta.finalizers.is_empty()) => {
                tracing::warn!(pod = uid, %error, "the pod's directory is not removed yet");
                return Ok(());
            }
            Err(error) => return Err(Error::other(error)),
        }
        self.state.with(|states| states.pod_dirs.remove(uid));
        Ok(())
    }

    /// Notes what a pod's volumes are; they, and what is in use, are decided on anew.
    fn populate(&self, uid: &str, volumes: PodVolumes) {
        let now = self.context.clock.now();
        // Watched before the volumes are set up, which then read what the watch has told.
        let pod = self.pod(uid);
        if let Some(pod) = &pod {
            self.made_of.keep(pod, &volumes);
        }
        let keys = self.state.with(|states| {
            if let Some(pod) = &pod {
                self.count_labels(pod, &volumes, states);
            }
            // What a volume is made of has changed, so what kept it from being set up may be gone.
            for (name, mount) in &volumes.volumes {
                let before = states.desired.pod(uid).and_then(|pod| pod.volumes.get(name));
                if before.is_some_and(|before| before.inputs != mount.inputs) {
                    self.executor.forget_volume(name);
                }
            }
            let touched = states.desired.set(uid, volumes, now);
            // This pod may have been the last whose volumes were not known.
            let idle = watches::idle_volumes(states);
            touched.into_iter().map(Key::Volume).chain(idle).chain([Key::Node]).collect::<Vec<Key>>()
        });
        self.wake(keys);
    }

    fn forget_pod(&self, uid: &str) {
        let touched = self.state.with(|states| {
            states.told.forget(&uid.to_owned());
            states.evicted.remove(uid);
            states.desired.remove(uid)
        });
        self.executor.forget_where(|operation| operation.pod.as_deref() == Some(uid));
        self.host.tokens.forget(uid);
        self.made_of.release(uid);
        self.wake(touched.into_iter().map(Key::Volume).chain([Key::Node]));
    }

    fn accept(&self, socket: &str) {
        self.state.with_drivers(|drivers| {
            if let Some(plugin) = drivers.plugins.get_mut(socket) {
                plugin.accepted = true;
                let name = plugin.greeted.as_ref().map(|driver| driver.info.name.clone());
                name.map(|name| drivers.dismissed.remove(&name));
            }
        });
        self.wake(watches::plugin(socket));
    }

    /// Starts a call to a plugin or driver. What it may change is uncertain from this moment on.
    fn start(self: Arc<Self>, action: Action) -> Result<(), Error> {
        if !self.context.may_call_driver() {
            return Err(Error::Deposed);
        }
        match action {
            Action::Greet { socket, instance } => self.start_greeting(socket, instance),
            Action::Notify { socket, instance, refusal } => self.start_notification(socket, instance, refusal),
            Action::Refresh { driver } => self.start_refresh(driver),
            Action::Attach { volume, pod, mount } => self.start_attach(volume, pod, *mount),
            Action::MountDevice { volume, pod, mount } => self.start_mount_device(volume, pod, *mount),
            Action::SetUp { volume, pod, mount } => self.start_set_up(volume, pod, *mount),
            Action::Expand { volume, pod, mount, expansion } => self.start_expand(volume, pod, *mount, expansion),
            Action::TearDown { volume, uid, spec } => self.start_tear_down(volume, uid, spec),
            Action::UnmountDevice { volume, spec } => self.start_unmount_device(volume, spec),
            Action::Detach { volume, spec } => self.start_detach(volume, spec),
            _ => {}
        }
        Ok(())
    }

    fn start_greeting(self: Arc<Self>, socket: String, instance: u64) {
        let controller = Arc::clone(&self);
        self.executor.start(Operation::Greet(socket.clone()), async move {
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
            controller.state.with_drivers(|drivers| {
                if let Some(plugin) = drivers.plugins.get_mut(&socket).filter(|plugin| plugin.instance == instance) {
                    (plugin.greeted, plugin.refused) = (driver, refused);
                }
            });
            Ended::Done(())
        });
    }

    fn start_refresh(self: Arc<Self>, driver: String) {
        let controller = Arc::clone(&self);
        self.executor.start(Operation::Refresh(driver.clone()), async move {
            let Some(known) = controller.state.read_drivers(|drivers| drivers.registered(&driver).cloned()) else {
                let message = format!("driver {driver} is no longer registered");
                return Ended::Failed(Failure { code: "Unregistered".into(), message });
            };
            match registration::look_again(&known, controller.options.call_timeout).await {
                Ok(info) => {
                    controller.state.with_drivers(|drivers| drivers.refreshed(&info));
                    Ended::Done(())
                }
                Err(error) => {
                    tracing::warn!(driver, %error, "the driver does not say how many volumes this node can take");
                    Ended::Failed(Failure { code: "Unanswered".into(), message: error.to_string() })
                }
            }
        });
    }

    fn start_notification(self: Arc<Self>, socket: String, instance: u64, refusal: Option<String>) {
        let controller = Arc::clone(&self);
        self.executor.start(Operation::Notify(socket.clone()), async move {
            if let Err(error) = registration::notify(&*controller.context.csi, &socket, refusal).await {
                tracing::warn!(socket, %error, "the plugin does not listen to how its registration went");
                return Ended::Failed(Failure { code: "Unanswered".into(), message: error.to_string() });
            }
            for driver in controller.state.with_drivers(|drivers| drivers.plugin_notified(&socket, instance)) {
                tracing::info!(socket, driver, "plugin registration settled");
                let keys = controller.state.read(|states| watches::driver(states, &driver));
                controller.try_again(&keys);
                controller.wake(keys);
            }
            Ended::Done(())
        });
    }
}
