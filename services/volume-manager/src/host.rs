//! What plugins are given of this node, out of what the controller watches and knows.

use std::sync::Arc;

use stowage_model::attachment::VolumeAttachment;
use stowage_model::csi_driver::CsiDriver;
use stowage_model::object::Key;
use stowage_plugins::{CsiDrivers, RegisteredDriver};
use stowage_runtime::cache::Cache;

use crate::state::State;

/// The drivers that are registered, and what the API says about them.
pub struct KnownDrivers {
    pub state: Arc<State>,
    pub objects: Cache<CsiDriver>,
    pub attachments: Cache<VolumeAttachment>,
}

impl CsiDrivers for KnownDrivers {
    fn registered(&self, name: &str) -> Option<RegisteredDriver> {
        self.state.read_drivers(|drivers| {
            let driver = drivers.registered(name)?;
            Some(RegisteredDriver { channel: driver.channel.clone(), capabilities: driver.info.capabilities.clone() })
        })
    }

    fn object(&self, name: &str) -> Option<Arc<CsiDriver>> {
        self.objects.get(&Key::cluster(name))
    }

    fn attachment(&self, name: &str) -> Option<Arc<VolumeAttachment>> {
        self.attachments.get(&Key::cluster(name))
    }
}
