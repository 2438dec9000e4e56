//! The part of the story in which data is copied: a snapshot, a volume made from it, and a clone of the claim.

use anyhow::{Context as _, ensure};
use tokio::time::Instant;

use stowage_model::object::{Key, kinds};

use super::observer::Observer;
use super::show::Show;
use super::timeline::Timeline;
use super::{CLAIM, CLASS, NODES, checksum, delete, mounted, short};
use crate::objects::{self, Source};
use crate::stack::{self, Stack};

const SNAPSHOT: &str = "before";
/// Larger than the source: what is restored grows with its file system.
const RESTORED: (&str, &str) = ("restored", "96Mi");
const CLONED: (&str, &str) = ("cloned", "64Mi");

/// Takes a snapshot of the claim, which nobody has mounted: so it works on pools that cannot share blocks, too.
pub async fn snapshot(stack: &Stack, observer: &Observer, show: &Show, timeline: &mut Timeline) -> anyhow::Result<()> {
    show.wait("waiting for the snapshot");
    let wanted = objects::snapshot(SNAPSHOT, stack::CLASS, CLAIM);
    stack.api.create_raw(kinds::VOLUME_SNAPSHOT, wanted).await.context("create the snapshot")?;
    let key = Key::namespaced("default", SNAPSHOT);
    let is_ready = |seen: &Observer| seen.snapshots.get(&key).is_some_and(|snapshot| snapshot.is_ready());
    observer.until("the snapshot to be ready", is_ready).await?;
    timeline.mark("snapshot ready", Instant::now());
    show.say("took a snapshot of the claim");
    Ok(())
}

/// Makes a volume from the snapshot and one from the claim, and reads both.
pub async fn restore_and_clone(
    stack: &Stack,
    observer: &Observer,
    show: &Show,
    timeline: &mut Timeline,
    sum: &[u8],
) -> anyhow::Result<()> {
    for ((claim, size), source, what) in [
        (RESTORED, Source::Snapshot(SNAPSHOT), "restored from the snapshot"),
        (CLONED, Source::Claim(CLAIM), "cloned from the claim"),
    ] {
        show.wait(format!("waiting for the volume {what}"));
        let wanted = objects::claim_from(claim, CLASS, size, source);
        stack.api.create_raw(kinds::CLAIM, wanted).await.with_context(|| format!("create the claim {claim:?}"))?;
        let pod = objects::pod(claim, claim, NODES[0]);
        stack.api.create_raw(kinds::POD, pod).await.with_context(|| format!("create the pod {claim:?}"))?;
        observer.until(&format!("the pod {claim:?} to run"), |seen| seen.running(claim).is_some()).await?;
        timeline.mark(format!("pod runs with the volume {what}"), Instant::now());
        let (_, mount) = mounted(stack, observer, claim, claim, NODES[0]).await?;
        let found = checksum(&mount.join("data"))?;
        ensure!(found == sum, "the volume {what} does not hold the data of its source");
        timeline.mark("its data checked", Instant::now());
        show.say(format!("the volume {what} holds the same data: sha256 {}", short(&found)));
    }
    Ok(())
}

/// Asks for the end of all of it.
pub async fn remove(stack: &Stack, observer: &Observer) -> anyhow::Result<()> {
    for claim in [RESTORED.0, CLONED.0] {
        let key = Key::namespaced("default", claim);
        delete(&stack.api, &observer.pods, &key).await?;
        delete(&stack.api, &observer.claims, &key).await?;
    }
    delete(&stack.api, &observer.snapshots, &Key::namespaced("default", SNAPSHOT)).await
}
