//! FlexVolume.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use stowage_model::object::kinds;
use stowage_plugins::flex::{FlexDrivers, LocalPrograms, watch};
use stowage_plugins::plugin::{Expand, Expanded};

use crate::machine::{Asked, Machine, mounted, on_a_machine};

/// A driver that mounts a tmpfs with its options in a file, and writes down what it is asked.
pub fn install(dir: &Path, name: &str) {
    let folder = dir.join(format!("example~{name}"));
    fs::create_dir_all(&folder).unwrap();
    let script = format!(
        r#"#!/bin/sh
echo "$1" >> {log}
case "$1" in
init) echo '{{"status":"Success","capabilities":{{"attach":false,"supportsMetrics":true}}}}' ;;
mount) mount -t tmpfs tmpfs "$2" && printf '%s' "$3" > "$2/options" && echo '{{"status":"Success"}}' ;;
*) echo '{{"status":"Not supported"}}' ;;
esac
"#,
        log = dir.join("log").display()
    );
    program(&folder.join(name), &script);
}

/// Puts a program there, at once and whole. It is written by another process: a file that this one had open for writing is
/// busy (ETXTBSY) for as long as a program that another test starts has a copy of what was open.
fn program(path: &Path, script: &str) {
    let aside = tempfile::tempdir_in(path.ancestors().nth(3).unwrap()).unwrap();
    let (text, made) = (aside.path().join("text"), aside.path().join("made"));
    fs::write(&text, script).unwrap();
    let copied = Command::new("install").args(["-m", "755"]).args([&text, &made]).status().unwrap();
    assert!(copied.success());
    fs::rename(made, path).unwrap();
}

fn asked(driver: &str, more: Value) -> Asked {
    let mut source = json!({ "driver": driver, "fsType": "ext4", "options": { "share": "a" } });
    for (field, value) in more.as_object().into_iter().flatten() {
        source[field] = value.clone();
    }
    Asked::inline("flexVolume", source, Value::Null)
}

fn volume_dir(machine: &Machine) -> std::path::PathBuf {
    machine.root.join("pods").join(crate::machine::UID).join("volumes/example~lvm/v")
}

#[test]
fn row_146_drivers_come_and_go_with_their_programs() {
    on_a_machine(async |machine| {
        let dir = machine.dir.join("drivers");
        let mut drivers = FlexDrivers::new(&dir, Arc::new(LocalPrograms));
        drivers.sync(&machine.plugins).await;
        assert!(machine.plugins.by_name("example/lvm").is_none());
        install(&dir, "lvm");
        fs::create_dir_all(dir.join("no-vendor")).unwrap();
        fs::create_dir_all(dir.join("example~empty")).unwrap();
        drivers.sync(&machine.plugins).await;
        assert!(machine.plugins.by_name("example/lvm").is_some() && machine.plugins.by_name("example/empty").is_none());
        fs::remove_dir_all(dir.join("example~lvm")).unwrap();
        drivers.sync(&machine.plugins).await;
        assert!(machine.plugins.by_name("example/lvm").is_none());
        install(&dir, "lvm");
        drivers.sync(&machine.plugins).await;
        assert!(machine.plugins.by_name("example/lvm").is_some());
    });
}

#[test]
fn drivers_stay_while_their_directory_cannot_be_read() {
    on_a_machine(async |machine| {
        let dir = machine.dir.join("drivers");
        let mut drivers = FlexDrivers::new(&dir, Arc::new(LocalPrograms));
        install(&dir, "lvm");
        std::os::unix::fs::symlink("loop", dir.join("example~lost")).unwrap();
        std::os::unix::fs::symlink("example~lost", dir.join("loop")).unwrap();
        drivers.sync(&machine.plugins).await;
        assert!(machine.plugins.by_name("example/lvm").is_some());
        let aside = machine.dir.join("aside");
        fs::rename(&dir, &aside).unwrap();
        std::os::unix::fs::symlink(&dir, &dir).unwrap();
        assert!(!drivers.sync(&machine.plugins).await, "a look that failed changed something");
        assert!(machine.plugins.by_name("example/lvm").is_some());
        fs::remove_file(&dir).unwrap();
        drivers.sync(&machine.plugins).await;
        assert!(machine.plugins.by_name("example/lvm").is_none());
    });
}

#[test]
fn a_driver_that_cannot_be_looked_at_stays_as_it_was_and_keeps_no_other_away() {
    on_a_machine(async |machine| {
        let dir = machine.dir.join("drivers");
        let mut drivers = FlexDrivers::new(&dir, Arc::new(LocalPrograms));
        install(&dir, "lvm");
        drivers.sync(&machine.plugins).await;
        // No file can have a name like that (ENAMETOOLONG), which is not the same as not being there.
        let unreadable = |folder: &str| {
            fs::create_dir_all(dir.join(folder)).unwrap();
            std::os::unix::fs::symlink("x".repeat(300), dir.join(folder).join(folder.split_once('~').unwrap().1))
                .unwrap();
        };
        fs::rename(dir.join("example~lvm/lvm"), dir.join("example~lvm/aside")).unwrap();
        unreadable("example~lvm");
        unreadable("example~other");
        install(&dir, "new");
        assert!(drivers.sync(&machine.plugins).await, "the new one was kept away");
        let has = |name: &str| machine.plugins.by_name(name).is_some();
        assert!(has("example/lvm") && has("example/new") && !has("example/other"));
        fs::remove_dir_all(dir.join("example~lvm")).unwrap();
        drivers.sync(&machine.plugins).await;
        assert!(machine.plugins.by_name("example/lvm").is_none());
    });
}

#[test]
fn row_146_the_directory_is_watched_also_when_it_is_removed_and_made_again() {
    on_a_machine(async |machine| {
        let dir = machine.dir.join("exec/drivers");
        let plugins = Arc::new(machine.plugins);
        let drivers = FlexDrivers::new(&dir, Arc::new(LocalPrograms));
        let until = async |there: bool| {
            while plugins.by_name("example/lvm").is_some() != there {
                tokio::task::yield_now().await;
            }
        };
        let life = async {
            // What comes after the look is found by the watch alone.
            while !dir.try_exists().unwrap() {
                tokio::task::yield_now().await;
            }
            for _ in 0..3 {
                install(&dir, "lvm");
                until(true).await;
                fs::remove_dir_all(&dir).unwrap();
                until(false).await;
            }
        };
        tokio::select! {
            biased;
            ended = watch(drivers, plugins.clone(), || {}) => panic!("{ended:?}"),
            ended = tokio::time::timeout(Duration::from_secs(300), life) => ended.expect("the watch did not see it"),
        }
    });
}

#[test]
fn a_driver_mounts_with_its_options_and_what_it_cannot_do_is_done_the_usual_way() {
    on_a_machine(async |machine| {
        let dir = machine.dir.join("drivers");
        install(&dir, "lvm");
        FlexDrivers::new(&dir, Arc::new(LocalPrograms)).sync(&machine.plugins).await;
        let (host, _) = machine.host(None);
        let secret = |kind: &str, name: &str| {
            json!({
                "metadata": { "name": name, "namespace": "default" }, "type": kind, "data": { "password": "aHVudGVyMg==" },
            })
        };
        machine.create(kinds::SECRET, secret("example/lvm", "right")).await;
        machine.create(kinds::SECRET, secret("Opaque", "wrong")).await;
        let fault = machine.set_up(&host, &asked("example/lvm", json!({ "secretRef": { "name": "wrong" } }))).await;
        assert!(fault.unwrap_err().message.contains("\"example/lvm\"") && machine.left().is_empty());

        let asked = asked("example/lvm", json!({ "secretRef": { "name": "right" } }));
        machine.set_up(&host, &asked).await.unwrap();
        machine.set_up(&host, &asked).await.unwrap();
        let at = volume_dir(&machine);
        assert_eq!(mounted(&at).unwrap().fs_type, "tmpfs");
        let told: Value = serde_json::from_slice(&fs::read(at.join("options")).unwrap()).unwrap();
        assert_eq!(
            told,
            json!({
                "kubernetes.io/fsType": "ext4", "kubernetes.io/readwrite": "rw", "kubernetes.io/pvOrVolumeName": "v",
                "kubernetes.io/pod.name": "p", "kubernetes.io/pod.namespace": "default", "kubernetes.io/pod.uid": "0a1b",
                "kubernetes.io/serviceAccount.name": "default", "kubernetes.io/secret/password": "aHVudGVyMg==", "share": "a",
            })
        );
        machine.tear_down(&host, &asked).await.unwrap();
        machine.tear_down(&host, &asked).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new());
        let calls = fs::read_to_string(dir.join("log")).unwrap();
        assert_eq!(calls.lines().collect::<Vec<_>>(), ["init", "mount", "unmount"]);
    });
}

#[test]
fn a_driver_that_does_not_have_a_call_is_asked_once_until_its_program_is_another() {
    on_a_machine(async |machine| {
        let dir = machine.dir.join("drivers");
        install(&dir, "lvm");
        let mut drivers = FlexDrivers::new(&dir, Arc::new(LocalPrograms));
        drivers.sync(&machine.plugins).await;
        let (host, _) = machine.host(None);
        let asked = asked("example/lvm", Value::Null);
        let mut expected = vec!["init", "mount", "unmount", "mount", "mount"];
        for _ in 0..3 {
            machine.set_up(&host, &asked).await.unwrap();
            machine.tear_down(&host, &asked).await.unwrap();
        }
        let calls = || fs::read_to_string(dir.join("log")).unwrap();
        assert_eq!(calls().lines().collect::<Vec<_>>(), expected);
        fs::remove_dir_all(dir.join("example~lvm")).unwrap();
        drivers.sync(&machine.plugins).await;
        install(&dir, "lvm");
        drivers.sync(&machine.plugins).await;
        machine.set_up(&host, &asked).await.unwrap();
        machine.tear_down(&host, &asked).await.unwrap();
        expected.extend(["init", "mount", "unmount"]);
        assert_eq!(calls().lines().collect::<Vec<_>>(), expected);
    });
}

#[test]
fn a_volume_grows_first_as_the_driver_does_it_and_then_its_file_system() {
    on_a_machine(async |machine| {
        let (dir, at) = (machine.dir.join("drivers"), machine.dir.join("grown"));
        fs::create_dir(&at).unwrap();
        let (host, _) = machine.host(None);
        let size = host.mounter.usage(&at).await.unwrap().total_bytes;
        let mut drivers = FlexDrivers::new(&dir, Arc::new(LocalPrograms));
        for (name, resizes, has, ended, calls) in [
            ("both", true, "expandvolume|expandfs", Expanded::Done, vec!["expandvolume", "expandfs"]),
            ("volume", false, "expandvolume", Expanded::Done, vec!["expandvolume"]),
            ("neither", false, "none", Expanded::NotSupported, vec!["expandvolume"]),
        ] {
            let folder = dir.join(format!("example~{name}"));
            fs::create_dir_all(&folder).unwrap();
            let script = format!(
                r#"#!/bin/sh
case "$1" in
init) echo '{{"status":"Success","capabilities":{{"attach":false,"requiresFSResize":{resizes}}}}}' ;;
*) printf '%s|%s|%s|%s\n' "$1" "$3" "$4" "$5" >> {log}
  case "$1" in
  {has}) echo '{{"status":"Success"}}' ;;
  *) echo '{{"status":"Not supported"}}' ;;
  esac ;;
esac
"#,
                log = folder.join("log").display()
            );
            program(&folder.join(name), &script);
            drivers.sync(&machine.plugins).await;
            let driver = format!("example/{name}");
            let asked = Asked::persistent(json!({ "flexVolume": { "driver": driver } }), false, Value::Null);
            let plugin = machine.plugin(&asked);
            let grow = Expand { spec: &asked.spec, volume_path: &at, new_size: 2 << 30 };
            assert_eq!(plugin.expander().unwrap().expand(&host, &grow).await.unwrap(), ended, "{name}");
            let log = fs::read_to_string(folder.join("log")).unwrap();
            let device_dir = machine.root.join("plugins/kubernetes.io/flexvolume").join(&driver).join("mounts/pv");
            let expected: Vec<String> = calls
                .into_iter()
                .map(|call| match call {
                    "expandfs" => format!("{call}||{}|{}", at.display(), 2_u64 << 30),
                    _ => format!("{call}|{}|{}|{size}", device_dir.display(), 2_u64 << 30),
                })
                .collect();
            assert_eq!(log.lines().collect::<Vec<_>>(), expected, "{name}");
        }
    });
}
