//! image.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use stowage_mount::{Digest, FileKind, SubPath};

use crate::machine::{Asked, Machine, UID, mode, mounted, on_a_machine};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";

fn run(program: &str, words: &[&str], dir: &Path) -> Vec<u8> {
    let output = Command::new(program).args(words).current_dir(dir).output().unwrap();
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

/// A layout as other tools write it.
pub struct Layout(PathBuf);

impl Layout {
    pub fn at(path: PathBuf) -> Self {
        fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        fs::write(path.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        Self(path)
    }

    fn blob(&self, bytes: &[u8], kind: &str) -> Value {
        let digest = Digest::of(bytes);
        fs::write(self.0.join(digest.blob()), bytes).unwrap();
        json!({ "mediaType": kind, "digest": digest.to_string(), "size": bytes.len() })
    }

    /// An image of one layer that holds one file.
    pub fn image(&self, name: &str, contents: &str) -> Value {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("sub")).unwrap();
        fs::write(dir.path().join("sub").join(name), contents).unwrap();
        let layer = self.blob(&run("tar", &["-czf", "-", "--owner=7", "--group=8", "sub"], dir.path()), LAYER);
        let manifest = json!({ "schemaVersion": 2, "mediaType": MANIFEST, "layers": [layer] });
        self.blob(manifest.to_string().as_bytes(), MANIFEST)
    }

    pub fn named(mut image: Value, tag: &str) -> Value {
        image["annotations"] = json!({ "org.opencontainers.image.ref.name": tag });
        image
    }

    pub fn index(&self, images: Value) {
        fs::write(self.0.join("index.json"), json!({ "schemaVersion": 2, "manifests": images }).to_string()).unwrap();
    }
}

fn asked(reference: &str, policy: &str) -> Asked {
    Asked::inline("image", json!({ "reference": reference, "pullPolicy": policy }), Value::Null)
}

fn unpacked(machine: &Machine) -> usize {
    let store = machine.root.join("plugins/kubernetes.io/image/unpacked");
    fs::read_dir(store).map_or(0, |entries| entries.count())
}

#[test]
fn an_image_is_unpacked_once_and_shown_read_only() {
    on_a_machine(async |machine| {
        let layout = Layout::at(machine.root.join("images/registry.example/team/app"));
        layout.index(json!([
            Layout::named(layout.image("file", "v1"), "v1"),
            Layout::named(layout.image("file", "v2"), "v2")
        ]));
        let (host, count) = machine.host(None);
        let asked = asked("registry.example/team/app:v1", "IfNotPresent");
        machine.set_up(&host, &asked).await.unwrap();
        let changes = count.changes().len();
        machine.set_up(&host, &asked).await.unwrap();
        assert_eq!(count.changes().len(), changes, "what is mounted is not touched");
        let dir = machine.volume_dir("image", "v");
        let mount = mounted(&dir).unwrap();
        for option in ["ro", "noexec", "nosuid", "nodev"] {
            assert!(mount.options.iter().any(|is| is == option), "{option}: {mount:?}");
        }
        assert_eq!(fs::read_to_string(dir.join("sub/file")).unwrap(), "v1");
        let about = fs::metadata(dir.join("sub/file")).unwrap();
        assert_eq!((about.uid(), about.gid(), mode(&dir.join("sub/file"))), (7, 8, 0o644));
        assert!(fs::write(dir.join("new"), "").is_err());
        assert!(machine.plugin(&asked).traits(&asked.spec, &host).attributes.read_only);

        // A part of it for a container; what is not there cannot be made.
        let part = |path: &str, container: &str| SubPath {
            volume: dir.clone(),
            path: path.to_owned(),
            target: machine.root.join("pods").join(UID).join("volume-subpaths/v").join(container).join("0"),
        };
        assert_eq!(host.mounter.prepare_sub_path(&part("sub/file", "c")).await.unwrap(), FileKind::File);
        assert_eq!(fs::read_to_string(part("", "c").target).unwrap(), "v1");
        assert!(host.mounter.prepare_sub_path(&part("missing", "d")).await.is_err());
        assert!(host.mounter.prepare_sub_path(&part("../../..", "e")).await.is_err());
        host.mounter.clean_sub_paths(&machine.root.join("pods").join(UID).join("volume-subpaths")).await.unwrap();

        machine.tear_down(&host, &asked).await.unwrap();
        machine.tear_down(&host, &asked).await.unwrap();
        assert_eq!((machine.left(), unpacked(&machine)), (Vec::new(), 1));
        fs::remove_dir_all(machine.root.join("images")).unwrap();
        machine.set_up(&host, &asked).await.unwrap();
        assert_eq!(fs::read_to_string(dir.join("sub/file")).unwrap(), "v1", "it was unpacked once for all");
        machine.tear_down(&host, &asked).await.unwrap();
        assert_eq!(unpacked(&machine), 0, "its layout is gone, and so is the last pod that had it");
    });
}

fn store(machine: &Machine) -> Vec<String> {
    let entries = fs::read_dir(machine.root.join("plugins/kubernetes.io/image/unpacked")).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn an_image_that_a_pod_has_stays_and_goes_with_it_where_no_reference_stands_for_it() {
    on_a_machine(async |machine| {
        let layout = Layout::at(machine.root.join("images/app"));
        let (host, _) = machine.host(None);
        let named = |contents: &str| layout.index(json!([Layout::named(layout.image("file", contents), "latest")]));
        let [mut first, mut second] = [(); 2].map(|()| asked("app", "Always"));
        (first.spec.name, second.spec.name) = ("first".to_owned(), "second".to_owned());
        named("old");
        machine.set_up(&host, &first).await.unwrap();
        named("new");
        machine.set_up(&host, &second).await.unwrap();
        assert_eq!(store(&machine).len(), 2);
        machine.tear_down(&host, &second).await.unwrap();
        let dir = machine.volume_dir("image", "first");
        assert_eq!(fs::read_to_string(dir.join("sub/file")).unwrap(), "old", "a pod has it");
        assert_eq!(store(&machine).len(), 2);
        machine.tear_down(&host, &first).await.unwrap();
        assert_eq!(store(&machine).len(), 1);
    });
}

#[test]
fn what_a_crash_left_aside_is_removed_unless_it_is_mounted_and_what_is_being_unpacked_is_left_alone() {
    on_a_machine(async |machine| {
        let layout = Layout::at(machine.root.join("images/app"));
        layout.index(json!([Layout::named(layout.image("file", "x"), "v1")]));
        let (host, _) = machine.host(None);
        let [first, mut other] = [(); 2].map(|()| asked("app:v1", "IfNotPresent"));
        machine.set_up(&host, &first).await.unwrap();
        let unpacked = machine.root.join("plugins/kubernetes.io/image/unpacked");
        let name = store(&machine).pop().unwrap();
        fs::create_dir_all(unpacked.join("0a.gone/sub")).unwrap();
        fs::create_dir(unpacked.join(".0b.unpacking")).unwrap();
        // As one that was put aside the moment after it was mounted, by a process that was killed then.
        fs::rename(unpacked.join(&name), unpacked.join(format!("{name}.gone"))).unwrap();
        other.spec.name = "other".to_owned();
        machine.set_up(&host, &other).await.unwrap();
        machine.tear_down(&host, &other).await.unwrap();
        assert_eq!(store(&machine), [".0b.unpacking".to_owned(), name.clone(), format!("{name}.gone")]);
        let dir = machine.volume_dir("image", "v");
        assert_eq!(fs::read_to_string(dir.join("sub/file")).unwrap(), "x");
        machine.tear_down(&host, &first).await.unwrap();
        assert_eq!(store(&machine), [".0b.unpacking".to_owned(), name]);
    });
}

#[test]
fn each_pull_policy_does_what_it_says_where_nothing_is_pulled() {
    on_a_machine(async |machine| {
        let layout = Layout::at(machine.root.join("images/app"));
        let (host, _) = machine.host(None);
        let dir = machine.volume_dir("image", "v");
        let seen = async |asked: &Asked| {
            machine.set_up(&host, asked).await.unwrap();
            let seen = fs::read_to_string(dir.join("sub/file")).unwrap();
            machine.tear_down(&host, asked).await.unwrap();
            seen
        };
        layout.index(json!([Layout::named(layout.image("file", "old"), "latest")]));
        assert_eq!(seen(&asked("app", "Never")).await, "old", "what lies on this machine is local");
        layout.index(json!([Layout::named(layout.image("file", "new"), "latest")]));
        assert_eq!(seen(&asked("app", "IfNotPresent")).await, "old");
        assert_eq!(seen(&asked("app", "Never")).await, "old");
        assert_eq!(seen(&asked("app", "")).await, "new", "latest is looked for each time");
        assert_eq!(seen(&asked("app", "IfNotPresent")).await, "new");
        assert_eq!(unpacked(&machine), 1, "what no reference stands for any more goes");
        fs::remove_dir_all(machine.root.join("images")).unwrap();
        let fault = machine.set_up(&host, &asked("app", "Always")).await.unwrap_err();
        assert!(fault.message.contains("would have to be pulled") && fault.message.contains("skopeo copy"), "{fault}");
        assert_eq!(seen(&asked("app", "Never")).await, "new");
        for policy in ["Never", "IfNotPresent", "Always"] {
            let fault = machine.set_up(&host, &asked("other:v1", policy)).await.unwrap_err();
            assert!(fault.message.contains("other:v1 would have to be pulled"), "{fault}");
        }
        assert!(machine.set_up(&host, &asked("app", "Sometimes")).await.is_err());
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

#[test]
fn an_archive_a_list_for_several_machines_and_a_digest_are_found() {
    on_a_machine(async |machine| {
        let made = Layout::at(machine.dir.join("made"));
        let mut ours = made.image("file", "ours");
        let machine_name = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        ours["platform"] = json!({ "os": "linux", "architecture": machine_name });
        let mut theirs = made.image("file", "theirs");
        theirs["platform"] = json!({ "os": "linux", "architecture": "vax" });
        let list = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": [theirs, ours] });
        let list = made.blob(list.to_string().as_bytes(), INDEX);
        let digest = |of: &Value| of["digest"].as_str().unwrap().to_owned();
        made.index(json!([Layout::named(list.clone(), "v1")]));
        fs::create_dir_all(machine.root.join("images")).unwrap();
        let archive = machine.root.join("images/app.tar");
        fs::write(&archive, run("tar", &["-cf", "-", "."], &machine.dir.join("made"))).unwrap();
        let (host, _) = machine.host(None);
        let dir = machine.volume_dir("image", "v");
        for (reference, contents) in [
            ("r.example/team/app:v1".to_owned(), "ours"),
            (format!("app@{}", digest(&list)), "ours"),
            (format!("app:other@{}", digest(&theirs)), "theirs"),
        ] {
            let asked = asked(&reference, "");
            machine.set_up(&host, &asked).await.unwrap();
            assert_eq!(fs::read_to_string(dir.join("sub/file")).unwrap(), contents, "{reference}");
            machine.tear_down(&host, &asked).await.unwrap();
        }
        let absent = format!("app@{}", Digest::of(b"absent"));
        for reference in ["app:v2", &absent, "../app", "app:v1@sha256:beef"] {
            let fault = machine.set_up(&host, &asked(reference, "")).await.unwrap_err();
            assert!(fault.message.contains(reference), "{fault}");
        }
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

#[test]
fn a_layout_that_was_tampered_with_is_refused_and_leaves_nothing() {
    on_a_machine(async |machine| {
        let layout = Layout::at(machine.root.join("images/app"));
        let image = layout.image("file", "x");
        layout.index(json!([image]));
        let (host, _) = machine.host(None);
        let asked = asked("app:v1", "");
        let path = |digest: &Value| layout.0.join(digest.as_str().unwrap().parse::<Digest>().unwrap().blob());
        let manifest = path(&image["digest"]);
        let original = fs::read(&manifest).unwrap();
        let layer = path(&serde_json::from_slice::<Value>(&original).unwrap()["layers"][0]["digest"]);
        let whole = fs::read(&layer).unwrap();
        let mut flipped = whole.clone();
        *flipped.last_mut().unwrap() ^= 1;
        let zstd = String::from_utf8(original.clone()).unwrap().replace("tar+gzip", "tar+zstd");
        for (file, contents, why) in [
            (&manifest, b"{}".to_vec(), "not what it says"),
            (&layer, flipped, "unpack"),
            (&layer, whole[1..].to_vec(), "bytes"),
        ] {
            let before = fs::read(file).unwrap();
            fs::write(file, contents).unwrap();
            let fault = machine.set_up(&host, &asked).await.unwrap_err();
            assert!(fault.message.contains(why), "{fault}");
            assert_eq!((machine.left(), unpacked(&machine)), (Vec::new(), 0));
            fs::write(file, before).unwrap();
        }
        layout.index(json!([layout.blob(zstd.as_bytes(), MANIFEST)]));
        let fault = machine.set_up(&host, &asked).await.unwrap_err();
        assert!(fault.message.contains("zstd") && fault.message.contains("gzip"), "{fault}");
        layout.index(json!([image]));
        machine.set_up(&host, &asked).await.unwrap();
        machine.tear_down(&host, &asked).await.unwrap();
    });
}
