//! 8.10 migration, finalizers, retroactive class.

use serde_json::json;

use super::expect::*;
use super::fixtures::{Fixture, claim, class, volume};
use super::scenarios;
use super::world::World;

const IN_TREE: &str = "kubernetes.io/host-path";
const MIGRATED: &str = "kubernetes.io/gce-pd";
const DRIVER: &str = "pd.csi.storage.gke.io";
const PROTECTION: &str = "kubernetes.io/pv-protection";
const DELETER: &str = "kubernetes.io/pv-controller";
const EXTERNAL: &str = "external-provisioner.volume.kubernetes.io/finalizer";
const CUSTOM: &str = "example.com/custom";

fn pv() -> Fixture {
    volume("v", "1Gi").available()
}

fn pv_of(provisioner: &str, policy: &str, finalizers: &[&str]) -> World {
    let all: Vec<&str> = finalizers.iter().copied().chain([PROTECTION]).collect();
    World::new([pv().provisioned(provisioner).policy(policy).finalizers(&all)])
}

fn migrated(path: &str, driver: Option<&str>) -> Vec<String> {
    vec![line(path, json!({ "metadata": { "annotations": { MT: driver } } }))]
}

/// A claim that the provisioner was asked for, and otherwise at rest.
fn asked(annotation: &str, provisioner: &str) -> World {
    World::new([
        claim().completed("v").bound("1Gi").annotate(annotation, provisioner),
        pv().phase("Bound").refers("c", "u"),
    ])
}

scenarios! {
    a_volume_of_a_migrated_plugin_is_marked: sync_volumes World::new([pv().provisioned(MIGRATED)])
        => migrated("pv/v", Some(DRIVER));
    a_claim_of_a_migrated_plugin_is_marked: sync_claims asked(SP, MIGRATED) => migrated("pvc/c", Some(DRIVER));
    a_claim_of_a_migrated_plugin_by_its_old_name_is_marked: sync_claims asked(BETA_SP, MIGRATED)
        => migrated("pvc/c", Some(DRIVER));
    a_claim_of_a_plugin_that_was_not_migrated_is_left: sync_claims asked(SP, IN_TREE) => vec![];
    a_volume_of_a_plugin_that_was_not_migrated_is_left: sync_volumes World::new([pv().provisioned(IN_TREE)]) => vec![];
    a_claims_mark_of_a_migration_taken_back_goes:
        sync_claims World::new([
            claim().completed("v").bound("1Gi").annotate(SP, IN_TREE).annotate(MT, DRIVER), pv().phase("Bound").refers("c", "u"),
        ])
        => migrated("pvc/c", None);
    a_claims_mark_of_a_migration_taken_back_goes_by_its_old_name_too:
        sync_claims World::new([
            claim().completed("v").bound("1Gi").annotate(BETA_SP, IN_TREE).annotate(MT, DRIVER), pv().phase("Bound").refers("c", "u"),
        ])
        => migrated("pvc/c", None);
    a_volumes_mark_of_a_migration_taken_back_goes: sync_volumes World::new([pv().provisioned(IN_TREE).annotate(MT, DRIVER)])
        => migrated("pv/v", None);
    a_volume_of_an_unknown_plugin_is_left: sync_volumes World::new([pv().provisioned("kubernetes.io/unknown")]) => vec![];
    a_claim_of_an_unknown_plugin_is_left: sync_claims asked(SP, "kubernetes.io/unknown") => vec![];
    a_claim_of_an_unknown_plugin_by_its_old_name_is_left: sync_claims asked(BETA_SP, "kubernetes.io/unknown") => vec![];
    a_volume_of_a_plugin_without_a_name_is_left: sync_volumes World::new([pv().provisioned("")]) => vec![];
    a_claim_of_a_plugin_without_a_name_is_left: sync_claims asked(SP, "") => vec![];
    a_volume_with_empty_annotations_is_left: sync_volumes World::new([pv().with("metadata.annotations", json!({}))])
        => vec![];
    a_claim_with_empty_annotations_is_left:
        sync_claims World::new([claim().names("missing").with("metadata.annotations", json!({}))])
        => vec![];
    a_volume_without_annotations_is_left: sync_volumes World::new([pv()]) => vec![];
    a_claim_without_annotations_is_left: sync_claims World::new([claim().names("missing")]) => vec![];

    fin13_01_an_external_volume_keeps_its_finalizer: sync_volumes pv_of("d", "Delete", &[EXTERNAL]) => vec![];
    fin13_02_an_external_volume_gets_none: sync_volumes pv_of("d", "Delete", &[]) => vec![];
    fin13_03_an_in_tree_volume_gets_one_after_others: sync_volumes pv_of(IN_TREE, "Delete", &[CUSTOM])
        => vec![pv_finalizers("v", &[CUSTOM, PROTECTION, DELETER])];
    fin13_04_an_in_tree_volume_gets_one: sync_volumes pv_of(IN_TREE, "Delete", &[])
        => vec![pv_finalizers("v", &[PROTECTION, DELETER])];
    fin13_05_and_08_an_external_finalizer_is_replaced: sync_volumes pv_of(IN_TREE, "Delete", &[EXTERNAL])
        => vec![pv_finalizers("v", &[PROTECTION, DELETER])];
    fin13_06_and_09_a_custom_finalizer_stays_first: sync_volumes pv_of(IN_TREE, "Delete", &[CUSTOM, EXTERNAL])
        => vec![pv_finalizers("v", &[CUSTOM, PROTECTION, DELETER])];
    fin13_07_a_migrated_volume_loses_the_in_tree_one: sync_volumes
        World::new([pv().provisioned(MIGRATED).annotate(MT, DRIVER).policy("Delete").finalizers(&[DELETER, EXTERNAL, PROTECTION])])
        => vec![pv_finalizers("v", &[EXTERNAL, PROTECTION])];
    fin13_10_a_volume_made_by_hand_keeps_its_finalizer:
        sync_volumes World::new([pv().policy("Delete").finalizers(&[EXTERNAL, PROTECTION])])
        => vec![];
    fin13_11_and_15_a_volume_made_by_hand_gets_none: sync_volumes World::new([pv().policy("Delete")]) => vec![];
    fin13_12_a_retained_volume_gets_none: sync_volumes pv_of(IN_TREE, "Retain", &[]) => vec![];
    fin13_13_a_recycled_volume_gets_none: sync_volumes pv_of(IN_TREE, "Recycle", &[]) => vec![];
    fin13_14_a_retained_volume_loses_it: sync_volumes pv_of(IN_TREE, "Retain", &[DELETER])
        => vec![pv_finalizers("v", &[PROTECTION])];

    s15_01_without_a_default_a_claim_stays_without_class: sync_claims World::new([claim(), class("gold", "d")])
        => vec![text("Normal FailedBinding pvc/c")];
    s15_02_of_two_defaults_of_an_age_the_first_by_name_is_given:
        sync_claims World::new([claim(), class("silver", "d").default_class(), class("gold", "d").default_class()])
        => vec![pvc_class("gold"), pvc_asks("d"), text("Normal ExternalProvisioning pvc/c")];
    s15_03_a_lost_claim_is_not_given_a_class:
        sync_claims World::new([claim().class("x").completed("missing"), class("gold", "d").default_class()])
        => vec![line("pvc/c/status", json!({ "status": { "phase": "Lost" } })), text("Warning ClaimLost pvc/c")];
    s15_04_a_claim_that_names_a_volume_is_not_given_a_class:
        sync_claims World::new([claim().class("x").names("missing"), class("gold", "d").default_class()])
        => vec![];
    s15_05_a_claim_without_class_is_given_the_default:
        sync_claims World::new([claim(), class("gold", "d").default_class()])
        => vec![pvc_class("gold"), pvc_asks("d"), text("Normal ExternalProvisioning pvc/c")];
    s15_06_a_claim_with_a_class_keeps_it:
        sync_claims World::new([claim().class("x"), class("x", "d"), class("gold", "e").default_class()])
        => vec![pvc_asks("d"), text("Normal ExternalProvisioning pvc/c")];
    s15_07_a_claim_with_the_old_annotation_keeps_it:
        sync_claims World::new([
            claim().annotate("volume.beta.kubernetes.io/storage-class", "x"), class("x", "d"), class("gold", "e").default_class(),
        ])
        => vec![pvc_asks("d"), text("Normal ExternalProvisioning pvc/c")];
    integ_a_claim_without_class_gets_the_volume_without_class_where_there_is_no_default:
        sync_claims World::new([claim(), pv(), class("gold", "d")])
        => chosen("v", "1Gi");
    a_volume_without_class_comes_before_the_default:
        sync_claims World::new([claim(), pv(), class("gold", "d").default_class()])
        => chosen("v", "1Gi");
    integ_a_default_that_comes_later_is_given: sync_claims {
        let mut world = World::new([claim()]);
        assert_eq!(world.sync_claims(), [text("Normal FailedBinding pvc/c")]);
        world.put(class("gold", "d").default_class());
        world
    } => vec![pvc_class("gold"), pvc_asks("d"), text("Normal ExternalProvisioning pvc/c")];
}
