//! What counts as wanted, attached and in use; numbers are those of reference/node-and-attach.md, section 10.1.

use serde_json::{Value, json};

use stowage_model::annotations;

use super::*;

const VOLUME: &str = "kubernetes.io/csi/d.example^h";
const POLICY: Policy = Policy { force_detach_on_timeout: true, max_unmount_wait: Duration::from_secs(360) };

/// A bound claim used by a pod on a managed node; each test spoils one object.
struct World {
    pod: Value,
    claim: Value,
    volume: Value,
    node: Value,
    driver: Value,
    attachments: Vec<Value>,
}

impl World {
    fn new() -> Self {
        Self {
            pod: json!({
                "metadata": { "name": "pod", "namespace": "default", "uid": "pod-uid" },
                "spec": {
                    "nodeName": "n",
                    "volumes": [{ "name": "v", "persistentVolumeClaim": { "claimName": "pod-v" } }],
                },
                "status": { "phase": "Running", "containerStatuses": [{ "name": "c", "state": { "running": {} } }] },
            }),
            claim: json!({
                "metadata": { "name": "pod-v", "namespace": "default", "uid": "claim-uid" },
                "spec": { "volumeName": "pv" },
                "status": { "phase": "Bound" },
            }),
            volume: json!({
                "metadata": { "name": "pv", "uid": "pv-uid" },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "claimRef": { "namespace": "default", "name": "pod-v", "uid": "claim-uid" },
                    "csi": { "driver": "d.example", "volumeHandle": "h" },
                },
            }),
            node: json!({
                "metadata": {
                    "name": "n", "uid": "n-uid",
                    "annotations": { annotations::CONTROLLER_MANAGED_ATTACH: "true" },
                },
                "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
            }),
            driver: json!({ "metadata": { "name": "d.example" }, "spec": { "attachRequired": true } }),
            attachments: Vec::new(),
        }
    }

    fn caches(&self) -> Caches {
        fn read<T: Projection>(object: &Value) -> Vec<T> {
            let mut object = object.clone();
            object["metadata"]["resourceVersion"] = json!("1");
            vec![serde_json::from_value(object).unwrap()]
        }
        let caches = Caches::new();
        caches.pods.relist(read(&self.pod), 1);
        caches.claims.relist(read(&self.claim), 1);
        if !self.volume.is_null() {
            caches.volumes.relist(read(&self.volume), 1);
        }
        caches.nodes.relist(read(&self.node), 1);
        caches.drivers.relist(read(&self.driver), 1);
        caches.attachments.relist(self.attachments.iter().flat_map(read).collect(), 1);
        caches
    }

    fn gather(&self) -> Snapshot {
        let key = Key::Volume(VOLUME.into());
        gather(&self.caches(), &Memory::default(), POLICY, &key, Timestamp::UNIX_EPOCH)
    }

    fn is_wanted(&self) -> bool {
        self.gather().sites.get("n").is_some_and(|site| !site.wishes.is_empty())
    }
}

fn spoiled(spoil: impl FnOnce(&mut World)) -> World {
    let mut world = World::new();
    spoil(&mut world);
    world
}

fn attachment(name: &str) -> Value {
    json!({
        "metadata": { "name": name, "uid": format!("{name}-uid") },
        "spec": { "attacher": "d.example", "nodeName": "n", "source": { "persistentVolumeName": "pv" } },
    })
}

#[test]
fn s02_a_pod_on_a_managed_node_wants_its_bound_volume() {
    let site = World::new().gather().sites.remove("n").unwrap();
    assert_eq!((site.wishes.len(), site.wishes[0].volume_name.as_str()), (1, "pv"));
    assert_eq!(site.attachment_name, names::attachment("h", "d.example", "n"));
    assert_eq!((site.attachment, site.unwanted_since), (AttachmentView::Absent, None));
}

#[test]
fn s35_s39_s40_who_does_not_want_a_volume() {
    let deleted = json!("2024-01-01T00:00:00Z");
    type Spoil = fn(&mut World, Value);
    let cases: [(&str, Spoil); 10] = [
        ("s35 unmanaged node", |w, _| w.node["metadata"]["annotations"] = json!({})),
        ("s39 succeeded", |w, _| w.pod["status"]["phase"] = json!("Succeeded")),
        ("s39 failed", |w, _| w.pod["status"]["phase"] = json!("Failed")),
        ("deleting and nothing runs", |w, deleted| {
            w.pod["metadata"]["deletionTimestamp"] = deleted;
            w.pod["status"]["containerStatuses"] = json!([]);
        }),
        ("not placed", |w, _| w.pod["spec"]["nodeName"] = json!("")),
        ("s40 driver without attach", |w, _| w.driver["spec"]["attachRequired"] = json!(false)),
        ("claim not bound", |w, _| w.claim["status"]["phase"] = json!("Pending")),
        ("volume of a namesake", |w, _| w.volume["spec"]["claimRef"]["uid"] = json!("older")),
        ("claim of another volume", |w, _| w.claim["spec"]["volumeName"] = json!("other")),
        ("ephemeral claim of somebody else", |w, _| {
            w.pod["spec"]["volumes"] = json!([{ "name": "v", "ephemeral": {} }]);
        }),
    ];
    assert!(World::new().is_wanted());
    for (what, spoil) in cases {
        assert!(!spoiled(|world| spoil(world, deleted.clone())).is_wanted(), "{what}");
    }
}

#[test]
fn a_deleting_pod_wants_its_volumes_while_something_runs_in_it() {
    let world = spoiled(|world| world.pod["metadata"]["deletionTimestamp"] = json!("2024-01-01T00:00:00Z"));
    assert!(world.is_wanted());
}

#[test]
fn an_ephemeral_claim_of_the_pod_is_wanted_and_so_is_a_volume_of_an_unknown_driver() {
    let owned = spoiled(|world| {
        world.pod["spec"]["volumes"] = json!([{ "name": "v", "ephemeral": {} }]);
        world.claim["metadata"]["ownerReferences"] =
            json!([{ "kind": "Pod", "name": "pod", "uid": "pod-uid", "controller": true }]);
    });
    assert!(owned.is_wanted());
    assert!(spoiled(|world| world.driver["metadata"]["name"] = json!("other")).is_wanted());
}

#[test]
fn s08_s09_only_the_out_of_service_taint_counts() {
    for (key, expected) in [("node.kubernetes.io/out-of-service", true), ("node.kubernetes.io/unreachable", false)] {
        let world = spoiled(|world| world.node["spec"] = json!({ "taints": [{ "key": key, "effect": "NoExecute" }] }));
        let NodeView::Known(node) = &world.gather().sites["n"].node else { panic!("the node is known") };
        assert_eq!(node.out_of_service, expected);
    }
}

#[test]
fn access_modes_say_whether_many_nodes_may_have_it() {
    for (modes, expected) in [
        (json!([]), true),
        (json!(["ReadWriteOnce"]), false),
        (json!(["ReadWriteOncePod"]), false),
        (json!(["ReadWriteOnce", "ReadOnlyMany"]), true),
        (json!(["ReadWriteMany"]), true),
    ] {
        assert_eq!(spoiled(|world| world.volume["spec"]["accessModes"] = modes).gather().many_nodes, expected);
    }
}

#[test]
fn an_attachment_under_another_name_is_seen_but_not_ours() {
    let site = spoiled(|world| world.attachments = vec![attachment("handmade")]).gather().sites.remove("n").unwrap();
    assert!(site.foreign_attachment && site.attachment == AttachmentView::Absent);
}

#[test]
fn since_when_a_volume_is_unwanted_is_remembered_and_forgotten_when_it_is_wanted_again() {
    let name = names::attachment("h", "d.example", "n");
    let caches = spoiled(|world| {
        world.attachments = vec![attachment(&name)];
        world.pod["status"]["phase"] = json!("Failed");
    })
    .caches();
    let memory = Memory::default();
    let at = |second| Timestamp::from_second(second).unwrap();
    let unwanted = |caches: &Caches, second| {
        let snapshot = gather(caches, &memory, POLICY, &Key::Volume(VOLUME.into()), at(second));
        memory.note(&snapshot);
        snapshot.sites["n"].unwanted_since
    };
    assert_eq!((unwanted(&caches, 5), unwanted(&caches, 9)), (Some(at(5)), Some(at(5))));
    let wanted = spoiled(|world| world.attachments = vec![attachment(&name)]).caches();
    assert_eq!((unwanted(&wanted, 20), unwanted(&caches, 30)), (None, Some(at(30))));
}

#[test]
fn an_attachment_whose_volume_object_is_gone_is_found_through_its_node_or_stands_alone() {
    let name = names::attachment("h", "d.example", "n");
    let mut world = spoiled(|world| {
        world.attachments = vec![attachment(&name)];
        world.volume = Value::Null;
        world.node["status"]["volumesInUse"] = json!([VOLUME]);
    });
    let orphan = |world: &World| {
        let key = Key::Attachment(name.clone());
        gather(&world.caches(), &Memory::default(), POLICY, &key, Timestamp::UNIX_EPOCH)
    };
    assert!(orphan(&world).sites.is_empty(), "it is decided on under its volume's name");
    let site = world.gather().sites.remove("n").unwrap();
    assert!(site.holds() && matches!(site.node, NodeView::Known(NodeFacts { in_use: true, .. })));
    world.node["status"]["volumesInUse"] = json!([]);
    let alone = orphan(&world);
    assert!(alone.volume.is_none() && alone.sites["n"].holds());
    world.volume = json!({ "metadata": { "name": "pv" }, "spec": { "cinder": {} } });
    assert!(orphan(&world).sites.is_empty(), "volumes of in-tree plugins are the original's");
}

const EBS: &str = "kubernetes.io/csi/ebs.csi.aws.com^vol-1";

fn gather_ebs(world: &World) -> Snapshot {
    gather(&world.caches(), &Memory::default(), POLICY, &Key::Volume(EBS.into()), Timestamp::UNIX_EPOCH)
}

#[test]
fn s24_a_volume_of_an_in_tree_plugin_is_wanted_under_the_name_of_its_driver() {
    let world = spoiled(|world| {
        let spec = world.volume["spec"].as_object_mut().unwrap();
        spec.remove("csi");
        spec.insert("awsElasticBlockStore".into(), json!({ "volumeID": "aws://zone/vol-1" }));
    });
    let snapshot = gather_ebs(&world);
    assert_eq!((snapshot.driver.as_str(), snapshot.many_nodes), ("ebs.csi.aws.com", false));
    let site = &snapshot.sites["n"];
    assert_eq!((site.wishes.len(), site.wishes[0].volume_name.as_str()), (1, "pv"));
    assert_eq!(site.attachment_name, names::attachment("vol-1", "ebs.csi.aws.com", "n"));
    assert!(world.gather().sites.is_empty());
    assert_eq!(world.caches().keys(), [Key::Volume(EBS.into())]);
}

#[test]
fn a_disk_that_a_pod_names_itself_is_attached_with_its_whole_spec() {
    let mut world = spoiled(|world| {
        let source = json!({ "name": "v", "awsElasticBlockStore": { "volumeID": "vol-1", "fsType": "xfs" } });
        world.pod["spec"]["volumes"] = json!([source]);
    });
    let snapshot = gather_ebs(&world);
    let wish = &snapshot.sites["n"].wishes[0];
    let named = wish.inline.as_ref().unwrap().spec.csi.as_ref().unwrap();
    assert_eq!((named.volume_handle.as_str(), named.fs_type.as_str()), ("vol-1", "xfs"));
    assert!(!snapshot.many_nodes);
    // Its attachment is found again by what it carries, also when the pod is gone.
    let name = names::attachment("vol-1", "ebs.csi.aws.com", "n");
    let csi = json!({ "driver": "ebs.csi.aws.com", "volumeHandle": "vol-1" });
    let source = json!({ "inlineVolumeSpec": { "accessModes": ["ReadWriteOnce"], "csi": csi } });
    let spec = json!({ "attacher": "ebs.csi.aws.com", "nodeName": "n", "source": source });
    world.attachments.push(json!({ "metadata": { "name": name, "uid": "a" }, "spec": spec }));
    world.pod["status"]["phase"] = json!("Succeeded");
    let site = gather_ebs(&world).sites.remove("n").unwrap();
    assert!(site.wishes.is_empty() && matches!(site.attachment, AttachmentView::Present(_)), "{site:?}");
    assert!(site.unwanted_since.is_some());
}
