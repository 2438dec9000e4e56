use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::{FileSystem, ext_generation};
use crate::{Error, Result};

/// Beyond the last field read here: btrfs keeps its superblock at 64 KiB.
const HEAD: usize = 72 << 10;

/// How many bytes of its device a file system uses, by its own superblock; `None` if there is no file system.
pub(crate) fn size(device: &Path) -> Result<Option<u64>> {
    let read = || -> io::Result<Option<u64>> {
        let file = File::open(device)?;
        let mut head = vec![0; HEAD];
        let mut filled = 0;
        while filled < HEAD {
            match file.read_at(&mut head[filled..], filled as u64)? {
                0 => break,
                more => filled += more,
            }
        }
        Ok(parse(&head[..filled]).map(|(_, bytes)| bytes))
    };
    read().map_err(|source| Error::AccessFile { action: "read the superblock of", path: device.into(), source })
}

fn parse(head: &[u8]) -> Option<(FileSystem, u64)> {
    let at = |offset: usize, length: usize| head.get(offset..offset + length);
    let little = |offset| at(offset, 4).and_then(|bytes| bytes.try_into().ok()).map(u32::from_le_bytes);
    let little_long = |offset| at(offset, 8).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
    if at(0, 4) == Some(b"XFSB") {
        // xfs writes big-endian: block size at 4, data blocks at 8.
        let unit = at(4, 4)?.try_into().ok().map(u32::from_be_bytes)?;
        let blocks = at(8, 8)?.try_into().ok().map(u64::from_be_bytes)?;
        return Some((FileSystem::Xfs, blocks.checked_mul(unit.into())?));
    }
    if at(0x10040, 8) == Some(b"_BHRfS_M") {
        return Some((FileSystem::Btrfs, little_long(0x10070)?));
    }
    if at(0x438, 2) == Some(&[0x53, 0xEF]) {
        const WIDE: u32 = 0x80;
        let unit = 1024u64.checked_shl(little(0x418)?)?;
        let low = u64::from(little(0x404)?);
        let high = if little(0x460)? & WIDE != 0 { u64::from(little(0x550)?) } else { 0 };
        return Some((ext_generation(head), (high << 32 | low).checked_mul(unit)?));
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_kind_tells_its_size_at_its_place() {
        let mut ext = vec![0; HEAD];
        ext[0x438..0x43A].copy_from_slice(&[0x53, 0xEF]);
        ext[0x418] = 2;
        ext[0x404..0x408].copy_from_slice(&8192u32.to_le_bytes());
        ext[0x460] = 0xC2;
        ext[0x550] = 1;
        assert_eq!(parse(&ext), Some((FileSystem::Ext4, ((1 << 32) + 8192) * 4096)));
        let mut xfs = vec![0; HEAD];
        xfs[..4].copy_from_slice(b"XFSB");
        xfs[4..8].copy_from_slice(&4096u32.to_be_bytes());
        xfs[8..16].copy_from_slice(&76_800u64.to_be_bytes());
        assert_eq!(parse(&xfs), Some((FileSystem::Xfs, 300 << 20)));
        assert_eq!(parse(&vec![0; HEAD]), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2000), kind in 0..3usize) {
            let mut head = vec![0xFF; HEAD];
            head[0x400..0x400 + bytes.len()].copy_from_slice(&bytes);
            let (at, magic): (usize, &[u8]) = [(0, b"XFSB".as_slice()), (0x10040, b"_BHRfS_M"), (0x438, &[0x53, 0xEF])][kind];
            head[at..at + magic.len()].copy_from_slice(magic);
            let _ = parse(&head);
            let _ = parse(&bytes);
        }
    }
}
