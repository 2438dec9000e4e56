//! The volume plugins: what one kind of volume can do, by the name that Kubernetes has for its plugin.
//!
//! A plugin decides nothing and remembers nothing: whoever calls it has decided. [`VolumePlugin`] is what a node asks of
//! one: traits for decisions, and a mounter, unmounter, device mounter, block mapper and expander for those who carry them
//! out. [`Plugins`] is what pv-controller asks for: volumes that can be recycled, and volumes that can be deleted.
#![forbid(unsafe_code)]

pub mod atomic_writer;
pub mod csi;
pub mod disk;
mod empty_dir;
mod erase;
pub mod fault;
mod files;
pub mod flex;
mod format;
pub mod host;
mod host_path;
mod image;
mod in_tree;
pub mod layout;
mod local;
pub mod manager;
mod mounted;
pub mod nfs;
pub mod objects;
mod ownership;
mod permit;
pub mod plugin;
mod reclaim;
mod reconstructed;
mod refused;
pub mod spec;
mod stats;
pub mod tokens;
pub mod traits;
pub mod translate;

pub use csi::Csi;
pub use disk::{Disk, LocalDisk};
pub use empty_dir::EmptyDir;
pub use fault::{Certainty, Fault};
pub use files::{Files, field_value};
pub use host::{Attachments, CsiDrivers, RegisteredDriver, VolumeHost};
pub use host_path::{HostPath, HostPathVolume};
pub use image::Image;
pub use in_tree::{in_tree, in_tree_with};
pub use layout::Layout;
pub use local::Local;
pub use manager::VolumePluginManager;
pub use nfs::{Nfs, NfsVolume};
pub use objects::{Objects, SourceId, WatchedObjects, sources_of};
pub use permit::Permit;
pub use plugin::VolumePlugin;
pub use reclaim::{DeletableVolumePlugin, Error, Plugins, RecyclableVolumePlugin};
pub use refused::Refused;
pub use spec::{Persistent, VolumeSpec};
pub use traits::Traits;
