//! A device: published, bound, locked by a loop device and linked to, and all of that undone.

use anyhow::ensure;
use stowage_model::object::kinds;

use local_suite::life::Life;
use local_suite::objects::{self, IMMEDIATE};

use crate::node::{DRIVER, MANAGER, NODE, Node, table, until};

async fn begin(life: &Life<'_>) -> anyhow::Result<()> {
    life.api.create(kinds::CLAIM, objects::device_claim(&life.claim, IMMEDIATE, "32Mi")).await?;
    let bound = |claim: Option<&serde_json::Value>| (claim?["status"]["phase"] == "Bound").then_some(());
    life.api.until(kinds::CLAIM, &life.claim, bound, "to be bound").await
}

async fn start(life: &Life<'_>, pod: &str) -> anyhow::Result<()> {
    life.api.create(kinds::POD, objects::device_pod(pod, &life.claim, NODE)).await
}

async fn end(life: &Life<'_>, data: &[u8]) -> anyhow::Result<()> {
    start(life, "reader").await?;
    life.check_device("reader", NODE, data).await?;
    life.stop("reader").await?;
    ensure!(life.locks(NODE).await?.is_empty(), "a lock is left");
    life.end().await
}

/// The lock is there, which is all but the last step.
pub async fn while_a_device_is_mapped(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life).await?;
    start(&life, "pod").await?;
    let locked = async || Ok((!life.locks(NODE).await?.is_empty()).then_some(()));
    until("the lock of the device", locked).await?;
    node.kill(&[MANAGER])?;
    node.launch(&[MANAGER])?;
    life.write_device("pod", NODE, &data).await?;
    ensure!(life.locks(NODE).await?.len() == 1, "the device is not locked once");
    life.check_device("pod", NODE, &data).await?;
    life.stop("pod").await?;
    end(&life, &data).await
}

/// Deleted while nobody looked, and killed again when the driver has taken it back and nobody has heard.
pub async fn while_a_device_is_unmapped(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life).await?;
    start(&life, "pod").await?;
    life.write_device("pod", NODE, &data).await?;
    node.kill(&[MANAGER, DRIVER])?;
    ensure!(life.locks(NODE).await?.len() == 1, "the lock did not outlive who made it");
    api.delete(kinds::POD, "pod").await?;
    node.relay.keep(&["NodeUnpublishVolume"]);
    node.launch(&[DRIVER, MANAGER])?;
    node.relay.in_flight("NodeUnpublishVolume").await?;
    node.kill(&[MANAGER])?;
    ensure!(life.locks(NODE).await?.is_empty(), "a device was unpublished under its lock");
    let published = node.root().join("plugins/kubernetes.io/csi/volumeDevices/publish");
    ensure!(table().await?.under(&published).next().is_none(), "it is still published");
    node.relay.release();
    node.launch(&[MANAGER])?;
    api.gone(kinds::POD, "pod").await?;
    end(&life, &data).await
}
