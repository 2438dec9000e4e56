//! Things that happen to a node while its volume manager is dead.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, ensure};
use nix::mount::{MntFlags, umount2};
use serde_json::Value;
use stowage_model::names::VOLUME_DATA_FILE;
use stowage_model::object::kinds;

use local_suite::binaries;
use local_suite::leftovers;
use local_suite::life::Life;
use local_suite::objects::{IMMEDIATE, XFS};

use crate::node::{DRIVER, MANAGER, NODE, Node, begin, end, end_with_a_reader, staging, table, target, uid, until};

/// The metadata of the claim's volume, for the node and for a pod.
async fn metadata(life: &Life<'_>, pod: &str) -> anyhow::Result<[PathBuf; 2]> {
    let beside = |path: PathBuf| path.parent().map(|dir| dir.join(VOLUME_DATA_FILE)).context("a mount at the root");
    Ok([beside(staging(life).await?)?, beside(target(life, pod).await?)?])
}

fn detach(target: &Path) -> anyhow::Result<()> {
    umount2(target, MntFlags::MNT_DETACH).with_context(|| format!("cannot unmount {}", target.display()))
}

pub async fn one_of_two_pods_deleted(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "goes", IMMEDIATE, "32Mi", &data).await?;
    life.start("stays", NODE).await?;
    life.check("stays", NODE, &data).await?;
    let (left, kept) = (target(&life, "goes").await?, target(&life, "stays").await?);
    let before = table().await?.at(&kept).context("not mounted")?.id;
    node.kill(&[MANAGER])?;
    api.delete(kinds::POD, "goes").await?;
    node.launch(&[MANAGER])?;
    api.gone(kinds::POD, "goes").await?;
    let table = table().await?;
    ensure!(table.at(&left).is_none(), "the pod is gone, and its mount is not");
    ensure!(table.at(&kept).is_some_and(|mount| mount.id == before), "the other pod's mount was touched");
    end(&life, "stays", &data).await
}

pub async fn metadata_emptied_or_cut_off(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "pod", IMMEDIATE, "32Mi", &data).await?;
    for keep in [0, 20] {
        node.kill(&[MANAGER])?;
        let files = metadata(&life, "pod").await?;
        let whole: Vec<Vec<u8>> = files.iter().map(fs::read).collect::<Result<_, _>>()?;
        for (file, whole) in files.iter().zip(&whole) {
            fs::write(file, &whole[..keep])?;
        }
        node.launch(&[MANAGER])?;
        let mended = async || {
            let now: Vec<Vec<u8>> = files.iter().map(fs::read).collect::<Result<_, _>>()?;
            Ok((now == whole).then_some(()))
        };
        until("the metadata to be written anew", mended).await?;
        life.check("pod", NODE, &data).await?;
    }
    end(&life, "pod", &data).await
}

/// What cannot be read is never taken for nothing: the volume stays, and in use, until somebody says what it is.
pub async fn metadata_of_a_pod_that_goes_is_lost(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "pod", IMMEDIATE, "32Mi", &data).await?;
    let (target, staging) = (target(&life, "pod").await?, staging(&life).await?);
    let [_, file] = metadata(&life, "pod").await?;
    node.kill(&[MANAGER])?;
    let whole = fs::read(&file)?;
    fs::write(&file, "")?;
    api.delete(kinds::POD, "pod").await?;
    node.launch(&[MANAGER])?;
    let spelled = file.to_string_lossy().into_owned();
    until("a word about the metadata", async || Ok(node.stack.said(MANAGER)?.contains(&spelled).then_some(()))).await?;
    let in_use = |node: Option<&Value>| (!node?["status"]["volumesInUse"].as_array()?.is_empty()).then_some(());
    api.until(kinds::NODE, NODE, in_use, "to have it in use").await?;
    let now = table().await?;
    ensure!(now.at(&target).is_some() && now.at(&staging).is_some(), "what nobody can explain was taken away");
    node.kill(&[MANAGER])?;
    fs::write(&file, whole)?;
    node.launch(&[MANAGER])?;
    api.gone(kinds::POD, "pod").await?;
    end_with_a_reader(&life, &data).await
}

/// Somebody whose working directory is in a volume.
struct Visitor(Child);

impl Visitor {
    fn enter(folder: &Path) -> anyhow::Result<Self> {
        let mut command = Command::new(binaries::find("tether")?);
        command.arg(std::process::id().to_string()).args(["sleep", "600"]).current_dir(folder).stdin(Stdio::null());
        Ok(Self(command.spawn().context("cannot start a visitor")?))
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        // Both fail only if it is gone and reaped already.
        let _gone = self.0.kill();
        let _reaped = self.0.wait();
    }
}

pub async fn a_busy_target(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "pod", IMMEDIATE, "32Mi", &data).await?;
    let target = target(&life, "pod").await?;
    let visitor = Visitor::enter(&target)?;
    api.delete(kinds::POD, "pod").await?;
    let refused = async || Ok(node.stack.said(MANAGER)?.contains("volume_unmount").then_some(()));
    until("an unmount that is refused", refused).await?;
    node.kill(&[MANAGER])?;
    ensure!(table().await?.at(&target).is_some(), "a mount was taken from somebody who is in it");
    node.launch(&[MANAGER])?;
    let in_use = |node: Option<&Value>| (!node?["status"]["volumesInUse"].as_array()?.is_empty()).then_some(());
    api.until(kinds::NODE, NODE, in_use, "to have it in use").await?;
    ensure!(api.get(kinds::POD, "pod").await?.is_some(), "the pod is gone while its volume is mounted");
    drop(visitor);
    api.gone(kinds::POD, "pod").await?;
    end_with_a_reader(&life, &data).await
}

pub async fn a_target_that_is_gone(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "pod", IMMEDIATE, "32Mi", &data).await?;
    let target = target(&life, "pod").await?;
    node.kill(&[MANAGER])?;
    detach(&target)?;
    fs::remove_dir_all(node.root().join("pods").join(uid(&api, "pod").await?))?;
    node.launch(&[MANAGER])?;
    mounted_again(&target).await?;
    end(&life, "pod", &data).await
}

/// A pod that runs is said to run all the while.
async fn mounted_again(target: &Path) -> anyhow::Result<()> {
    until("the mount to be back", async || Ok(table().await?.at(target).is_some().then_some(()))).await
}

pub async fn staging_lost_alone(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "pod", IMMEDIATE, "32Mi", &data).await?;
    let staging = staging(&life).await?;
    node.kill(&[MANAGER, DRIVER])?;
    detach(&staging)?;
    node.launch(&[DRIVER, MANAGER])?;
    mounted_again(&staging).await?;
    end(&life, "pod", &data).await
}

pub async fn all_mounts_lost(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "one", XFS, "320Mi", &data).await?;
    life.start("two", NODE).await?;
    life.check("two", NODE, &data).await?;
    let targets = [target(&life, "one").await?, target(&life, "two").await?];
    node.kill(&[MANAGER, DRIVER])?;
    leftovers::sweep(&place.root).await?;
    node.launch(&[DRIVER, MANAGER])?;
    for target in &targets {
        mounted_again(target).await?;
    }
    life.check("one", NODE, &data).await?;
    life.stop("one").await?;
    end(&life, "two", &data).await
}

pub async fn all_mounts_lost_and_the_pods_deleted(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "one", IMMEDIATE, "32Mi", &data).await?;
    life.start("two", NODE).await?;
    life.check("two", NODE, &data).await?;
    node.kill(&[MANAGER, DRIVER])?;
    leftovers::sweep(&place.root).await?;
    api.delete(kinds::POD, "one").await?;
    api.delete(kinds::POD, "two").await?;
    node.launch(&[DRIVER, MANAGER])?;
    api.gone(kinds::POD, "one").await?;
    api.gone(kinds::POD, "two").await?;
    end_with_a_reader(&life, &data).await
}
