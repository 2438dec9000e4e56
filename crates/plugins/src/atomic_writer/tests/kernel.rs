//! The same on real directories.

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use stowage_mount::{LinuxMounter, Owned, Result};

use super::*;

fn block_on<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
}

fn put(directory: &Path, payload: &Payload, number: u32) -> Result<Written, Error> {
    block_on(write(&LinuxMounter, directory, update(payload, number)))
}

/// Every file a pod sees, with its contents.
fn seen(directory: &Path) -> BTreeMap<String, Vec<u8>> {
    fn collect(directory: &Path, below: &str, found: &mut BTreeMap<String, Vec<u8>>) {
        for entry in fs::read_dir(directory).unwrap().map(|entry| entry.unwrap()) {
            let name = entry.file_name().into_string().unwrap();
            if below.is_empty() && name.starts_with("..") {
                continue;
            }
            let path = if below.is_empty() { name } else { format!("{below}/{name}") };
            match fs::metadata(entry.path()) {
                Ok(about) if about.is_dir() => collect(&entry.path(), &path, found),
                Ok(_) => _ = found.insert(path, fs::read(entry.path()).unwrap()),
                // A name whose file is gone.
                Err(_) => {}
            }
        }
    }
    let mut found = BTreeMap::new();
    collect(directory, "", &mut found);
    found
}

fn names(directory: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn row_139_every_change_is_seen_on_a_real_disk_with_its_modes() {
    for (name, old, new) in changes() {
        let dir = tempfile::tempdir().unwrap();
        put(dir.path(), &old, 1).unwrap();
        assert_eq!(seen(dir.path()), contents(&old), "{name}");
        put(dir.path(), &new, 2).unwrap();
        assert_eq!(seen(dir.path()), contents(&new), "{name}");
        assert_eq!(put(dir.path(), &new, 3).unwrap(), Written::Unchanged, "{name}");
        let reserved = names(dir.path()).into_iter().filter(|name| name.starts_with("..")).collect::<Vec<_>>();
        assert_eq!(reserved, ["..2026_11_18_02_00_00.2", DATA], "{name}");
        let made = fs::metadata(dir.path().join("..2026_11_18_02_00_00.2")).unwrap();
        assert_eq!(made.mode() & 0o7777, 0o755, "{name}");
    }
}

#[test]
fn row_139_binary_contents_and_strange_names_come_out_as_they_went_in() {
    let dir = tempfile::tempdir().unwrap();
    let mut all = Payload::new();
    let binary: Vec<u8> = (0..=255).cycle().take(1 << 20).collect();
    for name in ["-rf", "a b\n\t", ".hidden", "ключ", "x/..y", &"n".repeat(255), "$(reboot)", "\\", "*"] {
        all.insert(name.to_owned(), FileProjection { data: binary.clone(), mode: 0o4711, uid: None });
    }
    put(dir.path(), &all, 1).unwrap();
    assert_eq!(seen(dir.path()), contents(&all));
    assert_eq!(fs::metadata(dir.path().join("-rf")).unwrap().mode() & 0o7777, 0o4711);
    put(dir.path(), &Payload::new(), 2).unwrap();
    assert_eq!(seen(dir.path()), BTreeMap::new());
}

#[test]
fn row_139_links_that_somebody_planted_are_never_followed_out() {
    let (dir, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (volume, precious) = (dir.path(), outside.path().join("precious"));
    fs::write(&precious, b"data").unwrap();
    fs::create_dir(outside.path().join("inner")).unwrap();
    let all = payload(&[("a", "1"), ("d/e", "1")]);
    let check = |what: &str| {
        assert_eq!(fs::read(&precious).unwrap(), b"data", "{what}");
        assert_eq!(names(outside.path()), ["inner", "precious"], "{what}");
        assert_eq!(fs::metadata(&precious).unwrap().mode() & 0o777, 0o644, "{what}");
    };
    let mut permissions = fs::metadata(&precious).unwrap().permissions();
    std::os::unix::fs::PermissionsExt::set_mode(&mut permissions, 0o644);
    fs::set_permissions(&precious, permissions).unwrap();

    for (planted, name) in [(DATA, DATA), (DATA_WAITING, DATA_WAITING), (LINK_WAITING, LINK_WAITING), ("name", "a")] {
        for to in [outside.path().to_owned(), precious.clone(), PathBuf::from("../../../../etc"), PathBuf::from(".")] {
            fs::remove_dir_all(volume).unwrap();
            fs::create_dir(volume).unwrap();
            symlink(&to, volume.join(name)).unwrap();
            put(volume, &all, 1).unwrap();
            assert_eq!(seen(volume), contents(&all), "{planted} {to:?}");
            check(planted);
        }
    }
    // In the place of the directory that is written to, of the one that is shown, and in it.
    for name in ["..2026_11_18_02_00_00.2", "..2026_11_18_02_00_00.1", "..2026_11_18_02_00_00.1/d"] {
        put(volume, &all, 1).unwrap();
        let _ = fs::remove_dir_all(volume.join(name));
        symlink(outside.path(), volume.join(name)).unwrap();
        let next = payload(&[("a", "2"), ("d/e", "2")]);
        put(volume, &next, 2).unwrap();
        assert_eq!(seen(volume), contents(&next), "{name}");
        check(name);
        fs::remove_dir_all(volume).unwrap();
        fs::create_dir(volume).unwrap();
    }
    // A directory where a link belongs is ours to replace if its name is.
    fs::create_dir_all(volume.join(DATA).join("deep")).unwrap();
    symlink(outside.path(), volume.join(DATA).join("deep/out")).unwrap();
    put(volume, &all, 1).unwrap();
    assert_eq!(seen(volume), contents(&all));
    check("a directory");
    // The volume itself.
    let link = outside.path().join("inner/link");
    symlink(volume, &link).unwrap();
    assert!(matches!(put(&link, &all, 9), Err(Error::Write { .. })));
}

/// Stops after so many changes.
struct Dying<'a> {
    inner: &'a dyn Folder,
    left: Cell<usize>,
}

impl Dying<'_> {
    fn change<T>(&self, change: impl FnOnce(&dyn Folder) -> Result<T>) -> Result<T> {
        match self.left.get().checked_sub(1) {
            None => Err(stowage_mount::Error::Stopped { at: 0 }),
            Some(left) => {
                self.left.set(left);
                change(self.inner)
            }
        }
    }
}

impl Folder for Dying<'_> {
    fn read_link(&self, name: &str) -> Result<Option<PathBuf>> {
        self.inner.read_link(name)
    }
    fn read(&self, name: &str) -> Result<Option<Vec<u8>>> {
        self.inner.read(name)
    }
    fn list(&self, name: &str) -> Result<Option<Vec<DirEntry>>> {
        self.inner.list(name)
    }
    fn make_dir(&self, name: &str, mode: u32) -> Result<()> {
        self.change(|folder| folder.make_dir(name, mode))
    }
    fn write_new(&self, name: &str, contents: &[u8], mode: u32, uid: Option<u32>) -> Result<()> {
        self.change(|folder| folder.write_new(name, contents, mode, uid))
    }
    fn symlink(&self, to: &str, name: &str, uid: Option<u32>) -> Result<()> {
        self.change(|folder| folder.symlink(to, name, uid))
    }
    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.change(|folder| folder.rename(from, to))
    }
    fn remove_file(&self, name: &str) -> Result<()> {
        self.change(|folder| folder.remove_file(name))
    }
    fn remove_dir(&self, name: &str) -> Result<()> {
        self.change(|folder| folder.remove_dir(name))
    }
    fn own(&self, walk: &OwnershipWalk) -> Result<Owned> {
        self.change(|folder| folder.own(walk))
    }
}

#[test]
fn row_139_a_crash_at_any_change_of_a_real_disk_is_mended_by_the_next_write() {
    let host: &dyn Mounter = &LinuxMounter;
    for (name, old, new) in changes() {
        for step in 0.. {
            let dir = tempfile::tempdir().unwrap();
            put(dir.path(), &old, 1).unwrap();
            let (sender, receiver) = std::sync::mpsc::channel();
            let next = update(&new, 2);
            let work = move |folder: &dyn Folder| {
                let dying = Dying { inner: folder, left: Cell::new(step) };
                sender.send(write_in(&dying, &next).is_ok()).unwrap();
            };
            block_on(host.in_folder(dir.path(), Box::new(work))).unwrap();
            let finished = receiver.recv().unwrap();
            let shown = fs::canonicalize(dir.path().join(DATA)).unwrap();
            let data = seen(&shown);
            assert!(data == contents(&old) || data == contents(&new), "{name} {step}");
            put(dir.path(), &new, 3).unwrap();
            assert_eq!(seen(dir.path()), contents(&new), "{name} {step}");
            assert_eq!(names(dir.path()).iter().filter(|name| name.starts_with("..")).count(), 2, "{name} {step}");
            if finished {
                break;
            }
        }
    }
}

#[test]
fn row_139_a_reader_that_runs_beside_the_writer_never_sees_a_mixture() {
    let dir = tempfile::tempdir().unwrap();
    let of = |number: u32| {
        let text = number.to_string();
        payload(&[("a", text.as_str()), ("b", text.as_str()), ("c/d", text.as_str())])
    };
    put(dir.path(), &of(0), 0).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let reader = {
        let (volume, stop) = (dir.path().to_owned(), stop.clone());
        std::thread::spawn(move || {
            let (mut whole, mut latest) = (0_u64, 0_u32);
            while !stop.load(Ordering::Relaxed) {
                let Ok(shown) = fs::canonicalize(volume.join(DATA)) else { continue };
                let read: Vec<_> =
                    ["a", "b", "c/d"].iter().filter_map(|path| fs::read(shown.join(path)).ok()).collect();
                assert!(read.windows(2).all(|pair| pair[0] == pair[1]), "{read:?}");
                whole += u64::from(read.len() == 3);
                if let Ok(one) = fs::read_to_string(volume.join("c/d")) {
                    let one: u32 = one.parse().unwrap();
                    assert!(one >= latest, "{one} after {latest}");
                    latest = one;
                }
            }
            whole
        })
    };
    for number in 1..300 {
        assert_eq!(put(dir.path(), &of(number), number).unwrap(), Written::Switched);
    }
    stop.store(true, Ordering::Relaxed);
    assert!(reader.join().unwrap() > 0);
}
