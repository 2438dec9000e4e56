use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use crate::{Error, Result};

/// Not `/proc/self`: that is the main thread's namespace, and tests give single threads their own.
const TABLE: &str = "/proc/thread-self/mountinfo";

/// The number by which the kernel knows a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceNumber {
    /// The driver's number; 7 is the loop driver.
    pub major: u32,
    /// The device among those of the driver.
    pub minor: u32,
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// One line of the kernel's mount table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The kernel's number of this mount, unique while it exists.
    pub id: u32,
    /// The mount this one is attached to.
    pub parent: u32,
    /// The device of the files in it.
    pub device: DeviceNumber,
    /// The directory of that file system which is seen here: `/` unless it is a bind mount of a part.
    pub root: PathBuf,
    /// Where it is mounted.
    pub target: PathBuf,
    /// Options of this mount, such as `ro`; those of the whole file system are in `super_options`.
    pub options: Vec<String>,
    /// Propagation tags such as `shared:1`.
    pub tags: Vec<String>,
    /// The file system's type.
    pub fs_type: String,
    /// What was mounted: a device node, a server, or a word.
    pub source: String,
    /// Options of the whole file system.
    pub super_options: Vec<String>,
}

impl Mount {
    /// Whether writes through this mount are refused, by the mount itself or by its file system.
    pub fn is_read_only(&self) -> bool {
        self.options.iter().chain(&self.super_options).any(|option| option == "ro")
    }

    /// Whether the files in it carry labels of their own for SELinux, and a pod's label would have to be put on each.
    pub fn has_labels(&self) -> bool {
        self.options.iter().chain(&self.super_options).any(|option| option == "seclabel")
    }
}

/// The mount table of one moment, oldest mount first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MountTable(Vec<Mount>);

impl MountTable {
    /// A table of these mounts; a later one at the same target hides an earlier one.
    pub fn new(mounts: Vec<Mount>) -> Self {
        MountTable(mounts)
    }

    /// Reads the table of the calling thread's mount namespace.
    pub fn read() -> Result<Self> {
        let text = std::fs::read(TABLE).map_err(|source| Error::ReadTable { path: TABLE.into(), source })?;
        Self::parse(&text)
    }

    /// Parses the format of proc_pid_mountinfo(5).
    pub fn parse(text: &[u8]) -> Result<Self> {
        text.split(|byte| *byte == b'\n')
            .enumerate()
            .filter(|(_, line)| !line.is_empty())
            .map(|(number, line)| parse_line(line).map_err(|reason| Error::ParseTable { line: number + 1, reason }))
            .collect::<Result<Vec<_>>>()
            .map(MountTable)
    }

    /// All mounts, oldest first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Mount> {
        self.0.iter()
    }

    /// The mount one sees at exactly this path, if it is a mount point.
    pub fn at(&self, path: &Path) -> Option<&Mount> {
        self.iter().rev().find(|mount| mount.target == path)
    }

    /// The mount that holds this path, be it a mount point or not.
    pub fn holding(&self, path: &Path) -> Option<&Mount> {
        path.ancestors().find_map(|ancestor| self.at(ancestor))
    }

    /// The mounts at or below this path.
    pub fn under<'a>(&'a self, path: &'a Path) -> impl DoubleEndedIterator<Item = &'a Mount> {
        self.iter().filter(move |mount| mount.target.starts_with(path))
    }

    /// Whether two mounts cover the same directory, seen at two places: one of them came by propagation, and goes
    /// with the other.
    pub fn cover_the_same(&self, one: &Mount, other: &Mount) -> bool {
        let covered = |mount: &Mount| {
            let parent = self.iter().find(|parent| parent.id == mount.parent)?;
            let inner = mount.target.strip_prefix(&parent.target).ok()?;
            Some((parent.device, parent.root.join(inner)))
        };
        one.id == other.id || covered(one).is_some_and(|place| covered(other) == Some(place))
    }

    /// The mounts that show files of this device.
    pub fn on(&self, device: DeviceNumber) -> impl DoubleEndedIterator<Item = &Mount> {
        self.iter().filter(move |mount| mount.device == device)
    }
}

fn parse_line(line: &[u8]) -> Result<Mount, &'static str> {
    let mut fields = line.split(|byte| *byte == b' ');
    let mut next = |missing| fields.next().filter(|field| !field.is_empty()).ok_or(missing);

    let id = number(next("the mount id is missing")?).ok_or("the mount id is not a number")?;
    let parent = number(next("the parent id is missing")?).ok_or("the parent id is not a number")?;
    let device = device(next("the device is missing")?).ok_or("the device is not major:minor")?;
    let root = path(next("the root is missing")?);
    let target = path(next("the mount point is missing")?);
    let options = list(next("the mount options are missing")?);
    let mut tags = Vec::new();
    loop {
        match next("the separator is missing")? {
            b"-" => break,
            tag => tags.push(text(tag)),
        }
    }
    let fs_type = text(next("the file system type is missing")?);
    // The kernel prints an empty source as nothing at all, so this field alone may be empty.
    let source = text(fields.next().ok_or("the source is missing")?);
    let super_options = list(fields.next().unwrap_or_default());
    Ok(Mount { id, parent, device, root, target, options, tags, fs_type, source, super_options })
}

fn number(field: &[u8]) -> Option<u32> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn device(field: &[u8]) -> Option<DeviceNumber> {
    let colon = field.iter().position(|byte| *byte == b':')?;
    Some(DeviceNumber { major: number(&field[..colon])?, minor: number(&field[colon + 1..])? })
}

fn path(field: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(unescape(field)))
}

fn text(field: &[u8]) -> String {
    String::from_utf8_lossy(&unescape(field)).into_owned()
}

fn list(field: &[u8]) -> Vec<String> {
    field.split(|byte| *byte == b',').filter(|option| !option.is_empty()).map(text).collect()
}

/// Undoes the kernel's `\ooo` for space, tab, newline, backslash and `#`.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TEXT: &[u8] = b"27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
        42 27 254:0 /var/lib/docker /var/lib/docker rw shared:1 master:2 - ext4 /dev/vda rw\n\
        50 27 7:3 / /mnt/a\\040b\\134c ro,nosuid - ext4 /dev/loop3 rw\n\
        51 50 7:3 /sub /mnt/a\\040b\\134c/deep rw - ext4 /dev/loop3 rw\n\
        52 27 0:50 / /mnt/a rw - tmpfs  rw\n\
        53 27 0:51 / /mnt/a rw - tmpfs second rw\n";

    fn table() -> MountTable {
        MountTable::parse(TEXT).unwrap()
    }

    #[test]
    fn escaped_paths_bind_roots_and_optional_fields_are_understood() {
        let table = table();
        let docker = table.at(Path::new("/var/lib/docker")).unwrap();
        assert_eq!(docker.root, Path::new("/var/lib/docker"));
        assert_eq!(docker.tags, ["shared:1", "master:2"]);
        let spaced = table.at(Path::new("/mnt/a b\\c")).unwrap();
        assert_eq!(spaced.device, DeviceNumber { major: 7, minor: 3 });
        assert!(spaced.is_read_only());
    }

    #[test]
    fn the_newest_mount_at_a_target_is_the_one_seen() {
        assert_eq!(table().at(Path::new("/mnt/a")).unwrap().source, "second");
    }

    #[test]
    fn a_path_is_held_by_the_nearest_mount_above_it_and_labels_show_there() {
        let table = MountTable::parse(b"1 0 8:1 / / rw - ext4 a rw,seclabel\n2 1 7:0 / /a/b rw - ext4 b rw\n").unwrap();
        let held = |path: &str| table.holding(Path::new(path)).unwrap();
        assert_eq!((held("/a/b/c").id, held("/a/b").id, held("/a/bc").id), (2, 2, 1));
        assert!(held("/x").has_labels() && !held("/a/b").has_labels());
    }

    #[test]
    fn an_empty_source_is_not_an_error() {
        assert_eq!(table().iter().find(|mount| mount.id == 52).unwrap().source, "");
    }

    #[test]
    fn under_goes_by_whole_path_components() {
        let table = table();
        let under: Vec<_> = table.under(Path::new("/mnt/a")).map(|mount| mount.id).collect();
        assert_eq!(under, [52, 53]);
        assert_eq!(table.on(DeviceNumber { major: 7, minor: 3 }).count(), 2);
    }

    #[test]
    fn a_mount_that_propagated_covers_the_same_directory_and_a_bind_mount_elsewhere_does_not() {
        let text = b"1 0 8:1 / / rw - ext4 a rw\n\
            2 1 8:1 /kubelet /host/kubelet rw shared:1 - ext4 a rw\n\
            3 1 7:0 / /kubelet/stage rw shared:2 - ext4 b rw\n\
            4 2 7:0 / /host/kubelet/stage rw shared:2 - ext4 b rw\n\
            5 1 7:0 / /kubelet/pod rw shared:2 - ext4 b rw\n";
        let table = MountTable::parse(text).unwrap();
        let [staged, copy, published] =
            ["/kubelet/stage", "/host/kubelet/stage", "/kubelet/pod"].map(|path| table.at(Path::new(path)).unwrap());
        assert!(table.cover_the_same(staged, copy) && table.cover_the_same(staged, staged));
        assert!(!table.cover_the_same(staged, published));
    }

    #[test]
    fn a_broken_line_is_named() {
        let error = MountTable::parse(b"27 1 254:0 / / rw - ext4 /dev/vda rw\n28 1 x / / rw - a b c\n").unwrap_err();
        assert_eq!(error.to_string(), "cannot parse line 2 of the mount table: the device is not major:minor");
    }

    #[test]
    fn the_table_of_this_machine_parses_and_has_a_root() {
        assert!(MountTable::read().unwrap().at(Path::new("/")).is_some());
    }

    proptest! {
        #[test]
        fn no_input_makes_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = MountTable::parse(&bytes);
        }

        #[test]
        fn what_the_kernel_escapes_comes_back_whole(path in "[a-z #\\\\\t\n]{1,20}") {
            let escaped: String = path.chars().map(|c| match c {
                ' ' | '\t' | '\n' | '\\' | '#' => format!("\\{:03o}", c as u32),
                other => other.to_string(),
            }).collect();
            prop_assert_eq!(unescape(escaped.as_bytes()), path.as_bytes());
        }
    }
}
