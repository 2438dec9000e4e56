//! What plugins have of the node they run on.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use stowage_csi::Channel;
use stowage_csi::identity::NodeCapabilities;
use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_model::attachment::VolumeAttachment;
use stowage_model::csi_driver::CsiDriver;
use stowage_model::pod::Pod;
use stowage_mount::{Host, Mounter};
use stowage_runtime::Context;
use stowage_runtime::cache::Cache;
use stowage_runtime::caller::Caller;
use stowage_runtime::events::Recorder;

use crate::fault::Fault;
use crate::layout::Layout;
use crate::objects::Objects;
use crate::tokens::Tokens;

/// The node a plugin runs on: its paths, its mounts, the API, the drivers.
#[derive(Clone)]
pub struct VolumeHost {
    /// The world outside.
    pub context: Context,
    /// The kernel.
    pub mounter: Arc<dyn Mounter>,
    /// Where things are.
    pub layout: Layout,
    /// The name of the Node.
    pub node_name: String,
    /// CSI drivers and what is known of them.
    pub drivers: Arc<dyn CsiDrivers>,
    /// How long a call to a driver may take.
    pub call_timeout: Duration,
    /// What pods and claims are told.
    pub recorder: Recorder,
    /// Tokens of pods' service accounts.
    pub tokens: Arc<Tokens>,
    /// Objects that volumes are made of.
    pub objects: Arc<dyn Objects>,
    /// Block devices and their file systems; none where there are none, as in a simulation.
    pub devices: Option<Arc<dyn Host>>,
}

/// The drivers of this node, and what the API says about them and their volumes. Everything is known already: nothing waits.
pub trait CsiDrivers: Send + Sync {
    /// The driver, if it is registered on this node.
    fn registered(&self, name: &str) -> Option<RegisteredDriver>;

    /// Its CSIDriver object.
    fn object(&self, name: &str) -> Option<Arc<CsiDriver>>;

    /// The attachment of this name.
    fn attachment(&self, name: &str) -> Option<Arc<VolumeAttachment>>;

    /// All attachments, for a node that attaches by itself; none where nobody watches them.
    fn attachments(&self) -> Option<Attachments> {
        None
    }

    /// Whether volumes of the driver are attached; so unless its CSIDriver says otherwise.
    fn attaches(&self, name: &str) -> bool {
        self.object(name).is_none_or(|driver| driver.needs_attach())
    }
}

/// The attachments there are, and word of each change.
pub struct Attachments {
    /// What is known of them.
    pub cache: Cache<VolumeAttachment>,
    /// Told after every change.
    pub news: watch::Receiver<()>,
}

/// A driver that can be called.
#[derive(Clone)]
pub struct RegisteredDriver {
    /// The way to it.
    pub channel: Channel,
    /// What it can do, as it said when it was registered.
    pub capabilities: NodeCapabilities,
}

impl RegisteredDriver {
    /// Whether it can do this.
    pub fn can(&self, capability: Capability) -> bool {
        self.capabilities.contains(&capability)
    }
}

impl VolumeHost {
    /// The registered driver of that name, and the way to call it.
    pub fn driver(&self, name: &str) -> Result<(RegisteredDriver, Caller), Fault> {
        let Some(driver) = self.drivers.registered(name) else {
            return Err(Fault::transient(format!(
                "driver {name} is not registered on this node; check that its node plugin and registrar run here"
            )));
        };
        let caller = Caller::new(self.context.clone(), driver.channel.clone(), name, self.call_timeout);
        Ok((driver, caller))
    }

    /// Tells something about a pod.
    pub fn tell(&self, pod: &Pod, note: stowage_runtime::events::Note) {
        use stowage_model::object::Projection as _;
        self.recorder.record(&pod.reference(), note);
    }
}
