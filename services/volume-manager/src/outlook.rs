//! What keeps a volume from a pod: what its plugin, the Node and the records of its operations say at one moment.

use std::sync::Arc;

use stowage_model::attachment::VolumeAttachment;
use stowage_model::names::{self, UniqueVolumeName};
use stowage_model::node::Node;
use stowage_model::object::Key;
use stowage_model::volume_source::VolumeSource;
use stowage_plugins::{Traits, VolumeHost, VolumePluginManager, VolumeSpec};
use stowage_runtime::cache::{Cache, View};

use crate::decide::volume::{Attachment, held_back};
use crate::decide::waiting::Unmounted;
use crate::desired_state::VolumeToMount;
use crate::executor::Executor;
use crate::state::States;
use crate::watches::driver_of;

/// Where that is looked up, by decisions and by those who ask for a pod.
pub struct Outlook<'a> {
    pub host: &'a VolumeHost,
    pub plugins: &'a VolumePluginManager,
    pub executor: &'a Executor,
    pub nodes: &'a Cache<Node>,
    pub controller_attach: bool,
}

impl Outlook<'_> {
    /// The Node, if it may be decided on.
    fn node(&self) -> Option<Arc<Node>> {
        match self.nodes.view(&Key::cluster(&self.host.node_name)) {
            View::Known(node) => Some(node),
            View::Absent | View::Unknown => None,
        }
    }

    /// What can be done with a volume, by what its plugin says now.
    pub fn traits_of(&self, spec: &VolumeSpec) -> Traits {
        self.plugins.by_spec(spec).map_or(Traits::PLAIN, |plugin| plugin.traits(spec, self.host))
    }

    /// Where the handshake with whoever attaches stands.
    pub fn attachment(&self, volume: &UniqueVolumeName, spec: &VolumeSpec, states: &States) -> Attachment {
        if !self.traits_of(spec).is_attachable {
            return Attachment::NotNeeded;
        }
        if !self.controller_attach && !self.is_attached_here(volume, spec, states) {
            return Attachment::ToAttach;
        }
        let Some(node) = self.node() else {
            return Attachment::NodeUnknown;
        };
        let withdrawing = states.report.writing.as_ref().is_some_and(|list| !list.contains(volume));
        if withdrawing || !node.is_in_use(volume.as_str()) {
            Attachment::NotInUse
        } else if self.controller_attach && !node.is_attached(volume.as_str()) {
            Attachment::NotAttached
        } else {
            Attachment::Attached
        }
    }

    /// Whether this node has attached it, and nobody has taken it away since.
    fn is_attached_here(&self, volume: &UniqueVolumeName, spec: &VolumeSpec, states: &States) -> bool {
        let is_noted = states.actual.get(volume).is_some_and(|known| known.is_attached_here);
        let plugin = self.plugins.by_spec(spec).ok();
        is_noted && plugin.is_some_and(|plugin| plugin.attacher().is_some_and(|by| by.is_attached(self.host, spec)))
    }

    /// What is known of a volume that is not mounted for the pod.
    pub fn unmounted(&self, uid: &str, name: &UniqueVolumeName, mount: &VolumeToMount, states: &States) -> Unmounted {
        let spec = &mount.spec;
        let attachment = self.attachment(name, spec, states);
        let attach_error = match attachment {
            Attachment::NotAttached => self.attachment_object(spec).and_then(|found| found.status.attach_error.clone()),
            _ => None,
        };
        let is_over =
            attach_error.as_ref().is_some_and(|error| error.error_code == Some(tonic::Code::ResourceExhausted as i32));
        let over_limit = driver_of(spec).filter(|driver| is_over && self.is_refreshed(driver));
        let is_able = |plugin: Arc<dyn stowage_plugins::VolumePlugin>| {
            plugin.reachable(spec, self.host).and_then(|()| plugin.ready(spec, self.host))
        };
        Unmounted {
            not_ready: self.plugins.by_spec(spec).and_then(is_able).err(),
            attachment,
            over_limit: over_limit.map(str::to_owned),
            attach_error: attach_error.map(|error| error.message),
            held_back: states.actual.get(name).and_then(|known| held_back(uid, mount, known)),
            records: self.executor.of_volume(name),
        }
    }

    /// Whether a driver is asked every now and then how many volumes this node can take.
    fn is_refreshed(&self, driver: &str) -> bool {
        let object = self.host.drivers.object(driver);
        object.is_some_and(|object| object.spec.node_allocatable_update_period_seconds.is_some())
    }

    /// The VolumeAttachment of a CSI volume on this node.
    fn attachment_object(&self, spec: &VolumeSpec) -> Option<Arc<VolumeAttachment>> {
        let VolumeSource::Csi(source) = &spec.source else { return None };
        self.host.drivers.attachment(&names::attachment(&source.volume_handle, &source.driver, &self.host.node_name))
    }
}
