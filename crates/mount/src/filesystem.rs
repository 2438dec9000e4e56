//! What a device holds, told from its bytes.

mod btrfs;
mod ext;
mod growth;
mod superblock;
mod tools;

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::str::FromStr;

use crate::{Error, Result};

pub(crate) use self::btrfs::{device as btrfs_device, id as btrfs_id};
pub use self::ext::Room;
pub(crate) use self::growth::{
    carry_out as carry_out_growth, plan as plan_growth, room as room_to_grow, scratch as scratch_to_grow,
};
pub(crate) use self::superblock::size;
pub(crate) use self::tools::{CHECK, check, check_wholly, grow, make, renew_id, reserve_blocks};

/// How much of the start of a device is read: beyond the last known signature (btrfs, 64 KiB) and generous, because
/// a device is only called blank if all of it is zero.
const HEAD: u64 = 1 << 20;
/// How much of the end is read: backup partition tables and RAID superblocks live there.
const TAIL: u64 = 64 << 10;

/// A file system this house knows by its signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FileSystem {
    /// No journal.
    Ext2,
    /// ext2 with a journal.
    Ext3,
    /// The default.
    Ext4,
    /// Needs 300 MiB at least.
    Xfs,
    /// Needs 109 MiB at least.
    Btrfs,
}

impl FileSystem {
    /// The name mount(2) knows it by.
    pub fn name(self) -> &'static str {
        match self {
            FileSystem::Ext2 => "ext2",
            FileSystem::Ext3 => "ext3",
            FileSystem::Ext4 => "ext4",
            FileSystem::Xfs => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FileSystem {
    type Err = ();

    fn from_str(name: &str) -> Result<Self, ()> {
        use FileSystem::*;
        [Ext2, Ext3, Ext4, Xfs, Btrfs].into_iter().find(|known| known.name() == name).ok_or(())
    }
}

/// What the bytes of a device look like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// Nothing was ever written: the only state in which a file system may be made.
    Blank,
    /// A file system.
    FileSystem(FileSystem),
    /// Swap space.
    Swap,
    /// An MBR or GPT partition table.
    PartitionTable,
    /// Data of an unknown kind, which is somebody's.
    Unknown,
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::Blank => f.write_str("nothing"),
            Content::FileSystem(kind) => write!(f, "a file system of type {kind}"),
            Content::Swap => f.write_str("swap space"),
            Content::PartitionTable => f.write_str("a partition table"),
            Content::Unknown => f.write_str("unknown data"),
        }
    }
}

/// Tells what a device holds from its first and its last bytes.
pub fn classify(head: &[u8], tail: &[u8]) -> Content {
    let has = |offset: usize, magic: &[u8]| head.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    if has(0, b"XFSB") {
        return Content::FileSystem(FileSystem::Xfs);
    }
    if has(0x10040, b"_BHRfS_M") {
        return Content::FileSystem(FileSystem::Btrfs);
    }
    if has(0x438, &[0x53, 0xEF]) {
        return Content::FileSystem(ext_generation(head));
    }
    // The signature ends the first page, whose size depends on the machine that made the swap space.
    if [4096usize, 8192, 16384, 65536].iter().any(|page| has(page - 10, b"SWAPSPACE2") || has(page - 10, b"SWAP-SPACE"))
    {
        return Content::Swap;
    }
    if has(512, b"EFI PART") || has(4096, b"EFI PART") || has(510, &[0x55, 0xAA]) {
        return Content::PartitionTable;
    }
    match head.iter().chain(tail).all(|byte| *byte == 0) {
        true => Content::Blank,
        false => Content::Unknown,
    }
}

/// ext2, ext3 and ext4 share a magic; a feature the older ones cannot have tells.
fn ext_generation(head: &[u8]) -> FileSystem {
    const EXT3_INCOMPAT: u32 = 0x02 | 0x04 | 0x08 | 0x10;
    const EXT3_RO_COMPAT: u32 = 0x01 | 0x02 | 0x04;
    const HAS_JOURNAL: u32 = 0x04;
    let word = |offset: usize| {
        let bytes = head.get(0x400 + offset..0x400 + offset + 4).and_then(|slice| slice.try_into().ok());
        bytes.map(u32::from_le_bytes).unwrap_or_default()
    };
    let (compat, incompat, ro_compat) = (word(0x5C), word(0x60), word(0x64));
    if incompat & !EXT3_INCOMPAT != 0 || ro_compat & !EXT3_RO_COMPAT != 0 {
        FileSystem::Ext4
    } else if compat & HAS_JOURNAL != 0 {
        FileSystem::Ext3
    } else {
        FileSystem::Ext2
    }
}

pub(crate) fn probe(device: &Path) -> Result<Content> {
    let read = || -> io::Result<Content> {
        use std::io::{Seek, SeekFrom};
        let mut file = File::open(device)?;
        let size = file.seek(SeekFrom::End(0))?;
        let mut head = vec![0; size.min(HEAD) as usize];
        file.read_exact_at(&mut head, 0)?;
        let tail_start = size.saturating_sub(TAIL);
        let mut tail = vec![0; (size - tail_start) as usize];
        file.read_exact_at(&mut tail, tail_start)?;
        Ok(classify(&head, &tail))
    };
    read().map_err(|source| Error::AccessFile { action: "read", path: device.into(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head_with(offset: usize, bytes: &[u8]) -> Vec<u8> {
        let mut head = vec![0; HEAD as usize];
        head[offset..offset + bytes.len()].copy_from_slice(bytes);
        head
    }

    #[test]
    fn each_signature_is_recognised_at_its_place() {
        let cases: [(usize, &[u8], Content); 8] = [
            (0, b"XFSB", Content::FileSystem(FileSystem::Xfs)),
            (0x10040, b"_BHRfS_M", Content::FileSystem(FileSystem::Btrfs)),
            (0x438, &[0x53, 0xEF], Content::FileSystem(FileSystem::Ext2)),
            (4086, b"SWAPSPACE2", Content::Swap),
            (510, &[0x55, 0xAA], Content::PartitionTable),
            (512, b"EFI PART", Content::PartitionTable),
            (0x438, &[0xEF, 0x53], Content::Unknown),
            (700_000, b"x", Content::Unknown),
        ];
        for (offset, magic, expected) in cases {
            assert_eq!(classify(&head_with(offset, magic), &[]), expected, "{magic:?} at {offset}");
        }
    }

    #[test]
    fn the_features_tell_the_generations_of_ext_apart() {
        let mut head = head_with(0x438, &[0x53, 0xEF]);
        head[0x45C] = 0x04;
        assert_eq!(classify(&head, &[]), Content::FileSystem(FileSystem::Ext3));
        head[0x460] = 0x42;
        assert_eq!(classify(&head, &[]), Content::FileSystem(FileSystem::Ext4));
    }

    #[test]
    fn only_zeros_at_both_ends_are_blank() {
        assert_eq!(classify(&[0; 4096], &[0; 512]), Content::Blank);
        assert_eq!(classify(&[0; 4096], &[0, 0, 1]), Content::Unknown);
    }

    #[test]
    fn a_short_device_is_no_reason_to_panic() {
        for length in 0..2048 {
            classify(&vec![0xEF; length], &[]);
        }
    }

    #[test]
    fn names_come_back_as_the_file_systems_they_name() {
        assert_eq!("ext4".parse(), Ok(FileSystem::Ext4));
        assert_eq!("ntfs".parse::<FileSystem>(), Err(()));
    }
}
