//! A folder of the tree, with the rules that a held directory has.

use std::cell::RefCell;
use std::path::{Component, Path, PathBuf};

use stowage_mount::{DirEntry, Folder, Owned, OwnershipWalk, Progress, Result};

use super::{Content, EEXIST, EINVAL, ENOENT, ENOTDIR, Entry, Tree, access};

pub(crate) struct MemoryFolder<'a> {
    tree: RefCell<&'a mut Tree>,
    root: PathBuf,
}

impl<'a> MemoryFolder<'a> {
    pub(crate) fn open(tree: &'a mut Tree, root: &Path) -> Result<Self> {
        tree.no_directory("open", root)?;
        Ok(Self { tree: RefCell::new(tree), root: root.to_owned() })
    }

    fn path(&self, name: &str) -> Result<PathBuf> {
        match Path::new(name).components().all(|part| matches!(part, Component::Normal(_))) {
            true => Ok(self.root.join(name)),
            false => Err(access("go to", Path::new(name), EINVAL)),
        }
    }

    fn insert(&self, action: &'static str, name: &str, mut entry: Entry, uid: Option<u32>) -> Result<()> {
        let path = self.path(name)?;
        let mut tree = self.tree.borrow_mut();
        if !path.parent().is_some_and(|parent| tree.is_dir(parent)) {
            return Err(access(action, &path, ENOENT));
        }
        if tree.entries.contains_key(&path) {
            return Err(access(action, &path, EEXIST));
        }
        entry.uid = uid.unwrap_or_default();
        tree.entries.insert(path, entry);
        Ok(())
    }
}

impl Folder for MemoryFolder<'_> {
    fn read_link(&self, name: &str) -> Result<Option<PathBuf>> {
        Ok(self.tree.borrow().read_link(&self.path(name)?).ok().flatten())
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.tree.borrow().read_file(&self.path(name)?).ok().flatten())
    }

    fn list(&self, name: &str) -> Result<Option<Vec<DirEntry>>> {
        let path = if name.is_empty() { self.root.clone() } else { self.path(name)? };
        Ok(self.tree.borrow().list_dir(&path).ok().flatten())
    }

    fn make_dir(&self, name: &str, mode: u32) -> Result<()> {
        self.insert("make directory", name, Entry::new(Content::Directory, mode), None)
    }

    fn write_new(&self, name: &str, contents: &[u8], mode: u32, uid: Option<u32>) -> Result<()> {
        self.insert("write", name, Entry::new(Content::File(contents.to_vec()), mode), uid)
    }

    fn symlink(&self, to: &str, name: &str, uid: Option<u32>) -> Result<()> {
        self.insert("link", name, Entry::new(Content::Link(to.into()), 0o777), uid)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        let (from, to) = (self.path(from)?, self.path(to)?);
        let mut tree = self.tree.borrow_mut();
        if tree.is_dir(&from) || tree.is_dir(&to) {
            return Err(access("rename", &from, ENOTDIR));
        }
        let entry = tree.entries.remove(&from).ok_or_else(|| access("rename", &from, ENOENT))?;
        tree.entries.insert(to, entry);
        Ok(())
    }

    fn remove_file(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        self.tree.borrow_mut().remove_file(&path)
    }

    fn remove_dir(&self, name: &str) -> Result<()> {
        let path = self.path(name)?;
        self.tree.borrow_mut().remove_dir(&path)
    }

    fn own(&self, walk: &OwnershipWalk) -> Result<Owned> {
        let walk = OwnershipWalk { root: self.root.clone(), ..walk.clone() };
        self.tree.borrow_mut().own(&walk, &Progress::default())
    }
}
