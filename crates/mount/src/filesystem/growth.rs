//! How an ext file system that nobody has mounted grows, so that a kill or a loss of power at any point costs nothing.
//!
//! resize2fs never sees the device: it works on a copy of the metadata. What it has changed there is the plan, which is
//! carried out like a journal: it is durable before the first write to the device, and the superblock, by which a plan
//! is told to be of this file system and not yet done, is written last. In the copy free blocks are holes, and on the device
//! they hold what was deleted: so whatever block is written is written whole, and bitmaps that are read from now on are
//! written also where they are all zeros. (The undo files of e2fsprogs do not survive a
//! kill: docs/decisions/0009.)

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;

use super::FileSystem;
use super::ext::{Group, Room, SUPERBLOCK, Superblock};
use super::tools::{check_wholly, listen};
use crate::clone::share_or_copy;
use crate::extents::data_of;
use crate::files::{failed, parent, sync_dir, unless_missing, waiting_name};
use crate::{Error, Result};

/// How a plan begins; then come the superblock for which it was made and the pieces, that of the superblock last.
const MAGIC: &[u8; 16] = b"stowage-growth-1";
/// The smallest block of ext, and what the superblock takes.
const PIECE: usize = 1024;
const HEAD: usize = MAGIC.len() + PIECE;
/// A piece with the place where it belongs.
const ENTRY: usize = 8 + PIECE;
/// Compared at once.
const CHUNK: usize = 1 << 20;

type Piece = [u8; PIECE];

pub(crate) fn plan(device: &Path, path: &Path) -> Result<bool> {
    let (bytes, superblock) = look(device)?;
    match room_of(superblock, bytes) {
        Room::None => return Ok(false),
        Room::InPlace => {}
        Room::Elsewhere(reason) => return Err(Error::GrowUnmounted { device: device.into(), reason }),
    }
    // resize2fs wants a check that is younger than the last mount.
    check_wholly(device, FileSystem::Ext4)?;
    let scratch = || Scratch::new(path).map_err(failed("plan a growth at", path));
    let (before, after) = (scratch()?, scratch()?);
    full(path, listen("e2image", [OsStr::new("-r"), device.as_os_str(), before.path.as_os_str()], device, &[0]))?;
    let copied = before.file.set_len(bytes).and_then(|()| share_or_copy(&before.file, &after.file));
    copied.and_then(|()| after.file.set_len(bytes)).map_err(failed("plan a growth at", path))?;
    let told = full(path, listen("resize2fs", [OsStr::new("-p"), after.path.as_os_str()], device, &[0]))?;
    if moves(&told) {
        return Err(Error::GrowUnmounted { device: device.into(), reason: "resize2fs has to move what is there" });
    }
    let planning = failed("plan a growth at", path);
    let bitmaps = match new_bitmaps(&before.file, &after.file).map_err(planning)? {
        Bitmaps::At(blocks) => blocks,
        Bitmaps::WithInodes => {
            let reason = "this resize2fs writes out the inodes of new groups, megabytes of zeros for each";
            return Err(Error::GrowUnmounted { device: device.into(), reason });
        }
    };
    let planned = write(path, &before.file, &after.file, bytes, &bitmaps).map_err(failed("plan a growth at", path))?;
    if planned {
        // Nobody will carry it out, and beside a mounted volume it would stay.
        sync_dir(parent(path)).inspect_err(|_| drop(fs::remove_file(path)))?;
    }
    Ok(planned)
}

/// Of an ext file system, mounted or not; others have none.
pub(crate) fn room(device: &Path) -> Result<Room> {
    look(device).map(|(bytes, superblock)| room_of(superblock, bytes))
}

fn room_of(superblock: Option<Superblock>, bytes: u64) -> Room {
    superblock.map_or(Room::None, |superblock| superblock.room(bytes))
}

/// What a plan may take beside the file system, in bytes, while it is made. `shares`: files share blocks where it is made.
pub(crate) fn scratch(device: &Path, shares: bool) -> Result<u64> {
    let (bytes, superblock) = look(device)?;
    Ok(superblock.map_or(0, |superblock| superblock.scratch(bytes, if shares { 1 } else { 2 })))
}

/// How large the device is, and what its file system says of itself.
fn look(device: &Path) -> Result<(u64, Option<Superblock>)> {
    let read = || -> io::Result<(u64, Piece)> {
        let mut file = File::open(device)?;
        Ok((file.seek(SeekFrom::End(0))?, read_piece(&file, SUPERBLOCK)?))
    };
    let (bytes, piece) = read().map_err(failed("look at the file system on", device))?;
    Ok((bytes, Superblock::parse(&piece)))
}

/// The programs say it in words.
fn full(path: &Path, ran: Result<String>) -> Result<String> {
    match ran {
        Err(Error::FinishTool { output, .. }) if output.contains("No space left") => {
            Err(failed("plan a growth at", path)(io::Error::from_raw_os_error(libc::ENOSPC)))
        }
        other => other,
    }
}

/// The copy has no data, so what resize2fs has moved there is lost: `Room` knew better, or this is the second lock of the
/// door. Its first pass only makes new inodes; all others move blocks or inodes, or look for who names them.
fn moves(told: &str) -> bool {
    told.split("Begin pass ").skip(1).any(|pass| !pass.starts_with('1'))
}

/// A file without a name, so that a kill leaves nothing of it; programs reach it through our own table of files.
struct Scratch {
    file: File,
    path: PathBuf,
}

impl Scratch {
    fn new(beside: &Path) -> io::Result<Self> {
        let waiting = waiting_name(beside);
        unless_missing(fs::remove_file(&waiting))?;
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&waiting)?;
        fs::remove_file(&waiting)?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok(Scratch { file, path: path.into() })
    }
}

enum Bitmaps {
    /// The places of blocks that are read as bitmaps now and were not before.
    At(BTreeSet<u64>),
    /// A new group has inodes that are read as they stand: megabytes of zeros for each.
    WithInodes,
}

fn new_bitmaps(before: &File, after: &File) -> io::Result<Bitmaps> {
    let superblock = |file: &File| -> io::Result<Superblock> {
        Superblock::parse(&read_piece(file, SUPERBLOCK)?).ok_or_else(|| unreadable("its superblock"))
    };
    let (old, new) = (superblock(before)?, superblock(after)?);
    let group = |file: &File, of: &Superblock, number: u64| -> io::Result<Group> {
        let (at, length) = of.descriptor(number);
        let mut descriptor = vec![0; length];
        file.read_exact_at(&mut descriptor, at)?;
        of.group(&descriptor).ok_or_else(|| unreadable("its table of groups"))
    };
    let mut blocks = BTreeSet::new();
    for number in 0..new.groups() {
        let is = group(after, &new, number)?;
        let was = (number < old.groups()).then(|| group(before, &old, number)).transpose()?;
        if was.is_none() && is.has_inodes() {
            return Ok(Bitmaps::WithInodes);
        }
        blocks.extend(is.newly_read(was).map(|block| block * new.block_bytes()));
    }
    Ok(Bitmaps::At(blocks))
}

fn unreadable(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("{what} cannot be read"))
}

/// `false`, and no plan, if both are the same.
fn write(path: &Path, before: &File, after: &File, bytes: u64, bitmaps: &BTreeSet<u64>) -> io::Result<bool> {
    let waiting = waiting_name(path);
    let made = || -> io::Result<bool> {
        // Never the file of a node that stood still while it wrote: it would go on writing in our plan.
        unless_missing(fs::remove_file(&waiting))?;
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).mode(0o600).open(&waiting)?;
        let mut plan = BufWriter::with_capacity(CHUNK, file);
        let (old, new) = (read_piece(before, SUPERBLOCK)?, read_piece(after, SUPERBLOCK)?);
        let block = Superblock::parse(&new).map_or(PIECE, |superblock| superblock.block_bytes() as usize);
        plan.write_all(MAGIC)?;
        plan.write_all(&old)?;
        let mut put = |at: u64, piece: &[u8]| plan.write_all(&at.to_le_bytes()).and_then(|()| plan.write_all(piece));
        let mut ranges = [data_of(before)?, data_of(after)?].concat();
        ranges.sort_by_key(|range| range.start);
        let (mut was, mut is) = (vec![0; CHUNK], vec![0; CHUNK]);
        let mut at = 0;
        for range in ranges {
            // Where one of the two has data the other may have, too.
            at = range.start.max(at) / block as u64 * block as u64;
            while at < range.end.min(bytes) {
                let length = CHUNK.min((bytes - at) as usize) / block * block;
                if length == 0 {
                    break;
                }
                before.read_exact_at(&mut was[..length], at)?;
                after.read_exact_at(&mut is[..length], at)?;
                let blocks = was[..length].chunks(block).zip(is[..length].chunks(block));
                for (index, (was, is)) in blocks.enumerate() {
                    let start = at + (index * block) as u64;
                    if was == is || bitmaps.contains(&start) {
                        continue;
                    }
                    // What stands before and behind the superblock in its block is not the file system's to change.
                    let is_first = (start..start + block as u64).contains(&SUPERBLOCK);
                    for (at, (was, is)) in (start..).step_by(PIECE).zip(was.chunks(PIECE).zip(is.chunks(PIECE))) {
                        if at != SUPERBLOCK && (!is_first || was != is) {
                            put(at, is)?;
                        }
                    }
                }
                at += length as u64;
            }
        }
        for start in bitmaps {
            for at in (*start..start + block as u64).step_by(PIECE) {
                put(at, &read_piece(after, at)?)?;
            }
        }
        let blocks = |superblock: &Piece| Superblock::parse(superblock).map(|superblock| superblock.blocks());
        // resize2fs writes down when it looked, also where it found nothing to do.
        if blocks(&old) == blocks(&new) {
            return Ok(false);
        }
        put(SUPERBLOCK, &new)?;
        plan.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        fs::rename(&waiting, path)?;
        Ok(true)
    };
    let written = made();
    if !matches!(written, Ok(true)) {
        // Best effort, so that a full disk gets its space back; the next plan replaces it anyway.
        let _ = fs::remove_file(&waiting);
    }
    written
}

/// What is no whole plan was never begun to be carried out: the end is looked at before the first write.
pub(crate) fn carry_out(path: &Path, device: &Path) -> Result<bool> {
    let Some((plan, pieces)) = open(path).map_err(failed("read", path))? else { return Ok(false) };
    let carry_out = || -> io::Result<bool> {
        let old: Piece = read_piece(&plan, MAGIC.len() as u64)?;
        let (_, new) = entry(&plan, pieces - 1)?;
        // Nobody else may have the device for himself (mounted), and nobody gets it meanwhile.
        let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_EXCL).open(device)?;
        let first = match read_piece(&file, SUPERBLOCK)? {
            // It may be nowhere but in memory, and a write that has failed is told only once: it is written again.
            now if now == new => pieces - 1,
            now if is_between(&now, &old, &new) => 0,
            _ => return Ok(false),
        };
        put_down(&plan, first..pieces, &file)?;
        Ok(true)
    };
    carry_out().map_err(failed("grow the file system on", device))
}

/// A loss of power may leave one of the two sectors of the superblock old and the other new.
fn is_between(now: &Piece, old: &Piece, new: &Piece) -> bool {
    const SECTOR: usize = 512;
    let mut sectors = now.chunks(SECTOR).zip(old.chunks(SECTOR).zip(new.chunks(SECTOR)));
    sectors.all(|(now, (old, new))| now == old || now == new)
}

/// The last of the pieces is the plan's last.
fn put_down(plan: &File, pieces: Range<u64>, device: &File) -> io::Result<()> {
    for index in pieces.clone() {
        if index + 1 == pieces.end {
            device.sync_all()?;
        }
        let (at, piece) = entry(plan, index)?;
        device.write_all_at(&piece, at)?;
    }
    device.sync_all()
}

fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    let mut plan = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK).open(path)?;
    let length = plan.metadata()?.len();
    let pieces = length.saturating_sub(HEAD as u64) / ENTRY as u64;
    let mut magic = [0; MAGIC.len()];
    if pieces == 0 || length != HEAD as u64 + pieces * ENTRY as u64 {
        return Ok(None);
    }
    plan.read_exact(&mut magic)?;
    let ends = entry(&plan, pieces - 1)?.0 == SUPERBLOCK;
    Ok((magic == *MAGIC && ends).then_some((plan, pieces)))
}

fn entry(plan: &File, index: u64) -> io::Result<(u64, Piece)> {
    let (mut at, place) = ([0; 8], HEAD as u64 + index * ENTRY as u64);
    plan.read_exact_at(&mut at, place)?;
    Ok((u64::from_le_bytes(at), read_piece(plan, place + 8)?))
}

fn read_piece(file: &File, at: u64) -> io::Result<Piece> {
    let mut piece = [0; PIECE];
    match file.read_exact_at(&mut piece, at) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(io::Error::new(ErrorKind::InvalidData, "it is too short for a file system"))
        }
        read => read.map(|()| piece),
    }
}

#[cfg(test)]
mod tests;
