//! Killed while a call to the driver is under way: the driver has done it, or not, and nobody has heard.

use anyhow::ensure;
use serde_json::{Value, json};
use stowage_model::object::kinds;

use local_suite::objects::{IMMEDIATE, XFS};

use crate::node::{DRIVER, MANAGER, NODE, Node, begin, end, end_with_a_reader, staging, table, target};

pub async fn between_stage_and_publish(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    node.relay.keep(&["NodeStageVolume"]);
    life.begin(IMMEDIATE, "32Mi").await?;
    life.start("pod", NODE).await?;
    node.relay.in_flight("NodeStageVolume").await?;
    node.kill(&[MANAGER])?;
    let (table, staging, target) = (table().await?, staging(&life).await?, target(&life, "pod").await?);
    ensure!(table.at(&staging).is_some() && table.at(&target).is_none(), "it is not between stage and publish");
    node.relay.release();
    node.launch(&[MANAGER])?;
    life.write("pod", NODE, &data).await?;
    end(&life, "pod", &data).await
}

pub async fn before_it_hears_of_a_publish(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    node.relay.keep(&["NodePublishVolume"]);
    life.begin(IMMEDIATE, "32Mi").await?;
    life.start("pod", NODE).await?;
    node.relay.in_flight("NodePublishVolume").await?;
    node.kill(&[MANAGER, DRIVER])?;
    ensure!(table().await?.at(&target(&life, "pod").await?).is_some(), "it is not published");
    node.relay.release();
    node.launch(&[DRIVER, MANAGER])?;
    life.write("pod", NODE, &data).await?;
    end(&life, "pod", &data).await
}

pub async fn before_it_hears_of_an_unpublish(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "pod", IMMEDIATE, "32Mi", &data).await?;
    let target = target(&life, "pod").await?;
    node.relay.keep(&["NodeUnpublishVolume"]);
    api.delete(kinds::POD, "pod").await?;
    node.relay.in_flight("NodeUnpublishVolume").await?;
    node.kill(&[MANAGER])?;
    ensure!(table().await?.at(&target).is_none(), "it is not unpublished");
    node.relay.release();
    node.launch(&[MANAGER])?;
    api.gone(kinds::POD, "pod").await?;
    end_with_a_reader(&life, &data).await
}

pub async fn with_the_driver_that_is_to_unpublish(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "pod", IMMEDIATE, "32Mi", &data).await?;
    let target = target(&life, "pod").await?;
    node.stack.freeze(DRIVER)?;
    api.delete(kinds::POD, "pod").await?;
    let is_deleting = |pod: Option<&Value>| pod?["metadata"]["deletionTimestamp"].as_str().map(drop);
    api.until(kinds::POD, "pod", is_deleting, "to be deleted").await?;
    node.kill(&[DRIVER, MANAGER])?;
    ensure!(table().await?.at(&target).is_some(), "it was unpublished by a driver that stood still");
    // Without its driver nothing can be taken down, and nothing is.
    node.launch(&[MANAGER])?;
    let ready = |node: Option<&Value>| (!node?["status"]["volumesInUse"].as_array()?.is_empty()).then_some(());
    api.until(kinds::NODE, NODE, ready, "to have it in use").await?;
    ensure!(table().await?.at(&target).is_some(), "it was taken down without its driver");
    node.launch(&[DRIVER])?;
    api.gone(kinds::POD, "pod").await?;
    end_with_a_reader(&life, &data).await
}

pub async fn before_it_hears_of_an_unstage(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "pod", IMMEDIATE, "32Mi", &data).await?;
    let staging = staging(&life).await?;
    node.relay.keep(&["NodeUnstageVolume"]);
    api.delete(kinds::POD, "pod").await?;
    node.relay.in_flight("NodeUnstageVolume").await?;
    node.kill(&[MANAGER, DRIVER])?;
    ensure!(table().await?.at(&staging).is_none(), "it is not unstaged");
    node.relay.release();
    node.launch(&[DRIVER, MANAGER])?;
    api.gone(kinds::POD, "pod").await?;
    end_with_a_reader(&life, &data).await
}

pub async fn while_a_volume_grows(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "pod", XFS, "320Mi", &data).await?;
    node.relay.keep(&["NodeExpandVolume"]);
    let larger = json!({ "spec": { "resources": { "requests": { "storage": "400Mi" } } } });
    api.patch(kinds::CLAIM, &life.claim, larger).await?;
    node.relay.in_flight("NodeExpandVolume").await?;
    node.kill(&[MANAGER, DRIVER])?;
    let says = |claim: Option<&Value>| claim?["status"]["capacity"]["storage"].as_str().map(str::to_owned);
    let before = api.until(kinds::CLAIM, &life.claim, says, "to say its size").await?;
    ensure!(before == "320Mi", "the claim says {before} before anybody has heard that its volume grew");
    node.relay.release();
    node.launch(&[DRIVER, MANAGER])?;
    let grown = |claim: Option<&Value>| (says(claim)? == "400Mi").then_some(());
    api.until(kinds::CLAIM, &life.claim, grown, "to have grown").await?;
    end(&life, "pod", &data).await
}
