//! Many files that are given to a pod's group, by somebody who is killed half-way.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use serde_json::json;
use stowage_model::object::kinds;

use local_suite::objects::{self, XFS};

use crate::node::{MANAGER, NODE, Node, begin, end, target, until};

const GROUP: u32 = 4321;
const FOLDERS: usize = 40;
/// So many that a walk is not over while the one who is to stop it has to wait for a processor.
const FILES: usize = 1000;

fn folders(root: &Path) -> impl Iterator<Item = PathBuf> {
    (0..FOLDERS).map(move |number| root.join(format!("folder-{number}")))
}

fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    (0..FILES).map(move |number| folder.join(format!("file-{number}")))
}

fn group(path: &Path) -> anyhow::Result<u32> {
    let about = fs::symlink_metadata(path).with_context(|| format!("cannot look at {}", path.display()))?;
    Ok(about.gid())
}

pub async fn while_files_are_given_to_a_group(node: &mut Node) -> anyhow::Result<()> {
    let (api, place, data) = (node.api.clone(), node.place.clone(), node.data());
    let life = node.life(&api, &place);
    begin(&life, "writer", XFS, "320Mi", &data).await?;
    let root = life.mounted("writer", NODE).await?;
    for folder in folders(&root) {
        fs::create_dir(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for file in files(&folder) {
            File::create(&file).with_context(|| format!("cannot create {}", file.display()))?;
        }
    }
    life.stop("writer").await?;

    let mut pod = objects::pod("pod", &life.claim, NODE);
    pod["spec"]["securityContext"] = json!({ "fsGroup": GROUP, "fsGroupChangePolicy": "OnRootMismatch" });
    api.create(kinds::POD, pod).await?;
    let root = target(&life, "pod").await?;
    let is_given = |path: PathBuf| fs::symlink_metadata(path).is_ok_and(|about| about.gid() == GROUP);
    let begun = async || Ok(folders(&root).flat_map(|folder| files(&folder).next()).any(is_given).then_some(()));
    until("the first file of the group", begun).await?;
    node.stack.freeze(MANAGER)?;
    node.kill(&[MANAGER])?;
    let given =
        folders(&root).flat_map(|folder| files(&folder).collect::<Vec<_>>()).filter(|file| is_given(file.clone()));
    let given = given.count();
    ensure!(
        given < FOLDERS * FILES && group(&root)? != GROUP,
        "{given} files are given: the walk was over before the kill"
    );

    node.launch(&[MANAGER])?;
    life.mounted("pod", NODE).await?;
    for path in folders(&root).flat_map(|folder| files(&folder).chain([folder.clone()]).collect::<Vec<_>>()) {
        ensure!(group(&path)? == GROUP, "{} was left out of a walk that went on", path.display());
    }
    ensure!(group(&root)? == GROUP, "the volume itself was left out");
    ensure!(fs::metadata(&root)?.mode() & 0o2070 == 0o2070, "what is made in the volume does not go to the group");
    end(&life, "pod", &data).await
}
