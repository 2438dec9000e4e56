//! The Linux end of the house: the mount table, bind mounts, loop devices, file systems and small durable files.
//!
//! Services never call the kernel themselves. They hold an `Arc<dyn Mounter>` (files and mounts) or an
//! `Arc<dyn Host>` (loop devices, file systems and mounts at held places as well); [`LinuxMounter`] is the real one, the testing crate has
//! one in memory, and [`Counting`] wraps either to stop its user at the n-th change.

mod archive;
mod attributes;
mod bind;
mod clone;
mod copy_tree;
mod counting;
mod devices;
mod digest;
mod enter;
mod error;
mod extents;
mod files;
mod filesystem;
mod folder;
mod freeze;
mod growth;
mod host;
mod images;
mod layers;
mod linux;
mod listing;
mod loopback;
mod measure;
mod mounter;
mod network;
mod oci;
mod options;
mod orphans;
mod ownership;
mod patience;
mod place;
mod places;
mod probe;
mod program;
mod quota;
mod remove_all;
mod share;
mod share_walk;
mod shares;
mod sub_paths;
mod table;
mod tar;
mod target;
mod targets;
mod tree;
mod tune;
mod walk;

pub use archive::Packer;
pub use counting::{Counting, Stop};
pub use devices::Devices;
pub use digest::Digest;
pub use enter::{Shown, enter};
pub use error::Error;
pub use files::{DirEntry, FileId, FileInfo, FileKind, NodeKind, Usage};
pub use filesystem::{Content, FileSystem, Room, classify};
pub use folder::{Folder, FolderWork, Folders};
pub use growth::Growth;
pub use host::Host;
pub use images::{Images, Space};
pub use linux::LinuxMounter;
pub use loopback::{LoopDevice, LoopOptions, MAX_TAG};
pub use measure::{DiskUsage, Measures};
pub use mounter::{Access, Mounter};
pub use oci::{Layer, OciLayout, OciLayouts};
pub use options::MountOptions;
pub use orphans::{Held, Hold, Holder, Holders, Orphans};
pub use ownership::{ChangePolicy, Owned, Ownership, OwnershipWalk};
pub use patience::Progress;
pub use place::Place;
pub use probe::{Probed, UsageProbe};
pub use program::{run_program, without_open_files};
pub use share::{Share, ShareEntry};
pub use shares::{NetworkMount, Shares};
pub use sub_paths::{SubPath, SubPaths};
pub use table::{DeviceNumber, Mount, MountTable};
pub use target::Target;
pub use targets::Targets;

/// What a call of this crate returns.
pub type Result<T, E = Error> = std::result::Result<T, E>;
