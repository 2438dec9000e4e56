//! The Linux end of the house: the mount table, bind mounts, loop devices, file systems and small durable files.
//!
//! Services never call the kernel themselves. They hold an `Arc<dyn Mounter>` (files and mounts) or an
//! `Arc<dyn Host>` (loop devices, file systems and mounts at held places as well); [`LinuxMounter`] is the real one, the testing crate has
//! one in memory, and [`Counting`] wraps either to stop its user at the n-th change.

mod bind;
mod clone;
mod counting;
mod error;
mod extents;
mod files;
mod filesystem;
mod freeze;
mod host;
mod images;
mod linux;
mod loopback;
mod mounter;
mod options;
mod place;
mod program;
mod table;
mod target;
mod targets;
mod tree;
mod tune;

pub use counting::{Counting, Stop};
pub use error::Error;
pub use files::{DirEntry, FileId, FileInfo, FileKind, Usage};
pub use filesystem::{Content, FileSystem, classify};
pub use host::Host;
pub use images::{Images, Space};
pub use linux::LinuxMounter;
pub use loopback::{LoopDevice, LoopOptions, MAX_TAG};
pub use mounter::{Access, Mounter};
pub use options::MountOptions;
pub use place::Place;
pub use program::{run_program, without_open_files};
pub use table::{DeviceNumber, Mount, MountTable};
pub use target::Target;
pub use targets::Targets;

/// What a call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
