use std::sync::Arc;

use serde_json::{Value, json};

use super::*;
use crate::decide::tests::{persistent, traits, volume};
use crate::desired_state::{PodVolumes, Problem, VolumeToMount};

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

/// Pods that come one after the other, on a machine that labels volumes of one pod only, or of all.
async fn counted(every_mode: bool, access_mode: &str, pods: &[NodePod]) -> String {
    let mut controller = crate::controller::tests::controller().await;
    controller.options.se_linux = Some(SeLinux { every_mode, ..SeLinux::default() });
    let spec = persistent(json!({ "spec": { "accessModes": [access_mode] } }));
    let mount = VolumeToMount { spec, traits: able(), ..crate::decide::tests::mount() };
    for pod in pods {
        controller.caches.pods.observe(pod.clone());
        let volumes = PodVolumes { volumes: [(volume(), mount.clone())].into(), problems: Vec::new() };
        controller.state.with(|states| {
            // Noted twice, counted once.
            for _ in 0..2 {
                controller.count_labels(pod, &volumes, states);
                states.desired.set(&pod.meta.uid, volumes.clone(), crate::decide::tests::now());
            }
        });
    }
    controller.context.metrics.encode()
}

fn named(uid: &str, level: &str) -> NodePod {
    let object = json!({
        "metadata": { "name": uid, "namespace": "default", "uid": uid, "resourceVersion": "7" },
        "spec": { "securityContext": { "seLinuxOptions": { "level": level } }, "containers": [container("x", Value::Null)] },
    });
    serde_json::from_value(object).unwrap()
}

#[track_caller]
fn shows(text: &str, name: &str, labels: &str, count: usize) {
    let line = format!("volume_manager_selinux_{name}_total{{{labels}}} {count}");
    assert_eq!(text.lines().any(|shown| shown == line), count > 0, "{line}\nin\n{text}");
}

const OF_DRIVER: &str = r#"volume_plugin="kubernetes.io/csi:driver",access_mode="RWX""#;

#[tokio::test]
async fn s88_pods_with_different_labels_are_counted_as_a_warning_without_the_gate_and_as_an_error_with_it() {
    let pods = [named("a", "s0:c1"), named("b", "s0:c1"), named("c", "s0:c2")];
    let text = counted(false, "ReadWriteMany", &pods).await;
    shows(&text, "volumes_admitted", OF_DRIVER, 1);
    shows(&text, "volume_context_mismatch_warnings", OF_DRIVER, 1);
    assert!(!text.contains("mismatch_errors_total{"), "{text}");
    let text = counted(true, "ReadWriteMany", &pods).await;
    shows(&text, "volume_context_mismatch_errors", OF_DRIVER, 1);
    assert!(!text.contains("mismatch_warnings_total{"), "{text}");
}

#[tokio::test]
async fn s89_containers_with_different_labels_are_counted_as_a_warning_where_the_volume_gets_no_label() {
    let mut two = named("a", "s0:c1");
    two.containers.push(serde_json::from_value(container("y", json!({ "level": "s0:c2" }))).unwrap());
    let text = counted(false, "ReadWriteMany", &[two]).await;
    shows(&text, "pod_context_mismatch_warnings", r#"access_mode="RWX""#, 1);
    assert!(!text.contains("volumes_admitted_total{"), "{text}");
}

#[tokio::test]
async fn s89_containers_with_different_labels_are_counted_as_an_error_where_the_volume_would_get_one() {
    let mut controller = crate::controller::tests::controller().await;
    controller.options.se_linux = Some(SeLinux::default());
    let problem =
        Problem { volume: "data".into(), message: "no".into(), is_waiting: false, labels_differ: Some("RWOP") };
    let volumes = PodVolumes { volumes: Default::default(), problems: vec![problem] };
    controller.state.with(|states| {
        for _ in 0..2 {
            controller.count_labels(&named("a", "s0:c1"), &volumes, states);
            states.desired.set("a", volumes.clone(), crate::decide::tests::now());
        }
    });
    shows(&controller.context.metrics.encode(), "pod_context_mismatch_errors", r#"access_mode="RWOP""#, 1);
}
