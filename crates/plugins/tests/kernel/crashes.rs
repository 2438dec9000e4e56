//! Whatever a crash leaves can be completed, and taken down.

use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Value, json};

use stowage_model::object::kinds;
use stowage_mount::{Counting, Stop};
use stowage_plugins::flex::{FlexDrivers, LocalPrograms};
use stowage_plugins::plugin::{MountDevice, UnmountDevice};
use stowage_plugins::{Fault, VolumeHost};

use crate::image::Layout;
use crate::machine::{Asked, Machine, UID, on_a_machine};
use crate::served::{self, Served};
use crate::{flex, local};

/// A volume, and what brings the machine back to the state before it.
struct Life<'a> {
    machine: &'a Machine,
    asked: Asked,
    reset: Box<dyn Fn() + 'a>,
    /// Whether its files go to the pod's group.
    is_given: bool,
}

impl<'a> Life<'a> {
    fn of(machine: &'a Machine, asked: Asked) -> Self {
        Self { machine, asked, reset: Box::new(|| {}), is_given: false }
    }

    fn with_reset(self, reset: impl Fn() + 'a) -> Self {
        Self { reset: Box::new(reset), ..self }
    }

    fn given(self) -> Self {
        Self { is_given: true, ..self }
    }

    fn host(&self, stop: Option<Stop>) -> (VolumeHost, Arc<Counting>) {
        let (mut host, count) = self.machine.host(stop);
        host.mounter = Arc::new(Served { inner: Arc::clone(&count), exported: self.machine.dir.join("exported") });
        (host, count)
    }

    /// Everything from nothing to a volume in the pod.
    async fn up(&self, host: &VolumeHost) -> Result<(), Fault> {
        let (plugin, asked) = (self.machine.plugin(&self.asked), &self.asked);
        if plugin.traits(&asked.spec, host).is_device_mountable {
            let request = MountDevice {
                spec: &asked.spec,
                pod: &asked.pod,
                device_path: "",
                fs_group: None,
                se_linux_label: None,
                is_reconstructed: false,
            };
            plugin.device_mounter().unwrap().mount_device(host, &request).await?;
        }
        self.machine.set_up(host, asked).await.map(drop)
    }

    /// And all the way back.
    async fn down(&self, host: &VolumeHost) -> Result<(), Fault> {
        let (plugin, asked) = (self.machine.plugin(&self.asked), &self.asked);
        self.machine.tear_down(host, asked).await?;
        if plugin.traits(&asked.spec, host).is_device_mountable {
            let volume = format!("{}/{}", plugin.name(), asked.spec.name).into();
            let request = UnmountDevice { volume: &volume, spec: &asked.spec };
            plugin.device_mounter().unwrap().unmount_device(host, &request).await?;
        }
        Ok(())
    }

    fn is_over(&self, after: &str) {
        assert_eq!(self.machine.left(), Vec::<String>::new(), "{}: {after}", self.asked.spec);
    }

    /// What a pod has asked for is there for it, also after the worst.
    fn is_whole(&self, host: &VolumeHost, after: &str) {
        if self.is_given {
            let plugin = self.machine.plugin(&self.asked);
            let root = plugin.mounter().unwrap().path(host, &self.asked.spec, UID);
            let found = fs::metadata(&root).unwrap();
            assert_eq!((found.gid(), found.mode() & 0o2070), (GROUP, 0o2070), "{}: {after}", self.asked.spec);
        }
    }

    /// Stops the way up at each of its changes, before and after it: going down leaves nothing, and going up succeeds.
    /// Stops the way down the same way: repeating it leaves nothing.
    async fn survives_crashes(&self) {
        let (host, count) = self.host(None);
        (self.reset)();
        self.up(&host).await.unwrap();
        self.is_whole(&host, "without a crash");
        let changes = count.changes().len() as u64;
        self.down(&host).await.unwrap();
        let undoing = count.changes().len() as u64 - changes;
        self.is_over("without a crash");
        let stops = |most: u64| (1..=most).flat_map(|at| [Stop::Before(at), Stop::After(at)]);
        for stop in stops(changes) {
            (self.reset)();
            let (dying, _) = self.host(Some(stop));
            assert!(self.up(&dying).await.is_err(), "{stop:?}");
            self.down(&host).await.unwrap();
            self.is_over(&format!("taken down after {stop:?}"));

            (self.reset)();
            let (dying, _) = self.host(Some(stop));
            assert!(self.up(&dying).await.is_err(), "{stop:?}");
            self.up(&host).await.unwrap();
            self.is_whole(&host, &format!("completed after {stop:?}"));
            self.up(&host).await.unwrap();
            self.down(&host).await.unwrap();
            self.is_over(&format!("completed after {stop:?}"));
        }
        for stop in stops(undoing) {
            self.up(&host).await.unwrap();
            let (dying, _) = self.host(Some(stop));
            assert!(self.down(&dying).await.is_err(), "{stop:?}");
            self.down(&host).await.unwrap();
            self.down(&host).await.unwrap();
            self.is_over(&format!("taken down again after {stop:?}"));
        }
    }
}

const GROUP: u32 = 777;

fn fs_group() -> Value {
    json!({ "securityContext": { "fsGroup": GROUP } })
}

#[test]
fn a_crash_at_any_change_of_any_plugin_is_survived() {
    on_a_machine(async |machine| {
        let data = json!({ "metadata": { "name": "c", "namespace": "default" }, "data": { "a": "1", "b": "2" } });
        machine.create(kinds::CONFIG_MAP, data).await;
        let data = json!({ "metadata": { "name": "s", "namespace": "default" }, "data": { "a": "AQ==" } });
        machine.create(kinds::SECRET, data).await;
        let exported = machine.dir.join("exported");
        fs::create_dir(&exported).unwrap();
        let (server, share) = served::real().unwrap_or_else(|| ("127.0.0.1".to_owned(), "/exported".to_owned()));
        let items = json!([{ "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" } }]);
        let sources = json!([{ "configMap": { "name": "c" } }, { "downwardAPI": { "items": items } }]);
        for (member, source) in [
            ("emptyDir", json!({})),
            ("emptyDir", json!({ "medium": "Memory", "sizeLimit": "1Mi" })),
            ("configMap", json!({ "name": "c", "defaultMode": 0o644 })),
            ("secret", json!({ "secretName": "s", "defaultMode": 0o400 })),
            ("downwardAPI", json!({ "items": items, "defaultMode": 0o644 })),
            ("projected", json!({ "sources": sources, "defaultMode": 0o644 })),
            ("nfs", json!({ "server": server, "path": share })),
        ] {
            for more in [Value::Null, fs_group()] {
                // Where it was is made anew, too.
                let reset = || drop(fs::remove_dir_all(machine.root.join("pods")));
                let life = Life::of(&machine, Asked::inline(member, source.clone(), more)).with_reset(reset);
                life.survives_crashes().await;
            }
        }
        let local = json!({ "local": { "path": exported }, "nodeAffinity": { "required": {} } });
        let ungiven = || {
            lchown(&exported, None, Some(0)).unwrap();
            fs::set_permissions(&exported, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let life = Life::of(&machine, Asked::persistent(local, false, fs_group())).with_reset(ungiven);
        life.given().survives_crashes().await;
    });
}

#[test]
fn a_crash_while_a_path_of_the_node_is_made_is_survived() {
    on_a_machine(async |machine| {
        for (kind, way) in [("DirectoryOrCreate", "made/inner"), ("FileOrCreate", "file")] {
            let path = machine.dir.join(way);
            let asked = Asked::inline("hostPath", json!({ "path": path, "type": kind }), Value::Null);
            let reset = || {
                drop(fs::remove_dir_all(machine.dir.join("made")));
                drop(fs::remove_file(machine.dir.join("file")));
            };
            let life = Life::of(&machine, asked).with_reset(reset);
            life.survives_crashes().await;
            assert!(path.try_exists().unwrap(), "what is the node's stays");
        }
    });
}

#[test]
fn a_crash_while_a_device_is_formatted_mounted_and_shown_is_survived() {
    on_a_machine(async |machine| {
        let device = local::device(&machine, 16 << 20).await;
        let spec = json!({ "local": { "path": device.path(), "fsType": "ext4" }, "nodeAffinity": { "required": {} } });
        let blank = || erase(device.path());
        let life = Life::of(&machine, Asked::persistent(spec, false, fs_group())).with_reset(blank);
        life.given().survives_crashes().await;
    });
}

/// Blank again: the superblock and its first copy are gone.
fn erase(device: &Path) {
    let mut file = fs::OpenOptions::new().write(true).open(device).unwrap();
    file.write_all(&vec![0; 16 << 20]).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn a_crash_around_the_calls_of_a_flex_driver_is_survived() {
    on_a_machine(async |machine| {
        let dir = machine.dir.join("drivers");
        flex::install(&dir, "lvm");
        FlexDrivers::new(&dir, Arc::new(LocalPrograms)).sync(&machine.plugins).await;
        for more in [Value::Null, fs_group()] {
            let is_given = !more.is_null();
            let asked = Asked::inline("flexVolume", json!({ "driver": "example/lvm" }), more);
            let reset = || drop(fs::remove_dir_all(machine.root.join("pods")));
            let life = Life::of(&machine, asked).with_reset(reset);
            Life { is_given, ..life }.survives_crashes().await;
        }
    });
}

#[test]
fn a_crash_while_an_image_is_unpacked_noted_and_shown_is_survived() {
    on_a_machine(async |machine| {
        let layout = Layout::at(machine.root.join("images/app"));
        layout.index(json!([layout.image("file", "x")]));
        let store = machine.root.join("plugins/kubernetes.io/image");
        let reset = || drop(fs::remove_dir_all(&store));
        let asked = Asked::inline("image", json!({ "reference": "app:v1" }), Value::Null);
        Life::of(&machine, asked).with_reset(reset).survives_crashes().await;
    });
}

#[test]
fn a_crash_while_an_image_that_nobody_needs_is_removed_is_survived() {
    on_a_machine(async |machine| {
        let layout = Layout::at(machine.root.join("images/app"));
        layout.index(json!([layout.image("file", "x")]));
        let unpacked = machine.root.join("plugins/kubernetes.io/image/unpacked");
        let life = Life::of(&machine, Asked::inline("image", json!({ "reference": "app:v1" }), Value::Null));
        let begin = async |host: &VolumeHost| {
            life.up(host).await.unwrap();
            fs::create_dir_all(unpacked.join("0a/sub")).unwrap();
        };
        let (host, count) = life.host(None);
        begin(&host).await;
        let before = count.changes().len() as u64;
        life.down(&host).await.unwrap();
        let changes = count.changes().len() as u64 - before;
        for stop in (1..=changes).flat_map(|at| [Stop::Before(at), Stop::After(at)]) {
            begin(&host).await;
            let (dying, _) = life.host(Some(stop));
            // To remove it is nothing that a pod waits for.
            let _ = life.down(&dying).await;
            life.down(&host).await.unwrap();
            life.is_over(&format!("{stop:?}"));
            let left: Vec<_> = fs::read_dir(&unpacked).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert_eq!(left.len(), 1, "{stop:?}: {left:?}");
        }
        assert!(changes >= 4, "nothing was removed: {changes}");
    });
}
