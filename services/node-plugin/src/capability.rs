use stowage_csi::v1::VolumeCapability;
use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::volume_capability::{AccessType, MountVolume};
use stowage_mount::MountOptions;

use crate::volume::{Backend, Record};

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{field} is missing; say how the volume will be used")]
    Missing { field: &'static str },
    #[error(
        "access mode {mode} is not supported: an image is used by one node at a time; use ReadWriteOnce, ReadWriteOncePod or backend=directory"
    )]
    MultiNode { mode: &'static str },
    #[error("access_mode.mode {value} is unknown; use SINGLE_NODE_WRITER")]
    UnknownMode { value: i32 },
    #[error("volume_mount_group {value:?} is not supported; leave it to the kubelet's fsGroup")]
    MountGroup { value: String },
    /// Only the name: the value may be a secret.
    #[error("mount flag {name:?} is not allowed: {reason}")]
    MountFlag { name: String, reason: &'static str },
    #[error("volume_capabilities ask for a block device and for a mounted file system; ask for one of them")]
    TwoAccessTypes,
    #[error("the volume is {has}, asked for is {wanted}; ask for the volume mode it was created with")]
    OtherAccess { has: &'static str, wanted: &'static str },
    #[error("a volume with backend=directory has no block device; ask for volume mode Filesystem")]
    BlockDirectory,
}

/// CSI's limit for all mount flags together, in bytes.
const MAX_FLAGS: usize = 4096;

/// How a volume is seen by those who use it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    Block,
    Mount(MountVolume),
}

/// A volume capability this driver can understand.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capability {
    pub mode: Mode,
    pub access: Access,
}

const NO_MOUNT: &MountVolume =
    &MountVolume { fs_type: String::new(), mount_flags: Vec::new(), volume_mount_group: String::new() };

impl Capability {
    pub fn read(capability: Option<&VolumeCapability>) -> Result<Self, Error> {
        let capability = capability.ok_or(Error::Missing { field: "volume_capability" })?;
        let value = capability.access_mode.ok_or(Error::Missing { field: "volume_capability.access_mode" })?.mode;
        let mode = match Mode::try_from(value) {
            Ok(Mode::Unknown) | Err(_) => return Err(Error::UnknownMode { value }),
            Ok(mode) => mode,
        };
        let access = match &capability.access_type {
            None => return Err(Error::Missing { field: "volume_capability.access_type" }),
            Some(AccessType::Block(_)) => Access::Block,
            Some(AccessType::Mount(mount)) if mount.volume_mount_group.is_empty() => {
                check_flags(&mount.mount_flags)?;
                Access::Mount(mount.clone())
            }
            Some(AccessType::Mount(mount)) => {
                return Err(Error::MountGroup { value: mount.volume_mount_group.clone() });
            }
        };
        Ok(Capability { mode, access })
    }

    /// All of them, which agree on block device or file system.
    pub fn read_all(capabilities: &[VolumeCapability]) -> Result<Vec<Self>, Error> {
        if capabilities.is_empty() {
            return Err(Error::Missing { field: "volume_capabilities" });
        }
        let read = capabilities.iter().map(|capability| Self::read(Some(capability))).collect::<Result<Vec<_>, _>>()?;
        match read.iter().all(|capability| capability.is_block() == read[0].is_block()) {
            true => Ok(read),
            false => Err(Error::TwoAccessTypes),
        }
    }

    /// Refuses what a volume of this backend cannot give.
    ///
    /// In the local driver (`attach` false) "several nodes" is granted: its topology brings all of a volume's pods to
    /// the one node that has it. In a shared pool only a directory can be used by several nodes at once.
    pub fn check(&self, attach: bool, backend: Backend) -> Result<(), Error> {
        if self.is_block() && backend == Backend::Directory {
            return Err(Error::BlockDirectory);
        }
        let options = MountOptions::new(&self.mount().mount_flags);
        if let Some(word) = options.beyond_mount().filter(|_| backend == Backend::Directory) {
            let name = word.split('=').next().unwrap_or_default().to_owned();
            return Err(Error::MountFlag { name, reason: "a directory has no file system of its own to give it to" });
        }
        match attach && backend == Backend::Image && self.is_multi_node() {
            true => Err(Error::MultiNode { mode: self.mode.as_str_name() }),
            false => Ok(()),
        }
    }

    /// The same of a volume that is there, which is used as it was created: as a device, or as a file system.
    pub fn check_volume(&self, attach: bool, record: &Record) -> Result<(), Error> {
        self.check(attach, record.backend)?;
        let word = |block| if block { "a block device" } else { "a file system" };
        match record.block == self.is_block() {
            true => Ok(()),
            false => Err(Error::OtherAccess { has: word(record.block), wanted: word(self.is_block()) }),
        }
    }

    pub fn is_block(&self) -> bool {
        self.access == Access::Block
    }

    /// What is to be mounted and how; nothing is asked for a block device.
    pub fn mount(&self) -> &MountVolume {
        match &self.access {
            Access::Mount(mount) => mount,
            Access::Block => NO_MOUNT,
        }
    }

    pub fn is_multi_node(&self) -> bool {
        matches!(self.mode, Mode::MultiNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter)
    }

    pub fn reads_only(&self) -> bool {
        matches!(self.mode, Mode::SingleNodeReaderOnly | Mode::MultiNodeReaderOnly)
    }
}

/// What mounts something else, or takes a device by a number or by a name without a slash: a journal or log (ext4, xfs), a
/// real-time section (xfs), a further disk (btrfs).
const BEYOND: [&str; 9] = ["bind", "rbind", "move", "remount", "loop", "journal_dev", "logdev", "rtdev", "device"];

/// Mounting is done as root: a flag may shape the volume's own file system and nothing else.
fn check_flags(flags: &[String]) -> Result<(), Error> {
    let refuse = |word: &str, reason| {
        let name = word.split('=').next().unwrap_or_default().chars().take(64).collect();
        Err(Error::MountFlag { name, reason })
    };
    if flags.iter().map(String::len).sum::<usize>() > MAX_FLAGS {
        return refuse("", "together the flags are longer than 4096 bytes");
    }
    for word in flags.iter().flat_map(|flag| flag.split(',')) {
        if word.contains(['/', '\0']) {
            return refuse(word, "it names a file or device; a volume has no other");
        }
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        if BEYOND.contains(&name) {
            return refuse(word, "it reaches beyond the volume");
        }
        if value == "panic" {
            return refuse(word, "an error in the volume would stop the whole machine");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use stowage_csi::v1::volume_capability::{AccessMode, BlockVolume};

    use super::*;

    fn capability(mode: Mode, block: bool) -> VolumeCapability {
        let access = if block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(MountVolume::default()) };
        VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access) }
    }

    #[test]
    fn several_nodes_are_granted_where_they_can_all_reach_the_data() {
        let shared = Capability::read(Some(&capability(Mode::MultiNodeMultiWriter, false))).unwrap();
        assert!(matches!(shared.check(true, Backend::Image), Err(Error::MultiNode { .. })));
        assert_eq!(shared.check(true, Backend::Directory), Ok(()));
        assert_eq!(shared.check(false, Backend::Image), Ok(()));
    }

    #[test]
    fn mount_flags_shape_the_volume_and_reach_nothing_else() {
        let read = |flag: &str| {
            let mount = MountVolume { mount_flags: vec!["noatime".into(), flag.into()], ..Default::default() };
            let access_type = Some(AccessType::Mount(mount));
            Capability::read(Some(&VolumeCapability { access_type, ..capability(Mode::SingleNodeWriter, false) }))
        };
        for good in ["noatime,discard=async", "data=journal", "logbsize=32k", "errors=remount-ro"] {
            assert!(read(good).is_ok(), "{good}");
        }
        let long = "x".repeat(4097);
        for bad in ["ro,logdev=/dev/sda", "device=/dev/sdb", "remount", "bind", "loop=x", "a\0b", &long] {
            let message = read(bad).unwrap_err().to_string();
            assert!(message.contains("mount flag") && !message.contains("/dev"), "{message}");
        }
        for bad in ["journal_dev=0x801", "logdev=sda", "rtdev=sda", "device=sdb"] {
            assert!(read(bad).unwrap_err().to_string().contains("beyond the volume"), "{bad}");
        }
    }

    #[test]
    fn no_file_system_is_let_stop_the_machine_at_an_error() {
        for bad in ["errors=panic", "fatal_errors=panic", "noatime,fatal_errors=panic"] {
            let mount = MountVolume { mount_flags: vec![bad.into()], ..Default::default() };
            let access_type = Some(AccessType::Mount(mount));
            let read =
                Capability::read(Some(&VolumeCapability { access_type, ..capability(Mode::SingleNodeWriter, false) }));
            assert!(read.unwrap_err().to_string().contains("stop the whole machine"), "{bad}");
        }
    }

    #[test]
    fn a_volume_is_a_block_device_or_a_file_system_and_a_directory_is_never_a_device() {
        let (block, mount) = (capability(Mode::SingleNodeWriter, true), capability(Mode::SingleNodeWriter, false));
        assert_eq!(Capability::read_all(&[block.clone(), mount]), Err(Error::TwoAccessTypes));
        let block = Capability::read(Some(&block)).unwrap();
        assert!(block.is_block() && block.mount() == NO_MOUNT);
        assert_eq!(block.check(false, Backend::Directory), Err(Error::BlockDirectory));
    }
}
