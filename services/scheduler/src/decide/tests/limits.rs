//! Scenarios of the reference, 8.16: volume limits and ReadWriteOncePod.

use super::*;
use crate::assumed::AssumedPod;

const LIMIT: &str = "no node of 1 will do: 1 with as many volumes of the driver as it allows there";
const ONCE: &str = "no node of 2 will do: 2 barred because another pod has a claim of mode ReadWriteOncePod";

/// One node with so many slots, and bound claims c1 to c4 with volumes of their own.
fn one_node(slots: u32) -> World {
    let mut world = World::default();
    world.node(node("a")).limit("a", slots).class(class("waits", "WaitForFirstConsumer", DRIVER));
    for number in 1..=4 {
        world
            .volume(volume(&format!("v{number}"), "1Gi", ""))
            .claim(bound(&format!("c{number}"), &format!("v{number}")));
    }
    world
}

fn attach(world: &mut World, name: &str, volume: &str) {
    world.put(
        |caches| &caches.attachments,
        json!({
            "metadata": { "name": name },
            "spec": { "attacher": DRIVER, "nodeName": "a", "source": { "persistentVolumeName": volume } },
        }),
    );
}

#[test]
fn s8_16_existing_and_new_volumes_must_not_exceed_the_limit() {
    let mut world = one_node(2);
    world.pod(pod("p1", &["c1", "c2"])).pod(pod("p2", &["c3"]));
    assert_eq!(world.settle("p1"), Why::Placed);
    assert_eq!(world.message("p2"), LIMIT);
}

#[test]
fn s8_16_a_volume_that_is_on_the_node_already_needs_no_slot() {
    let mut world = one_node(1);
    world.pod(pod("p1", &["c1"])).pod(pod("p2", &["c1"]));
    world.settle("p1");
    assert_eq!(world.settle("p2"), Why::Placed);
}

#[test]
fn s8_16_attachments_count_without_pods_and_once_with_them() {
    let mut world = one_node(2);
    attach(&mut world, "va1", "v1");
    attach(&mut world, "va2", "v2");
    world.pod(pod("p", &["c3"])).pod(pod("same", &["c1", "c2"]));
    assert_eq!(world.message("p"), LIMIT);
    assert_eq!(world.settle("same"), Why::Placed);
}

#[test]
fn s8_16_pods_that_ended_do_not_count() {
    let mut world = one_node(1);
    world.pod(pod("p1", &["c1"])).pod(pod("p2", &["c2"]));
    world.settle("p1");
    world.change(|caches| &caches.pods, &key("p1"), |pod| pod["status"]["phase"] = "Succeeded".into());
    assert_eq!(world.settle("p2"), Why::Placed);
}

#[test]
fn s8_16_pending_claims_count_by_the_driver_of_their_class() {
    let mut world = one_node(1);
    world.claim(claim("u1", "waits", "1Gi")).claim(claim("u2", "waits", "1Gi")).pod(pod("p", &["u1", "u2"]));
    assert_eq!(world.message("p"), LIMIT);
}

#[test]
fn s8_16_a_claim_whose_volume_is_being_made_for_the_node_holds_a_slot_even_after_a_restart() {
    let mut world = one_node(1);
    let mut selected = claim("u1", "waits", "1Gi");
    selected["metadata"]["annotations"] = json!({ "volume.kubernetes.io/selected-node": "a" });
    world.claim(selected).pod(pod("waiting", &["u1"])).pod(pod("p", &["c1"]));
    assert_eq!(world.message("p"), LIMIT);
    assert_eq!(world.settle("waiting"), Why::AwaitVolumes { node: "a".into() });
}

#[test]
fn s8_16_no_limit_and_other_drivers_pass() {
    let mut world = one_node(0);
    let mut other = volume("other", "1Gi", "");
    other["spec"]["csi"]["driver"] = "other.example.com".into();
    world.volume(other).claim(bound("o", "other")).pod(pod("p1", &["o"])).pod(pod("p2", &["c1"]));
    assert_eq!(world.settle("p1"), Why::Placed);
    assert_eq!(world.message("p2"), LIMIT);
    let driver = json!({ "name": DRIVER, "nodeID": "a" });
    world.put(|caches| &caches.csi_nodes, json!({ "metadata": { "name": "a" }, "spec": { "drivers": [driver] } }));
    assert_eq!(world.settle("p2"), Why::Placed);
}

#[test]
fn two_pods_decided_before_either_is_seen_on_the_node_do_not_share_its_last_slot() {
    let mut world = one_node(1);
    world.pod(pod("p1", &["c1"])).pod(pod("p2", &["c2"]));
    assert_eq!(world.decide("p1").why, Why::Bind { node: "a".into() });
    assert_eq!(world.message("p2"), LIMIT);
    world.controller.assumed.forget(&key("p1"));
    assert_eq!(world.decide("p2").why, Why::Bind { node: "a".into() });
}

#[test]
fn a_pod_of_the_same_name_as_one_in_flight_does_not_inherit_its_plan() {
    let mut world = one_node(1);
    world.pod(pod("p1", &["c1"])).pod(pod("p2", &["c2"]));
    world.decide("p1");
    let mut namesake = pod("p1", &[]);
    namesake["metadata"]["uid"] = "another".into();
    world.pod(namesake);
    assert_eq!(world.decide("p2").why, Why::Bind { node: "a".into() });
}

#[test]
fn a_free_volume_counts_by_its_own_driver_not_by_its_class() {
    let mut world = two_nodes_static();
    world.limit("a", 0).limit("b", 1);
    world.volume(volume("v", "1Gi", "")).claim(claim("c", "waits", "1Gi")).pod(pod("p", &["c"]));
    assert_eq!(world.settle("p"), Why::AwaitVolumes { node: "b".into() });
}

#[test]
fn two_pods_with_one_volume_do_not_talk_each_other_past_the_limit() {
    let mut world = one_node(0);
    world.pod(pod("p1", &["c1"])).pod(pod("p2", &["c1"]));
    let on_its_way = |uid: &str| AssumedPod { uid: uid.into(), node: "a".into() };
    world.controller.assumed.assume(&key("p1"), on_its_way("uid-p1"));
    world.controller.assumed.assume(&key("p2"), on_its_way("uid-p2"));
    assert_eq!(world.message("p1"), LIMIT);
    assert_eq!(world.message("p2"), LIMIT);
}

const EBS: &str = "ebs.csi.aws.com";

/// One node where the driver that took over from an in-tree plugin can attach one disk, and claims c1 and c2 of such disks.
fn one_disk() -> World {
    let mut world = World::default();
    world.node(node("a")).class(class("waits", "WaitForFirstConsumer", "kubernetes.io/aws-ebs"));
    let driver = json!({ "name": EBS, "nodeID": "a", "allocatable": { "count": 1 } });
    world.put(|caches| &caches.csi_nodes, json!({ "metadata": { "name": "a" }, "spec": { "drivers": [driver] } }));
    for number in 1..=2 {
        world.volume(disk(number)).claim(bound(&format!("c{number}"), &format!("v{number}")));
    }
    world
}

fn disk(number: u32) -> Value {
    let mut disk = volume(&format!("v{number}"), "1Gi", "");
    disk["spec"]["csi"] = Value::Null;
    disk["spec"]["awsElasticBlockStore"] = json!({ "volumeID": format!("vol-{number}") });
    disk
}

#[test]
fn s8_16_volumes_of_a_plugin_count_for_the_driver_that_took_over() {
    let mut world = one_disk();
    world.pod(pod("p1", &["c1"])).pod(pod("p2", &["c2"]));
    assert_eq!(world.settle("p1"), Why::Placed);
    assert_eq!(world.message("p2"), LIMIT);
}

#[test]
fn s8_16_a_disk_that_the_pod_names_itself_counts_for_the_driver_and_once_with_its_volume() {
    let mut world = one_disk();
    let mut own = pod("own", &[]);
    let disk = json!({ "name": "d", "awsElasticBlockStore": { "volumeID": "vol-1" } });
    own["spec"]["volumes"] = json!([disk]);
    world.pod(own).pod(pod("other", &["c2"])).pod(pod("same", &["c1"]));
    assert_eq!(world.settle("own"), Why::Placed);
    assert_eq!(world.message("other"), LIMIT);
    assert_eq!(world.settle("same"), Why::Placed);
}

#[test]
fn s8_16_attachments_of_a_plugins_volumes_count_by_name_and_by_the_spec_that_they_carry() {
    let inline = json!({ "csi": { "driver": EBS, "volumeHandle": "vol-9" }, "accessModes": ["ReadWriteOnce"] });
    for source in [json!({ "persistentVolumeName": "v1" }), json!({ "inlineVolumeSpec": inline })] {
        let mut world = one_disk();
        let spec = json!({ "attacher": EBS, "nodeName": "a", "source": source });
        world.put(|caches| &caches.attachments, json!({ "metadata": { "name": "va" }, "spec": spec }));
        world.pod(pod("p", &["c2"]));
        assert_eq!(world.message("p"), LIMIT, "{spec}");
    }
}

#[test]
fn s8_16_pending_claims_of_a_plugins_class_count_for_the_driver() {
    let mut world = one_disk();
    world.claim(claim("u1", "waits", "1Gi")).claim(claim("u2", "waits", "1Gi")).pod(pod("p", &["u1", "u2"]));
    assert_eq!(world.message("p"), LIMIT);
}

#[test]
fn s8_16_a_free_volume_of_a_plugin_counts_for_the_driver_when_it_is_chosen() {
    let mut world = one_disk();
    world.class(class("static", "WaitForFirstConsumer", "kubernetes.io/no-provisioner"));
    let mut free = disk(3);
    free["spec"]["storageClassName"] = "static".into();
    world.volume(free).claim(claim("c3", "static", "1Gi")).pod(pod("p1", &["c1"])).pod(pod("p3", &["c3"]));
    assert_eq!(world.settle("p1"), Why::Placed);
    assert_eq!(world.message("p3"), LIMIT);
}

#[test]
fn a_plugins_volume_is_where_the_driver_says_on_nodes_that_have_it_and_where_it_says_itself_elsewhere() {
    let mut world = one_disk();
    // The zone is one of the driver's labels only after translation.
    let mut zoned = disk(1);
    let zone = json!({ "key": "topology.kubernetes.io/zone", "operator": "In", "values": ["z1"] });
    zoned["spec"]["nodeAffinity"] = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [zone] }] } });
    world.volume(zoned).pod(pod("p", &["c1"]));
    let labelled = |key: &str, zone: &str| {
        let mut node = node("a");
        node["metadata"]["labels"][key] = zone.into();
        node
    };
    world.node(labelled("topology.ebs.csi.aws.com/zone", "z2"));
    assert!(world.message("p").contains("spec.nodeAffinity"), "{}", world.message("p"));
    world.node(labelled("topology.ebs.csi.aws.com/zone", "z1"));
    assert!(matches!(world.decide("p").why, Why::Bind { .. }));
    world.controller.assumed.forget(&key("p"));
    world.put(|caches| &caches.csi_nodes, json!({ "metadata": { "name": "a" }, "spec": { "drivers": [] } }));
    assert!(world.message("p").contains("spec.nodeAffinity"), "the driver is not there to ask");
    world.node(labelled("topology.kubernetes.io/zone", "z1"));
    assert!(matches!(world.decide("p").why, Why::Bind { .. }));
}

fn once(mode: &str) -> World {
    let mut world = two_nodes();
    let mut claim = bound("c", "v");
    claim["spec"]["accessModes"] = json!([mode]);
    world.volume(volume("v", "1Gi", "")).claim(claim).pod(pod("p1", &["c"])).pod(pod("p2", &["c"]));
    world
}

#[test]
fn s8_16_a_read_write_once_pod_claim_has_one_pod_at_a_time() {
    let mut world = once("ReadWriteOncePod");
    assert_eq!(world.settle("p1"), Why::Placed);
    assert_eq!(world.message("p2"), ONCE);
    world.change(|caches| &caches.pods, &key("p1"), |pod| pod["status"]["phase"] = "Succeeded".into());
    assert_eq!(world.settle("p2"), Why::Placed);
}

#[test]
fn s8_16_a_read_write_once_pod_claim_is_held_by_a_pod_on_its_way() {
    let world = once("ReadWriteOncePod");
    assert!(matches!(world.decide("p1").why, Why::Bind { .. }));
    assert_eq!(world.message("p2"), ONCE);
}

#[test]
fn s8_16_other_modes_are_shared() {
    let mut world = once("ReadWriteMany");
    assert_eq!([world.settle("p1"), world.settle("p2")], [Why::Placed, Why::Placed]);
}
