//! Where a file holds data, and where two files differ.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use nix::errno::Errno;
use nix::ioctl_readwrite_bad;
use nix::unistd::{Whence, lseek64};

use crate::Result;
use crate::files::failed;

/// Differences are told in blocks of this size.
const BLOCK: u64 = 4096;
/// Bytes compared at once.
const CHUNK: u64 = 1 << 20;
/// Extents asked for at once.
const EXTENTS: usize = 256;

const LAST: u32 = 0x1;
const UNWRITTEN: u32 = 0x800;
/// Unknown, delayed, encoded, encrypted, unaligned, inline or tail data: the place on disk does not tell what is in it.
const UNSURE: u32 = 0x2 | 0x4 | 0x8 | 0x80 | 0x100 | 0x200 | 0x400;

/// `struct fiemap_extent` of the kernel's `linux/fiemap.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct RawExtent {
    logical: u64,
    physical: u64,
    length: u64,
    reserved64: [u64; 2],
    flags: u32,
    reserved: [u32; 3],
}

/// `struct fiemap` with room for its extents.
#[repr(C)]
struct Request {
    start: u64,
    length: u64,
    flags: u32,
    mapped: u32,
    count: u32,
    reserved: u32,
    extents: [RawExtent; EXTENTS],
}

const HEADER: usize = 32;
const _: () = assert!(size_of::<RawExtent>() == 56 && size_of::<Request>() == HEADER + 56 * EXTENTS);

// The size in the call's number is that of the header alone.
ioctl_readwrite_bad!(fs_ioc_fiemap, nix::request_code_readwrite!(b'f', 11, HEADER), Request);

/// A part of a file and where its bytes lie on disk, if that tells anything about them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Extent {
    range: Range<u64>,
    physical: Option<u64>,
}

impl Extent {
    /// Where the byte at this offset of the file lies.
    fn place(&self, offset: u64) -> Option<u64> {
        self.physical.map(|physical| physical + (offset - self.range.start))
    }
}

pub(crate) fn data(path: &Path) -> Result<Vec<Range<u64>>> {
    File::open(path).and_then(|file| data_of(&file)).map_err(failed("find the data of", path))
}

pub(crate) fn data_of(file: &File) -> io::Result<Vec<Range<u64>>> {
    let size = file.metadata()?.len();
    let mut found = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match lseek64(file, at as i64, Whence::SeekData) {
            Ok(start) => start as u64,
            Err(Errno::ENXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        // The end of a file counts as a hole.
        let end = lseek64(file, start as i64, Whence::SeekHole)? as u64;
        push(&mut found, start..end.min(size));
        at = end;
    }
    Ok(found)
}

/// Stops at the first byte that is not zero; holes are not read.
pub(crate) fn is_zero(path: &Path) -> Result<bool> {
    let read = || -> io::Result<bool> {
        let file = File::open(path)?;
        // Told also where holes are not.
        if file.metadata()?.blocks() == 0 {
            return Ok(true);
        }
        let mut chunk = vec![0; CHUNK as usize];
        for range in data_of(&file)? {
            let mut at = range.start;
            while at < range.end {
                let part = &mut chunk[..(range.end - at).min(CHUNK) as usize];
                file.read_exact_at(part, at)?;
                if part.iter().any(|byte| *byte != 0) {
                    return Ok(false);
                }
                at += part.len() as u64;
            }
        }
        Ok(true)
    };
    read().map_err(failed("read", path))
}

pub(crate) fn unshared(base: &Path, target: &Path) -> Result<Vec<Range<u64>>> {
    let map = |path: &Path| File::open(path).and_then(|file| Ok((file.metadata()?.len(), map(&file)?)));
    let (base_size, base_map) = map(base).map_err(failed("map the blocks of", base))?;
    let (target_size, target_map) = map(target).map_err(failed("map the blocks of", target))?;
    let size = base_size.max(target_size);
    Ok(match (base_map, target_map) {
        (Some(base), Some(target)) => compare_maps(&base, &target, size),
        // A file system that does not tell where its blocks are: all that is data must be looked at.
        _ => {
            let mut all = data(base)?;
            all.extend(data(target)?);
            all.sort_by_key(|range| range.start);
            let mut joined = Vec::new();
            all.into_iter().for_each(|range| push(&mut joined, range));
            joined
        }
    })
}

/// `None` if the file system does not tell.
fn map(file: &File) -> io::Result<Option<Vec<Extent>>> {
    /// Writes out first what has no place on disk yet.
    const SYNC: u32 = 0x1;
    let mut found = Vec::new();
    let mut start = 0;
    loop {
        let extents = [RawExtent::default(); EXTENTS];
        let (length, count) = (u64::MAX - start, EXTENTS as u32);
        let mut request = Request { start, length, flags: SYNC, mapped: 0, count, reserved: 0, extents };
        // SAFETY: `request` has the kernel's layout with room for `count` extents, and outlives the call.
        match unsafe { fs_ioc_fiemap(file.as_raw_fd(), &mut request) } {
            Ok(_) => {}
            Err(Errno::EOPNOTSUPP | Errno::ENOTTY | Errno::ENOSYS | Errno::EBADR) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
        let mapped = &request.extents[..(request.mapped as usize).min(EXTENTS)];
        for raw in mapped.iter().filter(|raw| raw.flags & UNWRITTEN == 0) {
            let physical = (raw.flags & UNSURE == 0).then_some(raw.physical);
            found.push(Extent { range: raw.logical..raw.logical.saturating_add(raw.length), physical });
        }
        match mapped.last() {
            Some(last) if last.flags & LAST == 0 && last.length > 0 => start = last.logical + last.length,
            _ => return Ok(Some(found)),
        }
    }
}

/// The parts up to `size` that are not in the same place in both, nor a hole in both.
fn compare_maps(base: &[Extent], target: &[Extent], size: u64) -> Vec<Range<u64>> {
    let (mut base, mut target) = (base.iter().peekable(), target.iter().peekable());
    let mut different = Vec::new();
    let mut at = 0;
    while at < size {
        while base.next_if(|extent| extent.range.end <= at).is_some() {}
        while target.next_if(|extent| extent.range.end <= at).is_some() {}
        let (left, right) = (base.peek(), target.peek());
        let boundary = |extent: Option<&&Extent>| match extent {
            None => size,
            Some(extent) if extent.range.start > at => extent.range.start,
            Some(extent) => extent.range.end,
        };
        let end = boundary(left).min(boundary(right)).min(size);
        let here =
            |extent: Option<&&Extent>| extent.filter(|extent| extent.range.start <= at).map(|extent| extent.place(at));
        let same = match (here(left), here(right)) {
            (None, None) => true,
            (Some(left), Some(right)) => left.is_some() && left == right,
            _ => false,
        };
        if !same {
            push(&mut different, at..end);
        }
        at = end;
    }
    different
}

pub(crate) fn differing(base: &Path, target: &Path, within: Range<u64>) -> Result<Vec<Range<u64>>> {
    let open = |path: &Path| File::open(path).map_err(failed("open", path));
    let (base_file, target_file) = (open(base)?, open(target)?);
    let (mut left, mut right) = (vec![0; CHUNK as usize], vec![0; CHUNK as usize]);
    let mut found = Vec::new();
    // Whole blocks, also where the extents of an odd file system are not.
    let mut at = within.start / BLOCK * BLOCK;
    while at < within.end {
        let length = CHUNK.min((within.end - at).next_multiple_of(BLOCK)) as usize;
        fill(&base_file, &mut left[..length], at).map_err(failed("read", base))?;
        fill(&target_file, &mut right[..length], at).map_err(failed("read", target))?;
        let blocks = left[..length].chunks(BLOCK as usize).zip(right[..length].chunks(BLOCK as usize));
        for (index, (left, right)) in blocks.enumerate() {
            if left != right {
                let start = at + index as u64 * BLOCK;
                push(&mut found, start..start + BLOCK);
            }
        }
        at += length as u64;
    }
    Ok(found)
}

fn fill(file: &File, buffer: &mut [u8], mut at: u64) -> io::Result<()> {
    let mut rest = buffer;
    while !rest.is_empty() {
        match file.read_at(rest, at)? {
            0 => {
                rest.fill(0);
                break;
            }
            read => {
                at += read as u64;
                rest = &mut rest[read..];
            }
        }
    }
    Ok(())
}

/// Adds a range that starts no earlier than the last one, joined with it if they touch.
fn push(ranges: &mut Vec<Range<u64>>, next: Range<u64>) {
    match ranges.last_mut() {
        Some(last) if last.end >= next.start => last.end = last.end.max(next.end),
        _ => ranges.push(next),
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn extent(start: u64, end: u64, physical: u64) -> Extent {
        Extent { range: start..end, physical: Some(physical) }
    }

    #[test]
    fn parts_in_the_same_place_are_the_same_and_all_others_may_differ() {
        let base = [extent(0, 10, 100), extent(20, 30, 200)];
        assert_eq!(compare_maps(&base, &base, 40), []);
        assert_eq!(compare_maps(&base, &[extent(0, 10, 100)], 40), [20..30]);
        assert_eq!(compare_maps(&base, &[extent(0, 5, 100), extent(5, 10, 700), extent(20, 30, 200)], 40), [5..10]);
        assert_eq!(compare_maps(&[], &[extent(0, 50, 1)], 40), [0..40]);
        let unsure = Extent { range: 0..10, physical: None };
        assert_eq!(compare_maps(std::slice::from_ref(&unsure), std::slice::from_ref(&unsure), 40), [0..10]);
        // The same place on disk at another place of the file is not the same.
        assert_eq!(compare_maps(&[extent(0, 10, 100)], &[extent(10, 20, 100)], 40), [0..20]);
    }

    proptest! {
        #[test]
        fn comparing_maps_agrees_with_comparing_each_byte(
            left in prop::collection::vec((0u64..4, 1u64..4, 0u64..6), 0..6),
            right in prop::collection::vec((0u64..4, 1u64..4, 0u64..6), 0..6),
        ) {
            let build = |parts: &[(u64, u64, u64)]| {
                let mut at = 0;
                parts.iter().map(|(gap, length, physical)| {
                    let start = at + gap;
                    at = start + length;
                    extent(start, at, physical * 100)
                }).collect::<Vec<_>>()
            };
            let (left, right) = (build(&left), build(&right));
            let size = 40;
            let place = |map: &[Extent], at: u64| {
                map.iter().find(|extent| extent.range.contains(&at)).and_then(|extent| extent.place(at))
            };
            let found = compare_maps(&left, &right, size);
            for at in 0..size {
                let listed = found.iter().any(|range| range.contains(&at));
                prop_assert_eq!(listed, place(&left, at) != place(&right, at), "byte {}", at);
            }
        }
    }

    #[test]
    fn only_blocks_that_differ_are_told_and_past_its_end_a_file_is_zeros() {
        let dir = tempfile::tempdir().unwrap();
        let (base, target) = (dir.path().join("base"), dir.path().join("target"));
        let mut bytes = vec![1u8; 5 * 4096];
        std::fs::write(&base, &bytes).unwrap();
        bytes[4096 * 2 + 7] = 9;
        bytes.extend([0; 4096]);
        bytes.extend([3; 10]);
        std::fs::write(&target, &bytes).unwrap();
        let found = differing(&base, &target, 0..bytes.len() as u64).unwrap();
        assert_eq!(found, [2 * 4096..3 * 4096, 6 * 4096..7 * 4096]);
    }

    #[test]
    fn holes_are_not_data() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        let file = File::create_new(&path).unwrap();
        file.set_len(4 << 20).unwrap();
        file.write_all_at(&[1; 4096], 1 << 20).unwrap();
        assert_eq!(data(&path).unwrap(), [1 << 20..(1 << 20) + 4096]);
    }

    #[test]
    fn zeros_are_zeros_whether_written_or_not_and_one_byte_anywhere_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("image");
        let file = File::create(&path).unwrap();
        let size = 3 * CHUNK + 5000;
        file.set_len(size).unwrap();
        assert!(is_zero(&path).unwrap());
        file.write_all_at(&[0; 8192], CHUNK - 4096).unwrap();
        assert!(is_zero(&path).unwrap());
        for at in [0, CHUNK + 1, 2 * CHUNK - 1, size - 1] {
            file.write_all_at(&[1], at).unwrap();
            assert!(!is_zero(&path).unwrap(), "{at}");
            file.write_all_at(&[0], at).unwrap();
            assert!(is_zero(&path).unwrap(), "{at}");
        }
    }
}
