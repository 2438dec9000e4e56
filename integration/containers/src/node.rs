//! A node as its own containers see it: through the root directory and the mount table of its volume manager's process.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use stowage_mount::{Mount, MountTable};

use crate::stack::Stack;

/// Where a kubelet would keep everything.
pub const ROOT: &str = "/var/lib/kubelet";

/// One node of a stack.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    pub stack: &'a Stack,
    pub name: &'static str,
}

impl Node<'_> {
    /// The service whose process mounts.
    pub fn plugin(&self) -> String {
        format!("{}-plugin", self.name)
    }

    /// The mounts of volumes, by the table of the process that makes them.
    pub async fn mounts(&self) -> anyhow::Result<Vec<Mount>> {
        self.table(self.stack.process(&self.plugin()).await?)
    }

    /// The same, if that process runs now; nobody waits for it or helps it back.
    pub async fn mounts_now(&self) -> anyhow::Result<Vec<Mount>> {
        let seen = self.stack.see(&self.plugin()).await?;
        ensure!(seen.running && seen.pid > 0, "{} does not run", self.plugin());
        self.table(seen.pid)
    }

    fn table(&self, pid: i32) -> anyhow::Result<Vec<Mount>> {
        let file = format!("/proc/{pid}/mountinfo");
        let text = fs::read(&file).with_context(|| format!("cannot read {file}"))?;
        let table = MountTable::parse(&text).with_context(|| format!("cannot read {file}"))?;
        let root = Path::new(ROOT);
        Ok(table.under(root).filter(|mount| mount.target != root).cloned().collect())
    }

    /// A path of the node, through the eyes of its volume manager.
    async fn inside(&self, path: &Path) -> anyhow::Result<PathBuf> {
        let pid = self.stack.process(self.name).await?;
        let relative = path.strip_prefix("/").context("a path of a node is absolute")?;
        Ok(Path::new("/proc").join(pid.to_string()).join("root").join(relative))
    }

    /// Writes a file in a volume, after a look that it is one.
    pub async fn write(&self, mount: &Path, data: &[u8]) -> anyhow::Result<()> {
        ensure!(
            self.mounts().await?.iter().any(|found| found.target == mount),
            "nothing is mounted at {} on {}",
            mount.display(),
            self.name
        );
        let file = self.inside(&mount.join("data")).await?;
        let written = fs::File::create(&file).and_then(|mut file| {
            std::io::Write::write_all(&mut file, data)?;
            file.sync_all()
        });
        written.with_context(|| format!("cannot write {}", file.display()))
    }

    /// Reads a file of a volume.
    pub async fn read(&self, mount: &Path) -> anyhow::Result<Vec<u8>> {
        let file = self.inside(&mount.join("data")).await?;
        fs::read(&file).with_context(|| format!("cannot read {}", file.display()))
    }

    /// What is left below the directories of pods and of staged volumes.
    pub fn files(&self) -> anyhow::Result<Vec<PathBuf>> {
        let root = self.stack.volume(self.name);
        let mut found = Vec::new();
        for folder in ["pods", "plugins"] {
            walk(&root.join(folder), &mut found)?;
        }
        Ok(found)
    }
}

/// Files, and directories without any.
fn walk(folder: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error).with_context(|| format!("cannot list {}", folder.display())),
    };
    for entry in entries {
        let path = entry.with_context(|| format!("cannot list {}", folder.display()))?.path();
        if path.is_dir() {
            walk(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}
