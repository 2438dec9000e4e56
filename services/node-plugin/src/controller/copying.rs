//! How the data of one volume or snapshot gets into another.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use stowage_mount::Space;

use super::Error;
use crate::driver::Shared;
use crate::freezing::{Subject, Use};
use crate::handle::Handle;
use crate::pool::Pool;
use crate::volume::Record;

/// How often a copy is begun before its caller is asked to come again.
const MOST_CUTS: u32 = 3;

/// How an image is filled from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Both share their blocks until one of them is written: done in a moment, at one moment.
    Share,
    /// Byte by byte, for as long as that takes.
    Copy,
}

/// What must be done to copy a volume as it is at one moment.
#[derive(Debug)]
pub struct Plan {
    pub way: Way,
    /// The mount that must stand still meanwhile.
    pub freeze: Option<PathBuf>,
    /// The device whose writes the kernel may still hold.
    pub flush: Option<PathBuf>,
}

impl Plan {
    pub fn subject<'a>(&self, pool: &'a Pool, id: &'a Handle) -> Option<Subject<'a>> {
        self.freeze.clone().map(|mounted_at| Subject { pool, id, mounted_at })
    }
}

/// What can be done without `freeze_for_copy` is done without; `shares`: both images are in one pool that can clone.
pub async fn plan(
    shared: &Shared,
    pool: &Pool,
    id: &Handle,
    record: &Record,
    shares: bool,
    freeze_for_copy: bool,
) -> Result<Plan, Error> {
    if pool.exists(&pool.formatting(id)).await? {
        return Err(Error::CopyUnfinished { volume: id.to_string() });
    }
    let used = Use::find(shared, pool, id, record).await?;
    // Beside a mount it is the late plan of a node that has lost the volume, which nobody carries out any more.
    if !matches!(used, Use::Mounted(_)) && pool.exists(&pool.growing(id)).await? {
        return Err(Error::CopyGrowing { volume: id.to_string() });
    }
    let (way, volume) = (if shares { Way::Share } else { Way::Copy }, id.to_string());
    let plan = |freeze, flush| Ok(Plan { way, freeze, flush });
    match (way, used) {
        (_, Use::Nobody) => plan(None, None),
        (Way::Share, Use::Mounted(path)) => plan(Some(path), None),
        (Way::Share, Use::Device(device)) => plan(None, Some(device)),
        // At one moment also there, as after a loss of power.
        (Way::Share, Use::Elsewhere { .. }) => plan(None, None),
        (Way::Copy, Use::Mounted(path)) if freeze_for_copy => plan(Some(path), None),
        (Way::Copy, Use::Mounted(_)) => Err(Error::CopyMounted { volume, pool: pool.name().into() }),
        (Way::Copy, Use::Device(_)) => Err(Error::CopyDevice { volume, pool: pool.name().into() }),
        (Way::Copy, Use::Elsewhere { node }) => Err(Error::CopyElsewhere { volume, node, pool: pool.name().into() }),
    }
}

/// Fills the image of a copy with a volume as it is at one moment, which is returned; `target` is in the pool of the copy.
pub async fn cut(
    shared: &Shared,
    (source_pool, source): (&Pool, &Handle),
    plan: &Plan,
    (pool, target): (&Pool, &Path),
    bytes: u64,
    space: Space,
) -> Result<SystemTime, Error> {
    let image = source_pool.image(source);
    let size = async || shared.host.filesystem_size(&image).await.map_err(|error| source_pool.failed(error));
    for _ in 0..MOST_CUTS {
        let before = size().await?;
        let moment = shared.host.now();
        fill(shared, pool, plan.way, &image, target, bytes, space).await?;
        // A file system that stands still does not grow.
        if plan.freeze.is_some() {
            return Ok(moment);
        }
        // Another node may have begun to let it grow, or have ended: first there is a plan, then comes the superblock, then
        // the plan goes. So that is looked for first: where it went before, the size is another one. A copy of what is half
        // of one size could never be used.
        if !source_pool.exists(&source_pool.growing(source)).await? && size().await? == before {
            return Ok(moment);
        }
        tracing::info!(volume = %source, "grew while it was copied; the copy is made anew");
    }
    Err(Error::CopyMoving { volume: source.to_string() })
}

/// Fills `target`, which appears whole or not at all.
pub async fn fill(
    shared: &Shared,
    pool: &Pool,
    way: Way,
    source: &Path,
    target: &Path,
    bytes: u64,
    space: Space,
) -> Result<(), Error> {
    let filled = match way {
        Way::Share => shared.host.clone_image(source, target, bytes, space).await,
        Way::Copy => shared.host.copy_image(source, target, bytes, space).await,
    };
    Ok(filled.map_err(|source| pool.failed(source))?)
}
