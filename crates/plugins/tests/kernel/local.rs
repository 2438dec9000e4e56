//! local.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use stowage_model::Event;
use stowage_mount::{Host, Images, LinuxMounter, LoopDevice, LoopOptions, Space, run_program};
use stowage_plugins::VolumeHost;
use stowage_plugins::plugin::{Expand, Expanded, Found, MountDevice, SetUp, UnmountDevice};

use crate::machine::{Asked, Machine, UID, mounted, on_a_machine};

const HOST: LinuxMounter = LinuxMounter;

/// Detaches the device also when the test fails.
pub struct Attached(LoopDevice);

impl Attached {
    pub fn path(&self) -> &Path {
        &self.0.path
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        let _ = run_program(Command::new("umount").args(["--all-targets", "--quiet"]).arg(&self.0.path));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let device = self.0.clone();
        std::thread::spawn(move || runtime.block_on(HOST.detach_loop(&device))).join().unwrap().ok();
    }
}

pub async fn device(machine: &Machine, bytes: u64) -> Attached {
    let image = machine.dir.join("image");
    HOST.make_image(&image, bytes, Space::Sparse).await.unwrap();
    let tag = format!("stowage-plugins-test:{}", std::process::id());
    Attached(HOST.attach_loop(&image, &tag, LoopOptions::default()).await.unwrap())
}

fn local(path: &Path, more: Value) -> Value {
    let mut spec =
        json!({ "local": { "path": path }, "nodeAffinity": { "required": {} }, "accessModes": ["ReadWriteOnce"] });
    for (field, value) in more.as_object().into_iter().flatten() {
        spec[field] = value.clone();
    }
    spec
}

fn fs_group(group: i64) -> Value {
    json!({ "securityContext": { "fsGroup": group } })
}

async fn mount_device(machine: &Machine, host: &VolumeHost, asked: &Asked) -> Result<(), stowage_plugins::Fault> {
    let request = MountDevice {
        spec: &asked.spec,
        pod: &asked.pod,
        device_path: "",
        fs_group: None,
        se_linux_label: None,
        is_reconstructed: false,
    };
    machine.plugin(asked).device_mounter().unwrap().mount_device(host, &request).await
}

async fn unmount_device(machine: &Machine, host: &VolumeHost, asked: &Asked) {
    let request = UnmountDevice { volume: &"kubernetes.io/local-volume/pv".into(), spec: &asked.spec };
    machine.plugin(asked).device_mounter().unwrap().unmount_device(host, &request).await.unwrap();
}

#[test]
fn row_142_a_directory_is_shown_in_the_pod_with_its_options_and_given_to_the_first_pods_group() {
    on_a_machine(async |machine| {
        let exported = machine.dir.join("exported");
        fs::create_dir(&exported).unwrap();
        fs::write(exported.join("file"), b"x").unwrap();
        let (host, _) = machine.host(None);
        let asked =
            Asked::persistent(local(&exported, json!({ "mountOptions": ["noexec", "discard"] })), false, fs_group(77));
        let dir = machine.volume_dir("local-volume", "pv");
        mount_device(&machine, &host, &asked).await.unwrap();
        machine.set_up(&host, &asked).await.unwrap();
        machine.set_up(&host, &asked).await.unwrap();
        assert_eq!(fs::read(dir.join("file")).unwrap(), b"x");
        let mount = mounted(&dir).unwrap();
        assert!(mount.options.contains(&"noexec".to_owned()) && !mount.is_read_only(), "{mount:?}");
        let owned = host.mounter.stat(&exported.join("file")).await.unwrap().unwrap();
        assert_eq!((owned.gid, owned.mode & 0o060), (77, 0o060));
        machine.tear_down(&host, &asked).await.unwrap();
        unmount_device(&machine, &host, &asked).await;
        assert!(machine.left().is_empty() && exported.join("file").is_file());

        let reader = Asked::persistent(local(&exported, Value::Null), true, Value::Null);
        machine.set_up(&host, &reader).await.unwrap();
        assert!(fs::write(dir.join("new"), b"").is_err());
        machine.tear_down(&host, &reader).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

#[test]
fn row_142_a_second_pod_with_another_group_is_told_and_changes_nothing() {
    on_a_machine(async |mut machine| {
        let exported = machine.dir.join("exported");
        fs::create_dir(&exported).unwrap();
        let (host, _) = machine.host(None);
        let first = Asked::persistent(local(&exported, Value::Null), false, fs_group(77));
        machine.set_up(&host, &first).await.unwrap();
        let second = Asked::persistent(local(&exported, Value::Null), false, fs_group(78));
        let plugin = machine.plugin(&second);
        let mut pod = json!({ "metadata": { "name": "q", "namespace": "default", "uid": "second" } });
        pod["spec"] = json!({ "containers": [], "securityContext": { "fsGroup": 78 } });
        let pod = serde_json::from_value(pod).unwrap();
        let request = SetUp {
            spec: &second.spec,
            pod: &pod,
            volume: &"kubernetes.io/local-volume/pv".into(),
            device_path: "",
            fs_group: Some(78),
            fs_group_change_policy: Default::default(),
            fs_user: None,
            se_linux_label: None,
            is_remount: false,
            is_reconstructed: false,
        };
        plugin.mounter().unwrap().set_up(&host, &request).await.unwrap();
        assert_eq!(host.mounter.stat(&exported).await.unwrap().unwrap().gid, 77);
        // The recorder writes when its owner runs: until the event is there.
        let api = machine.context.api.clone();
        let told = async {
            loop {
                let events: Vec<Event> = api.list("default", "").await.unwrap();
                if let Some(event) = events.into_iter().find(|event| event.message.contains("may not be shareable")) {
                    return event;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            panicked = machine.tasks.supervise() => panic!("{panicked}"),
            event = told => assert!(event.message.contains("fsGroup is 78") && event.message.contains("GID 77")),
        }
        for uid in [UID, "second"] {
            let gone = stowage_plugins::plugin::TearDown { name: "pv", pod_uid: uid };
            plugin.unmounter().unwrap().tear_down(&host, &gone).await.unwrap();
        }
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

#[test]
fn row_142_a_blank_device_is_formatted_once_mounted_for_the_node_and_grows() {
    on_a_machine(async |machine| {
        let device = device(&machine, 32 << 20).await;
        let (host, _) = machine.host(None);
        let reader = Asked::persistent(local(&device.0.path, Value::Null), true, Value::Null);
        let fault = mount_device(&machine, &host, &reader).await.unwrap_err();
        assert!(fault.message.contains("blank") && machine.left().is_empty(), "{fault}");

        let asked =
            Asked::persistent(local(&device.0.path, json!({ "mountOptions": ["noatime"] })), false, Value::Null);
        let global = machine.root.join("plugins/kubernetes.io/local-volume/mounts/pv");
        mount_device(&machine, &host, &asked).await.unwrap();
        mount_device(&machine, &host, &asked).await.unwrap();
        assert_eq!(mounted(&global).unwrap().fs_type, "ext4");
        machine.set_up(&host, &asked).await.unwrap();
        let dir = machine.volume_dir("local-volume", "pv");
        fs::write(dir.join("kept"), b"x").unwrap();
        let plugin = machine.plugin(&asked);
        let found = Found { pod_uid: UID, name: "pv", is_block: false };
        let told = plugin.reconstructor().unwrap().reconstruct(&host, &found).await.unwrap();
        assert_eq!(told.spec.source.to_string(), format!("local {}", device.0.path.display()));
        assert_eq!(told.volume.as_str(), "kubernetes.io/local-volume/pv");

        HOST.grow_image(&machine.dir.join("image"), 64 << 20, Space::Sparse).await.unwrap();
        HOST.refresh_loop(&device.0).await.unwrap();
        let grow = Expand { spec: &asked.spec, volume_path: &dir, new_size: 64 << 20 };
        match plugin.expander().unwrap().expand(&host, &grow).await {
            // What the kernel asks for, and not every container gives to root.
            Err(fault) if fault.message.contains("SYS_RESOURCE") => eprintln!("not grown: {fault}"),
            answer => {
                assert_eq!(answer.unwrap(), Expanded::Done);
                let figures = plugin.metrics().unwrap().stats(&host, &asked.spec, &dir).await.unwrap();
                assert!(figures.capacity_bytes.unwrap() > 48 << 20, "{figures:?}");
            }
        }

        machine.tear_down(&host, &asked).await.unwrap();
        unmount_device(&machine, &host, &asked).await;
        unmount_device(&machine, &host, &asked).await;
        mount_device(&machine, &host, &asked).await.unwrap();
        machine.set_up(&host, &asked).await.unwrap();
        assert_eq!(fs::read(dir.join("kept")).unwrap(), b"x", "it is not formatted again");
        machine.tear_down(&host, &asked).await.unwrap();
        unmount_device(&machine, &host, &asked).await;
        let left: Vec<String> = machine.left().into_iter().filter(|path| !path.ends_with("mounts")).collect();
        assert_eq!(left, Vec::<String>::new());
    });
}

#[test]
fn a_device_with_somebodys_data_a_missing_path_and_a_volume_without_a_node_are_refused_with_the_way_out() {
    on_a_machine(async |machine| {
        let (host, _) = machine.host(None);
        let device = device(&machine, 8 << 20).await;
        fs::write(machine.dir.join("image"), vec![7; 8 << 20]).unwrap();
        run_program(Command::new("blockdev").arg("--flushbufs").arg(&device.0.path)).unwrap();
        let asked = Asked::persistent(local(&device.0.path, Value::Null), false, Value::Null);
        let fault = mount_device(&machine, &host, &asked).await.unwrap_err();
        assert!(fault.message.contains("wipefs"), "{fault}");
        let gone = Asked::persistent(local(&machine.dir.join("gone"), Value::Null), false, Value::Null);
        let fault = machine.set_up(&host, &gone).await.unwrap_err();
        assert!(fault.message.contains("does not exist on this node"), "{fault}");
        let climbing = Asked::persistent(local(Path::new("/a/../b"), Value::Null), false, Value::Null);
        assert!(machine.set_up(&host, &climbing).await.is_err());
        let anywhere = Asked::persistent(json!({ "local": { "path": "/tmp" } }), false, Value::Null);
        let fault = machine.set_up(&host, &anywhere).await.unwrap_err();
        assert!(fault.message.contains("nodeAffinity"), "{fault}");
    });
}

#[test]
fn a_device_as_a_device_is_the_path_itself_and_a_directory_is_refused() {
    on_a_machine(async |machine| {
        let (host, _) = machine.host(None);
        let device = device(&machine, 8 << 20).await;
        let block = json!({ "volumeMode": "Block" });
        for (path, well) in [(device.0.path.as_path(), true), (machine.dir.as_path(), false)] {
            let asked = Asked::persistent(local(path, block.clone()), false, Value::Null);
            let request = SetUp {
                spec: &asked.spec,
                pod: &asked.pod,
                volume: &"kubernetes.io/local-volume/pv".into(),
                device_path: "",
                fs_group: None,
                fs_group_change_policy: Default::default(),
                fs_user: None,
                se_linux_label: None,
                is_remount: false,
                is_reconstructed: false,
            };
            let plugin = machine.plugin(&asked);
            let mapper = plugin.block_mapper().unwrap();
            let mapped = mapper.map_pod_device(&host, &request).await;
            assert_eq!(mapped.as_deref().ok(), well.then_some(path));
            let global = mapper.global_map_path(&host, "pv");
            assert_eq!(global, machine.root.join("plugins/kubernetes.io~local-volume/volumeDevices/pv"));
        }
    });
}
