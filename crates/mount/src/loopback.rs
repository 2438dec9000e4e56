//! Loop devices: images served as block devices.

mod control;
mod onlookers;

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Seek, SeekFrom};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::libc;
use nix::sys::stat::{Mode, SFlag, makedev, mknod};

use crate::{DeviceNumber, Error, FileId, Result};

/// Longest tag a loop device can carry, in bytes: the kernel's file name field less its NUL.
pub const MAX_TAG: usize = control::NAME - 1;

const CONTROL: &str = "/dev/loop-control";
/// The loop driver's major number; fixed since Linux 1.
const MAJOR: u32 = 7;
/// The kernel's own for a new device, in KiB.
const USUAL_READ_AHEAD: u32 = 128;
/// Between "this one is free" and our claim another process may take it; that rarely happens twice in a row.
const ATTEMPTS: u32 = 64;

/// A loop device in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopDevice {
    /// Its device node.
    pub path: PathBuf,
    /// Its number, as the mount table shows it.
    pub number: DeviceNumber,
    /// The image it serves.
    pub image: FileId,
    /// Where the kernel last saw that image; ` (deleted)` follows if it has no name any more.
    pub backing: PathBuf,
    /// The words its maker left on it; tells whose it is, since all mount namespaces share one set of devices.
    pub tag: String,
    /// Whether the page cache of the image's file system is bypassed.
    pub direct_io: bool,
    /// Whether it goes away with its last user: it was detached while somebody looked at it, or made that way.
    pub autoclear: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Its size in bytes.
    pub size: u64,
}

/// How a loop device serves its image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoopOptions {
    /// Whether writes are refused.
    pub read_only: bool,
    /// Whether the page cache of the image's file system is bypassed, where that file system can.
    pub direct_io: bool,
    /// Whether discarded blocks become holes in the image; an image allocated in advance wants none.
    pub discard: bool,
    /// The device's sector size. Left to the kernel it follows the image, and grows when that comes to share blocks:
    /// a file system made for smaller sectors could then no longer be mounted.
    pub sector_bytes: u32,
}

impl Default for LoopOptions {
    fn default() -> Self {
        LoopOptions { read_only: false, direct_io: true, discard: true, sector_bytes: 4096 }
    }
}

fn failed(action: &'static str, device: &Path) -> impl FnOnce(io::Error) -> Error {
    move |source| Error::AccessLoop { action, device: device.into(), source }
}

fn node(index: u32) -> PathBuf {
    PathBuf::from(format!("/dev/loop{index}"))
}

/// Opens the device node, making it where /dev is not the kernel's own (in containers).
fn open(index: u32, write: bool) -> Result<File> {
    let path = node(index);
    let open = || OpenOptions::new().read(true).write(write).custom_flags(libc::O_NOFOLLOW).open(&path);
    let file = match open() {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let device = makedev(MAJOR.into(), index.into());
            match mknod(&path, SFlag::S_IFBLK, Mode::from_bits_truncate(0o600), device) {
                Ok(()) | Err(nix::errno::Errno::EEXIST) => open(),
                Err(errno) => return Err(failed("make the node of", &path)(errno.into())),
            }
        }
        other => other,
    };
    file.map_err(failed("open", &path))
}

/// For people and for cleaning up; what a device serves is told by `image`.
fn backing(index: u32) -> PathBuf {
    let name = fs::read(format!("/sys/block/loop{index}/loop/backing_file")).unwrap_or_default();
    PathBuf::from(OsString::from_vec(name.trim_ascii_end().to_vec()))
}

/// `None` if the device is not in use.
fn status(index: u32, mut device: &File) -> Result<Option<LoopDevice>> {
    let path = node(index);
    match control::status(device) {
        Ok(status) => Ok(Some(LoopDevice {
            number: DeviceNumber { major: MAJOR, minor: index },
            image: FileId { device: status.device, inode: status.inode },
            backing: backing(index),
            tag: status.tag(),
            direct_io: status.flags & control::DIRECT_IO != 0,
            autoclear: status.flags & control::AUTOCLEAR != 0,
            read_only: status.flags & control::READ_ONLY != 0,
            size: device.seek(SeekFrom::End(0)).map_err(failed("read the size of", &path))?,
            path,
        })),
        Err(nix::errno::Errno::ENXIO) => Ok(None),
        Err(errno) => Err(failed("read the status of", &path)(errno.into())),
    }
}

pub(crate) fn list() -> Result<Vec<LoopDevice>> {
    let block = Path::new("/sys/block");
    let mut indices = Vec::new();
    for entry in fs::read_dir(block).map_err(failed("list", block))? {
        let name = entry.map_err(failed("list", block))?.file_name();
        let index =
            name.to_str().and_then(|name| name.strip_prefix("loop")).and_then(|index| index.parse::<u32>().ok());
        // The `loop` folder exists while the device is bound, so idle ones are not even opened.
        if let Some(index) = index
            && block.join(&name).join("loop").try_exists().map_err(failed("list", block))?
        {
            indices.push(index);
        }
    }
    indices.sort_unstable();
    let mut devices = Vec::new();
    for index in indices {
        devices.extend(find(index)?);
    }
    Ok(devices)
}

/// `None` if the device does not exist or serves nothing.
pub(crate) fn find(index: u32) -> Result<Option<LoopDevice>> {
    match open(index, false) {
        Ok(file) => status(index, &file),
        Err(error) if is_gone(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a device could not be opened because it was removed, or is letting go of its image at this moment.
fn is_gone(error: &Error) -> bool {
    matches!(error.os_error(), Some(libc::ENXIO | libc::ENODEV))
}

pub(crate) fn attach(image: &Path, tag: &str, options: LoopOptions) -> Result<LoopDevice> {
    if tag.len() > MAX_TAG {
        return Err(Error::TagLoop { tag: tag.into(), max: MAX_TAG });
    }
    let open_image = OpenOptions::new()
        .read(true)
        .write(!options.read_only)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
        .open(image);
    let file = open_image.map_err(|source| Error::AccessFile { action: "open image", path: image.into(), source })?;
    let control = Path::new(CONTROL);
    let controller = OpenOptions::new().read(true).write(true).open(control).map_err(failed("open", control))?;
    let mut barred = None;
    for _ in 0..ATTEMPTS {
        let index = next(&controller, barred).map_err(|errno| failed("find a free", control)(errno.into()))?;
        let device = match open(index, true) {
            // Its last user has just removed it.
            Err(error) if is_gone(&error) => continue,
            other => other?,
        };
        match control::configure(&device, &file, tag, options) {
            Ok(()) => {}
            Err(nix::errno::Errno::EBUSY) => continue,
            Err(errno) => return Err(failed("set up", &node(index))(errno.into())),
        }
        if options.discard && is_barred(index) {
            control::clear(&device).map_err(|errno| failed("detach", &node(index))(errno.into()))?;
            barred = Some(index);
            continue;
        }
        if !options.discard {
            bar_discards(index)?;
        }
        inherit_read_ahead(index, &file);
        let found = status(index, &device)?;
        return found.ok_or_else(|| failed("read the status of", &node(index))(io::Error::from(ErrorKind::NotFound)));
    }
    Err(Error::FindFreeLoop { attempts: ATTEMPTS })
}

/// A free device; not `barred`, which is removed, or passed over if somebody looks at it.
fn next(controller: &File, barred: Option<u32>) -> nix::Result<u32> {
    match barred {
        Some(index) if control::remove(controller, index).is_err() => control::add(controller),
        _ => control::find_free(controller),
    }
}

fn discard_limit(index: u32, of: &str) -> PathBuf {
    PathBuf::from(format!("/sys/block/loop{index}/queue/{of}"))
}

/// Lets nobody discard blocks through this device. That outlives the image, and the kernel takes no other limit after
/// it: the device can serve no image that wants discards, and is to be removed.
fn bar_discards(index: u32) -> Result<()> {
    match fs::write(discard_limit(index, "discard_max_bytes"), "0") {
        // Where /sys is read-only (in a container that is not privileged) discards stay possible.
        Err(error) if !matches!(error.raw_os_error(), Some(libc::EROFS | libc::EACCES)) => {
            Err(failed("forbid discards on", &node(index))(error))
        }
        _ => Ok(()),
    }
}

/// What suits the disk under an image suits the image. Set for every one, since a device keeps what its last user wished.
/// Best effort: it is only slower without.
fn inherit_read_ahead(index: u32, image: &File) {
    let Ok(about) = image.metadata() else { return };
    let (major, minor) = (libc::major(about.dev()), libc::minor(about.dev()));
    // The second is of a partition's disk, the third of file systems without a disk of their own.
    let places = [
        format!("/sys/dev/block/{major}:{minor}/queue/read_ahead_kb"),
        format!("/sys/dev/block/{major}:{minor}/../queue/read_ahead_kb"),
        format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"),
    ];
    let kilobytes = places.iter().find_map(|place| fs::read_to_string(place).ok());
    let kilobytes = kilobytes.and_then(|text| text.trim().parse::<u32>().ok()).unwrap_or(USUAL_READ_AHEAD);
    let _ = fs::write(format!("/sys/block/loop{index}/queue/read_ahead_kb"), kilobytes.to_string());
}

/// Whether an earlier user has barred discards for good, though the image allows them.
fn is_barred(index: u32) -> bool {
    let is_zero = |of| fs::read_to_string(discard_limit(index, of)).is_ok_and(|bytes| bytes.trim() == "0");
    is_zero("discard_max_bytes") && !is_zero("discard_max_hw_bytes")
}

/// Lets the device see that its image has grown.
pub(crate) fn refresh(device: &LoopDevice) -> Result<LoopDevice> {
    let index = device.number.minor;
    let file = open(index, false)?;
    control::set_capacity(&file).map_err(|errno| failed("grow", &device.path)(errno.into()))?;
    let found = status(index, &file)?;
    found.ok_or_else(|| failed("read the status of", &device.path)(io::Error::from(ErrorKind::NotFound)))
}

/// Lets go of the image for good. While anybody else has the device open or mounted, in whichever mount namespace, the
/// kernel says yes and only remembers to do it later; then this fails, and is to be repeated.
pub(crate) fn detach(device: &LoopDevice) -> Result<()> {
    let index = device.number.minor;
    let is_same = |now: &LoopDevice| now.tag == device.tag && now.image == device.image;
    let file = match open(index, false) {
        Err(error) if is_gone(&error) => return Ok(()),
        other => other?,
    };
    match status(index, &file)? {
        None => return Ok(()),
        Some(now) if !is_same(&now) => {
            return Err(Error::DetachForeign { device: device.path.clone(), tag: device.tag.clone() });
        }
        Some(_) => {}
    }
    let barred = is_barred(index);
    match control::clear(&file) {
        Ok(()) | Err(nix::errno::Errno::ENXIO) => {}
        Err(errno) => return Err(failed("detach", &device.path)(errno.into())),
    }
    drop(file);
    if onlookers::is_leaving(index) {
        let waited = onlookers::wait(index, &device.path);
        waited.map_err(|errno| failed("wait for the users of", &device.path)(errno.into()))?;
        if find(index)?.as_ref().is_some_and(is_same) {
            return Err(Error::KeepLoop { device: device.path.clone() });
        }
    }
    if barred && let Ok(controller) = OpenOptions::new().read(true).write(true).open(CONTROL) {
        // Best effort: whoever gets it next sees the bar and does the same.
        let _ = control::remove(&controller, index);
    }
    Ok(())
}
