use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::decide::tests::{persistent, traits};

fn pod(security: Value, containers: Value) -> NodePod {
    let object = json!({
        "metadata": { "name": "p", "namespace": "default", "uid": "p" },
        "spec": { "securityContext": security, "containers": containers },
    });
    serde_json::from_value(object).unwrap()
}

fn container(name: &str, options: Value) -> Value {
    json!({
        "name": name, "volumeMounts": [{ "name": "data", "mountPath": "/data" }],
        "securityContext": { "seLinuxOptions": options },
    })
}

fn labelled() -> NodePod {
    pod(json!({ "seLinuxOptions": { "level": "s0:c1,c2" } }), json!([container("x", Value::Null)]))
}

fn once_per_pod() -> Arc<VolumeSpec> {
    persistent(json!({ "spec": { "accessModes": ["ReadWriteOncePod"] } }))
}

fn shared() -> Arc<VolumeSpec> {
    persistent(json!({ "spec": { "accessModes": ["ReadWriteMany"] } }))
}

fn able() -> Traits {
    Traits { supports_se_linux_mount: true, ..traits() }
}

const LABEL: &str = "system_u:object_r:container_file_t:s0:c1,c2";

fn found(machine: &SeLinux, pod: &NodePod, spec: &VolumeSpec, traits: &Traits) -> Option<String> {
    machine.label(pod, "data", spec, traits).unwrap()
}

#[test]
fn s87_a_volume_is_mounted_with_the_pods_label_where_pod_and_plugin_allow_it() {
    let machine = SeLinux::default();
    let label = |pod: &NodePod, traits: &Traits| found(&machine, pod, &once_per_pod(), traits);
    assert_eq!(label(&labelled(), &able()).as_deref(), Some(LABEL));
    assert_eq!(label(&labelled(), &traits()), None, "a plugin that cannot");
    let recursive = json!({ "seLinuxOptions": { "level": "s0:c1,c2" }, "seLinuxChangePolicy": "Recursive" });
    assert_eq!(label(&pod(recursive, json!([container("x", Value::Null)])), &able()), None);
    assert_eq!(label(&pod(json!({}), json!([container("x", Value::Null)])), &able()), None, "no label asked for");
}

#[test]
fn s88_volumes_of_other_modes_are_labelled_only_with_the_gate() {
    let every = SeLinux::default();
    assert_eq!(found(&every, &labelled(), &shared(), &able()).as_deref(), Some(LABEL));
    let once = SeLinux { every_mode: false, ..SeLinux::default() };
    assert_eq!(found(&once, &labelled(), &shared(), &able()), None);
    assert_eq!(found(&once, &labelled(), &once_per_pod(), &able()).as_deref(), Some(LABEL));
}

#[test]
fn s89_containers_with_different_labels_cannot_share_a_volume_that_is_mounted_with_one() {
    let two = |first: Value, second: Value| pod(json!({}), json!([container("x", first), container("y", second)]));
    let conflicting = two(json!({ "level": "s0:c1" }), json!({ "level": "s0:c2" }));
    let machine = SeLinux { every_mode: false, ..SeLinux::default() };
    let error = machine.label(&conflicting, "data", &once_per_pod(), &able()).unwrap_err().to_string();
    assert!(error.contains("container_file_t:s0:c1 and ") && error.contains("Recursive"), "{error}");
    assert_eq!(found(&machine, &conflicting, &shared(), &able()), None, "not eligible, so no harm");
    let same = two(json!({ "level": "s0:c1" }), json!({ "level": "s0:c1", "type": "spc_t" }));
    let label = found(&machine, &same, &once_per_pod(), &able());
    assert_eq!(label.as_deref(), Some("system_u:object_r:container_file_t:s0:c1"), "the type is the process's own");
    let half = two(json!({ "level": "s0:c1" }), Value::Null);
    assert!(machine.label(&half, "data", &once_per_pod(), &able()).is_err());
}

#[test]
fn a_container_that_does_not_use_the_volume_has_no_say() {
    let mut other = container("y", json!({ "level": "s0:c9" }));
    other["volumeMounts"] = json!([]);
    let pod = pod(json!({}), json!([container("x", json!({ "level": "s0:c1,c2", "user": "u" })), other]));
    let label = found(&SeLinux::default(), &pod, &shared(), &able());
    assert_eq!(label.as_deref(), Some("u:object_r:container_file_t:s0:c1,c2"));
}

#[test]
fn the_machines_policy_names_the_label_of_files() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(SeLinux::read(dir.path()), None, "SELinux is off");
    let write = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    write("sys/fs/selinux/enforce", "1");
    assert_eq!(SeLinux::read(dir.path()), Some(SeLinux::default()));
    write("etc/selinux/config", "SELINUX=enforcing\nSELINUXTYPE=own\n");
    write("etc/selinux/own/contexts/lxc_contexts", "process = \"a:b:c:s0\"\nfile = \"v:w:x:s0\"\n");
    assert_eq!(SeLinux::read(dir.path()), SeLinux::of("v:w:x:s0"));
}
