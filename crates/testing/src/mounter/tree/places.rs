//! Modes, links, other ways to unmount, devices and usage.

use std::path::{Path, PathBuf};

use stowage_mount::{DeviceNumber, DiskUsage, Error, FileId, LoopDevice, MountOptions, Result};

use super::{Content, EEXIST, EINVAL, ENOENT, ENOTDIR, Entry, Tree, access, os};

/// More links than any sane path goes through.
const LINKS: u32 = 40;

impl Tree {
    /// See [`stowage_mount::Mounter::unmount_lazily`].
    pub fn unmount_lazily(&mut self, target: &Path) -> Result<()> {
        // Nobody holds what is gone, and what is mounted below goes with it.
        self.holders.remove(target);
        if self.mounts.iter().any(|mount| mount.target == target) {
            self.mounts.retain(|mount| mount.target == target || !mount.target.starts_with(target));
        }
        self.unmount(target)
    }

    /// See [`stowage_mount::Mounter::remount`].
    pub fn remount(&mut self, target: &Path, options: &MountOptions) -> Result<()> {
        let mount = self.mounts.iter_mut().rev().find(|mount| mount.target == target);
        let mount = mount.ok_or_else(|| Error::Remount { target: target.to_owned(), source: os(EINVAL) })?;
        for word in &options.words {
            let name = word.split('=').next().unwrap_or(word);
            mount.options.retain(|option| option.split('=').next() != Some(name));
            mount.options.push(word.clone());
        }
        Ok(())
    }

    /// See [`stowage_mount::Mounter::create_dir_with`].
    pub fn create_dir_with(&mut self, path: &Path, mode: u32) -> Result<()> {
        self.create_dir(path)?;
        self.set_mode(path, mode);
        Ok(())
    }

    /// See [`stowage_mount::Mounter::write_file_with`].
    pub fn write_file_with(&mut self, path: &Path, contents: &[u8], mode: u32) -> Result<()> {
        self.write_file(path, contents)?;
        self.set_mode(path, mode);
        Ok(())
    }

    fn set_mode(&mut self, path: &Path, mode: u32) {
        if let Some(entry) = self.entries.get_mut(path) {
            entry.mode = mode;
        }
    }

    /// See [`stowage_mount::Mounter::make_file`].
    pub fn make_file(&mut self, path: &Path, mode: u32) -> Result<()> {
        if !path.parent().is_some_and(|parent| self.is_dir(parent)) {
            return Err(access("make", path, ENOENT));
        }
        let entry = self.entries.entry(path.to_owned()).or_insert_with(|| Entry::new(Content::File(Vec::new()), mode));
        match entry.content {
            Content::File(_) => {
                entry.mode = mode;
                Ok(())
            }
            _ => Err(access("make", path, EINVAL)),
        }
    }

    /// See [`stowage_mount::Mounter::symlink`].
    pub fn symlink(&mut self, to: &Path, path: &Path) -> Result<()> {
        if !path.parent().is_some_and(|parent| self.is_dir(parent)) {
            return Err(access("link", path, ENOENT));
        }
        match self.entries.get(path).map(|entry| &entry.content) {
            None | Some(Content::Link(_)) => {}
            Some(_) => return Err(access("link", path, EEXIST)),
        }
        self.entries.insert(path.to_owned(), Entry::new(Content::Link(to.to_owned()), 0o777));
        Ok(())
    }

    /// See [`stowage_mount::Mounter::read_link`].
    pub fn read_link(&self, path: &Path) -> Result<Option<PathBuf>> {
        match self.entries.get(path).map(|entry| &entry.content) {
            None => Ok(None),
            Some(Content::Link(to)) => Ok(Some(to.clone())),
            Some(_) => Err(access("read the link", path, EINVAL)),
        }
    }

    /// See [`stowage_mount::Mounter::canonical`].
    pub fn canonical(&self, path: &Path) -> Option<PathBuf> {
        let mut links = 0;
        let mut found = PathBuf::from("/");
        let names = |path: &Path| {
            let names = path.iter().rev().filter(|name| *name != "/");
            names.map(ToOwned::to_owned).collect::<Vec<_>>()
        };
        let mut rest = names(path);
        while let Some(name) = rest.pop() {
            if name == ".." {
                found.pop();
                continue;
            }
            let next = found.join(&name);
            match &self.entries.get(&next)?.content {
                Content::Link(to) => {
                    links += 1;
                    if links > LINKS {
                        return None;
                    }
                    if to.is_absolute() {
                        found = PathBuf::from("/");
                    }
                    rest.extend(names(to));
                }
                _ => found = next,
            }
        }
        Some(found)
    }

    /// See [`stowage_mount::Mounter::remove_all`].
    pub fn remove_all(&mut self, path: &Path) -> Result<()> {
        if let Some(mount) = self.mounts.iter().find(|mount| mount.target.starts_with(path)) {
            return Err(Error::RemoveMounted { path: path.to_owned(), mounted: mount.target.clone() });
        }
        self.entries.retain(|entry, _| !entry.starts_with(path));
        Ok(())
    }

    /// See [`stowage_mount::Devices::lock_device`].
    pub fn lock_device(&mut self, file: &Path) -> Result<LoopDevice> {
        let info = self.stat(file).ok_or_else(|| access("open image", file, ENOENT))?;
        if let Some(lock) = self.device_lock(file) {
            return Ok(lock);
        }
        let free =
            (0..).find(|number| !self.locks.values().any(|taken| taken.number.minor == *number)).unwrap_or_default();
        let lock = LoopDevice {
            path: PathBuf::from(format!("/dev/loop{free}")),
            number: DeviceNumber { major: 7, minor: free },
            image: FileId { device: info.id.device, inode: info.id.inode },
            backing: file.to_owned(),
            tag: String::new(),
            direct_io: false,
            autoclear: false,
            read_only: true,
            size: info.size,
        };
        self.locks.insert(file.to_owned(), lock.clone());
        Ok(lock)
    }

    /// See [`stowage_mount::Devices::device_lock`].
    pub fn device_lock(&self, file: &Path) -> Option<LoopDevice> {
        self.locks.get(file).cloned()
    }

    /// See [`stowage_mount::Devices::unlock_device`].
    pub fn unlock_device(&mut self, file: &Path) {
        self.locks.remove(file);
    }

    /// The locks there are, by the files they are on.
    pub fn locks(&self) -> impl Iterator<Item = &Path> {
        self.locks.keys().map(PathBuf::as_path)
    }

    /// See [`stowage_mount::Devices::is_device_in_use`]: whether it is mounted, as a file system and not as itself.
    pub fn is_device_in_use(&self, device: &Path) -> bool {
        self.mounts.iter().any(|mount| Path::new(&mount.source) == device && mount.fs_type != "none")
    }

    /// See [`stowage_mount::Measures::disk_usage`].
    pub fn disk_usage(&self, path: &Path) -> Result<DiskUsage> {
        if !self.entries.contains_key(path) {
            return Err(access("look at", path, ENOENT));
        }
        let inside = self.entries.iter().filter(|(entry, _)| entry.starts_with(path));
        Ok(inside.fold(DiskUsage::default(), |total, (_, entry)| {
            let bytes = if let Content::File(contents) = &entry.content { contents.len() as u64 } else { 0 };
            DiskUsage { bytes: total.bytes + bytes, inodes: total.inodes + 1 }
        }))
    }

    /// Lets questions for the usage of a path go unanswered, as of a server that is gone.
    pub fn hang(&mut self, path: &Path) {
        self.hung.insert(path.to_owned());
    }

    /// Whether such questions are answered again, from now on.
    pub fn unhang(&mut self, path: &Path) {
        self.hung.remove(path);
    }

    /// Whether a question for the usage of a path is answered.
    pub fn is_hung(&self, path: &Path) -> bool {
        self.hung.contains(path)
    }

    /// Turns SELinux on or off.
    pub fn set_selinux(&mut self, enabled: bool) {
        self.selinux = enabled;
    }

    /// See [`stowage_mount::Mounter::selinux`].
    pub fn selinux(&self) -> bool {
        self.selinux
    }

    /// Takes away all that a restart of the machine takes away: mounts, what is in memory, locks and processes.
    pub fn reboot(&mut self) {
        self.holders.clear();
        self.hung.clear();
        self.locks.clear();
        while let Some(target) = self.mounts.last().map(|mount| mount.target.clone()) {
            // Newest first, so that nothing is mounted below what goes.
            if self.unmount_lazily(&target).is_err() {
                break;
            }
        }
    }

    pub(super) fn no_directory(&self, action: &'static str, path: &Path) -> Result<()> {
        match self.entries.get(path) {
            None => Err(access(action, path, ENOENT)),
            Some(entry) if entry.content != Content::Directory => Err(access(action, path, ENOTDIR)),
            Some(_) => Ok(()),
        }
    }
}
