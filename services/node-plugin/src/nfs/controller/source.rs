//! What a new volume is filled with: another volume's directory, or the archive of a snapshot.

use std::path::{Path, PathBuf};

use stowage_csi::v1::VolumeContentSource;
use stowage_csi::v1::volume_content_source::Type;
use stowage_mount::{FileKind, Share};

use super::Error;
use super::volumes::open;
use crate::locks::{Guard, Locks};
use crate::nfs::driver::Shared;
use crate::nfs::handle::{Export, SnapshotId, VolumeId};

#[derive(Debug)]
pub enum Source {
    Volume(VolumeId),
    Snapshot(SnapshotId),
}

impl Source {
    pub fn read(source: Option<&VolumeContentSource>) -> Result<Option<Self>, Error> {
        let Some(source) = source else { return Ok(None) };
        let missing = |field: &'static str, handle: &String| Error::Find { field, handle: handle.clone() };
        Ok(Some(match &source.r#type {
            None => return Err(Error::ReadField { field: "volume_content_source.type" }),
            Some(Type::Volume(volume)) => {
                let id = VolumeId::parse(&volume.volume_id);
                Source::Volume(id.ok_or_else(|| missing("volume_content_source.volume_id", &volume.volume_id))?)
            }
            Some(Type::Snapshot(snapshot)) => {
                let id = SnapshotId::parse(&snapshot.snapshot_id);
                Source::Snapshot(id.ok_or_else(|| missing("volume_content_source.snapshot_id", &snapshot.snapshot_id))?)
            }
        }))
    }

    fn export(&self) -> &Export {
        match self {
            Source::Volume(id) => &id.export,
            Source::Snapshot(id) => &id.export,
        }
    }

    /// Keeps it from being removed meanwhile.
    pub fn share(&self, locks: &Locks) -> Result<Guard, Error> {
        let (key, name) = match self {
            Source::Volume(id) => (id.key(), id.to_string()),
            Source::Snapshot(id) => (id.key(), id.to_string()),
        };
        locks.try_share(&key).ok_or(Error::Lock { volume: name })
    }

    /// Fills a directory that is there.
    pub async fn fill(
        &self,
        shared: &Shared,
        (export, target): (&Export, &Share),
        way: &Path,
        words: &[&str],
    ) -> Result<(), Error> {
        if self.export() == export {
            return self.copy(shared, target, target, way).await;
        }
        let mounted = open(shared, self.export(), words).await?;
        let copied = self.copy(shared, &mounted.share, target, way).await;
        shared.mounts.close(mounted).await;
        copied
    }

    async fn copy(&self, shared: &Shared, from: &Share, to: &Share, way: &Path) -> Result<(), Error> {
        match self {
            Source::Volume(id) => {
                let entry = shared.host.look_in(from, &id.way).await?;
                if entry.is_none_or(|entry| entry.kind != FileKind::Directory) {
                    return Err(Error::Find { field: "volume_content_source.volume_id", handle: id.to_string() });
                }
                Ok(shared.host.copy_tree_in(from, &id.way, to, way).await?)
            }
            Source::Snapshot(id) => {
                let missing = || Error::Find { field: "volume_content_source.snapshot_id", handle: id.to_string() };
                let archive = find_archive(shared, from, id).await?.ok_or_else(missing)?;
                Ok(shared.host.unpack_in(from, &archive, to, way).await?)
            }
        }
    }
}

/// The archive of a snapshot, compressed or not: the flag may have been another when it was made.
pub async fn find_archive(shared: &Shared, share: &Share, id: &SnapshotId) -> Result<Option<PathBuf>, Error> {
    for name in id.archives() {
        let way = id.directory().join(name);
        if shared.host.look_in(share, &way).await?.is_some_and(|entry| entry.kind == FileKind::File) {
            return Ok(Some(way));
        }
    }
    Ok(None)
}
