//! 8.9 provisioning. The in-tree plugin is hostPath, whose volumes need nothing but their object.

use serde_json::{Value, json};

use super::expect::*;
use super::fixtures::{Fixture, claim, class, volume};
use super::scenarios;
use super::world::{REFUSED, World};

const PLUGIN: &str = "kubernetes.io/host-path";
const VENDOR: &str = "vendor.com/my-volume";

fn gold() -> Fixture {
    class("gold", PLUGIN)
}

fn external() -> Fixture {
    class("gold", VENDOR)
}

fn made_with(finalizers: Value) -> String {
    let mut metadata = json!({
        "name": "pvc-u",
        "annotations": {
            BBC: "yes",
            "pv.kubernetes.io/provisioned-by": PLUGIN,
            "kubernetes.io/createdby": "hostpath-dynamic-provisioner",
        },
    });
    if !finalizers.is_null() {
        metadata["finalizers"] = finalizers;
    }
    let policy = if metadata["finalizers"].is_null() { "Retain" } else { "Delete" };
    line(
        "POST pv/pvc-u",
        json!({
            "metadata": metadata,
            "spec": {
                "capacity": { "storage": "1Gi" },
                "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
                "persistentVolumeReclaimPolicy": policy,
                "storageClassName": "gold",
                "claimRef": {
                    "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": "n", "name": "c", "uid": "u",
                },
                "hostPath": { "path": "/tmp/hostpath_pv/u", "type": "DirectoryOrCreate" },
            },
        }),
    )
}

fn made() -> Vec<String> {
    let made = made_with(json!(["kubernetes.io/pv-controller"]));
    vec![pvc_asks(PLUGIN), made, text("Normal ProvisioningSucceeded pvc/c")]
}

fn failed() -> Vec<String> {
    vec![text("Warning ProvisioningFailed pvc/c")]
}

fn asked() -> Vec<String> {
    vec![pvc_asks(VENDOR), text("Normal ExternalProvisioning pvc/c")]
}

fn late(class: Fixture) -> Fixture {
    class.late()
}

scenarios! {
    s11_01_a_volume_is_made_and_bound: settle World::new([claim().class("gold"), gold()]).host_path()
        => [made(), provided("pvc-u", "1Gi")].concat();
    s11_02_a_plugin_that_is_not_there_is_told: sync_claims World::new([claim().class("gold"), gold()]) => failed();
    s11_03_and_04_a_plugin_that_cannot_make_it_is_told_after_it_was_asked:
        sync_claims World::new([claim().class("gold").mode("Block"), gold()]).host_path()
        => [vec![pvc_asks(PLUGIN)], failed()].concat();
    s11_06_a_volume_that_fits_is_taken: sync_claims World::new([
            claim().class("gold"), gold(), volume("v", "1Gi").available().class("gold"),
        ]).host_path()
        => chosen("v", "1Gi");
    s11_13_a_volume_of_another_class_is_made_and_bound:
        settle World::new([claim().class("silver"), class("silver", PLUGIN)]).host_path()
        => [made().iter().map(|line| line.replace("gold", "silver")).collect(), provided("pvc-u", "1Gi")].concat();
    s11_13_a_retained_volume_is_made_without_a_finalizer:
        sync_claims World::new([claim().class("gold"), gold().with("reclaimPolicy", "Retain")]).host_path()
        => [
            vec![pvc_asks(PLUGIN), made_with(Value::Null), text("Normal ProvisioningSucceeded pvc/c")],
            provided("pvc-u", "1Gi"),
        ].concat();
    s11_14_a_missing_class_is_told: sync_claims World::new([claim().class("gold")]) => failed();
    s11_15_the_empty_class_makes_nothing: sync_claims World::new([claim().class(""), gold()]).host_path()
        => vec![text("Normal FailedBinding pvc/c")];
    s11_16_no_class_makes_nothing: sync_claims World::new([claim(), gold()]).host_path()
        => vec![text("Normal FailedBinding pvc/c")];
    s11_17_an_external_provisioner_is_asked: sync_claims World::new([claim().class("gold"), external()]) => asked();
    s11_18_an_unknown_plugin_is_told: sync_claims World::new([claim().class("gold"), class("gold", "kubernetes.io/unknown")])
        => failed();
    s11_20_mount_options_are_refused_after_the_plugin_was_asked:
        sync_claims World::new([claim().class("gold"), gold().with("mountOptions", json!(["ro"]))]).host_path()
        => [vec![pvc_asks(PLUGIN)], failed()].concat();
    s11_21_a_migrated_plugin_means_its_driver:
        sync_claims World::new([claim().class("gold"), class("gold", "kubernetes.io/aws-ebs")])
        => vec![
            line("pvc/c", json!({ "metadata": { "annotations": {
                SP: "ebs.csi.aws.com", BETA_SP: "ebs.csi.aws.com", MT: "ebs.csi.aws.com",
            } } })),
            text("Normal ExternalProvisioning pvc/c"),
        ];
    s11_22_an_external_class_takes_a_volume_that_fits:
        sync_claims World::new([claim().class("gold"), external(), volume("v", "1Gi").available().class("gold")])
        => chosen("v", "1Gi");
    s11_23_a_chosen_node_makes_a_volume_whatever_is_free:
        sync_claims World::new([
            claim().class("gold").on_node("node1"), late(gold()), volume("v", "1Gi").available().class("gold"),
        ]).host_path()
        => [made(), provided("pvc-u", "1Gi")].concat();
    s11_24_a_chosen_node_asks_an_external_provisioner_whatever_is_free:
        sync_claims World::new([
            claim().class("gold").on_node("node1"), late(external()), volume("v", "1Gi").available().class("gold"),
        ])
        => asked();
    s11_25_a_source_of_data_is_refused_before_the_plugin_is_asked:
        sync_claims World::new([
            claim().class("gold").with("spec.dataSource", json!({ "kind": "X", "name": "x" })), gold(),
        ]).host_path()
        => failed();
    s11_26_a_provisioner_that_was_asked_is_not_asked_again:
        sync_claims World::new([claim().class("gold").annotate(SP, VENDOR), external()])
        => vec![text("Normal ExternalProvisioning pvc/c")];
    s12_01_a_volume_that_was_made_is_bound: settle World::new([claim().class("gold"), gold()]).host_path()
        => [made(), provided("pvc-u", "1Gi")].concat();
    s12_03_an_external_claim_stays_pending: settle World::new([claim().class("gold"), external()]) => asked();
    flag_provisioning_that_is_off_does_nothing:
        sync_claims World::new([claim().class("gold"), external()]).rules(|rules| rules.provisioning = false)
        => vec![];
    integ_a_chosen_node_is_kept_where_no_other_would_do:
        sync_claims World::new([claim().class("gold").mode("Block").on_node("node1"), late(gold())]).host_path()
        => [vec![pvc_asks(PLUGIN)], failed()].concat();
}

#[test]
fn s11_07_and_19_a_volume_that_appeared_meanwhile_is_bound_and_not_made_again() {
    let provisioned = volume("pvc-u", "1Gi").class("gold").refers("c", "u").marked();
    let mut world = World::new([claim().class("gold").annotate(SP, PLUGIN), gold()]).host_path().unseen(provisioned);
    // The first attempt finds the name taken, which shows the volume; the second binds it.
    let steps = world.sync_claims();
    assert_eq!(steps, provided("pvc-u", "1Gi"));
}

#[test]
fn s11_08_to_12_a_volume_that_cannot_be_saved_leaves_nothing_behind() {
    // Nothing is made but the object, so there is nothing to clean up, however many attempts fail: the next one sends
    // the same object again.
    let world = World::new([claim().class("gold").annotate(SP, PLUGIN), gold()]).host_path();
    let steps = world.refusing_writes(5).settle();
    let [post, told] = &made()[1..] else { panic!("a POST and what is told of it") };
    let refused = vec![format!("{post}{REFUSED}"); 5];
    assert_eq!(steps, [refused, vec![post.clone(), told.clone()], provided("pvc-u", "1Gi")].concat());
}

#[test]
fn s11_20_the_text_says_what_is_wrong_and_s11_01_what_was_made() {
    let mut world = World::new([claim().class("gold"), gold().with("mountOptions", json!(["ro"]))]).host_path();
    world.sync_claims();
    assert!(world.said[0].starts_with("persistentvolume-controller: Mount options"), "{:?}", world.said);
    let mut world = World::new([claim().class("gold"), gold()]).host_path();
    world.sync_claims();
    let text = format!("persistentvolume-controller: Successfully provisioned volume pvc-u using {PLUGIN}");
    assert_eq!(world.said, [text]);
}

#[test]
fn s12_02_a_volume_that_appears_free_is_bound() {
    let mut world = World::new([claim().class("gold"), external()]);
    assert_eq!(world.settle(), asked());
    world.put(volume("v", "1Gi").class("gold"));
    assert_eq!(world.settle(), [vec![pv_phase("v", "Available")], chosen("v", "1Gi")].concat());
}

#[test]
fn s12_04_a_volume_that_appears_for_the_claim_is_bound() {
    let mut world = World::new([claim().class("gold"), external()]);
    assert_eq!(world.settle(), asked());
    world.put(volume("v", "1Gi").class("gold").refers("c", "u"));
    assert_eq!(world.settle(), provided("v", "1Gi"));
}
