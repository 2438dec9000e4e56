//! Admission by service accounts, where it is switched on.

use super::*;

fn pod(spec: Value) -> Value {
    let mut pod = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i"}]}});
    for (field, value) in spec.as_object().into_iter().flatten() {
        pod["spec"][field] = value.clone();
    }
    pod
}

fn with_tokens() -> World {
    let mut world = World::new();
    world.store.mount_tokens("CERTIFICATE".to_owned(), world.now);
    world.store.publish(world.store.head());
    world
}

#[test]
fn without_the_switch_a_pod_stays_as_it_was_written() {
    let mut world = World::new();
    let made = world.create("Pod", pod(json!({"serviceAccountName": "gone"}))).unwrap();
    assert!(made["spec"].get("volumes").is_none() && world.get("ConfigMap", "kube-root-ca.crt").is_none());
}

#[test]
fn every_container_gets_token_authority_and_namespace() {
    let mut world = with_tokens();
    let init = json!([{"name": "i", "image": "i"}]);
    let made = world.create("Pod", pod(json!({"initContainers": init}))).unwrap();
    let volume = &made["spec"]["volumes"][0];
    let name = volume["name"].as_str().unwrap();
    assert!(name.starts_with("kube-api-access-") && name.len() == 21, "{name}");
    let sources = &volume["projected"]["sources"];
    assert_eq!(sources[0], json!({"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}));
    assert_eq!(sources[1]["configMap"]["name"], "kube-root-ca.crt");
    assert_eq!(sources[2]["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"], "metadata.namespace");
    assert_eq!(volume["projected"]["defaultMode"], 420);
    let mount = json!([{
        "name": name, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount",
    }]);
    assert_eq!(
        (&made["spec"]["containers"][0]["volumeMounts"], &made["spec"]["initContainers"][0]["volumeMounts"]),
        (&mount, &mount)
    );
}

#[test]
fn a_pod_or_its_account_can_do_without_and_the_pod_has_the_last_word() {
    let mut world = with_tokens();
    let account = json!({"metadata": {"name": "quiet"}, "automountServiceAccountToken": false});
    world.create("ServiceAccount", account).unwrap();
    for (spec, mounted) in [
        (json!({"automountServiceAccountToken": false}), false),
        (json!({"serviceAccountName": "quiet"}), false),
        (json!({"serviceAccountName": "quiet", "automountServiceAccountToken": true}), true),
        (json!({}), true),
    ] {
        let made = world.create("Pod", pod(spec.clone())).unwrap();
        assert_eq!(made["spec"].get("volumes").is_some(), mounted, "{spec}");
        world.delete_with_grace("Pod", "p", 0).unwrap();
    }
}

#[test]
fn what_is_mounted_there_already_stays_and_no_second_volume_is_added() {
    let mut world = with_tokens();
    let mount = json!({"name": "mine", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"});
    let spec = json!({
        "containers": [{"name": "c", "image": "i", "volumeMounts": [mount]}],
        "volumes": [{"name": "mine", "emptyDir": {}}],
    });
    let made = world.create("Pod", pod(spec)).unwrap();
    assert_eq!(made["spec"]["volumes"].as_array().unwrap().len(), 1);
    assert_eq!(made["spec"]["containers"][0]["volumeMounts"].as_array().unwrap().len(), 1);
}

#[test]
fn a_pod_of_an_account_that_is_not_there_is_refused_and_the_account_is_named() {
    let mut world = with_tokens();
    let refused = world.create("Pod", pod(json!({"serviceAccountName": "gone"}))).unwrap_err();
    assert!(refused.code == 403 && refused.message.contains("\"gone\" not found"), "{}", refused.message);
    let mirror = json!({
        "metadata": {"name": "p", "annotations": {"kubernetes.io/config.mirror": "x"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"},
    });
    assert!(world.create("Pod", mirror).unwrap()["spec"].get("volumes").is_none());
}

#[test]
fn every_namespace_has_the_authority_and_gets_it_back_as_it_was() {
    let mut world = with_tokens();
    let data = |world: &World| world.get("ConfigMap", "kube-root-ca.crt").map(|map| map["data"].clone());
    let expected = Some(json!({"ca.crt": "CERTIFICATE"}));
    assert_eq!(data(&world), expected);
    world.delete("ConfigMap", "kube-root-ca.crt").unwrap();
    assert_eq!(data(&world), expected);
    world.merge("ConfigMap", "kube-root-ca.crt", json!({"data": {"ca.crt": "FORGED", "more": "x"}})).unwrap();
    assert_eq!(data(&world), expected);
    world.create("Namespace", json!({"metadata": {"name": "team"}})).unwrap();
    let maps = world.store.newest_all(Kind::named("ConfigMap")).count();
    assert_eq!(maps, 2);
    world.delete("Namespace", "team").unwrap();
    assert_eq!(world.store.newest_all(Kind::named("ConfigMap")).count(), 1, "a namespace that ends gets none");
}
