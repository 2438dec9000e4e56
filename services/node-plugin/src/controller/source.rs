//! Volumes that begin as a copy: of a snapshot or of another volume.

use std::path::PathBuf;

use stowage_csi::v1::{VolumeContentSource, volume_content_source::Type};

use super::{Error, copying, snapshots, volumes};
use crate::driver::Shared;
use crate::freezing::while_frozen;
use crate::handle::Handle;
use crate::locks::Guard;
use crate::pool::{self, Pool};
use crate::volume::{Backend, Record, Source};

/// What source and copy must have in common.
#[derive(Debug, PartialEq, Eq)]
pub struct Shape {
    pub block: bool,
    pub fs_type: &'static str,
    pub backend: Backend,
}

/// The image a new volume is copied from.
pub struct Origin<'a> {
    pub bytes: u64,
    pub family: String,
    pub sector_bytes: u32,
    image: PathBuf,
    pool: &'a Pool,
    /// None for a snapshot.
    volume: Option<(Handle, Record)>,
    /// A volume that is copied is locked: nobody may stage or remove it meanwhile. Nobody may remove a snapshot either,
    /// but several may be made from it.
    _guard: Guard,
}

pub fn read(source: Option<&VolumeContentSource>) -> Result<Option<Source>, Error> {
    let Some(source) = source else { return Ok(None) };
    let missing = |field| Err(Error::ReadField { field });
    match &source.r#type {
        None => missing("volume_content_source.type"),
        Some(Type::Snapshot(source)) if source.snapshot_id.is_empty() => missing("volume_content_source.snapshot_id"),
        Some(Type::Volume(source)) if source.volume_id.is_empty() => missing("volume_content_source.volume_id"),
        Some(Type::Snapshot(source)) => Ok(Some(Source::Snapshot(source.snapshot_id.clone()))),
        Some(Type::Volume(source)) => Ok(Some(Source::Volume(source.volume_id.clone()))),
    }
}

pub async fn find<'a>(shared: &'a Shared, source: &Source, wanted: &Shape) -> Result<Origin<'a>, Error> {
    let (field, text) = match source {
        Source::Snapshot(text) => ("snapshot_id", text),
        Source::Volume(text) => ("volume_id", text),
    };
    let missing = || Error::FindSource { field, handle: text.clone() };
    let id = Handle::parse(text).ok_or_else(missing)?;
    let pool = shared.pool_of(&id).map_err(|error| match error {
        pool::Error::OtherNode { handle, node } => Error::ReachSource { handle, node },
        other => other.into(),
    })?;
    pool.open().await?;
    if wanted.backend == Backend::Directory {
        return Err(Error::NeedImage { volume: "asked for".into(), what: "way to be made from a source" });
    }
    match source {
        Source::Snapshot(_) => {
            let name = snapshots::lock_name(&id);
            let guard = shared.locks.try_share(&name).ok_or(Error::Lock { volume: name })?;
            let snapshot = pool.load_snapshot(&id).await?.filter(|snapshot| snapshot.cut.is_some());
            let snapshot = snapshot.ok_or_else(missing)?;
            match_shape(&id, snapshot.block, &snapshot.fs_type, wanted)?;
            let (bytes, family, image) = (snapshot.size_bytes, snapshot.family, pool.snapshot_image(&id));
            let sector_bytes = snapshot.sector_bytes;
            Ok(Origin { bytes, family, sector_bytes, image, pool, volume: None, _guard: guard })
        }
        Source::Volume(_) => {
            let guard = shared.locks.try_lock(id.key()).ok_or_else(|| Error::Lock { volume: id.to_string() })?;
            let record = pool.load(&id).await?.ok_or_else(missing)?;
            if !record.is_image() {
                return Err(Error::NeedImage { volume: id.to_string(), what: "clones" });
            }
            match_shape(&id, record.block, &record.fs_type, wanted)?;
            if !volumes::is_made(pool, &id, &record).await? {
                return Err(Error::FindImage { volume: id.to_string() });
            }
            let bytes = pool.bytes_of(&id, &record).await?;
            let (family, image) = (record.family.clone(), pool.image(&id));
            let sector_bytes = record.sector_bytes;
            Ok(Origin { bytes, family, sector_bytes, image, pool, volume: Some((id, record)), _guard: guard })
        }
    }
}

fn match_shape(id: &Handle, block: bool, fs_type: &str, wanted: &Shape) -> Result<(), Error> {
    let describe = |block: bool, fs_type: &str| match block {
        true => "a block device".to_owned(),
        false => format!("file system {fs_type}"),
    };
    match block == wanted.block && fs_type == wanted.fs_type {
        true => Ok(()),
        false => {
            let (has, wanted) = (describe(block, fs_type), describe(wanted.block, wanted.fs_type));
            Err(Error::MatchSource { handle: id.to_string(), has, wanted })
        }
    }
}

impl Origin<'_> {
    /// Fills the image of a new volume.
    pub async fn copy_to(
        &self,
        shared: &Shared,
        pool: &Pool,
        id: &Handle,
        record: &Record,
        freeze_for_copy: bool,
    ) -> Result<(), Error> {
        let could_share = self.pool.name() == pool.name() && pool.can_clone().await?;
        // Shared blocks are not its own: the first write to each would need another one.
        let shares = could_share && record.thin;
        let (target, space) = (pool.image(id), volumes::space(record));
        let bytes = record.capacity_bytes;
        let Some((source, source_record)) = &self.volume else {
            let way = if shares { copying::Way::Share } else { copying::Way::Copy };
            return copying::fill(shared, pool, way, &self.image, &target, bytes, space).await;
        };
        let plan = copying::plan(shared, self.pool, source, source_record, shares, freeze_for_copy).await;
        let plan = plan.map_err(|error| match error {
            Error::CopyMounted { volume, .. }
            | Error::CopyDevice { volume, .. }
            | Error::CopyElsewhere { volume, .. }
                if could_share =>
            {
                Error::CopyThick { volume }
            }
            other => other,
        })?;
        if let Some(device) = &plan.flush {
            shared.host.flush_device(device).await.map_err(|error| self.pool.failed(error))?;
        }
        let subjects: Vec<_> = plan.subject(self.pool, source).into_iter().collect();
        let cut = copying::cut(shared, (self.pool, source), &plan, (pool, &target), bytes, space);
        while_frozen(shared, &subjects, cut).await.map(drop)
    }
}
