//! The plugins behind registration sockets, and the drivers they speak for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use stowage_csi::Channel;
use stowage_csi::identity::NodeCapabilities;

use crate::registration::Version;

/// What a driver said about itself when it was registered.
#[derive(Debug, Clone, PartialEq)]
pub struct DriverInfo {
    pub name: String,
    pub version: Version,
    pub node_id: String,
    pub topology: BTreeMap<String, String>,
    /// The most volumes the node can take; none means no limit.
    pub limit: Option<i32>,
    pub capabilities: NodeCapabilities,
}

/// A driver and the way to it.
#[derive(Clone)]
pub struct Driver {
    pub info: DriverInfo,
    pub channel: Channel,
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.info, f)
    }
}

/// One registration socket.
#[derive(Debug, Clone, Default)]
pub struct Plugin {
    /// Which appearance of the socket this is; a greeting of an earlier one is void.
    pub instance: u64,
    /// Who answered, not yet told that it is registered.
    pub greeted: Option<Driver>,
    /// Whether the one who answered may be announced on Node and CSINode.
    pub accepted: bool,
    /// Why it was turned away.
    pub refused: Option<String>,
    /// Whether the plugin was told what became of it.
    pub notified: bool,
    /// Whose calls may be made. Stays while a socket that appeared anew is greeted, so that nothing flaps.
    pub registered: Option<Driver>,
}

impl Plugin {
    /// The driver that Node and CSINode should list for this socket.
    pub fn announced(&self) -> Option<&DriverInfo> {
        let greeted = self.greeted.as_ref().filter(|_| self.accepted);
        greeted.or(self.registered.as_ref()).map(|driver| &driver.info)
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Drivers {
    /// Sockets that have appeared so far.
    appearances: u64,
    pub plugins: BTreeMap<String, Plugin>,
    /// Drivers whose socket went away, to be taken out of Node and CSINode.
    pub dismissed: BTreeSet<String>,
}

impl Drivers {
    /// The registered driver of that name.
    pub fn registered(&self, name: &str) -> Option<&Driver> {
        self.plugins.values().filter_map(|plugin| plugin.registered.as_ref()).find(|driver| driver.info.name == name)
    }

    /// What Node and CSINode should list.
    pub fn announced(&self) -> Vec<DriverInfo> {
        self.plugins.values().filter_map(Plugin::announced).cloned().collect()
    }

    /// A registration socket is there, for the first time or anew.
    pub fn socket_appeared(&mut self, socket: &str) {
        self.appearances += 1;
        let registered = self.plugins.remove(socket).and_then(|plugin| plugin.registered);
        let plugin = Plugin { instance: self.appearances, registered, ..Plugin::default() };
        self.plugins.insert(socket.to_owned(), plugin);
    }

    /// A registration socket is gone, and with it its driver, whose name is returned.
    pub fn socket_vanished(&mut self, socket: &str) -> Option<String> {
        let name = self.plugins.remove(socket)?.announced()?.name.clone();
        self.dismiss(&name);
        Some(name)
    }

    /// The plugin was told how its registration went; returns the drivers whose volumes may go on or must wait.
    pub fn plugin_notified(&mut self, socket: &str, instance: u64) -> Vec<String> {
        let Some(plugin) = self.plugins.get_mut(socket).filter(|plugin| plugin.instance == instance) else {
            return Vec::new();
        };
        plugin.notified = true;
        let before = plugin.registered.take();
        plugin.registered = plugin.greeted.take().filter(|_| plugin.refused.is_none());
        let names = [&before, &plugin.registered].map(|driver| driver.as_ref().map(|driver| driver.info.name.clone()));
        let [before, now] = names;
        if let Some(before) = before.as_ref().filter(|before| now.as_ref() != Some(before)) {
            self.dismiss(before);
        }
        before.into_iter().chain(now).collect()
    }

    /// A registered driver has said anew what this node is to it.
    pub fn refreshed(&mut self, info: &DriverInfo) {
        let registered = self.plugins.values_mut().filter_map(|plugin| plugin.registered.as_mut());
        registered.filter(|driver| driver.info.name == info.name).for_each(|driver| driver.info = info.clone());
    }

    fn dismiss(&mut self, driver: &str) {
        let elsewhere = self.plugins.values().filter_map(Plugin::announced).any(|other| other.name == driver);
        if !elsewhere {
            self.dismissed.insert(driver.to_owned());
        }
    }
}
