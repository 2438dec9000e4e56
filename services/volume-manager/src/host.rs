//! What plugins are given of this node, out of what the controller watches and knows.

use std::sync::Arc;

use tokio::sync::watch;

use stowage_model::attachment::VolumeAttachment;
use stowage_model::csi_driver::CsiDriver;
use stowage_model::object::Key;
use stowage_plugins::{Attachments, CsiDrivers, RegisteredDriver};
use stowage_runtime::cache::Cache;

use crate::state::State;

/// The drivers that are registered, and what the API says about them.
pub struct KnownDrivers {
    pub state: Arc<State>,
    pub objects: Cache<CsiDriver>,
    pub attachments: Cache<VolumeAttachment>,
    /// Told after every change of an attachment.
    pub attachment_news: Arc<watch::Sender<()>>,
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

    fn attachments(&self) -> Option<Attachments> {
        Some(Attachments { cache: self.attachments.clone(), news: self.attachment_news.subscribe() })
    }

    fn attachment(&self, name: &str) -> Option<Arc<VolumeAttachment>> {
        self.attachments.get(&Key::cluster(name))
    }
}
