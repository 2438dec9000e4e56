//! How the data of one volume or snapshot gets into another.

use std::path::{Path, PathBuf};

use stowage_mount::Space;

use super::Error;
use crate::driver::Shared;
use crate::freezing::{Subject, Use};
use crate::handle::Handle;
use crate::pool::Pool;
use crate::volume::Record;

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
