//! 8.6 several steps, 8.7 recycling, 8.8 deleting.

use jiff::SignedDuration;
use serde_json::json;

use stowage_model::object::{Key, kinds};

use super::expect::*;
use super::fixtures::{Fixture, claim, claim_named, class, pod, volume};
use super::scenarios;
use super::world::{Plugin, World};

const IN_TREE: &str = "kubernetes.io/host-path";
const OURS: &[&str] = &["kubernetes.io/pv-protection", "kubernetes.io/pv-controller"];

fn pair() -> [Fixture; 2] {
    [claim().completed("v").marked().bound("1Gi"), volume("v", "1Gi").phase("Bound").refers("c", "u").marked()]
}

/// The same, made by an external provisioner and to be deleted by it.
fn external_pair() -> [Fixture; 2] {
    let [claim, volume] = pair();
    [claim, volume.csi().provisioned("d").policy("Delete")]
}

fn deleted(mut world: World, kind: stowage_model::object::Kind, key: Key) -> World {
    assert_eq!(world.settle(), Vec::<String>::new(), "a bound pair is at rest");
    world.take(kind, &key);
    world
}

/// The API has another version of the volume, or none, and the caches do not know.
fn unseen(mut world: World, version: Option<Fixture>) -> World {
    world.lagging = true;
    match version {
        Some(version) => world.put(version),
        None => world.take(kinds::VOLUME, &Key::cluster("v")),
    }
    world.unseen.clear();
    world.lagging = false;
    world
}

fn claim_key() -> Key {
    Key::namespaced("n", "c")
}

/// Released with this policy, its claim gone.
fn orphan(policy: &str) -> Fixture {
    volume("v", "1Gi").phase("Bound").refers("c", "u").policy(policy)
}

fn recycled(unbound: String) -> Vec<String> {
    vec![
        pv_phase("v", "Released"),
        text("Recycle v"),
        text("Normal VolumeRecycled pv/v"),
        unbound,
        pv_phase("v", "Available"),
    ]
}

/// Data first, then the object, then both finalizers in one write.
fn data_deleted(volume: &str) -> Vec<String> {
    vec![
        pv_phase(volume, "Released"),
        format!("DeleteData {volume}"),
        format!("DELETE pv/{volume}"),
        pv_finalizers(volume, &[]),
    ]
}

scenarios! {
    s10_01_a_new_volume_becomes_available_and_then_bound: settle World::new([claim(), volume("v", "1Gi")])
        => [vec![text("Normal FailedBinding pvc/c"), pv_phase("v", "Available")], chosen("v", "1Gi")].concat();
    s10_02_of_two_volumes_the_one_the_claim_does_not_name_is_free_again:
        settle World::new([
            claim().completed("v").marked().bound("1Gi"),
            volume("v", "1Gi").phase("Bound").refers("c", "u").marked(),
            volume("w", "1Gi").phase("Bound").refers("c", "u").marked(),
        ])
        => vec![pv_free("w"), pv_phase("w", "Available")];
    s5_02_a_claim_that_arrives_is_bound: settle {
        let mut world = World::new([volume("v", "1Gi").available()]);
        assert_eq!(world.settle(), Vec::<String>::new());
        world.put(claim());
        world
    } => chosen("v", "1Gi");
    s5_02_2_both_there_from_the_beginning_are_bound: settle World::new([claim(), volume("v", "1Gi").available()])
        => chosen("v", "1Gi");
    s5_02_3_the_size_before_a_resize_is_the_claims_capacity:
        settle World::new([
            claim().size("2Gi"),
            volume("v", "2Gi").available().annotate("volume.alpha.kubernetes.io/pre-resize-capacity", "1Gi"),
        ]).rules(|rules| rules.controllers.expander = false)
        => chosen("v", "1Gi");
    s5_03_a_claim_that_goes_releases_its_volume:
        settle deleted(World::new(pair()), kinds::CLAIM, claim_key())
        => vec![pv_phase("v", "Released")];
    s5_04_a_volume_that_goes_loses_its_claim:
        settle deleted(World::new(pair()), kinds::VOLUME, Key::cluster("v"))
        => vec![pvc_cleared("Lost"), text("Warning ClaimLost pvc/c")];
    s5_06_an_external_volume_is_released_and_left_to_its_provisioner:
        settle deleted(World::new(external_pair()), kinds::CLAIM, claim_key())
        => vec![pv_phase("v", "Released")];
    s5_07_a_volume_that_goes_before_its_claim_is_told_once: settle {
        let mut world = deleted(World::new(pair()), kinds::VOLUME, Key::cluster("v"));
        assert_eq!(world.settle(), [pvc_cleared("Lost"), text("Warning ClaimLost pvc/c")]);
        world.take(kinds::CLAIM, &claim_key());
        world
    } => vec![];
    s5_08_a_pending_claim_that_goes_leaves_nothing: settle {
        let mut world = World::new([claim().class("gold"), class("gold", "d")]);
        assert_eq!(world.settle(), [pvc_asks("d"), text("Normal ExternalProvisioning pvc/c")]);
        world.take(kinds::CLAIM, &claim_key());
        world
    } => vec![];
    s5_09_a_rolled_back_migration_changes_annotation_and_finalizers_in_one_write:
        settle World::new([
            volume("v", "1Gi").available().policy("Delete").provisioned(IN_TREE).annotate(MT, "x.csi").finalizers(&[
                "kubernetes.io/pv-protection",
                "external-provisioner.volume.kubernetes.io/finalizer",
            ]),
        ])
        => vec![line("pv/v", json!({ "metadata": { "annotations": { MT: null }, "finalizers": OURS } }))];

    s6_01_a_marked_volume_is_recycled_and_free: settle World::new([orphan("Recycle").marked()]) => recycled(pv_free("v"));
    s6_02_an_unmarked_volume_is_recycled_and_keeps_its_reservation: settle World::new([orphan("Recycle")])
        => recycled(pv_blank("v"));
    s6_03_a_volume_that_nobody_recycles_fails: settle World::new([orphan("Recycle").source("fc")])
        => vec![
            pv_phase("v", "Released"),
            pv_failed("v", "no recycler for this kind of volume: set persistentVolumeReclaimPolicy to Retain or Delete"),
            text("Warning VolumeFailedRecycle pv/v"),
        ];
    s6_04_a_recycler_that_cannot_be_started_is_told: settle World::new([orphan("Recycle")]).plugin(Plugin::CannotStart)
        => vec![
            pv_phase("v", "Released"),
            pv_failed("v", "cannot erase the volume: it cannot be started"),
            text("Warning VolumeFailedRecycle pv/v"),
        ];
    s6_05_a_recycler_that_fails_is_told: settle World::new([orphan("Recycle")]).plugin(Plugin::Fails(9))
        => vec![
            pv_phase("v", "Released"),
            text("Recycle v"),
            pv_failed("v", "cannot erase the volume: disk on fire"),
            text("Warning VolumeFailedRecycle pv/v"),
        ];
    s6_06_a_volume_that_is_gone_is_not_recycled: settle unseen(World::new([orphan("Recycle").phase("Released")]), None)
        => vec![];
    s6_07_a_marked_volume_that_is_free_already_is_not_recycled:
        settle unseen(
            World::new([orphan("Recycle").marked().phase("Released")]),
            Some(volume("v", "1Gi").policy("Recycle").available()),
        )
        => vec![];
    s6_08_an_unmarked_volume_that_is_free_already_is_not_recycled:
        settle unseen(
            World::new([orphan("Recycle").phase("Released")]),
            Some(volume("v", "1Gi").policy("Recycle").available()),
        )
        => vec![];
    a_volume_that_was_reserved_meanwhile_is_not_recycled:
        settle unseen(
            World::new([orphan("Recycle").phase("Released")]),
            Some(volume("v", "1Gi").policy("Recycle").phase("Released").refers("c", "")),
        )
        => vec![pv_phase("v", "Available")];
    s6_09_a_volume_whose_claim_was_replaced_is_recycled:
        settle World::new([claim().uid("new").size("9Gi"), orphan("Recycle")])
        => {
            let mut steps = [vec![text("Normal FailedBinding pvc/c")], recycled(pv_blank("v"))].concat();
            // The volume is taken no more, but too small.
            steps.insert(5, text("Normal FailedBinding pvc/c"));
            steps
        };
    s6_10_an_unknown_policy_fails: settle World::new([orphan("Sometimes")])
        => vec![
            pv_phase("v", "Released"),
            pv_failed("v", "unknown persistentVolumeReclaimPolicy: set it to Retain or Delete"),
            text("Warning VolumeUnknownReclaimPolicy pv/v"),
        ];
    s6_11_a_running_pod_keeps_a_volume_from_being_erased: settle World::new([orphan("Recycle"), pod("p")])
        => vec![pv_phase("v", "Released"), text("Normal VolumeFailedRecycle pv/v")];
    a_pod_keeps_a_volume_that_nobody_could_recycle_from_failing:
        settle World::new([orphan("Recycle").source("fc"), pod("p")])
        => vec![pv_phase("v", "Released"), text("Normal VolumeFailedRecycle pv/v")];
    a_volume_that_was_migrated_to_nobody_is_not_deleted_here:
        settle World::new([orphan("Delete").annotate(MT, "")]) => vec![pv_phase("v", "Released")];
    s6_12_a_pending_pod_keeps_it_too: settle World::new([orphan("Recycle"), pod("p").unplaced()])
        => vec![pv_phase("v", "Released"), text("Normal VolumeFailedRecycle pv/v")];
    s6_13_a_completed_pod_does_not: settle World::new([orphan("Recycle"), pod("p").phase("Succeeded")])
        => recycled(pv_blank("v"));
    s6_14_a_pod_of_the_claim_that_has_the_name_now_does_not:
        settle World::new([
            claim_named("c", "new").completed("w").bound("1Gi"),
            volume("w", "1Gi").phase("Bound").refers("c", "new"),
            orphan("Recycle"),
            pod("p"),
        ])
        => recycled(pv_blank("v"));

    s8_01_a_marked_volume_is_deleted: settle World::new([orphan("Delete").marked()]).host_path() => data_deleted("v");
    s8_02_an_unmarked_volume_is_deleted: settle World::new([orphan("Delete")]).host_path() => data_deleted("v");
    s8_03_a_volume_that_nobody_deletes_fails: settle World::new([orphan("Delete").source("fc")]).host_path()
        => vec![
            pv_phase("v", "Released"),
            pv_failed("v", "no deleter for a fc volume: set persistentVolumeReclaimPolicy to Retain, then \
        delete its data and the object by hand"),
            text("Warning VolumeFailedDelete pv/v"),
        ];
    s8_04_a_deleter_that_cannot_be_started_is_told:
        settle World::new([orphan("Delete")]).host_path().plugin(Plugin::CannotStart)
        => vec![
            pv_phase("v", "Released"),
            pv_failed("v", "cannot delete the volume: it cannot be started"),
            text("Warning VolumeFailedDelete pv/v"),
        ];
    s8_05_a_deleter_that_fails_is_told: settle World::new([orphan("Delete")]).host_path().plugin(Plugin::Fails(9))
        => vec![
            pv_phase("v", "Released"),
            text("DeleteData v"),
            pv_failed("v", "cannot delete the volume: disk on fire"),
            text("Warning VolumeFailedDelete pv/v"),
        ];
    s8_06_a_volume_that_is_gone_is_not_deleted:
        settle unseen(World::new([orphan("Delete").phase("Released")]), None)
        => vec![];
    s8_07_a_claim_that_only_the_api_has_when_deleting_begins_keeps_its_volume:
        sync_volumes World::new([orphan("Delete").phase("Released")])
            .host_path()
            .unseen(claim().completed("v").bound("1Gi"))
        => vec![pv_phase("v", "Bound")];
    s8_07_a_claim_that_is_back_before_that_keeps_its_volume:
        settle World::new([claim().completed("v").bound("1Gi"), orphan("Delete").phase("Released")]).host_path()
        => vec![pv_phase("v", "Bound")];
    s8_09_a_volume_whose_claim_was_replaced_is_deleted:
        settle World::new([claim().uid("new").size("9Gi"), orphan("Delete")]).host_path()
        => [vec![text("Normal FailedBinding pvc/c")], data_deleted("v"), vec![text("Normal FailedBinding pvc/c")]].concat();
    s8_10_1_an_external_volume_is_left_to_its_provisioner:
        settle World::new([orphan("Delete").csi().provisioned("external.io/test")]).host_path()
        => vec![pv_phase("v", "Released")];
    s8_10_2_a_csi_volume_is_left_to_its_provisioner: settle World::new([orphan("Delete").csi()]).host_path()
        => vec![pv_phase("v", "Released")];
    s8_10_3_a_migrated_volume_is_left_to_its_provisioner:
        settle World::new([
            orphan("Delete").source("gcePersistentDisk").provisioned("kubernetes.io/gce-pd").annotate(MT, "pd.csi.storage.gke.io"),
        ]).host_path()
        => vec![pv_phase("v", "Released")];
    s8_11_of_two_provisioned_volumes_the_one_not_named_is_deleted:
        settle World::new([
            claim().completed("w").bound("1Gi"),
            orphan("Delete").provisioned(IN_TREE).finalizers(OURS),
            volume("w", "1Gi").phase("Bound").refers("c", "u").policy("Delete").provisioned(IN_TREE).finalizers(OURS),
        ]).host_path()
        => data_deleted("v");
    s8_12_an_external_one_is_only_released:
        settle World::new([
            claim().completed("w").bound("1Gi"),
            orphan("Delete").csi().provisioned("d"),
            volume("w", "1Gi").phase("Bound").refers("c", "u").policy("Delete").csi().provisioned("d"),
        ]).host_path()
        => vec![pv_phase("v", "Released")];
    s8_13_a_volume_that_is_being_deleted_loses_its_data_first:
        settle World::new([orphan("Delete").phase("Released").provisioned(IN_TREE).finalizers(OURS).deleting()]).host_path()
        => vec![text("DeleteData v"), pv_finalizers("v", &[])];
}

#[test]
fn s5_05_an_external_volume_that_its_provisioner_deletes_goes() {
    let [claim, volume] = external_pair();
    let mut world = deleted(World::new([claim, volume.clone()]), kinds::CLAIM, claim_key());
    assert_eq!(world.rests_after(World::settle), [pv_phase("v", "Released")]);
    world.put(volume.phase("Released").deleting());
    assert_eq!(world.rests_after(World::settle), [pv_finalizers("v", &[])]);
    assert!(world.get(kinds::VOLUME, &Key::cluster("v")).is_none());
}

#[test]
fn s7_01_recycling_that_failed_once_is_tried_again() {
    let mut world = World::new([orphan("Recycle").phase("Released")]).plugin(Plugin::Fails(1));
    let failed = pv_failed("v", "cannot erase the volume: disk on fire");
    let first = [text("Recycle v"), failed, text("Warning VolumeFailedRecycle pv/v")];
    // Another life knows nothing of the failure and tries at once.
    let later = vec![pv_blank("v"), pv_phase("v", "Available")];
    assert_eq!(world.with_another_life(World::settle), (first.to_vec(), later));
    world.now += SignedDuration::from_secs(2);
    let again = [text("Recycle v"), text("Normal VolumeRecycled pv/v"), pv_blank("v"), pv_phase("v", "Available")];
    assert_eq!(world.rests_after(World::settle), again);
}

#[test]
fn s9_01_deleting_that_failed_once_is_tried_again() {
    let mut world = World::new([orphan("Delete").phase("Released")]).host_path().plugin(Plugin::Fails(1));
    let failed = pv_failed("v", "cannot delete the volume: disk on fire");
    let first = [text("DeleteData v"), failed, text("Warning VolumeFailedDelete pv/v")];
    // Another life knows nothing of the failure and tries at once.
    let later = vec![text("DELETE pv/v"), pv_finalizers("v", &[])];
    assert_eq!(world.with_another_life(World::settle), (first.to_vec(), later));
    world.now += SignedDuration::from_secs(2);
    let again = [text("DeleteData v"), text("DELETE pv/v"), pv_finalizers("v", &[])];
    assert_eq!(world.rests_after(World::settle), again);
    assert!(world.get(kinds::VOLUME, &Key::cluster("v")).is_none());
}

#[test]
fn cache_an_older_version_never_replaces_a_newer_one() {
    let caches = crate::watches::Caches::default();
    let seen = |version: &str| {
        let tree = json!({ "metadata": { "name": "v", "uid": "v", "resourceVersion": version } });
        serde_json::from_value::<stowage_model::Volume>(tree).map(|volume| {
            let accepted = caches.volumes.observe(volume);
            (accepted, caches.volumes.get(&Key::cluster("v")).unwrap().meta.revision)
        })
    };
    let seen_in_turn = ["1", "1", "2", "1", "10"].map(|version| seen(version).unwrap());
    // The same version again is the same object: what upstream stores anew wakes nobody here.
    assert_eq!(seen_in_turn, [(true, 1), (false, 1), (true, 2), (false, 2), (true, 10)], "numbers, not text");
    assert!(seen("xxx").is_err());
}
