//! What this node has of a volume: its own record in the pool, its own loop devices, its own mount table.
//!
//! All nodes of a test share one kernel, and a node that was cut off may still have an image open. So a loop device is
//! ours only if it carries our tag (volume, node and pool, token), and a volume is staged only if the record says so,
//! the device carries the record's token, and that device is mounted where the record says.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use stowage_mount::{FileInfo, Host, LoopDevice, Mount, MountTable};

use crate::pool::Pool;
use crate::volume::{VolumeId, digest};

/// What a node writes before it stages a volume and removes after it has unstaged it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Staging {
    pub version: u32,
    pub token: String,
    pub path: PathBuf,
    pub mount_flags: Vec<String>,
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

    /// Whether some node of this driver has made the device.
    pub fn is_ours(device: &LoopDevice) -> bool {
        device.tag.starts_with(PREFIX)
    }

    fn is_on(&self, device: &LoopDevice) -> bool {
        device.tag.starts_with(&self.holder)
    }
}

/// One look at the kernel for one volume.
pub struct View {
    pub table: MountTable,
    /// The image in the pool, if it is there.
    pub image: Option<FileInfo>,
    /// Loop devices this node has made for the volume, under any token; not those it has detached already.
    pub ours: Vec<LoopDevice>,
    /// Devices of others that have the image open.
    pub foreign: Vec<LoopDevice>,
}

impl View {
    pub async fn look(host: &dyn Host, image: &Path, tag: &Tag) -> Result<Self, stowage_mount::Error> {
        let image = host.stat(image).await?;
        let (ours, others): (Vec<_>, Vec<_>) = host.loops().await?.into_iter().partition(|device| tag.is_on(device));
        let ours = ours.into_iter().filter(|device| !device.autoclear).collect();
        let opens_image = |device: &LoopDevice| image.is_some_and(|image| device.image == image.id);
        let foreign = others.into_iter().filter(opens_image).collect();
        // Last, so that a mount it shows is of a device listed before.
        Ok(View { table: host.mounts().await?, image, ours, foreign })
    }

    /// The device that carries this tag.
    pub fn device(&self, tag: &str) -> Option<&LoopDevice> {
        self.ours.iter().find(|device| device.tag == tag)
    }

    /// The mount at this path, if it is of a device this node made for the volume.
    pub fn our_mount(&self, path: &Path) -> Option<&Mount> {
        self.table.at(path).filter(|mount| self.ours.iter().any(|device| device.number == mount.device))
    }

    /// Where a device is mounted besides `path`.
    pub fn elsewhere(&self, device: &LoopDevice, path: &Path) -> Option<&Mount> {
        self.table.on(device.number).find(|mount| mount.target != path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_tag_fits_into_the_kernels_field() {
        let option = crate::args::PoolOption { name: "p".repeat(32), path: "/x".into() };
        let pool = Pool::new(&option, 1.0, std::sync::Arc::new(stowage_mount::LinuxMounter));
        let id = VolumeId::new(pool.name(), &VolumeId::key_of("name")).unwrap();
        let tag = Tag::new(&pool, &id, &"n".repeat(190));
        assert!(tag.with_token(&"t".repeat(100)).len() <= stowage_mount::MAX_TAG);
        assert_ne!(tag.with_token("a"), tag.with_token("b"));
    }
}
