//! What this node has of a volume: its own record in the pool, its own loop devices, its own mounts.
//!
//! All nodes of a test share one kernel, and a node that was cut off may still have an image open. So a loop device is
//! ours only if it carries our tag (volume, node and pool, token), and a volume is staged only if the record says so,
//! the device carries the record's token, and that device is mounted where the record says.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stowage_mount::{FileInfo, Host, LoopDevice, Mount, MountTable, Place, Target};

use crate::driver::Shared;
use crate::node::hold;
use crate::pool::{self, Pool};
use crate::volume::{Backend, Record, VolumeId, digest};

/// The name of a staged block device in its staging directory.
pub const DEVICE: &str = "device";
/// The loop driver's major number.
const LOOP: u32 = 7;

/// What is staged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Form {
    /// The file system of an image, mounted.
    #[default]
    FileSystem,
    /// The device of an image, its node bound into the staging directory.
    Block,
    /// A directory of the pool, bound.
    Directory,
}

impl Form {
    pub fn of(record: &Record) -> Self {
        match (record.backend, record.block) {
            (Backend::Directory, _) => Form::Directory,
            (Backend::Image, true) => Form::Block,
            (Backend::Image, false) => Form::FileSystem,
        }
    }
}

/// What a node writes before it stages a volume and removes after it has unstaged it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Staging {
    pub version: u32,
    pub token: String,
    pub path: PathBuf,
    pub mount_flags: Vec<String>,
    #[serde(default)]
    pub form: Form,
}

impl Staging {
    /// Where the mount is.
    pub fn mount_point(&self) -> PathBuf {
        match self.form {
            Form::Block => device_node(&self.path),
            Form::FileSystem | Form::Directory => self.path.clone(),
        }
    }
}

pub fn device_node(staging_path: &Path) -> PathBuf {
    staging_path.join(DEVICE)
}

const PREFIX: &str = "stw:";

/// Marks a loop device with whom it belongs to; fits into the kernel's 63 bytes.
pub struct Tag {
    holder: String,
}

impl Tag {
    pub fn new(pool: &Pool, id: &VolumeId, node: &str) -> Self {
        let place = pool.root().to_string_lossy();
        Tag { holder: format!("{PREFIX}{}:{}:", id.key(), digest(&[node, &place], 10)) }
    }

    pub fn with_token(&self, token: &str) -> String {
        format!("{}{}", self.holder, digest(&[token], 12))
    }

    /// The tag of the second device of a block volume, through which nobody can write.
    pub fn for_readers(&self, token: &str) -> String {
        format!("{}r", self.with_token(token))
    }

    pub fn is_on(&self, device: &LoopDevice) -> bool {
        device.tag.starts_with(&self.holder)
    }
}

/// A volume of which record and kernel agree that it is staged here. Found without listing devices or mounts.
pub struct Staged {
    pub staging: Staging,
    /// The device that serves the image; a directory has none.
    pub device: Option<LoopDevice>,
    /// Where it is mounted, and what was seen there.
    pub target: Target,
    pub place: Place,
    tag: Tag,
}

impl Staged {
    pub async fn find(shared: &Shared, pool: &Pool, id: &VolumeId) -> Result<Option<Self>, pool::Error> {
        let (host, failed) = (&*shared.host, |source| pool.failed(source));
        let Some(staging) = pool.load_file::<Staging>(&pool.staged(id, &shared.node)).await? else { return Ok(None) };
        let mount_point = staging.mount_point();
        let seen = match hold(shared, &mount_point).await {
            // By this name nothing is staged any more: what leads there was replaced.
            Err(error) if error.is_moved() => return Ok(None),
            other => other.map_err(failed)?,
        };
        let (Some(target), Some(place)) = seen else { return Ok(None) };
        if !place.is_mount {
            return Ok(None);
        }
        // Until a copy has an identity of its own it is only mounted to be prepared, without the class's flags.
        if staging.form == Form::FileSystem && pool.exists(&pool.fresh(id)).await? {
            return Ok(None);
        }
        let tag = Tag::new(pool, id, &shared.node);
        let number = match staging.form {
            Form::Directory => {
                let directory = host.stat(&pool.directory(id)).await.map_err(failed)?;
                let same = directory.is_some_and(|directory| directory.id == place.id);
                return Ok(same.then_some(Staged { staging, device: None, target, place, tag }));
            }
            Form::Block => place.block,
            Form::FileSystem => Some(place.device).filter(|device| device.major == LOOP),
        };
        let number = match (staging.form, number) {
            (Form::FileSystem, None) => host.btrfs_device(&target).await.map_err(failed)?,
            _ => number,
        };
        let ours = |device: &LoopDevice| device.tag == tag.with_token(&staging.token) && !device.autoclear;
        let numbered = match number {
            Some(number) => host.loop_device(number).await.map_err(failed)?.filter(ours),
            None => None,
        };
        let device = match (numbered, place.device.major == LOOP || staging.form == Form::Block) {
            (Some(device), _) => Some(device),
            (None, true) => None,
            // A btrfs whose device has another name here.
            (None, false) => {
                let devices = host.loops().await.map_err(failed)?;
                let table = host.mounts().await.map_err(failed)?;
                let mount = mount_of(&table, &place);
                devices.into_iter().find(|device| mount.is_some_and(|mount| is_of(mount, device)))
            }
        };
        Ok(device.filter(ours).map(|device| Staged { staging, device: Some(device), target, place, tag }))
    }

    /// Whether what is mounted at another place is this volume.
    pub async fn is_at(&self, host: &dyn Host, place: &Place) -> Result<bool, stowage_mount::Error> {
        Ok(match (self.staging.form, place.block) {
            _ if !place.is_mount => false,
            (Form::Block, None) => false,
            (Form::Block, Some(number)) => {
                host.loop_device(number).await?.is_some_and(|device| self.tag.is_on(&device))
            }
            (Form::Directory, _) => place.id == self.place.id,
            (Form::FileSystem, _) => place.device == self.place.device,
        })
    }
}

/// One thorough look at the kernel for one volume.
pub struct View {
    pub table: MountTable,
    /// The image in the pool, if it is there.
    pub image: Option<FileInfo>,
    /// Loop devices this node has made for the volume, under any token; also those it has detached and somebody else
    /// still has open or mounted, maybe in another mount namespace.
    pub ours: Vec<LoopDevice>,
    /// Devices of others that have the image open.
    pub foreign: Vec<LoopDevice>,
    /// The name under which the directory of the volume appears in the table.
    directory: PathBuf,
    /// Where this node's mounts of a shared directory are: nodes of a test share one table.
    roots: Vec<PathBuf>,
}

impl View {
    pub async fn look(shared: &Shared, pool: &Pool, id: &VolumeId) -> Result<Self, stowage_mount::Error> {
        let (host, tag) = (&*shared.host, Tag::new(pool, id, &shared.node));
        let image = host.stat(&pool.image(id)).await?;
        let devices = match host.loops().await {
            // A controller that is not root has none, and attachments tell it of those of the nodes.
            Err(error) if error.is_forbidden() && !shared.stages => Vec::new(),
            other => other?,
        };
        let (ours, others): (Vec<_>, Vec<_>) = devices.into_iter().partition(|device| tag.is_on(device));
        let opens_image = |device: &LoopDevice| image.is_some_and(|image| device.image == image.id);
        let foreign = others.into_iter().filter(opens_image).collect();
        let directory = pool.directory(id).file_name().map(PathBuf::from).unwrap_or_default();
        let mut roots = Vec::new();
        for root in shared.target_roots.iter().filter(|_| shared.attach) {
            roots.push(shared.follow(root).await?);
        }
        // Last, so that a mount it shows is of a device listed before.
        Ok(View { table: host.mounts().await?, image, ours, foreign, directory, roots })
    }

    /// The device that carries this tag and is there to stay.
    pub fn device(&self, tag: &str) -> Option<&LoopDevice> {
        self.ours.iter().find(|device| device.tag == tag && !device.autoclear)
    }

    /// Whether anything shows this device here; one that nothing shows is on its way up or down, or a kill has left it.
    pub fn is_mounted(&self, device: &LoopDevice) -> bool {
        self.table.iter().any(|mount| is_of(mount, device))
    }

    /// Devices this node has detached that somebody still writes the image through, or may.
    pub fn leaving(&self) -> impl Iterator<Item = &LoopDevice> {
        let serves = |device: &&LoopDevice| self.image.is_some_and(|image| device.image == image.id);
        self.ours.iter().filter(|device| device.autoclear).filter(serves)
    }

    fn is_ours(&self, mount: &Mount) -> bool {
        // The name is the digest of the volume's: no other folder has it.
        let is_directory = || mount.root.file_name() == Some(self.directory.as_os_str());
        let is_here = || self.roots.is_empty() || self.roots.iter().any(|root| mount.target.starts_with(root));
        self.ours.iter().any(|device| is_of(mount, device)) || is_directory() && is_here()
    }

    /// The mount at this path, if it is of this volume and made by this node.
    pub fn our_mount(&self, path: &Path) -> Option<&Mount> {
        self.table.at(path).filter(|mount| self.is_ours(mount))
    }

    /// The mount that was seen at a place, under the same condition.
    pub fn our_mount_of(&self, place: &Place) -> Option<&Mount> {
        mount_of(&self.table, place).filter(|mount| self.is_ours(mount))
    }

    /// All mounts of this volume at a path and, where they came by propagation, their copies at other paths.
    pub fn copies<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Mount> {
        let originals: Vec<_> = self.table.iter().filter(|mount| mount.target == path).collect();
        let copied = move |mount: &Mount| originals.iter().any(|other| self.table.cover_the_same(mount, other));
        self.table.iter().filter(move |mount| self.is_ours(mount) && copied(mount))
    }

    /// A mount of the volume that is neither at this path nor a copy of the one there.
    pub fn elsewhere(&self, path: &Path) -> Option<&Mount> {
        let here: Vec<_> = self.copies(path).map(|mount| mount.id).collect();
        self.table.iter().find(|mount| self.is_ours(mount) && !here.contains(&mount.id))
    }
}

/// By number: what leads to a place may change, and with it what the table calls it.
fn mount_of<'a>(table: &'a MountTable, place: &Place) -> Option<&'a Mount> {
    table.iter().find(|mount| u64::from(mount.id) == place.mount).filter(|_| place.is_mount)
}

/// Whether a mount shows a device: its file system, or its node.
fn is_of(mount: &Mount, device: &LoopDevice) -> bool {
    let is_node = || {
        let in_dev = matches!(mount.fs_type.as_str(), "devtmpfs" | "tmpfs");
        in_dev && mount.root.file_name() == device.path.file_name() && mount.root.parent() == Some(Path::new("/"))
    };
    // btrfs gives its files numbers of its own instead of the device's.
    let is_btrfs = || mount.fs_type == "btrfs" && OsStr::new(&mount.source) == device.path.as_os_str();
    mount.device == device.number || is_btrfs() || is_node()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_tag_fits_into_the_kernels_field() {
        let pool = crate::pool::example(&"p".repeat(32));
        let id = VolumeId::new(pool.name(), &VolumeId::key_of("name"), None).unwrap();
        let tag = Tag::new(&pool, &id, &"n".repeat(190));
        assert!(tag.for_readers(&"t".repeat(100)).len() <= stowage_mount::MAX_TAG);
        assert_ne!(tag.with_token("a"), tag.with_token("b"));
    }

    #[test]
    fn what_a_node_wrote_before_there_were_block_volumes_is_a_file_system() {
        let old = r#"{"version":1,"token":"t","path":"/a","mountFlags":[]}"#;
        let staging: Staging = serde_json::from_str(old).unwrap();
        assert_eq!((staging.form, staging.mount_point()), (Form::FileSystem, PathBuf::from("/a")));
    }
}
