//! emptyDir.

use std::fs;

use serde_json::{Value, json};

use stowage_mount::FileKind;
use stowage_plugins::plugin::{Expand, Expanded};

use crate::machine::{Asked, Machine, UID, mode, mounted, on_a_machine};

fn empty_dir(source: Value) -> Asked {
    Asked::inline("emptyDir", source, Value::Null)
}

fn ready_mark(machine: &Machine, name: &str) -> std::path::PathBuf {
    machine.root.join("pods").join(UID).join("plugins/kubernetes.io~empty-dir").join(name).join("ready")
}

#[test]
fn row_132_a_directory_has_the_mode_that_is_asked_for_or_0777() {
    on_a_machine(async |machine| {
        let dir = machine.volume_dir("empty-dir", "v");
        for (source, expected) in [
            (json!({}), 0o777),
            (json!({ "mode": 0o750 }), 0o750),
            (json!({ "mode": 0o1777 }), 0o1777),
            (json!({ "mode": 0o6755 }), 0o755),
        ] {
            let (asked, (host, _)) = (empty_dir(source), machine.host(None));
            machine.set_up(&host, &asked).await.unwrap();
            assert_eq!(mode(&dir), expected);
            assert!(ready_mark(&machine, "v").is_file());
            machine.tear_down(&host, &asked).await.unwrap();
        }
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

#[test]
fn what_a_pod_wrote_stays_when_set_up_is_repeated_and_goes_with_it() {
    on_a_machine(async |machine| {
        let (asked, (host, count)) = (empty_dir(json!({})), machine.host(None));
        let dir = machine.volume_dir("empty-dir", "v");
        machine.set_up(&host, &asked).await.unwrap();
        fs::write(dir.join("file"), b"x").unwrap();
        std::os::unix::fs::symlink("/etc", dir.join("etc")).unwrap();
        let before = count.changes().len();
        machine.set_up(&host, &asked).await.unwrap();
        assert_eq!(count.changes().len(), before, "a complete volume is not touched");
        assert!(dir.join("file").is_file());
        // Somebody removed the directory, but not the mark.
        fs::remove_dir_all(&dir).unwrap();
        machine.set_up(&host, &asked).await.unwrap();
        assert_eq!(mode(&dir), 0o777);
        fs::create_dir_all(dir.join("a/b/c")).unwrap();
        let stats = machine.plugin(&asked);
        let stats = stats.metrics().unwrap().stats(&host, &asked.spec, &dir).await.unwrap();
        assert_eq!(stats.inodes_used, Some(4));
        machine.tear_down(&host, &asked).await.unwrap();
        assert!(std::path::Path::new("/etc/passwd").try_exists().unwrap() && machine.left().is_empty());
    });
}

#[test]
fn a_directory_in_memory_is_a_tmpfs_of_the_size_that_is_asked_for_and_can_grow() {
    on_a_machine(async |machine| {
        let asked = empty_dir(json!({ "medium": "Memory", "sizeLimit": "2Mi", "mode": 0o750 }));
        let (host, _) = machine.host(None);
        let dir = machine.volume_dir("empty-dir", "v");
        machine.set_up(&host, &asked).await.unwrap();
        machine.set_up(&host, &asked).await.unwrap();
        let mount = mounted(&dir).unwrap();
        assert_eq!((mount.fs_type.as_str(), mode(&dir)), ("tmpfs", 0o750));
        assert!(mount.super_options.contains(&"size=2048k".to_owned()), "{mount:?}");
        assert!(fs::write(dir.join("big"), vec![0; 3 << 20]).is_err());
        fs::remove_file(dir.join("big")).unwrap();

        let plugin = machine.plugin(&asked);
        let grow = |new_size| Expand { spec: &asked.spec, volume_path: &dir, new_size };
        let expander = plugin.expander().unwrap();
        assert!(expander.expand(&host, &grow(0)).await.is_err(), "row 133: no size");
        assert_eq!(expander.expand(&host, &grow(8 << 20)).await.unwrap(), Expanded::Done);
        fs::write(dir.join("big"), vec![0; 3 << 20]).unwrap();
        let disk = empty_dir(json!({}));
        let on_disk = Expand { spec: &disk.spec, volume_path: &dir, new_size: 1 };
        assert!(expander.expand(&host, &on_disk).await.is_err(), "row 133: a disk has no size");
        let figures = plugin.metrics().unwrap().stats(&host, &asked.spec, &dir).await.unwrap();
        assert_eq!(figures.capacity_bytes, Some(8 << 20));
        assert!(figures.used_bytes.unwrap() >= 3 << 20);

        machine.tear_down(&host, &asked).await.unwrap();
        assert!(expander.expand(&host, &grow(1 << 20)).await.is_err(), "row 133: not mounted");
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

#[test]
fn without_its_spec_a_volume_in_memory_is_known_by_its_file_system() {
    on_a_machine(async |machine| {
        let (host, _) = machine.host(None);
        machine.set_up(&host, &empty_dir(json!({ "medium": "Memory" }))).await.unwrap();
        // After a restart nobody knows the medium.
        machine.tear_down(&host, &empty_dir(json!({}))).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

#[test]
fn files_of_a_volume_in_use_keep_it_and_say_so() {
    on_a_machine(async |machine| {
        let asked = empty_dir(json!({ "medium": "Memory" }));
        let (host, _) = machine.host(None);
        machine.set_up(&host, &asked).await.unwrap();
        let open = fs::File::create(machine.volume_dir("empty-dir", "v").join("open")).unwrap();
        let fault = machine.tear_down(&host, &asked).await.unwrap_err();
        assert!(fault.message.contains("in use"), "{fault}");
        drop(open);
        machine.tear_down(&host, &asked).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

#[test]
fn the_pods_group_gets_the_directory_and_an_unknown_medium_is_refused_before_anything_is_made() {
    on_a_machine(async |machine| {
        let (host, _) = machine.host(None);
        let asked = Asked::inline("emptyDir", json!({}), json!({ "securityContext": { "fsGroup": 4321 } }));
        machine.set_up(&host, &asked).await.unwrap();
        let dir = machine.volume_dir("empty-dir", "v");
        let found = host.mounter.stat(&dir).await.unwrap().unwrap();
        assert_eq!((found.kind, found.gid, found.mode), (FileKind::Directory, 4321, 0o2777));
        machine.tear_down(&host, &asked).await.unwrap();
        let fault = machine.set_up(&host, &empty_dir(json!({ "medium": "Paper" }))).await.unwrap_err();
        assert!(fault.message.contains("\"Paper\""), "{fault}");
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}
