//! The definitions of the snapshot kinds, which are installed apart from this service.

use std::time::Duration;

use stowage_model::object::Projection;
use stowage_model::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent};
use stowage_runtime::backoff::Backoff;
use stowage_runtime::{Context, Stop};

/// Between questions; there is nothing else to wait for.
const AGAIN: Backoff = Backoff { base: Duration::from_millis(100), max: Duration::from_secs(5) };

/// Waits until the kinds are served, and gives up after the given time. Without one nothing is asked here: the watches
/// wait without an end.
pub async fn wait(context: &Context, within: Option<Duration>) -> Result<(), Stop> {
    let Some(within) = within else { return Ok(()) };
    let asked = tokio::time::timeout(within, all_served(context));
    let Some(answer) = context.unless_shutdown(asked).await else { return Ok(()) };
    answer.map_err(|_| Stop::Unable {
        reason: format!(
            "the definitions of snapshot.storage.k8s.io/v1 (VolumeSnapshot, VolumeSnapshotContent, VolumeSnapshotClass) are not \
             served after {within:?}; install these CustomResourceDefinitions, or leave --retry-crd-interval-max out to wait \
             for them"
        ),
    })
}

async fn all_served(context: &Context) {
    served::<VolumeSnapshot>(context).await;
    served::<VolumeSnapshotContent>(context).await;
    served::<VolumeSnapshotClass>(context).await;
}

async fn served<T: Projection>(context: &Context) {
    let mut failures = 0;
    while let Err(error) = context.api.list::<T>("", "limit=1").await {
        failures += 1;
        tracing::debug!(kind = T::KIND.kind, %error, "not served, or not yet");
        tokio::time::sleep(context.random.jitter(AGAIN.delay(failures), 0.2)).await;
    }
}
