//! configMap, secret, downwardAPI and projected.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use stowage_model::object::{Key, ObjectId, kinds};
use stowage_plugins::Certainty;

use crate::machine::{Asked, Machine, UID, mode, mounted, on_a_machine};

/// What a container sees: contents by path, links followed.
fn seen(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(below) = waiting.pop() {
        for entry in fs::read_dir(dir.join(&below)).unwrap().map(Result::unwrap) {
            let path = below.join(entry.file_name());
            if below.as_os_str().is_empty() && entry.file_name().to_string_lossy().starts_with("..") {
                continue;
            }
            match fs::metadata(dir.join(&path)).unwrap().is_dir() {
                true => waiting.push(path),
                false => _ = found.insert(path.display().to_string(), fs::read(dir.join(&path)).unwrap()),
            }
        }
    }
    found
}

fn files(list: &[(&str, &[u8])]) -> BTreeMap<String, Vec<u8>> {
    list.iter().map(|(path, data)| ((*path).to_owned(), data.to_vec())).collect()
}

async fn config_map(machine: &Machine, name: &str, data: Value) {
    machine
        .create(kinds::CONFIG_MAP, json!({ "metadata": { "name": name, "namespace": "default" }, "data": data }))
        .await;
}

async fn change(machine: &Machine, name: &str, data: Value) {
    let id = ObjectId { kind: kinds::CONFIG_MAP, key: Key::namespaced("default", name) };
    machine.context.api.patch_raw(&id, json!({ "data": data })).await.unwrap();
}

#[test]
fn row_134_a_config_map_is_laid_out_as_the_kubelet_does_and_follows_its_object() {
    on_a_machine(async |machine| {
        config_map(&machine, "c", json!({ "a": "1", "b": "2" })).await;
        let source = json!({ "name": "c", "defaultMode": 0o640 });
        let asked = Asked::inline("configMap", source.clone(), Value::Null);
        let (host, count) = machine.host(None);
        let dir = machine.volume_dir("configmap", "v");
        machine.set_up(&host, &asked).await.unwrap();
        assert_eq!(seen(&dir), files(&[("a", b"1"), ("b", b"2")]));
        assert_eq!(mode(&dir), 0o777);
        assert_eq!(fs::read_link(dir.join("a")).unwrap(), Path::new("..data/a"));
        let data = fs::read_link(dir.join("..data")).unwrap();
        assert!(data.to_str().unwrap().starts_with("..20") && dir.join(&data).is_dir());
        assert_eq!((mode(&dir.join(&data)), mode(&dir.join(&data).join("a"))), (0o755, 0o640));
        let mark = machine.root.join("pods").join(UID).join("plugins/kubernetes.io~empty-dir/wrapped_v/ready");
        assert!(mark.is_file() && mounted(&dir).is_none());

        let again = Asked::inline("configMap", source, Value::Null).again();
        machine.set_up(&host, &again).await.unwrap();
        assert_eq!(fs::read_link(dir.join("..data")).unwrap(), data, "nothing changed, nothing is written");
        change(&machine, "c", json!({ "a": "one", "b": null, "z": "new" })).await;
        machine.set_up(&host, &again).await.unwrap();
        assert_eq!(seen(&dir), files(&[("a", b"one"), ("z", b"new")]));
        assert!(!dir.join(&data).try_exists().unwrap(), "the old files are gone");
        assert!(!count.changes().is_empty());
        machine.tear_down(&host, &asked).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

#[test]
fn row_134_a_missing_object_or_key_leaves_things_as_they_are_and_an_optional_one_is_an_empty_volume() {
    on_a_machine(async |machine| {
        for (member, name) in [("configMap", "name"), ("secret", "secretName")] {
            let (host, count) = machine.host(None);
            let missing = Asked::inline(member, json!({ name: "gone", "defaultMode": 0o644 }), Value::Null);
            let fault = machine.set_up(&host, &missing).await.unwrap_err();
            assert_eq!(fault.certainty, Certainty::Transient);
            assert!(fault.message.contains("default/gone does not exist"), "{fault}");
            assert!(machine.left().is_empty() && count.changes().is_empty());
            let optional =
                Asked::inline(member, json!({ name: "gone", "defaultMode": 0o644, "optional": true }), Value::Null);
            machine.set_up(&host, &optional).await.unwrap();
            assert_eq!(seen(&machine.volume_dir(&member.to_lowercase(), "v")), files(&[]));
            machine.tear_down(&host, &optional).await.unwrap();
            assert_eq!(machine.left(), Vec::<String>::new());
        }
    });
}

#[test]
fn a_running_pod_keeps_its_files_when_their_object_goes_or_cannot_be_used() {
    on_a_machine(async |machine| {
        config_map(&machine, "c", json!({ "a": "1", "bad": "2" })).await;
        let (host, _) = machine.host(None);
        let dir = machine.volume_dir("configmap", "v");
        let items = |path: &str| json!({ "name": "c", "defaultMode": 0o644, "items": [{ "key": "a", "path": path }] });
        machine.set_up(&host, &Asked::inline("configMap", items("x/a"), Value::Null)).await.unwrap();
        for wrong in ["../a", "/a", "..a", "", "x/../../a", &"n".repeat(1 << 20), "x\0"] {
            let asked = Asked::inline("configMap", items(wrong), Value::Null).again();
            let fault = machine.set_up(&host, &asked).await.unwrap_err();
            assert_eq!(fault.certainty, Certainty::Transient, "{}", &fault.message[..fault.message.len().min(200)]);
            assert_eq!(seen(&dir), files(&[("x/a", b"1")]));
        }
        let gone = Asked::inline("configMap", json!({ "name": "gone", "defaultMode": 0o644 }), Value::Null).again();
        assert!(machine.set_up(&host, &gone).await.is_err());
        assert_eq!(seen(&dir), files(&[("x/a", b"1")]));
        machine.tear_down(&host, &gone).await.unwrap();
        // What cannot be written at first is taken away again.
        let fresh = Asked::inline("configMap", items("../a"), Value::Null);
        let fault = machine.set_up(&host, &fresh).await.unwrap_err();
        assert_eq!((fault.certainty, machine.left()), (Certainty::Final, Vec::new()));
    });
}

#[test]
fn row_135_a_secret_is_in_memory_and_is_written_anew_when_a_reboot_took_it() {
    on_a_machine(async |machine| {
        let data = json!({ "key": "AAH/", "text": "aHVudGVyMg==" });
        machine
            .create(kinds::SECRET, json!({ "metadata": { "name": "s", "namespace": "default" }, "data": data }))
            .await;
        let asked = Asked::inline("secret", json!({ "secretName": "s", "defaultMode": 0o400 }), Value::Null);
        let (host, _) = machine.host(None);
        let dir = machine.volume_dir("secret", "v");
        machine.set_up(&host, &asked).await.unwrap();
        let expected = files(&[("key", &[0, 1, 255]), ("text", b"hunter2")]);
        assert_eq!((seen(&dir), mounted(&dir).unwrap().fs_type.as_str()), (expected.clone(), "tmpfs"));
        assert_eq!(mode(&fs::canonicalize(dir.join("key")).unwrap()), 0o400);
        nix::mount::umount(&dir).unwrap();
        assert_eq!(seen(&dir), files(&[]), "nothing of it is on the disk");
        machine.set_up(&host, &asked).await.unwrap();
        assert_eq!((seen(&dir), mounted(&dir).unwrap().fs_type.as_str()), (expected, "tmpfs"));
        machine.tear_down(&host, &asked).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

#[test]
fn row_138_what_a_pod_is_told_about_itself_is_written_once_and_when_it_changes() {
    on_a_machine(async |machine| {
        let items = json!([
            { "path": "labels", "fieldRef": { "fieldPath": "metadata.labels" }, "mode": 0o440 },
            { "path": "pod/name", "fieldRef": { "fieldPath": "metadata.name" } },
            { "path": "cpu", "resourceFieldRef": { "containerName": "c", "resource": "limits.cpu", "divisor": "1m" } },
        ]);
        let container = json!([{ "name": "c", "image": "i", "resources": { "limits": { "cpu": "250m" } } }]);
        let asked = |cpu: &str| {
            let mut container = container.clone();
            container[0]["resources"]["limits"]["cpu"] = cpu.into();
            let source = json!({ "items": items, "defaultMode": 0o644 });
            Asked::inline("downwardAPI", source, json!({ "containers": container }))
        };
        let (host, _) = machine.host(None);
        let dir = machine.volume_dir("downward-api", "v");
        machine.set_up(&host, &asked("250m")).await.unwrap();
        assert_eq!(seen(&dir), files(&[("labels", b"app=\"web\""), ("pod/name", b"p"), ("cpu", b"250")]));
        assert_eq!(mode(&fs::canonicalize(dir.join("labels")).unwrap()), 0o440);
        let data = fs::read_link(dir.join("..data")).unwrap();
        machine.set_up(&host, &asked("250m").again()).await.unwrap();
        assert_eq!(fs::read_link(dir.join("..data")).unwrap(), data);
        machine.set_up(&host, &asked("1").again()).await.unwrap();
        assert_ne!(fs::read_link(dir.join("..data")).unwrap(), data);
        assert_eq!(fs::read(dir.join("cpu")).unwrap(), b"1000");
        machine.tear_down(&host, &asked("1")).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

async fn account_and_pod(machine: &Machine) -> String {
    let pod = json!({
        "metadata": { "name": "p", "namespace": "default" },
        "spec": { "containers": [{ "name": "c", "image": "i" }], "nodeName": "node-1" },
    });
    machine.create(kinds::POD, pod).await["metadata"]["uid"].as_str().unwrap().to_owned()
}

#[test]
fn row_136_a_projected_volume_has_all_its_sources_and_its_token_belongs_to_the_pods_user() {
    on_a_machine(async |machine| {
        let uid = account_and_pod(&machine).await;
        config_map(&machine, "kube-root-ca.crt", json!({ "ca.crt": "CERT", "other": "x" })).await;
        let source = json!({ "defaultMode": 0o644, "sources": [
            { "serviceAccountToken": { "path": "token", "expirationSeconds": 3607 } },
            { "configMap": { "name": "kube-root-ca.crt", "items": [{ "key": "ca.crt", "path": "ca.crt" }] } },
            { "downwardAPI": { "items": [{ "path": "namespace", "fieldRef": { "fieldPath": "metadata.namespace" } }] } },
            { "configMap": { "name": "gone", "optional": true } },
        ]});
        let (host, _) = machine.host(None);
        let dir = machine.volume_dir("projected", "v");
        for (more, owner, permissions) in [
            (Value::Null, 0, 0o644),
            (json!({ "securityContext": { "runAsUser": 1234 } }), 1234, 0o600),
            (json!({ "securityContext": { "fsGroup": 77 } }), 0, 0o640),
        ] {
            let mut asked = Asked::inline("projected", source.clone(), more);
            asked.pod = with_uid(&asked, &uid);
            let done = machine.set_up(&host, &asked).await.unwrap();
            let left = done.again_at.unwrap().duration_since(machine.context.clock.now()).as_secs();
            assert!((3607 * 4 / 5 - 60..=3607).contains(&left), "{left}");
            let dir = dir.to_str().unwrap().replace(UID, &uid);
            let dir = Path::new(&dir);
            let found = seen(dir);
            assert_eq!(found.keys().collect::<Vec<_>>(), ["ca.crt", "namespace", "token"]);
            assert_eq!((found["ca.crt"].as_slice(), found["namespace"].as_slice()), (&b"CERT"[..], &b"default"[..]));
            assert_eq!(found["token"].iter().filter(|byte| **byte == b'.').count(), 2, "a signed token");
            let token = fs::metadata(dir.join("token")).unwrap();
            assert_eq!((token.uid(), token.mode() & 0o777), (owner, permissions));
            let request = stowage_plugins::plugin::TearDown { name: "v", pod_uid: &uid };
            machine.plugin(&asked).unmounter().unwrap().tear_down(&host, &request).await.unwrap();
        }
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}

fn with_uid(asked: &Asked, uid: &str) -> stowage_model::node_view::NodePod {
    use stowage_model::object::Projection as _;
    let group = asked.pod.spec.security_context.fs_group;
    let user = asked.pod.security.run_as_user;
    let pod = json!({
        "metadata": { "name": "p", "namespace": "default", "uid": uid },
        "spec": {
            "containers": [{ "name": "c" }], "serviceAccountName": "default",
            "securityContext": { "fsGroup": group, "runAsUser": user },
        },
    });
    stowage_model::node_view::NodePod::read(pod.to_string().as_bytes()).unwrap()
}

#[test]
fn row_137_a_certificate_for_the_pod_is_refused_with_what_to_use_and_all_that_is_wrong_is_said_at_once() {
    on_a_machine(async |machine| {
        let source = json!({ "defaultMode": 0o644, "sources": [
            { "podCertificate": { "signerName": "example.com/s", "keyType": "ED25519", "credentialBundlePath": "b" } },
            { "secret": { "name": "gone" } },
            { "downwardAPI": { "items": [{ "path": "x", "fieldRef": { "fieldPath": "spec.nothing" } }] } },
            {},
        ]});
        let (host, count) = machine.host(None);
        let fault = machine.set_up(&host, &Asked::inline("projected", source, Value::Null)).await.unwrap_err();
        for part in ["podCertificate", "csi.cert-manager.io", "Secret default/gone", "spec.nothing"] {
            assert!(fault.message.contains(part), "{part}: {fault}");
        }
        assert!(count.changes().is_empty() && fault.certainty == Certainty::Transient);
    });
}

#[test]
fn places_for_other_volumes_inside_of_one_are_made_and_stay() {
    on_a_machine(async |machine| {
        config_map(&machine, "c", json!({ "a": "1" })).await;
        let mounts = json!([
            { "name": "v", "mountPath": "/etc/v" }, { "name": "w", "mountPath": "/etc/v/inner/place" },
            { "name": "x", "mountPath": "/etc/v/inner/place/deeper" }, { "name": "y", "mountPath": "/etc/v/..data/no" },
        ]);
        let more = json!({ "containers": [{ "name": "c", "volumeMounts": mounts }] });
        let asked = Asked::inline("configMap", json!({ "name": "c", "defaultMode": 0o644 }), more);
        let (host, _) = machine.host(None);
        let dir = machine.volume_dir("configmap", "v");
        machine.set_up(&host, &asked).await.unwrap();
        assert_eq!((mode(&dir.join("inner")), mode(&dir.join("inner/place"))), (0o755, 0o755));
        assert!(!dir.join("inner/place/deeper").try_exists().unwrap() && !dir.join("..data/no").try_exists().unwrap());
        change(&machine, "c", json!({ "a": "2" })).await;
        machine.set_up(&host, &asked).await.unwrap();
        assert!(dir.join("inner/place").is_dir() && fs::read(dir.join("a")).unwrap() == b"2");
        machine.tear_down(&host, &asked).await.unwrap();
        assert_eq!(machine.left(), Vec::<String>::new());
    });
}
