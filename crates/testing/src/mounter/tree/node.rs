//! What a volume manager asks of a node beyond files and mounts: owners, sub paths, orphans.

use std::path::{Path, PathBuf};

use stowage_mount::{
    Access, ChangePolicy, Error, FileKind, Held, Holder, Holders, Owned, OwnershipWalk, Progress, Result, SubPath,
};

use super::{Content, EINVAL, ENOENT, ENOTDIR, Entry, Tree, access, kind};

/// A plugin, a volume, and its `mount`, in the `volumes` of a pod.
const VOLUME_DEPTH: usize = 3;

impl Tree {
    /// See [`stowage_mount::Ownership::own`].
    pub fn own(&mut self, walk: &OwnershipWalk, progress: &Progress) -> Result<Owned> {
        let root = self.entries.get(&walk.root).ok_or_else(|| access("look at", &walk.root, ENOENT))?;
        let is_dir = root.content == Content::Directory;
        if walk.policy == ChangePolicy::OnRootMismatch && walk.fits(root.gid, root.mode, is_dir) {
            return Ok(Owned { skipped: true, ..Owned::default() });
        }
        let (mounts, mut entries) = (&self.mounts, 0);
        // What is mounted further down is another volume's.
        let is_foreign = |path: &Path| {
            mounts.iter().any(|mount| {
                mount.target != walk.root && mount.target.starts_with(&walk.root) && path.starts_with(&mount.target)
            })
        };
        for (path, entry) in self.entries.iter_mut().filter(|(path, _)| path.starts_with(&walk.root)) {
            if is_foreign(path) {
                continue;
            }
            entries += 1;
            entry.gid = walk.gid;
            if !matches!(entry.content, Content::Link(_)) {
                entry.mode = walk.wanted_mode(entry.mode, entry.content == Content::Directory);
            }
        }
        progress.add(entries);
        Ok(Owned { entries, ..Owned::default() })
    }

    /// See [`stowage_mount::SubPaths::prepare_sub_path`]; links are refused here.
    pub fn prepare_sub_path(&mut self, sub_path: &SubPath) -> Result<FileKind> {
        let names = sub_path.names()?;
        let volume = self.entries.get(&sub_path.volume).filter(|entry| entry.content == Content::Directory);
        let hide = |why, error| Error::PrepareSubPath { sub_path: sub_path.path.clone(), why, source: Box::new(error) };
        let mode = volume.map(|entry| entry.mode);
        let mode =
            mode.ok_or_else(|| hide("it could not be opened or made", access("open", &sub_path.volume, ENOENT)))?;
        let mut part = sub_path.volume.clone();
        for name in names {
            if !self.is_dir(&part) {
                return Err(hide("something on its way is no directory", access("enter", &part, ENOTDIR)));
            }
            part.push(name);
            let made = || Entry::new(Content::Directory, mode);
            if matches!(self.entries.entry(part.clone()).or_insert_with(made).content, Content::Link(_)) {
                return Err(hide("it leads to a link that cannot be followed", access("follow", &part, EINVAL)));
            }
        }
        let shown = self.entries.get(&part).map_or(FileKind::Other, kind);
        let source = part.to_string_lossy().into_owned();
        if self
            .mounts
            .iter()
            .rev()
            .find(|mount| mount.target == sub_path.target)
            .is_some_and(|mount| mount.source == source)
        {
            return Ok(shown);
        }
        self.mounts.retain(|mount| mount.target != sub_path.target);
        if let Some(parent) = sub_path.target.parent() {
            self.create_dir(parent)?;
        }
        let target = match shown {
            FileKind::Directory => Entry::new(Content::Directory, 0o750),
            _ => Entry::new(Content::File(Vec::new()), 0o640),
        };
        self.entries.insert(sub_path.target.clone(), target);
        self.bind(&part, &sub_path.target, Access::ReadWrite)?;
        if let Some(mount) = self.mounts.last_mut() {
            mount.source = source;
        }
        Ok(shown)
    }

    /// See [`stowage_mount::SubPaths::clean_sub_paths`].
    pub fn clean_sub_paths(&mut self, directory: &Path) -> Result<()> {
        let below: Vec<PathBuf> = self.mounts.iter().rev().map(|mount| mount.target.clone()).collect();
        for target in below.into_iter().filter(|target| target.starts_with(directory)) {
            self.unmount(&target)?;
        }
        let is_target = |entry: &Entry| match &entry.content {
            Content::Directory => true,
            Content::File(contents) => contents.is_empty(),
            Content::Link(_) => false,
        };
        let strange = self.entries.iter().find(|(path, entry)| path.starts_with(directory) && !is_target(entry));
        if let Some((path, _)) = strange {
            return Err(access("remove", path, EINVAL));
        }
        self.entries.retain(|path, _| !path.starts_with(directory));
        Ok(())
    }

    /// See [`stowage_mount::Orphans::remove_orphan`].
    pub fn remove_orphan(&mut self, pod: &Path) -> Result<()> {
        if let Some(mount) = self.mounts.iter().find(|mount| mount.target.starts_with(pod)) {
            return Err(Error::RemoveMounted { path: pod.to_owned(), mounted: mount.target.clone() });
        }
        let volumes = pod.join("volumes");
        let is_contents = |path: &Path, entry: &Entry| {
            let deep = path.strip_prefix(&volumes).is_ok_and(|inner| inner.components().count() > VOLUME_DEPTH);
            path.starts_with(&volumes) && (deep || entry.content != Content::Directory)
        };
        if let Some((path, _)) = self.entries.iter().find(|(path, entry)| is_contents(path, entry)) {
            let reason = format!("{} is in a volume, which is not ours", path.display());
            return Err(Error::RemoveOrphan { path: pod.to_owned(), reason });
        }
        self.entries.retain(|path, _| !path.starts_with(pod));
        Ok(())
    }

    /// See [`stowage_mount::Orphans::holders`]; those that [`Tree::hold`] named.
    pub fn holders(&self, held: &Held) -> Holders {
        let holds = |target: &Path| match held {
            Held::Mount(path) => path == target,
            Held::Device(device) => self.mounts.iter().any(|mount| mount.target == target && mount.device == *device),
            Held::DeviceNode(path) => {
                self.mounts.iter().any(|mount| mount.target == target && Path::new(&mount.source) == path)
            }
        };
        let found = self.holders.iter().filter(|(target, _)| holds(target)).flat_map(|(_, holders)| holders.clone());
        Holders { found: found.collect(), complete: true }
    }

    /// Lets a process keep a mount from being unmounted, until [`Tree::release`].
    pub fn hold(&mut self, target: &Path, holder: Holder) {
        self.holders.entry(target.to_owned()).or_default().push(holder);
    }

    /// Ends what was held at a target.
    pub fn release(&mut self, target: &Path) {
        self.holders.remove(target);
    }
}
