//! What objects must be: one good object, spoiled one field at a time.

use super::*;

/// Each spoiled object must be refused with this field among the causes.
fn each_is_refused(kind: &str, good: &Value, spoiled: &[(&str, Value, &str)]) {
    World::new().create(kind, good.clone()).expect("the good object is good");
    for (pointer, value, field) in spoiled {
        let refused = World::new().create(kind, with(good.clone(), pointer, value.clone())).unwrap_err();
        let fields: Vec<&str> = refused.details.causes.iter().map(|c| c.field.as_str()).collect();
        assert_eq!((refused.code, fields.contains(field)), (422, true), "{pointer}: {}", refused.message);
    }
}

/// Each change must be refused with this field among the causes.
fn each_change_is_refused(kind: &str, good: &Value, changes: &[(Value, &str)]) {
    for (patch, field) in changes {
        let mut world = World::new();
        let made = world.create(kind, good.clone()).unwrap();
        let refused = world.merge(kind, text(&made, "/metadata/name"), patch.clone()).unwrap_err();
        let fields: Vec<&str> = refused.details.causes.iter().map(|c| c.field.as_str()).collect();
        assert_eq!((refused.code, fields.contains(field)), (422, true), "{patch}: {}", refused.message);
    }
}

fn mounted() -> Value {
    json!({
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{
                "name": "c", "image": "i",
                "volumeMounts": [{"name": "data", "mountPath": "/data"}, {"name": "conf", "mountPath": "/conf"}],
                "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw"}],
            }],
            "volumes": [
                {"name": "data", "persistentVolumeClaim": {"claimName": "a"}},
                {"name": "conf", "configMap": {"name": "m"}},
                {"name": "raw", "persistentVolumeClaim": {"claimName": "b"}},
                {"name": "host", "hostPath": {"path": "/srv"}},
            ],
        },
    })
}

#[test]
fn the_volumes_and_mounts_of_a_pod_are_checked() {
    let mount = "/spec/containers/0/volumeMounts/0";
    let at = |rest: &str| format!("{mount}/{rest}");
    let device = "/spec/containers/0/volumeDevices/0";
    let mounts = "spec.containers[0].volumeMounts";
    each_is_refused(
        "Pod",
        &mounted(),
        &[
            (&at("name"), json!("other"), &format!("{mounts}[0].name")),
            (&at("mountPath"), json!(""), &format!("{mounts}[0].mountPath")),
            (&at("mountPath"), json!("/conf"), &format!("{mounts}[1].mountPath")),
            (&at("mountPath"), json!("/dev/raw"), &format!("{mounts}[0].mountPath")),
            (&at("subPath"), json!("../up"), &format!("{mounts}.subPath")),
            (&at("subPath"), json!("/top"), &format!("{mounts}.subPath")),
            (&at("mountPropagation"), json!("Bidirectional"), &format!("{mounts}.mountPropagation")),
            (&at("mountPropagation"), json!("Both"), &format!("{mounts}.mountPropagation")),
            (&at("recursiveReadOnly"), json!("Enabled"), &format!("{mounts}.recursiveReadOnly")),
            (&format!("{device}/name"), json!("host"), "spec.containers[0].volumeDevices[0].name"),
            (&format!("{device}/name"), json!("data"), "spec.containers[0].volumeDevices[0].name"),
            (&format!("{device}/devicePath"), json!("/dev/../x"), "spec.containers[0].volumeDevices[0].devicePath"),
            ("/spec/volumes/0/name", json!("Data"), "spec.volumes[0].name"),
            ("/spec/volumes/0/name", json!("conf"), "spec.volumes[1].name"),
            ("/spec/volumes/0/persistentVolumeClaim", json!({}), "spec.volumes[0].persistentVolumeClaim.claimName"),
            ("/spec/volumes/0/emptyDir", json!({}), "spec.volumes[0].persistentVolumeClaim"),
            (
                "/spec/volumes/1/configMap",
                json!({"name": "m", "items": [{"key": "k", "path": "../x"}]}),
                "spec.volumes[1].configMap.items[0].path",
            ),
            (
                "/spec/volumes/1/configMap",
                json!({"name": "m", "defaultMode": 1000}),
                "spec.volumes[1].configMap.defaultMode",
            ),
            ("/spec/volumes/3/hostPath", json!({"path": "/a/../b"}), "spec.volumes[3].hostPath.path"),
            ("/spec/volumes/3/hostPath", json!({"path": "/a", "type": "Any"}), "spec.volumes[3].hostPath.type"),
            ("/spec/volumes/3", json!({"name": "host", "csi": {"driver": "Bad_Name"}}), "spec.volumes[3].csi.driver"),
            (
                "/spec/volumes/3",
                json!({"name": "host", "ephemeral": {}}),
                "spec.volumes[3].ephemeral.volumeClaimTemplate",
            ),
            (
                "/spec/volumes/3",
                json!({"name": "host", "projected": {"sources": [{"serviceAccountToken": {"path": "t", "expirationSeconds": 5}}]}}),
                "spec.volumes[3].projected.sources[0].serviceAccountToken.expirationSeconds",
            ),
        ],
    );
}

#[test]
fn bidirectional_propagation_is_for_privileged_containers() {
    let mount = "/spec/containers/0/volumeMounts/0/mountPropagation";
    let pod = with(mounted(), mount, json!("Bidirectional"));
    let pod = with(pod, "/spec/containers/0/securityContext", json!({"privileged": true}));
    World::new().create("Pod", pod).unwrap();
}

#[test]
fn names_in_a_pod_that_become_parts_of_paths_are_checked() {
    let mut good = mounted();
    for (field, name) in [("nodeName", "n-1.example.com"), ("serviceAccountName", "robot"), ("hostname", "h")] {
        good["spec"][field] = json!(name);
    }
    good["spec"]["volumes"][0] = json!({"name": "data", "ephemeral": {"volumeClaimTemplate": {"spec": {
        "accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}}}});
    each_is_refused(
        "Pod",
        &good,
        &[
            ("/spec/nodeName", json!("../../etc"), "spec.nodeName"),
            ("/spec/nodeName", json!("a/b"), "spec.nodeName"),
            ("/spec/serviceAccountName", json!("../x"), "spec.serviceAccountName"),
            ("/spec/priorityClassName", json!("../x"), "spec.priorityClassName"),
            ("/spec/runtimeClassName", json!("../x"), "spec.runtimeClassName"),
            ("/spec/hostname", json!("a.b"), "spec.hostname"),
            ("/spec/subdomain", json!(".."), "spec.subdomain"),
            ("/spec/containers/0/name", json!("../c"), "spec.containers[0].name"),
            ("/metadata/name", json!("p".repeat(250)), "spec.volumes[0].name"),
        ],
    );
    let mut world = World::new();
    world.create("Pod", mounted()).unwrap();
    let binding = json!({"target": {"kind": "Node", "name": "../../etc"}});
    let refused = world.apply("Pod", "p", Subresource::Binding, Action::Create(binding)).unwrap_err();
    assert_eq!((refused.code, refused.details.causes[0].field.as_str()), (422, "target.name"));
    let mut bind = |annotations: Value| {
        let binding = json!({"metadata": {"annotations": annotations}, "target": {"name": "n"}});
        world.apply("Pod", "p", Subresource::Binding, Action::Create(binding)).map(|_| ())
    };
    assert_eq!(bind(json!({"a": {"no": "text"}})).unwrap_err().code, 422, "nobody could read the pod any more");
    assert_eq!(bind(json!({"a": "x".repeat(4 << 20)})).unwrap_err().code, 413);
    bind(json!({"a": "text"})).unwrap();
}

#[test]
fn the_volumes_of_a_pod_get_their_defaults() {
    let spec = json!({"containers": [{"name": "c", "image": "i"}], "volumes": [
        {"name": "a"}, {"name": "b", "secret": {"secretName": "s"}},
        {"name": "c", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]});
    let made = World::new().create("Pod", json!({"metadata": {"name": "p"}, "spec": spec})).unwrap();
    let volumes = &made["spec"]["volumes"];
    assert_eq!(volumes[0]["emptyDir"], json!({}));
    assert_eq!(volumes[1]["secret"]["defaultMode"], 0o644);
    assert_eq!(volumes[2]["projected"]["sources"][0]["serviceAccountToken"]["expirationSeconds"], 3600);
}

#[test]
fn a_volume_is_checked_and_its_source_is_fixed() {
    let affinity = |terms: Value| json!({"required": {"nodeSelectorTerms": terms}});
    each_is_refused(
        "PersistentVolume",
        &volume("v"),
        &[
            ("/spec/accessModes", json!(["Sometimes"]), "spec.accessModes"),
            ("/spec/accessModes", json!(["ReadWriteOncePod", "ReadWriteOnce"]), "spec.accessModes"),
            ("/spec/capacity", json!({}), "spec.capacity"),
            ("/spec/nfs", json!({"server": "s", "path": "/p"}), "spec.nfs"),
            ("/spec/csi", json!({"driver": "d"}), "spec.csi.volumeHandle"),
            (
                "/spec/csi",
                json!({"driver": "d", "volumeHandle": "h", "nodeStageSecretRef": {"name": "s"}}),
                "spec.csi.nodeStageSecretRef.namespace",
            ),
            ("/spec/nodeAffinity", json!({}), "spec.nodeAffinity.required"),
            ("/spec/nodeAffinity", affinity(json!([])), "spec.nodeAffinity.required.nodeSelectorTerms"),
            (
                "/spec/nodeAffinity",
                affinity(json!([{"matchExpressions": [{"key": "k", "operator": "Within"}]}])),
                "spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0].operator",
            ),
            ("/spec/volumeAttributesClassName", json!(""), "spec.volumeAttributesClassName"),
            ("/spec/storageClassName", json!("Not A Name"), "spec.storageClassName"),
        ],
    );
    let placed = with(
        volume("v"),
        "/spec/nodeAffinity",
        affinity(json!([{"matchExpressions": [{"key": "k", "operator": "Exists"}]}])),
    );
    each_change_is_refused(
        "PersistentVolume",
        &with(placed, "/spec/volumeAttributesClassName", json!("gold")),
        &[
            (json!({"spec": {"csi": {"volumeHandle": "other"}}}), "spec.persistentvolumesource"),
            (json!({"spec": {"volumeMode": "Block"}}), "volumeMode"),
            (json!({"spec": {"nodeAffinity": null}}), "nodeAffinity"),
            (json!({"spec": {"volumeAttributesClassName": null}}), "spec.volumeAttributesClassName"),
        ],
    );
    let mut world = World::new();
    world.create("PersistentVolume", volume("v")).unwrap();
    let secret = json!({"spec": {"csi": {"controllerExpandSecretRef": {"name": "s", "namespace": "n"}}}});
    world.merge("PersistentVolume", "v", secret).expect("the secret for expansion may be set once");
    let other = json!({"spec": {"csi": {"controllerExpandSecretRef": {"name": "t", "namespace": "n"}}}});
    assert_eq!(world.merge("PersistentVolume", "v", other).unwrap_err().code, 422);
}

#[test]
fn the_kinds_of_storage_are_checked() {
    let attachment = json!({"metadata": {"name": "a"}, "spec": {"attacher": "d.example.com", "nodeName": "n",
        "source": {"persistentVolumeName": "v"}}});
    each_is_refused(
        "VolumeAttachment",
        &attachment,
        &[
            ("/spec/attacher", json!(""), "spec.attacher"),
            ("/spec/nodeName", json!("Node One"), "spec.nodeName"),
            ("/spec/source", json!({}), "spec.source"),
            ("/spec/source", json!({"persistentVolumeName": ""}), "spec.source.persistentVolumeName"),
            ("/spec/source", json!({"inlineVolumeSpec": {"nfs": {}}}), "spec.source.inlineVolumeSpec.csi"),
        ],
    );
    let driver = |name: &str| json!({"name": name, "nodeID": "n", "topologyKeys": ["example.com/zone"]});
    each_is_refused(
        "CSINode",
        &json!({"metadata": {"name": "n"}, "spec": {"drivers": [driver("a.example.com")]}}),
        &[
            ("/spec/drivers", json!([driver("a"), driver("a")]), "spec.drivers[1].name"),
            ("/spec/drivers/0/nodeID", json!(""), "spec.drivers[0].nodeID"),
            ("/spec/drivers/0/allocatable", json!({"count": -1}), "spec.drivers[0].allocatable.count"),
            ("/spec/drivers/0/topologyKeys", json!(["x", "x"]), "spec.drivers[0]"),
        ],
    );
    each_is_refused(
        "CSIDriver",
        &json!({"metadata": {"name": "d.example.com"}, "spec": {}}),
        &[
            ("/spec/fsGroupPolicy", json!("Maybe"), "spec.fsGroupPolicy"),
            ("/spec/volumeLifecycleModes", json!(["Eternal"]), "spec.volumeLifecycleModes"),
            (
                "/spec/tokenRequests",
                json!([{"audience": "a", "expirationSeconds": 1}]),
                "spec.tokenRequests[0].expirationSeconds",
            ),
            ("/spec/nodeAllocatableUpdatePeriodSeconds", json!(1), "spec.nodeAllocatableUpdatePeriodSeconds"),
        ],
    );
    each_is_refused(
        "StorageClass",
        &class("s", false),
        &[
            ("/provisioner", json!(""), "provisioner"),
            ("/provisioner", json!("not a name"), "provisioner"),
            ("/reclaimPolicy", json!("Recycle"), "reclaimPolicy"),
            ("/volumeBindingMode", json!("Later"), "volumeBindingMode"),
            (
                "/allowedTopologies",
                json!([{"matchLabelExpressions": [{"key": "k", "values": []}]}]),
                "allowedTopologies[0].matchLabelExpressions[0].values",
            ),
        ],
    );
    each_is_refused(
        "VolumeAttributesClass",
        &json!({"metadata": {"name": "v"}, "driverName": "d.example.com", "parameters": {"iops": "1"}}),
        &[("/driverName", json!(""), "driverName"), ("/parameters", json!({}), "parameters")],
    );
    each_change_is_refused(
        "CSIDriver",
        &json!({"metadata": {"name": "d.example.com"}, "spec": {}}),
        &[
            (json!({"spec": {"attachRequired": false}}), "spec.attachedRequired"),
            (json!({"spec": {"volumeLifecycleModes": ["Ephemeral"]}}), "spec.volumeLifecycleModes"),
        ],
    );
}

#[test]
fn a_claims_two_sources_say_the_same() {
    let source = json!({"kind": "PersistentVolumeClaim", "name": "from"});
    let made =
        World::new().create("PersistentVolumeClaim", with(claim("a"), "/spec/dataSource", source.clone())).unwrap();
    assert_eq!(made["spec"]["dataSourceRef"], source);
    let populator = json!({"apiGroup": "example.com", "kind": "Populator", "name": "from"});
    let made = World::new()
        .create("PersistentVolumeClaim", with(claim("a"), "/spec/dataSourceRef", populator.clone()))
        .unwrap();
    assert_eq!(made["spec"]["dataSource"], populator);
    let elsewhere = with(source.clone(), "/namespace", json!("other"));
    let made =
        World::new().create("PersistentVolumeClaim", with(claim("a"), "/spec/dataSourceRef", elsewhere)).unwrap();
    assert!(made["spec"].get("dataSource").is_none());
}

#[test]
fn workloads_are_kept_with_defaults_and_checked() {
    let set = json!({
        "metadata": {"name": "s"},
        "spec": {
            "selector": {"matchLabels": {"a": "b"}}, "serviceName": "s",
            "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [
                {"name": "c", "image": "i", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}]}},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"],
                "resources": {"requests": {"storage": "1Gi"}}}}],
        },
    });
    let made = World::new().create("StatefulSet", set.clone()).unwrap();
    assert_eq!((&made["spec"]["replicas"], &made["metadata"]["generation"]), (&json!(1), &json!(1)));
    assert_eq!(made["spec"]["updateStrategy"], json!({"type": "RollingUpdate", "rollingUpdate": {"partition": 0}}));
    each_is_refused(
        "StatefulSet",
        &set,
        &[
            ("/spec/selector", json!({"matchLabels": {"a": "c"}}), "spec.template.metadata.labels"),
            ("/spec/volumeClaimTemplates", json!([]), "spec.template.spec.containers[0].volumeMounts[0].name"),
            ("/spec/replicas", json!(-1), "spec.replicas"),
        ],
    );
    each_change_is_refused("StatefulSet", &set, &[(json!({"spec": {"serviceName": "other"}}), "spec")]);
}

#[test]
fn a_null_member_is_the_same_as_none() {
    let mut world = World::new();
    let driver = json!({"name": "d.example.com", "nodeID": "n", "topologyKeys": null});
    let made = world.create("CSINode", json!({"metadata": {"name": "n"}, "spec": {"drivers": [driver]}})).unwrap();
    assert!(made["spec"]["drivers"][0].get("topologyKeys").is_none());
    let again = world.update("CSINode", "n", with(made.clone(), "/spec/drivers/0/topologyKeys", json!(null))).unwrap();
    assert_eq!(again["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
}

#[test]
fn an_empty_list_in_metadata_is_no_list() {
    let mut world = World::new();
    let made = world.create("ConfigMap", with(config("a"), "/metadata/finalizers", json!([]))).unwrap();
    assert!(made["metadata"].get("finalizers").is_none());
    let patched = world.merge("ConfigMap", "a", json!({"metadata": {"finalizers": null}})).unwrap();
    assert_eq!(patched["metadata"]["resourceVersion"], made["metadata"]["resourceVersion"]);
}

#[test]
fn one_owner_manages_an_object_and_not_two() {
    let owner = |name: &str, controller: Value| json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": name, "uid": name, "controller": controller});
    let config = |owners: Value| json!({"metadata": {"name": "c", "ownerReferences": owners}});
    let good = config(json!([owner("a", true.into()), owner("b", false.into())]));
    let two = json!([owner("a", true.into()), owner("b", true.into())]);
    each_is_refused("ConfigMap", &good, &[("/metadata/ownerReferences", two.clone(), "metadata.ownerReferences")]);
    let refused = World::new().create("ConfigMap", config(two)).unwrap_err();
    let why = "Only one reference can have Controller set to true. Found \"true\" in references for ReplicaSet/a and \
               ReplicaSet/b";
    assert!(refused.message.contains(why), "{}", refused.message);
}

#[test]
fn the_texts_of_a_secret_become_data_and_are_not_shown() {
    let mut world = World::new();
    let secret = json!({
        "metadata": {"name": "s"}, "data": {"user": "YQ==", "kept": "Yg=="}, "stringData": {"user": "root"},
    });
    let made = world.create("Secret", secret).unwrap();
    assert_eq!(made["data"], json!({"user": "cm9vdA==", "kept": "Yg=="}));
    assert_eq!(made.get("stringData"), None);
    let changed = world.merge("Secret", "s", json!({"stringData": {"password": "x"}})).unwrap();
    assert_eq!(changed["data"], json!({"user": "cm9vdA==", "kept": "Yg==", "password": "eA=="}));
    assert_eq!(changed.get("stringData"), None);
}

#[test]
fn a_pod_has_a_priority_and_stays_a_while_on_a_node_that_is_silent() {
    let mut world = World::new();
    let made = world.create("Pod", mounted()).unwrap();
    let silent = |key: &str| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300});
    let (unready, unreachable) = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable");
    assert_eq!(made["spec"]["tolerations"], json!([silent(unready), silent(unreachable)]));
    assert_eq!((&made["spec"]["priority"], text(&made, "/spec/preemptionPolicy")), (&json!(0), "PreemptLowerPriority"));
    // Whoever writes it back need not know of it.
    let unaware = world.merge("Pod", "p", json!({"spec": {"priority": null, "preemptionPolicy": null}})).unwrap();
    assert_eq!(unaware["spec"]["priority"], json!(0));

    let own = json!([{"key": unready, "operator": "Exists", "effect": "NoExecute"}]);
    let named = with(mounted(), "/metadata/name", json!("own"));
    let made = world.create("Pod", with(named, "/spec/tolerations", own.clone())).unwrap();
    assert_eq!(made["spec"]["tolerations"], json!([own[0], silent(unreachable)]));
    let everything = with(mounted(), "/metadata/name", json!("all"));
    let everything = with(everything, "/spec/priorityClassName", json!("system-node-critical"));
    let made = world.create("Pod", with(everything, "/spec/tolerations", json!([{"operator": "Exists"}]))).unwrap();
    assert_eq!(made["spec"]["tolerations"], json!([{"operator": "Exists"}]));
    assert_eq!(made["spec"]["priority"], json!(2_000_001_000));
}

#[test]
fn a_new_attachment_is_not_attached_whatever_its_author_says() {
    let spec = json!({"attacher": "d.example", "nodeName": "n", "source": {"persistentVolumeName": "v"}});
    let attachment = json!({"metadata": {"name": "a"}, "spec": spec, "status": {"attached": true}});
    let made = World::new().create("VolumeAttachment", attachment).unwrap();
    assert_eq!(made["status"], json!({"attached": false}));
}

#[test]
fn a_class_of_attributes_is_protected_from_the_start() {
    let gold = json!({"metadata": {"name": "gold"}, "driverName": "d.example", "parameters": {"iops": "9"}});
    let made = World::new().create("VolumeAttributesClass", gold).unwrap();
    assert_eq!(made["metadata"]["finalizers"], json!(["kubernetes.io/vac-protection"]));
}
