//! The parts of the port that are not files and mounts, in memory and gated.

use std::path::Path;

use async_trait::async_trait;

use stowage_mount::{
    Devices, DiskUsage, FileKind, FolderWork, Folders, Held, Holders, LoopDevice, Measures, Orphans, Owned, Ownership,
    OwnershipWalk, Progress, Result, SubPath, SubPaths,
};

use super::tree::MemoryFolder;
use super::{GatedMounter, MemoryMounter};

#[async_trait]
impl Ownership for MemoryMounter {
    async fn own(&self, walk: &OwnershipWalk, progress: &Progress) -> Result<Owned> {
        self.with(|tree| tree.own(walk, progress))
    }
}

#[async_trait]
impl SubPaths for MemoryMounter {
    async fn prepare_sub_path(&self, sub_path: &SubPath) -> Result<FileKind> {
        self.with(|tree| tree.prepare_sub_path(sub_path))
    }

    async fn clean_sub_paths(&self, directory: &Path) -> Result<()> {
        self.with(|tree| tree.clean_sub_paths(directory))
    }
}

#[async_trait]
impl Orphans for MemoryMounter {
    async fn remove_orphan(&self, pod: &Path) -> Result<()> {
        self.with(|tree| tree.remove_orphan(pod))
    }

    async fn holders(&self, held: &Held) -> Result<Holders> {
        Ok(self.look(|tree| tree.holders(held)))
    }
}

#[async_trait]
impl Devices for MemoryMounter {
    async fn lock_device(&self, file: &Path) -> Result<LoopDevice> {
        self.with(|tree| tree.lock_device(file))
    }

    async fn device_lock(&self, file: &Path) -> Result<Option<LoopDevice>> {
        Ok(self.look(|tree| tree.device_lock(file)))
    }

    async fn unlock_device(&self, file: &Path) -> Result<()> {
        self.with(|tree| tree.unlock_device(file));
        Ok(())
    }

    async fn is_device_in_use(&self, device: &Path) -> Result<bool> {
        Ok(self.look(|tree| tree.is_device_in_use(device)))
    }
}

#[async_trait]
impl Folders for MemoryMounter {
    async fn in_folder(&self, path: &Path, work: FolderWork) -> Result<()> {
        self.with(|tree| {
            work(&MemoryFolder::open(tree, path)?);
            Ok(())
        })
    }
}

#[async_trait]
impl Measures for MemoryMounter {
    async fn disk_usage(&self, path: &Path, _: u32) -> Result<DiskUsage> {
        self.look(|tree| tree.disk_usage(path))
    }

    async fn project_usage(&self, _: &Path) -> Result<Option<DiskUsage>> {
        Ok(None)
    }
}

#[async_trait]
impl Devices for GatedMounter {
    async fn lock_device(&self, file: &Path) -> Result<LoopDevice> {
        self.change(format!("lock_device {}", file.display()), file, self.node.lock_device(file)).await
    }

    async fn device_lock(&self, file: &Path) -> Result<Option<LoopDevice>> {
        self.gate.look().await;
        self.node.device_lock(file).await
    }

    async fn unlock_device(&self, file: &Path) -> Result<()> {
        self.change(format!("unlock_device {}", file.display()), file, self.node.unlock_device(file)).await
    }

    async fn is_device_in_use(&self, device: &Path) -> Result<bool> {
        self.gate.look().await;
        self.node.is_device_in_use(device).await
    }
}

#[async_trait]
impl Folders for GatedMounter {
    async fn in_folder(&self, path: &Path, work: FolderWork) -> Result<()> {
        self.change(format!("in_folder {}", path.display()), path, self.node.in_folder(path, work)).await
    }
}

#[async_trait]
impl Measures for GatedMounter {
    async fn disk_usage(&self, path: &Path, entries_per_second: u32) -> Result<DiskUsage> {
        self.gate.look().await;
        self.node.disk_usage(path, entries_per_second).await
    }

    async fn project_usage(&self, path: &Path) -> Result<Option<DiskUsage>> {
        self.gate.look().await;
        self.node.project_usage(path).await
    }
}

#[async_trait]
impl Ownership for GatedMounter {
    async fn own(&self, walk: &OwnershipWalk, progress: &Progress) -> Result<Owned> {
        let what = format!("own {} {}", walk.root.display(), walk.gid);
        self.change(what, &walk.root, self.node.own(walk, progress)).await
    }
}

#[async_trait]
impl SubPaths for GatedMounter {
    async fn prepare_sub_path(&self, sub_path: &SubPath) -> Result<FileKind> {
        let what = format!("prepare_sub_path {} {}", sub_path.path, sub_path.target.display());
        self.change(what, &sub_path.target, self.node.prepare_sub_path(sub_path)).await
    }

    async fn clean_sub_paths(&self, directory: &Path) -> Result<()> {
        let what = format!("clean_sub_paths {}", directory.display());
        self.change(what, directory, self.node.clean_sub_paths(directory)).await
    }
}

#[async_trait]
impl Orphans for GatedMounter {
    async fn remove_orphan(&self, pod: &Path) -> Result<()> {
        self.change(format!("remove_orphan {}", pod.display()), pod, self.node.remove_orphan(pod)).await
    }

    async fn holders(&self, held: &Held) -> Result<Holders> {
        self.gate.look().await;
        self.node.holders(held).await
    }
}
