//! 8.9 provisioning. The in-tree plugin is hostPath, whose volumes need nothing but their object.

use serde_json::{Value, json};

use stowage_model::object::Key;

use super::expect::*;
use super::fixtures::{Fixture, claim, claim_named, class, volume};
use super::scenarios;
use super::world::{Plugin, REFUSED, UNANSWERED, World};

const PLUGIN: &str = "kubernetes.io/host-path";
const VENDOR: &str = "vendor.com/my-volume";

fn gold() -> Fixture {
    class("gold", PLUGIN)
}

fn external() -> Fixture {
    class("gold", VENDOR)
}

/// What wants the data of another, and not any volume that is as large.
fn filled() -> Fixture {
    claim().class("gold").with("spec.dataSourceRef", json!({ "kind": "PersistentVolumeClaim", "name": "old" }))
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

fn post() -> String {
    made_with(json!(["kubernetes.io/pv-controller"]))
}

fn made() -> Vec<String> {
    vec![pvc_asks(PLUGIN), post(), text("Normal ProvisioningSucceeded pvc/c")]
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

/// The plugin was asked; the next write is that of the volume.
fn unmade() -> World {
    World::new([claim().class("gold").annotate(SP, PLUGIN), gold()]).host_path()
}

/// The volume is refused so often, then saved and bound. A deviation: each refusal is told, where upstream tells of the
/// fifth. Nothing was made but the object, so nothing is cleaned up and no deleter asked: upstream tells if that fails.
fn saved_after(refusals: usize) -> Vec<String> {
    let refused = [vec![format!("{}{REFUSED}", post())], failed()].concat();
    let saved = vec![post(), text("Normal ProvisioningSucceeded pvc/c")];
    [vec![refused; refusals].concat(), saved, provided("pvc-u", "1Gi")].concat()
}

scenarios! {
    s11_01_a_volume_is_made_and_bound: settle World::new([claim().class("gold"), gold()]).host_path()
        => [made(), provided("pvc-u", "1Gi")].concat();
    s11_02_a_plugin_that_is_not_there_is_told:
        sync_claims World::new([claim().class("gold"), class("gold", "kubernetes.io/rbd")]).host_path()
        => failed();
    // A plugin that is switched off is there all the same, and refuses to begin.
    s11_03_a_plugin_that_cannot_begin_is_told_after_it_was_asked:
        sync_claims World::new([claim().class("gold"), gold()])
        => [vec![pvc_asks(PLUGIN)], failed()].concat();
    s11_04_a_plugin_that_cannot_make_it_is_told_after_it_was_asked:
        sync_claims World::new([claim().class("gold").mode("Block"), gold()]).host_path()
        => [vec![pvc_asks(PLUGIN)], failed()].concat();
    a_claim_that_was_bound_once_keeps_its_status_when_nothing_can_be_made:
        settle World::new([claim().class("gold").bound("1Gi")]) => failed();
    a_plugin_that_knows_no_attributes_is_not_asked_for_them:
        settle World::new([claim().class("gold").attributes("fast"), gold()]).host_path() => failed();
    s11_06_a_volume_that_fits_is_taken: sync_claims World::new([
            claim().class("gold"), gold(), volume("v", "1Gi").available().class("gold"),
        ]).host_path()
        => chosen("v", "1Gi");
    // The name is found taken, which shows the volume.
    s11_07_a_volume_that_appeared_meanwhile_is_bound_and_nothing_is_told:
        sync_claims World::new([claim().class("gold"), gold()])
            .host_path()
            .unseen(volume("pvc-u", "1Gi").class("gold").refers("c", "u").marked())
        => [vec![pvc_asks(PLUGIN)], provided("pvc-u", "1Gi")].concat();
    s11_08_a_volume_that_is_refused_once_is_saved: settle unmade().refusing_writes(1) => saved_after(1);
    s11_09_a_volume_that_is_refused_five_times_leaves_nothing_to_clean_up: settle unmade().refusing_writes(5)
        => saved_after(5);
    s11_10_a_volume_that_is_refused_needs_no_deleter:
        settle unmade().refusing_writes(5).plugin(Plugin::CannotStart)
        => saved_after(5);
    s11_11_a_volume_that_is_refused_asks_no_deleter_that_would_fail:
        settle unmade().refusing_writes(5).plugin(Plugin::Fails(5))
        => saved_after(5);
    s11_12_a_volume_that_is_refused_asks_no_deleter_that_would_fail_once:
        settle unmade().refusing_writes(5).plugin(Plugin::Fails(1))
        => saved_after(5);
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
    // It counts as made and is told as such, whoever found out.
    s11_19_a_volume_whose_answer_was_lost_is_told_as_made: settle unmade().losing_answers(1)
        => [
            vec![format!("{}{UNANSWERED}", post()), text("Normal ProvisioningSucceeded pvc/c")],
            provided("pvc-u", "1Gi"),
        ].concat();
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
    s11_26_a_source_of_data_is_the_drivers_matter_and_who_was_asked_is_not_asked_again:
        sync_claims World::new([
            claim().class("gold").annotate(SP, VENDOR).with(
                "spec.dataSource",
                json!({ "apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "x" }),
            ),
            external(),
        ])
        => vec![text("Normal ExternalProvisioning pvc/c")];
    a_claim_that_is_to_be_filled_is_bound_to_no_free_volume:
        settle World::new([filled(), external(), volume("v", "1Gi").available().class("gold")]) => asked();
    a_claim_that_is_to_be_filled_and_has_no_provisioner_waits_beside_a_free_volume:
        settle World::new([filled(), class("gold", "kubernetes.io/no-provisioner"), volume("v", "1Gi").available().class("gold")])
        => failed();
    a_claim_that_is_to_be_filled_is_bound_to_the_volume_made_for_it:
        settle World::new([filled(), external(), volume("v", "1Gi").available().class("gold"), volume("w", "1Gi").class("gold").refers("c", "u")])
        => provided("w", "1Gi");
    a_claim_that_is_to_be_filled_is_bound_to_the_volume_its_user_names:
        settle World::new([filled().names("v"), external(), volume("v", "1Gi").available().class("gold")])
        => named("v", "1Gi");
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
fn a_claim_that_is_to_be_filled_is_told_what_a_volume_of_its_own_needs_and_wakes_nobodys_volume() {
    let mut world =
        World::new([filled(), class("gold", "kubernetes.io/no-provisioner"), claim_named("d", "d").class("gold")]);
    world.settle();
    let told = |text: &&String| text.contains("with the claim in its spec.claimRef");
    assert_eq!(world.said.iter().filter(told).count(), 1, "{:?}", world.said);
    world.put(volume("v", "1Gi").class("gold"));
    world.settle();
    assert_eq!(world.caches.matchmaker.claimed_by(&Key::namespaced("n", "d"), "d"), [Key::cluster("v")]);
}

#[test]
fn s11_20_the_text_says_what_is_wrong_and_s11_01_what_was_made() {
    let mut world = World::new([claim().class("gold"), gold().with("mountOptions", json!(["ro"]))]).host_path();
    world.sync_claims();
    assert!(world.said[0].starts_with("persistentvolume-controller: Mount options"), "{:?}", world.said);
    let mut world = World::new([claim().class("gold"), gold()]).host_path();
    world.sync_claims();
    let text = format!("persistentvolume-controller: volume pvc-u is made by {PLUGIN}");
    assert_eq!(world.said, [text]);
}

#[test]
fn s12_02_a_volume_that_appears_free_is_bound() {
    let mut world = World::new([claim().class("gold"), external()]);
    assert_eq!(world.rests_after(World::settle), asked());
    world.put(volume("v", "1Gi").class("gold"));
    let bound = [vec![pv_phase("v", "Available")], chosen("v", "1Gi")].concat();
    assert_eq!(world.rests_after(World::settle), bound);
}

#[test]
fn s12_04_a_volume_that_appears_for_the_claim_is_bound() {
    let mut world = World::new([claim().class("gold"), external()]);
    assert_eq!(world.rests_after(World::settle), asked());
    world.put(volume("v", "1Gi").class("gold").refers("c", "u"));
    assert_eq!(world.rests_after(World::settle), provided("v", "1Gi"));
}
