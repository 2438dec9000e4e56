//! The volume plugins: what one kind of volume can do, by the name that Kubernetes has for its plugin.
//!
//! A plugin decides nothing and remembers nothing: whoever calls it has decided, and holds the [`Permit`]. Today there is
//! what pv-controller asks for: volumes that can be recycled, and volumes that can be deleted.
#![forbid(unsafe_code)]

pub mod disk;
mod erase;
mod host_path;
pub mod nfs;
mod permit;
mod reclaim;

pub use disk::{Disk, LocalDisk};
pub use host_path::HostPath;
pub use nfs::Nfs;
pub use permit::Permit;
pub use reclaim::{DeletableVolumePlugin, Error, Plugins, RecyclableVolumePlugin};
