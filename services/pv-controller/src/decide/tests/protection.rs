//! 8.12 pvc-protection with the `Unused` condition, 8.13 pv- and vac-protection, ephemeral volumes, expansion.

use serde_json::{Value, json};

use stowage_model::object::{self, kinds};

use super::expect::*;
use super::fixtures::{Fixture, attributes_class, claim, claim_named, pod, volume};
use super::scenarios;
use super::world::{NOW, REFUSED, World};
use crate::watches::Key;

const CLAIM: &str = "kubernetes.io/pvc-protection";
const VAC: &str = "kubernetes.io/vac-protection";

fn guard(objects: impl IntoIterator<Item = Fixture>) -> World {
    World::new(objects).only(|controllers| controllers.claim_protection = true)
}

/// With the condition, as upstream's gate is by default.
fn gated(objects: impl IntoIterator<Item = Fixture>) -> World {
    guard(objects).rules(|rules| rules.unused_condition = true)
}

fn bare() -> Fixture {
    claim().finalizers(&[])
}

fn used() -> Fixture {
    claim().bound("1Gi")
}

fn protect() -> String {
    line("pvc/c", json!({ "metadata": { "finalizers": [CLAIM] } }))
}

fn released() -> Vec<String> {
    vec![text("list pods n"), line("pvc/c", json!({ "metadata": { "finalizers": [] } }))]
}

/// The same lines about another claim, in another namespace.
fn of(lines: Vec<String>, name: &str, namespace: &str) -> Vec<String> {
    let change = |line: &String| match line.strip_prefix("list pods ") {
        Some(_) => format!("list pods {namespace}"),
        None if namespace == "n" => line.replace("pvc/c", &format!("pvc/{name}")),
        None => line.replace("pvc/c", &format!("pvc/{namespace}/{name}")),
    };
    lines.iter().map(change).collect()
}

/// The lines, of which the last was refused.
fn refused(mut lines: Vec<String>) -> Vec<String> {
    lines.last_mut().unwrap().push_str(REFUSED);
    lines
}

/// Twice refused, then done.
fn third_time(lines: Vec<String>) -> Vec<String> {
    [refused(lines.clone()), refused(lines.clone()), lines].concat()
}

fn condition(holds: bool) -> Value {
    let (status, reason, message) = if holds {
        ("True", "NoPodsUsingPVC", "No pods are currently referencing this PVC")
    } else {
        ("False", "PodUsingPVC", "A pod is currently referencing this PVC")
    };
    json!({ "type": "Unused", "status": status, "reason": reason, "lastTransitionTime": NOW, "message": message })
}

fn first(holds: bool) -> Vec<String> {
    vec![line("pvc/c/status", json!({ "status": { "conditions": [condition(holds)] } }))]
}

fn turned(holds: bool) -> Vec<String> {
    vec![line("pvc/c/status", json!([{ "op": "replace", "path": "/status/conditions/0", "value": condition(holds) }]))]
}

scenarios! {
    a_claim_without_the_finalizer_gets_it: settle guard([bare()]) => vec![protect()];
    two_claims_in_two_namespaces_get_it:
        settle guard([bare(), claim_named("c", "w").finalizers(&[]).with("metadata.namespace", "m")])
        => [of(vec![protect()], "c", "m"), vec![protect()]].concat();
    a_claim_gets_it_at_the_third_attempt: settle guard([bare()]).refusing_writes(2) => third_time(vec![protect()]);
    a_claim_with_the_finalizer_is_left: settle guard([claim()]) => vec![];
    a_deleted_claim_goes_after_a_fresh_look: settle guard([claim().deleting()]) => released();
    two_deleted_claims_each_get_their_look: settle guard([claim().deleting(), claim_named("d", "w").deleting()])
        => [released(), of(released(), "d", "n")].concat();
    two_deleted_claims_in_two_namespaces_each_get_their_look:
        settle guard([claim().deleting(), claim_named("c", "w").deleting().with("metadata.namespace", "m")])
        => [of(released(), "c", "m"), released()].concat();
    a_deleted_claim_goes_at_the_third_attempt: settle guard([claim().deleting()]).refusing_writes(2)
        => third_time(released());
    a_look_that_fails_is_taken_again_after_the_others:
        settle guard([claim().deleting(), claim_named("d", "w").deleting()]).refusing_lists(1)
        => [refused(vec![text("list pods n")]), of(released(), "d", "n"), released()].concat();
    of_two_deleted_claims_the_one_that_a_pod_only_the_api_has_uses_is_kept:
        settle guard([claim().deleting(), claim_named("d", "w").deleting()]).unseen(pod("p"))
        => [vec![text("list pods n")], of(released(), "d", "n")].concat();
    a_claim_used_by_a_placed_pod_is_kept: settle guard([claim().deleting(), pod("p")]) => vec![];
    a_pod_of_another_claim_does_not_keep_it:
        settle guard([claim().deleting(), pod("p").with("spec.volumes", json!([
            { "name": "a", "persistentVolumeClaim": { "claimName": "other" } }, { "name": "b", "emptyDir": {} },
        ]))])
        => released();
    a_pod_that_failed_keeps_it: settle guard([claim().deleting(), pod("p").phase("Failed")]) => vec![];
    a_pod_that_only_the_api_has_keeps_it: settle guard([claim().deleting()]).unseen(pod("p"))
        => vec![text("list pods n")];
    an_unplaced_pod_does_not_keep_it: settle guard([claim().deleting(), pod("p").unplaced()]) => released();

    gate_a_bound_claim_without_pods_is_unused: settle gated([used()]) => first(true);
    gate_a_pending_claim_says_nothing: settle gated([claim()]) => vec![];
    gate_a_claim_that_is_unused_already_says_nothing: settle gated([used().unused(true)]) => vec![];
    gate_a_running_pod_ends_it: settle gated([used().unused(true), pod("p")]) => turned(false);
    gate_a_used_claim_says_so: settle gated([used(), pod("p")]) => first(false);
    gate_a_status_is_written_at_the_third_attempt: settle gated([used()]).refusing_writes(2)
        => third_time(first(true));
    gate_a_pod_counts_as_soon_as_the_watch_shows_it: settle {
        let mut world = gated([used()]).unseen(pod("p"));
        assert_eq!(world.settle(), first(true), "no list of all pods for a condition");
        world.put(pod("p"));
        world
    } => turned(false);
    gate_an_unplaced_pod_counts: settle gated([used(), pod("p").unplaced()]) => first(false);
    gate_a_pod_that_succeeded_does_not_count: settle gated([used(), pod("p").phase("Succeeded")]) => first(true);
    gate_a_pod_that_failed_does_not_count: settle gated([used(), pod("p").phase("Failed")]) => first(true);
    gate_one_of_two_pods_is_enough: settle {
        let mut world = gated([used(), pod("p"), pod("q")]);
        assert_eq!(world.settle(), first(false));
        world.take(kinds::POD, &object::Key::namespaced("n", "q"));
        world
    } => vec![];
    gate_the_last_pod_that_goes_leaves_it_unused: settle {
        let mut world = gated([used(), pod("p")]);
        assert_eq!(world.settle(), first(false));
        world.take(kinds::POD, &object::Key::namespaced("n", "p"));
        world
    } => turned(true);
    gate_a_used_claim_without_the_finalizer_gets_both: settle gated([bare().bound("1Gi"), pod("p")])
        => [vec![protect()], first(false)].concat();
    gate_a_deleted_claim_in_use_is_left: settle gated([used().deleting(), pod("p")]) => vec![];
    an_updated_pod_that_runs_keeps_a_deleted_claim: settle gated([used().deleting(), pod("p").phase("Running")]) => vec![];
    an_updated_pod_that_finished_keeps_a_deleted_claim: settle gated([used().deleting(), pod("p").phase("Succeeded")]) => vec![];
    an_updated_pod_that_is_not_placed_lets_a_deleted_claim_go: settle gated([used().deleting(), pod("p").unplaced()])
        => released();
    a_pod_that_goes_lets_a_deleted_claim_go: settle {
        let mut world = gated([used().deleting(), pod("p")]);
        assert_eq!(world.settle(), Vec::<String>::new());
        world.take(kinds::POD, &object::Key::namespaced("n", "p"));
        world
    } => released();
    a_pod_replaced_by_a_namesake_that_uses_another_claim_lets_it_go: settle {
        let mut world = gated([used().deleting(), pod("p")]);
        assert_eq!(world.settle(), Vec::<String>::new());
        world.put(pod("p").uid("other").with("spec.volumes", json!([])));
        world
    } => released();
    a_pod_replaced_by_a_namesake_leaves_a_claim_that_is_not_deleted: settle {
        let mut world = guard([used(), pod("p")]);
        world.put(pod("p").uid("other").with("spec.volumes", json!([])));
        world
    } => vec![];
    a_pod_replaced_by_a_namesake_that_uses_it_too_keeps_it: settle {
        let mut world = gated([used().deleting(), pod("p")]);
        world.put(pod("p").uid("other"));
        world
    } => vec![];
    a_pod_that_was_placed_meanwhile_keeps_it: settle {
        let mut world = gated([used().deleting()]);
        world.put(pod("p").unplaced());
        world.put(pod("p"));
        world
    } => vec![];
    a_pod_that_its_node_has_finished_with_does_not_keep_its_own_claim:
        settle guard([
            claim_named("p-data", "u").deleting().owned_by("p"),
            pod("p").ephemeral().deleting().with("metadata.deletionGracePeriodSeconds", 0),
        ])
        => of(released(), "p-data", "n");

    a_volume_without_the_finalizer_gets_it: settle
        World::new([volume("v", "1Gi").finalizers(&[])]).only(|controllers| controllers.volume_protection = true)
        => vec![pv_finalizers("v", &["kubernetes.io/pv-protection"])];
    a_volume_gets_it_at_the_third_attempt: settle
        World::new([volume("v", "1Gi").finalizers(&[])])
            .only(|controllers| controllers.volume_protection = true)
            .refusing_writes(2)
        => third_time(vec![pv_finalizers("v", &["kubernetes.io/pv-protection"])]);
    a_volume_with_the_finalizer_is_left: settle
        World::new([volume("v", "1Gi")]).only(|controllers| controllers.volume_protection = true)
        => vec![];
    a_deleted_volume_that_is_not_bound_goes: settle
        World::new([volume("v", "1Gi").available().deleting()]).only(|controllers| controllers.volume_protection = true)
        => vec![pv_finalizers("v", &[])];
    a_deleted_volume_that_is_bound_is_kept: settle
        World::new([volume("v", "1Gi").phase("Bound").deleting()]).only(|controllers| controllers.volume_protection = true)
        => vec![];
    a_deleted_volume_whose_phase_is_still_to_be_written_is_kept: settle
        World::new([claim().completed("v"), volume("v", "1Gi").available().refers("c", "u").deleting()])
            .only(|controllers| controllers.volume_protection = true)
        => vec![];

    an_attributes_class_without_the_finalizer_gets_it: settle World::new([attributes_class("gold").finalizers(&[])])
        => vec![line("vac/gold", json!({ "metadata": { "finalizers": [VAC] } }))];
    an_attributes_class_gets_it_at_the_third_attempt: settle
        World::new([attributes_class("gold").finalizers(&[])]).refusing_writes(2)
        => third_time(vec![line("vac/gold", json!({ "metadata": { "finalizers": [VAC] } }))]);
    an_attributes_class_with_the_finalizer_is_left: settle World::new([attributes_class("gold")]) => vec![];
    a_deleted_attributes_class_that_nobody_names_goes: settle World::new([attributes_class("gold").deleting()])
        => vec![line("vac/gold", json!({ "metadata": { "finalizers": [] } }))];
    a_deleted_attributes_class_that_a_volume_names_is_kept: settle
        World::new([attributes_class("gold").deleting(), volume("v", "1Gi").available().attributes("gold")])
        => vec![];
    a_deleted_attributes_class_that_a_claim_names_is_kept: settle
        World::new([attributes_class("gold").deleting(), claim().attributes("gold")])
            .only(|controllers| controllers.attributes_class_protection = true)
        => vec![];
    a_deleted_attributes_class_in_effect_is_kept: settle
        World::new([
            attributes_class("gold").deleting(), claim().with("status.currentVolumeAttributesClassName", "gold"),
        ]).only(|controllers| controllers.attributes_class_protection = true)
        => vec![];
    a_deleted_attributes_class_aimed_at_is_kept: settle
        World::new([
            attributes_class("gold").deleting(),
            claim().with("status.modifyVolumeStatus", json!({ "targetVolumeAttributesClassName": "gold" })),
        ]).only(|controllers| controllers.attributes_class_protection = true)
        => vec![];
    a_deleted_attributes_class_goes_when_its_claim_changes: settle {
        let mut world = World::new([attributes_class("gold").deleting(), claim().attributes("gold")])
            .only(|controllers| controllers.attributes_class_protection = true);
        assert_eq!(world.settle(), Vec::<String>::new());
        world.put(claim().attributes("silver"));
        world
    } => vec![line("vac/gold", json!({ "metadata": { "finalizers": [] } }))];
    a_deleted_attributes_class_goes_when_its_volume_changes: settle {
        let mut world = World::new([attributes_class("gold").deleting(), volume("v", "1Gi").available().attributes("gold")])
            .only(|controllers| controllers.attributes_class_protection = true);
        assert_eq!(world.settle(), Vec::<String>::new());
        world.put(volume("v", "1Gi").available().attributes("silver"));
        world
    } => vec![line("vac/gold", json!({ "metadata": { "finalizers": [] } }))];
    a_deleted_attributes_class_goes_with_its_last_user: settle {
        let mut world = World::new([
            attributes_class("gold").deleting(), claim().attributes("gold"), volume("v", "1Gi").available().attributes("gold"),
        ]).only(|controllers| controllers.attributes_class_protection = true);
        world.take(kinds::CLAIM, &object::Key::namespaced("n", "c"));
        assert_eq!(world.settle(), Vec::<String>::new(), "the volume names it");
        world.take(kinds::VOLUME, &object::Key::cluster("v"));
        world
    } => vec![line("vac/gold", json!({ "metadata": { "finalizers": [] } }))];
}

fn ephemeral(objects: impl IntoIterator<Item = Fixture>) -> World {
    World::new(objects).only(|controllers| controllers.ephemeral = true)
}

fn posted() -> Vec<String> {
    vec![line(
        "POST pvc/p-data",
        json!({
            "metadata": {
                "namespace": "n",
                "name": "p-data",
                "labels": { "a": "b" },
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-p", "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": { "storageClassName": "gold" },
        }),
    )]
}

scenarios! {
    a_pod_with_an_ephemeral_volume_gets_its_claim: settle ephemeral([pod("p").ephemeral()]) => posted();
    a_pod_that_is_gone_gets_none: settle {
        let mut world = ephemeral([pod("p").ephemeral()]);
        world.lagging = true;
        world.take(kinds::POD, &object::Key::namespaced("n", "p"));
        assert!(!world.decide(&Key::Pod(object::Key::namespaced("n", "p"))).0.is_empty(), "the cache still has it");
        world
    } => vec![];
    a_pod_that_is_being_deleted_gets_none: settle ephemeral([pod("p").ephemeral().deleting()]) => vec![];
    a_pod_without_ephemeral_volumes_gets_none: settle ephemeral([pod("p")]) => vec![];
    a_claim_of_the_name_elsewhere_does_not_matter: settle
        ephemeral([pod("p").ephemeral(), claim_named("p-data", "x").with("metadata.namespace", "elsewhere")])
        => posted();
    a_claim_of_the_name_that_belongs_to_nobody_is_told: settle ephemeral([pod("p").ephemeral(), claim_named("p-data", "x")])
        => vec![text("Warning FailedBinding pod/p")];
    a_foreign_claim_that_only_the_api_has_is_found_and_told: settle
        ephemeral([pod("p").ephemeral()]).unseen(claim_named("p-data", "x"))
        => vec![text("Warning FailedBinding pod/p")];
    a_claim_that_only_the_api_has_is_found: settle
        ephemeral([pod("p").ephemeral()]).unseen(claim_named("p-data", "x").owned_by("p"))
        => vec![];
    a_claim_whose_pod_is_gone_is_collected: settle ephemeral([claim_named("p-data", "x").owned_by("p")])
        => vec![text("DELETE pvc/p-data")];
}

fn grown(volume: Fixture) -> World {
    World::new([claim().completed("v").bound("1Gi").size("2Gi"), volume.phase("Bound").refers("c", "u")])
}

scenarios! {
    // Upstream's error is only logged.
    expand_a_claim_without_its_volume_is_not_handed_to_anybody:
        settle World::new([claim().completed("v").bound("1Gi").size("2Gi")]).only(|on| on.expander = true)
        => vec![];
    expand_alone_a_claim_with_its_volume_is_handed_over:
        settle grown(volume("v", "1Gi").csi()).only(|on| on.expander = true)
        => vec![text("Normal ExternalExpanding pvc/c")];
    expand_a_claim_without_its_volume_is_only_lost: settle World::new([claim().completed("v").bound("1Gi").size("2Gi")])
        => vec![pvc_cleared("Lost"), text("Warning ClaimLost pvc/c")];
    expand_a_migrated_volume_is_handed_to_its_drivers_resizer: settle grown(volume("v", "1Gi").source("awsElasticBlockStore"))
        => vec![
            text("Normal ExternalExpanding pvc/c"),
            line("pvc/c/status", json!({ "metadata": { "annotations": {
                "volume.kubernetes.io/storage-resizer": "ebs.csi.aws.com",
            } } })),
        ];
    expand_a_migrated_volume_that_only_has_the_annotation_is_not_expanded_here: settle
        World::new([
            claim().completed("v").bound("1Gi").annotate("volume.kubernetes.io/storage-resizer", "ebs.csi.aws.com"),
            volume("v", "1Gi").source("awsElasticBlockStore").phase("Bound").refers("c", "u")
                .annotate("volume.alpha.kubernetes.io/pre-resize-capacity", "1Gi"),
        ])
        => vec![text("Normal ExternalExpanding pvc/c")];
    expand_a_claim_that_is_being_deleted_and_in_use_is_handed_over_too:
        settle World::new([
            claim().completed("v").bound("1Gi").size("2Gi").deleting(),
            volume("v", "1Gi").csi().phase("Bound").refers("c", "u"),
            pod("p"),
        ])
        => vec![text("Normal ExternalExpanding pvc/c")];
    expand_a_csi_volume_is_left_to_its_resizer: settle grown(volume("v", "1Gi").csi())
        => vec![text("Normal ExternalExpanding pvc/c")];
}

#[test]
fn gate_a_deleted_claim_goes_and_its_conditions_are_left() {
    let mut world = gated([used().deleting().finalizers(&[CLAIM, "other/finalizer"]).unused(false)]);
    let before = world.get(kinds::CLAIM, &object::Key::namespaced("n", "c")).unwrap()["status"].clone();
    let removed = line("pvc/c", json!({ "metadata": { "finalizers": ["other/finalizer"] } }));
    assert_eq!(world.rests_after(World::settle), [text("list pods n"), removed]);
    assert_eq!(world.get(kinds::CLAIM, &object::Key::namespaced("n", "c")).unwrap()["status"], before);
}

#[test]
fn expansion_is_told_by_its_own_component_with_who_does_it() {
    let mut world = grown(volume("v", "1Gi").csi());
    world.settle();
    assert_eq!(world.said, ["volume_expand: waiting for an external resizer of d to expand the claim to 2Gi"]);
}
