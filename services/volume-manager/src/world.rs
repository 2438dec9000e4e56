//! What this process knows about its node besides what the API says: plugins, and what is or may be mounted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;

use stowage_csi::Channel;
use stowage_csi::identity::NodeCapabilities;
use stowage_csi::v1::node_service_capability::rpc::Type as Capability;
use stowage_model::names::UniqueVolumeName;
use stowage_runtime::told::Told;

use crate::desired::{Resolution, VolumeId};
use crate::layout::Layout;
use crate::options::Occupancy;
use crate::registration::Version;

/// Whether a mount is certainly there. A mount that certainly is not there has no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    Mounted,
    /// A call is under way or ended without a word, or the process has restarted since.
    Uncertain,
}

/// A volume staged, or perhaps staged, on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Staged {
    pub hold: Hold,
    /// Found at start: a final error of a repeated call does not prove that nothing is mounted.
    pub reconstructed: bool,
}

/// A volume published, or perhaps published, for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    pub spec_name: String,
    pub hold: Hold,
    pub reconstructed: bool,
}

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

impl DriverInfo {
    pub fn stages(&self) -> bool {
        self.capabilities.contains(&Capability::StageUnstageVolume)
    }

    pub fn takes_mount_group(&self) -> bool {
        self.capabilities.contains(&Capability::VolumeMountGroup)
    }

    pub fn has_finer_access_modes(&self) -> bool {
        self.capabilities.contains(&Capability::SingleNodeMultiWriter)
    }
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

/// Everything at once; only ever seen under [`State`]'s lock.
#[derive(Debug, Default)]
pub struct World {
    /// Sockets that have appeared so far.
    pub appearances: u64,
    pub plugins: BTreeMap<String, Plugin>,
    /// Drivers whose socket went away, to be taken out of Node and CSINode.
    pub dismissed: BTreeSet<String>,
    /// What the volumes of pods turned out to be, by the pod's uid.
    pub resolutions: BTreeMap<String, Resolution>,
    pub staged: BTreeMap<VolumeId, Staged>,
    /// By volume, then by the pod's uid.
    pub published: BTreeMap<VolumeId, BTreeMap<String, Published>>,
    /// Uids of pods that have a directory.
    pub pod_dirs: BTreeSet<String>,
    /// Directories with a mount, or a trace of one, nobody can tell the volume of.
    pub unexplained: Vec<PathBuf>,
    /// Unique names of volumes that were reported in use before the start and that such a mount may be of.
    pub kept_in_use: BTreeSet<UniqueVolumeName>,
    /// The in-use list that is being written right now.
    pub reporting: Option<BTreeSet<UniqueVolumeName>>,
    /// What was told about a pod in events, by its uid and the sentence.
    pub told: Told<String, String, ()>,
    /// When the node's lease was last renewed.
    pub heartbeat: Option<Timestamp>,
}

impl World {
    /// The registered driver of that name.
    pub fn driver(&self, name: &str) -> Option<&Driver> {
        self.plugins.values().filter_map(|plugin| plugin.registered.as_ref()).find(|driver| driver.info.name == name)
    }

    /// Volumes that are or may be mounted.
    pub fn held(&self) -> impl Iterator<Item = &VolumeId> {
        self.staged.keys().chain(self.published.keys())
    }

    /// Volumes that are or may be mounted for a pod.
    pub fn published_for(&self, uid: &str) -> impl Iterator<Item = &VolumeId> {
        self.published.iter().filter(move |(_, pods)| pods.contains_key(uid)).map(|(volume, _)| volume)
    }

    /// Every volume that is wanted or held.
    pub fn volumes(&self) -> BTreeSet<VolumeId> {
        let wanted = self.resolutions.values().flat_map(|resolution| resolution.uses.keys());
        wanted.chain(self.held()).cloned().collect()
    }

    /// Keeps in use what a mount that nobody can explain may be of, among what was reported before the start.
    ///
    /// A staging directory tells its volume by its name; a pod's directory does not, so any volume is possible.
    pub fn keep_in_use(&mut self, reported: &[String], layout: &Layout) {
        let possible = |name: &UniqueVolumeName| {
            let staged =
                name.driver_and_handle().map(|(driver, handle)| layout.staging_dir(&VolumeId::new(driver, handle)));
            self.unexplained.iter().any(|dir| !dir.starts_with(layout.staging()) || Some(dir) == staged.as_ref())
        };
        self.kept_in_use = reported.iter().map(|name| name.as_str().into()).filter(possible).collect();
    }

    pub fn set_published(&mut self, volume: &VolumeId, uid: &str, published: Option<Published>) {
        match published {
            Some(published) => {
                self.published.entry(volume.clone()).or_default().insert(uid.to_owned(), published);
            }
            None => {
                if let Some(pods) = self.published.get_mut(volume) {
                    pods.remove(uid);
                    if pods.is_empty() {
                        self.published.remove(volume);
                    }
                }
            }
        }
    }

    pub fn set_staged(&mut self, volume: &VolumeId, staged: Option<Staged>) {
        match staged {
            Some(staged) => self.staged.insert(volume.clone(), staged),
            None => self.staged.remove(volume),
        };
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

    fn dismiss(&mut self, driver: &str) {
        let elsewhere = self.plugins.values().filter_map(Plugin::announced).any(|other| other.name == driver);
        if !elsewhere {
            self.dismissed.insert(driver.to_owned());
        }
    }

    fn mounts(&self) -> usize {
        self.staged.len() + self.published.values().map(BTreeMap::len).sum::<usize>()
    }
}

/// The world behind a lock that is never held over an await.
#[derive(Debug)]
pub struct State {
    world: Mutex<World>,
    occupancy: Occupancy,
}

impl State {
    pub fn new(world: World, occupancy: Occupancy) -> Self {
        occupancy.set(world.mounts());
        Self { world: Mutex::new(world), occupancy }
    }

    pub fn read<T>(&self, f: impl FnOnce(&World) -> T) -> T {
        f(&self.lock())
    }

    pub fn with<T>(&self, f: impl FnOnce(&mut World) -> T) -> T {
        let mut world = self.lock();
        let result = f(&mut world);
        self.occupancy.set(world.mounts());
        result
    }

    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().expect("no code panics while holding the world")
    }
}
