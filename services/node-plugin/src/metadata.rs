//! The SnapshotMetadata service: which blocks a snapshot holds, and which changed since another one.
//!
//! Where the pool shares blocks, only those that two snapshots do not share are compared; elsewhere all data is.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use stowage_csi::v1::snapshot_metadata_server::SnapshotMetadata;
use stowage_csi::v1::*;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::BoxStream;
use tonic::{Code, Request, Response, Status};

use crate::controller::{Error, snapshots};
use crate::driver::{Shared, refusal};
use crate::handle::Handle;
use crate::locks::Guard;
use crate::snapshot::Snapshot;

/// Ranges in one message unless the caller wants fewer.
const MOST_RESULTS: usize = 512;
/// Messages that wait for a slow reader.
const WAITING: usize = 4;
/// Compared between two messages, so that a long comparison shows progress.
const STEP: u64 = 64 << 20;

pub struct Service(pub Arc<Shared>);

#[tonic::async_trait]
impl SnapshotMetadata for Service {
    async fn get_metadata_allocated(
        &self,
        request: Request<GetMetadataAllocatedRequest>,
    ) -> Result<Response<BoxStream<GetMetadataAllocatedResponse>>, Status> {
        let request = request.into_inner();
        let (image, snapshot, reading) = find(&self.0, "snapshot_id", &request.snapshot_id).await?;
        let page = Page::read(&snapshot, request.starting_offset, request.max_results)?;
        let message = move |size, block_metadata| GetMetadataAllocatedResponse {
            block_metadata_type: BlockMetadataType::VariableLength.into(),
            volume_capacity_bytes: size,
            block_metadata,
        };
        Ok(Response::new(stream(
            self.0.clone(),
            Work { base: None, target: image, page, _reading: vec![reading] },
            message,
        )))
    }

    async fn get_metadata_delta(
        &self,
        request: Request<GetMetadataDeltaRequest>,
    ) -> Result<Response<BoxStream<GetMetadataDeltaResponse>>, Status> {
        let request = request.into_inner();
        let (base, older, reading_base) = find(&self.0, "base_snapshot_id", &request.base_snapshot_id).await?;
        let (target, newer, reading_target) = find(&self.0, "target_snapshot_id", &request.target_snapshot_id).await?;
        if older.source != newer.source || older.size_bytes > newer.size_bytes {
            let (base, target) = (request.base_snapshot_id, request.target_snapshot_id);
            return Err(Error::Compare { base, target }.into());
        }
        let page = Page::read(&newer, request.starting_offset, request.max_results)?;
        let message = move |size, block_metadata| GetMetadataDeltaResponse {
            block_metadata_type: BlockMetadataType::VariableLength.into(),
            volume_capacity_bytes: size,
            block_metadata,
        };
        let work = Work { base: Some(base), target, page, _reading: vec![reading_base, reading_target] };
        Ok(Response::new(stream(self.0.clone(), work, message)))
    }
}

/// The image, and what keeps it from being deleted while it is read.
async fn find(shared: &Shared, field: &'static str, text: &str) -> Result<(PathBuf, Snapshot, Guard), Error> {
    if text.is_empty() {
        return Err(Error::ReadField { field });
    }
    let missing = || Error::FindSnapshot { snapshot: text.to_owned() };
    let id = Handle::parse(text).ok_or_else(missing)?;
    let name = snapshots::lock_name(&id);
    let guard = shared.locks.try_share(&name).ok_or(Error::Lock { volume: name })?;
    let (id, snapshot) = snapshots::find(shared, text).await?;
    if snapshot.cut.is_none() {
        return Err(missing());
    }
    Ok((shared.pool_of(&id)?.snapshot_image(&id), snapshot, guard))
}

/// Which part is wanted, and how much of it at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Page {
    start: u64,
    size: u64,
    most: usize,
}

impl Page {
    fn read(snapshot: &Snapshot, offset: i64, max_results: i32) -> Result<Self, Error> {
        let size = snapshot.size_bytes;
        let refuse = || Error::ReadOffset { offset, size };
        // At the very end: what is left after the last byte, which is nothing.
        let start = u64::try_from(offset).ok().filter(|start| *start <= size).ok_or_else(refuse)?;
        let most = match usize::try_from(max_results).map_err(|_| Error::ReadResults { value: max_results })? {
            0 => MOST_RESULTS,
            most => most.min(MOST_RESULTS),
        };
        Ok(Page { start, size, most })
    }

    /// What of a range is wanted: none of it that ends before the start, all of one that goes on beyond it.
    fn wants(&self, range: Range<u64>) -> Option<Range<u64>> {
        let range = range.start..range.end.min(self.size);
        (range.end > self.start && !range.is_empty()).then_some(range)
    }
}

struct Work {
    /// With a base, what differs from it; without, what is there.
    base: Option<PathBuf>,
    target: PathBuf,
    page: Page,
    _reading: Vec<Guard>,
}

/// Ranges on their way to a reader.
struct Batch<T, F> {
    ranges: Vec<BlockMetadata>,
    page: Page,
    message: F,
    sender: mpsc::Sender<Result<T, Status>>,
}

impl<T, F: Fn(i64, Vec<BlockMetadata>) -> T> Batch<T, F> {
    /// Whether the reader is still there.
    async fn tell(&mut self, range: Range<u64>) -> bool {
        let (byte_offset, size_bytes) = (signed(range.start), signed(range.end - range.start));
        self.ranges.push(BlockMetadata { byte_offset, size_bytes });
        if self.ranges.len() < self.page.most {
            return true;
        }
        let message = self.take();
        self.sender.send(Ok(message)).await.is_ok()
    }

    fn take(&mut self) -> T {
        (self.message)(signed(self.page.size), std::mem::take(&mut self.ranges))
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// Ends when the work does or the reader goes.
fn stream<T: Send + 'static>(
    shared: Arc<Shared>,
    work: Work,
    message: impl Fn(i64, Vec<BlockMetadata>) -> T + Send + Sync + 'static,
) -> BoxStream<T> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let working = shared.clone();
    shared.keep(async move {
        let mut batch = Batch { ranges: Vec::new(), page: work.page, message, sender };
        let end = match tell_all(&working, &work, &mut batch).await {
            // Also an empty answer says how large the volume is.
            Ok(()) => Ok(batch.take()),
            Err(error) => Err(refusal(Code::Unavailable, error)),
        };
        // A reader that has gone needs no end.
        let _ = batch.sender.send(end).await;
    });
    Box::pin(ReceiverStream::new(receiver))
}

async fn tell_all<T, F: Fn(i64, Vec<BlockMetadata>) -> T>(
    shared: &Shared,
    work: &Work,
    batch: &mut Batch<T, F>,
) -> Result<(), stowage_mount::Error> {
    let candidates = match &work.base {
        None => shared.host.data_ranges(&work.target).await?,
        Some(base) => shared.host.unshared_ranges(base, &work.target).await?,
    };
    for range in candidates {
        let Some(range) = work.page.wants(range) else { continue };
        let mut at = range.start;
        while at < range.end {
            let step = at..(at + STEP).min(range.end);
            at = step.end;
            let found = match &work.base {
                None => vec![step],
                Some(base) => shared.host.differing_ranges(base, &work.target, step).await?,
            };
            for range in found {
                let Some(range) = work.page.wants(range) else { continue };
                if !batch.tell(range).await {
                    return Ok(());
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_before_the_start_are_left_out_and_none_goes_beyond_the_volume() {
        let page = Page { start: 100, size: 1000, most: 1 };
        assert_eq!(page.wants(0..100), None);
        assert_eq!(page.wants(0..101), Some(0..101));
        assert_eq!(page.wants(900..2000), Some(900..1000));
        assert_eq!(page.wants(1000..2000), None);
    }
}
