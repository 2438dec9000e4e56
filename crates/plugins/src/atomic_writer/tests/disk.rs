//! A folder in memory that keeps every state between two system calls, and can stop at any of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use stowage_mount::{DirEntry, Error, FileKind, Folder, Owned, OwnershipWalk, Result};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Node {
    Directory { mode: u32 },
    File { data: Vec<u8>, mode: u32, uid: u32, gid: u32 },
    Link { to: String, uid: u32 },
}

impl Node {
    pub(super) fn contents(&self) -> Option<Vec<u8>> {
        match self {
            Node::File { data, .. } => Some(data.clone()),
            _ => None,
        }
    }

    pub(super) fn forget_group(&mut self) {
        match self {
            Node::Directory { mode } => *mode = 0o755,
            Node::File { mode, gid, .. } => (*mode, *gid) = (0o644, 0),
            Node::Link { .. } => {}
        }
    }
}

/// Everything in the folder, by its path.
pub(super) type State = BTreeMap<String, Node>;

#[derive(Default)]
pub(super) struct Disk {
    states: RefCell<Vec<State>>,
    stop: Cell<Option<usize>>,
}

impl Disk {
    pub(super) fn state(&self) -> State {
        self.states.borrow().last().cloned().unwrap_or_default()
    }

    /// Every state there was, the first included.
    pub(super) fn states(&self) -> Vec<State> {
        self.states.borrow().clone()
    }

    /// The same disk, whose history begins now.
    pub(super) fn forget(self) -> Self {
        Disk { states: RefCell::new(vec![self.state()]), stop: Cell::default() }
    }

    /// Lets nothing more be changed after so many system calls.
    pub(super) fn stopping_at(self, step: usize) -> Self {
        self.stop.set(Some(step));
        self
    }

    pub(super) fn revived(self) -> Self {
        self.stop.set(None);
        self.forget()
    }

    /// What somebody else does.
    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        *self.states.borrow_mut() = vec![state];
    }

    /// One system call.
    fn call(&self, change: impl FnOnce(&mut State) -> Result<()>) -> Result<()> {
        let done = self.states.borrow().len().saturating_sub(1);
        if self.stop.get().is_some_and(|stop| done >= stop) {
            return Err(Error::Stopped { at: done as u64 });
        }
        let mut state = self.state();
        change(&mut state)?;
        let mut states = self.states.borrow_mut();
        if states.is_empty() {
            states.push(State::new());
        }
        states.push(state);
        Ok(())
    }

    fn insert(&self, name: &str, node: Node) -> Result<()> {
        self.call(|state| {
            let parent = name.rsplit_once('/').map(|(parent, _)| parent);
            if state.contains_key(name)
                || !parent.is_none_or(|parent| matches!(state.get(parent), Some(Node::Directory { .. })))
            {
                return Err(refused(name));
            }
            state.insert(name.into(), node);
            Ok(())
        })
    }

    fn edit(&self, name: &str, edit: impl FnOnce(&mut Node)) -> Result<()> {
        self.call(|state| state.get_mut(name).map(edit).ok_or_else(|| refused(name)))
    }
}

fn refused(name: &str) -> Error {
    Error::AccessFile { action: "change", path: name.into(), source: io::Error::other("refused") }
}

impl Folder for Disk {
    fn read_link(&self, name: &str) -> Result<Option<PathBuf>> {
        Ok(self
            .state()
            .get(name)
            .and_then(|node| if let Node::Link { to, .. } = node { Some(to.into()) } else { None }))
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.state().get(name).and_then(Node::contents))
    }

    fn list(&self, name: &str) -> Result<Option<Vec<DirEntry>>> {
        let state = self.state();
        if !name.is_empty() && !matches!(state.get(name), Some(Node::Directory { .. })) {
            return Ok(None);
        }
        let prefix = if name.is_empty() { String::new() } else { format!("{name}/") };
        let inside = state.iter().filter_map(|(path, node)| Some((path.strip_prefix(&prefix)?, node)));
        let entries = inside.filter(|(path, _)| !path.contains('/')).map(|(path, node)| {
            let kind = match node {
                Node::Directory { .. } => FileKind::Directory,
                Node::File { .. } => FileKind::File,
                Node::Link { .. } => FileKind::Link,
            };
            DirEntry { name: path.into(), kind }
        });
        Ok(Some(entries.collect()))
    }

    fn make_dir(&self, name: &str, wanted: u32) -> Result<()> {
        self.insert(name, Node::Directory { mode: 0o700 })?;
        self.edit(name, |node| *node = Node::Directory { mode: wanted })
    }

    fn write_new(&self, name: &str, contents: &[u8], wanted: u32, owner: Option<u32>) -> Result<()> {
        self.insert(name, Node::File { data: Vec::new(), mode: 0o600, uid: 0, gid: 0 })?;
        for end in [contents.len() / 2, contents.len()] {
            self.edit(name, |node| {
                if let Node::File { data, .. } = node {
                    *data = contents[..end].into()
                }
            })?;
        }
        if let Some(owner) = owner {
            self.edit(name, |node| {
                if let Node::File { uid, .. } = node {
                    *uid = owner
                }
            })?;
        }
        self.edit(name, |node| {
            if let Node::File { mode, .. } = node {
                *mode = wanted
            }
        })
    }

    fn symlink(&self, to: &str, name: &str, owner: Option<u32>) -> Result<()> {
        self.insert(name, Node::Link { to: to.into(), uid: 0 })?;
        match owner {
            None => Ok(()),
            Some(owner) => self.edit(name, |node| {
                if let Node::Link { uid, .. } = node {
                    *uid = owner
                }
            }),
        }
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.call(|state| {
            let node = state.remove(from).ok_or_else(|| refused(from))?;
            if matches!(state.get(to), Some(Node::Directory { .. })) {
                return Err(refused(to));
            }
            state.insert(to.into(), node);
            Ok(())
        })
    }

    fn remove_file(&self, name: &str) -> Result<()> {
        match self.state().get(name) {
            None => Ok(()),
            Some(Node::Directory { .. }) => Err(refused(name)),
            Some(_) => self.call(|state| {
                state.remove(name);
                Ok(())
            }),
        }
    }

    fn remove_dir(&self, name: &str) -> Result<()> {
        self.call(|state| {
            if state.keys().any(|path| path.starts_with(&format!("{name}/"))) {
                return Err(refused(name));
            }
            state.remove(name);
            Ok(())
        })
    }

    fn own(&self, walk: &OwnershipWalk) -> Result<Owned> {
        for name in self.state().keys() {
            self.edit(name, |node| match node {
                Node::Directory { mode } => *mode = walk.wanted_mode(*mode, true),
                Node::File { mode, gid, .. } => (*mode, *gid) = (walk.wanted_mode(*mode, false), walk.gid),
                Node::Link { .. } => {}
            })?;
        }
        Ok(Owned::default())
    }
}
