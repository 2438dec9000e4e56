//! A fault that hits a snapshot on its way, and the volume that is to be made from it.

use std::fs;

use anyhow::Context as _;
use serde_json::{Value, json};
use stowage_model::object::kinds;

use crate::checker;
use crate::life::{Life, Step};
use crate::stack::{Stack, until};

/// The class of snapshots that `setup` makes.
const CLASS: &str = "stowage";

/// Data are written on one node; a snapshot of them and a claim from that are asked for, the fault strikes, and when it is
/// over the other node has the data. The source goes before its copies, and nothing may be left in the end.
pub async fn strike(stack: &Stack, name: &str, fault: impl AsyncFnOnce() -> anyhow::Result<()>) -> anyhow::Result<()> {
    let (api, snapshot) = (&stack.api, format!("{name}-snapshot"));
    let source = Life::new(stack, name);
    let data_source = json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": snapshot });
    let restored = source.copied(format!("{name}-restored"), data_source);
    let struck = async {
        source.up_to(Step::SecondPod).await?;
        let wanted = json!({
            "metadata": { "namespace": "default", "name": snapshot },
            "spec": { "volumeSnapshotClassName": CLASS, "source": { "persistentVolumeClaimName": source.claim() } },
        });
        api.create(kinds::VOLUME_SNAPSHOT, wanted).await?;
        restored.begin(Step::Claim).await?;
        fault().await.context("the fault itself")?;
        api.until(kinds::VOLUME_SNAPSHOT, &snapshot, |snapshot| ready(snapshot?), "to be ready").await?;
        restored.finish(Step::Claim).await?;
        restored.step(Step::SecondPod).await?;
        checker::at_rest(stack).await.context("with the restored volume in use")?;
        source.step(Step::EndClaim).await?;
        api.delete(kinds::VOLUME_SNAPSHOT, &snapshot).await?;
        api.gone(kinds::VOLUME_SNAPSHOT, &snapshot).await?;
        restored.after(Step::SecondPod).await?;
        api.none_left(kinds::VOLUME_SNAPSHOT_CONTENT).await?;
        let folder = stack.volume("pool").join("snapshots");
        until("no snapshot in the pool", async || {
            let mut files = fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
            Ok(files.next().is_none().then_some(()))
        })
        .await?;
        checker::nothing_left(stack).await
    };
    checker::watched(stack, struck).await.with_context(|| format!("after {name}"))
}

fn ready(snapshot: &Value) -> Option<()> {
    (snapshot["status"]["readyToUse"] == true).then_some(())
}
