//! What a command is shown in a mount namespace of its own.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use stowage_mount::{Error, MountTable, Shown, enter};

use crate::in_own_namespace;

fn shown(from: &Path, at: &Path, read_only: bool) -> Shown {
    Shown { from: from.to_owned(), at: at.to_owned(), read_only }
}

/// Does something where these are shown, and nowhere else.
fn inside<T: Send + 'static>(shown: Vec<Shown>, work: impl FnOnce() -> T + Send + 'static) -> Result<T, Error> {
    std::thread::spawn(move || enter(&shown).map(|()| work())).join().unwrap()
}

#[test]
fn volumes_are_shown_in_each_other_with_what_is_mounted_in_them_and_to_nobody_else() {
    in_own_namespace(async |root| {
        let [outer, inner, at] = ["outer", "inner", "at"].map(|name| root.join(name));
        for directory in [&outer, &inner, &at] {
            fs::create_dir(directory).unwrap();
        }
        fs::write(inner.join("file"), "inner").unwrap();
        fs::create_dir(outer.join("below")).unwrap();
        nix::mount::mount(Some("t"), &outer.join("below"), Some("tmpfs"), nix::mount::MsFlags::empty(), None::<&str>)
            .unwrap();
        fs::write(outer.join("below/file"), "below").unwrap();
        symlink(&inner, root.join("link")).unwrap();
        let volumes = vec![
            shown(&outer, &at, false),
            shown(&root.join("link"), &at.join("new/dir"), true),
            shown(&inner.join("file"), &at.join("new/file"), false),
            // It hides where the others are.
            shown(&inner, &root.join("outer"), false),
        ];
        let seen = at.clone();
        let told = inside(volumes, move || {
            let read = |name: &str| fs::read_to_string(seen.join(name)).unwrap_or_else(|error| error.to_string());
            let refused = fs::write(seen.join("new/dir/file"), "x").is_err();
            fs::write(seen.join("data"), "written").unwrap();
            let processes = fs::read_dir("/proc/self/task").is_ok();
            (["below/file", "new/dir/file", "new/file"].map(read), refused, processes)
        });
        let (read, refused, processes) = told.unwrap();
        assert_eq!(read, ["below", "inner", "inner"]);
        assert!(refused && processes);
        assert_eq!(fs::read_to_string(outer.join("data")).unwrap(), "written");
        assert!(outer.join("new/dir").is_dir(), "made in the volume, as a container's are");
        assert!(MountTable::read().unwrap().under(&at).next().is_none(), "somebody else sees it");
        nix::mount::umount(&outer.join("below")).unwrap();
    });
}

#[test]
fn what_is_mounted_in_a_volume_is_read_only_with_it() {
    in_own_namespace(async |root| {
        let (volume, at) = (root.join("volume"), root.join("at"));
        fs::create_dir_all(volume.join("below")).unwrap();
        let flags = nix::mount::MsFlags::empty();
        nix::mount::mount(Some("t"), &volume.join("below"), Some("tmpfs"), flags, None::<&str>).unwrap();
        let write = {
            let at = at.clone();
            move || fs::write(at.join("below/x"), "x").map_err(|error| error.kind())
        };
        let written = inside(vec![shown(&volume, &at, true)], write).unwrap();
        assert_eq!(written, Err(std::io::ErrorKind::ReadOnlyFilesystem));
        fs::write(volume.join("below/x"), "x").expect("it is read-only there alone");
        nix::mount::umount(&volume.join("below")).unwrap();
    });
}

#[test]
fn a_link_in_a_volume_leads_nowhere_and_a_file_is_not_shown_on_a_directory() {
    in_own_namespace(async |root| {
        let [volume, other, at, victim] = ["volume", "other", "at", "victim"].map(|name| root.join(name));
        for directory in [&volume, &other, &at, &victim] {
            fs::create_dir(directory).unwrap();
        }
        symlink(&victim, volume.join("a")).unwrap();
        let way = |name: &str| vec![shown(&volume, &at, false), shown(&other, &at.join(name), false)];
        for name in ["a", "a/b"] {
            assert!(inside(way(name), || ()).is_err(), "{name}");
        }
        assert_eq!(fs::read_dir(&victim).unwrap().count(), 0, "something was made outside");
        fs::write(root.join("file"), "").unwrap();
        let error = inside(vec![shown(&root.join("file"), &at, false)], || ()).unwrap_err().to_string();
        assert!(error.contains("a directory is there"), "{error}");
        let error = inside(vec![shown(&volume, &root.join("file"), false)], || ()).unwrap_err().to_string();
        assert!(error.contains("the volume is a directory"), "{error}");
    });
}
