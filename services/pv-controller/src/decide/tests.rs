//! The reference's scenario tables, by id: what is written, in which order, and everything that is told.

mod world;

use world::{World, claim, volume};

macro_rules! scenarios {
    ($($name:ident: $world:expr => [$($step:expr),* $(,)?];)*) => {$(
        #[test]
        fn $name() {
            let mut world: World = $world;
            let steps: Vec<String> = world.settle();
            let expected: Vec<&str> = vec![$($step),*];
            assert_eq!(steps, expected);
            assert_eq!(world.settle(), Vec::<String>::new(), "deciding again yields nothing");
        }
    )*};
}

scenarios! {
    s1_01_a_fitting_volume_is_bound: World::new(claim(), [volume("v", "1Gi").available()])
        => ["reserve v marked", "complete v marked", "status Bound 1Gi", "v: phase Bound"];
    s1_02_a_volume_that_is_too_small_is_left: World::new(claim().size("10Gi"), [volume("v", "1Gi").available()])
        => ["tell FailedBinding"];
    s1_03_a_bound_claim_without_the_mark_goes_back_to_pending:
        World::new(claim().size("10Gi").bound("10Gi"), [volume("v", "1Gi").available()])
        => ["status Pending -", "tell FailedBinding"];
    s1_04_the_smallest_fitting_volume_wins:
        World::new(claim(), [volume("big", "10Gi").available(), volume("small", "1Gi").available()])
        => ["reserve small marked", "complete small marked", "status Bound 1Gi", "small: phase Bound"];
    s1_05_a_volume_reserved_by_name_wins_and_is_not_marked:
        World::new(claim(), [volume("big", "10Gi").available().refers("c", ""), volume("small", "1Gi").available()])
        => ["reserve big", "complete big marked", "status Bound 10Gi", "big: phase Bound"];
    s1_06_a_volume_reserved_by_uid_needs_no_write:
        World::new(claim(), [volume("big", "10Gi").available().refers("c", "u"), volume("small", "1Gi").available()])
        => ["complete big marked", "status Bound 10Gi", "big: phase Bound"];
    s1_07_a_volume_of_a_namesake_is_not_taken:
        World::new(claim(), [volume("v", "1Gi").phase("Released").refers("c", "other")])
        => ["tell FailedBinding"];
    s1_08_a_crash_after_the_volumes_pointer_is_completed:
        World::new(claim(), [volume("v", "1Gi").available().refers("c", "u").marked()])
        => ["complete v marked", "status Bound 1Gi", "v: phase Bound"];
    s1_09_a_crash_after_the_volumes_phase_is_completed:
        World::new(claim(), [volume("v", "1Gi").phase("Bound").refers("c", "u").marked()])
        => ["complete v marked", "status Bound 1Gi"];
    s1_10_a_crash_after_the_claims_pointer_is_completed:
        World::new(claim().completed("v").marked(), [volume("v", "1Gi").phase("Bound").refers("c", "u").marked()])
        => ["status Bound 1Gi"];
    s1_11_a_selector_that_matches_binds:
        World::new(claim().selects("tier", "fast"), [volume("v", "1Gi").available().label("tier", "fast")])
        => ["reserve v marked", "complete v marked", "status Bound 1Gi", "v: phase Bound"];
    s1_12_a_selector_that_does_not_match_waits:
        World::new(claim().selects("tier", "fast"), [volume("v", "1Gi").available()])
        => ["tell FailedBinding"];
    s1_13_a_class_that_waits_for_its_consumer_waits:
        World::new(claim().class("late"), [volume("v", "1Gi").available().class("late")]).late_class("late")
        => ["tell WaitForFirstConsumer"];
    s1_14_a_reserved_volume_does_not_wait_for_a_consumer:
        World::new(claim().class("late"), [volume("v", "1Gi").available().class("late").refers("c", "")]).late_class("late")
        => ["reserve v", "complete v marked", "status Bound 1Gi", "v: phase Bound"];
    s1_15_the_named_volume_wins_over_a_smaller_one:
        World::new(claim().names("big"), [volume("big", "10Gi").available(), volume("small", "1Gi").available()])
        => ["reserve big marked", "complete big", "status Bound 10Gi", "big: phase Bound"];
    s1_16_a_named_volume_without_the_mode_is_refused:
        World::new(claim().names("v").modes(&["ReadWriteMany"]), [volume("v", "1Gi").available()])
        => ["tell VolumeMismatch"];
    s1_18_the_provisioned_volume_of_a_waiting_claim_is_bound:
        World::new(
            claim().class("late").annotate("volume.kubernetes.io/selected-node", "n"),
            [volume("v", "1Gi").available().class("late").refers("c", "u")],
        ).late_class("late")
        => ["complete v marked", "status Bound 1Gi", "v: phase Bound"];

    s2_01_a_missing_named_volume_is_waited_for: World::new(claim().names("v"), []) => [];
    s2_02_a_bound_claim_of_a_missing_volume_goes_back_to_pending: World::new(claim().names("v").bound("1Gi"), [])
        => ["status Pending -"];
    s2_03_a_named_free_volume_is_bound: World::new(claim().names("v"), [volume("v", "1Gi").available()])
        => ["reserve v marked", "complete v", "status Bound 1Gi", "v: phase Bound"];
    s2_04_both_sides_naming_each_other_are_bound:
        World::new(claim().names("v"), [volume("v", "1Gi").available().refers("c", "")])
        => ["reserve v", "complete v", "status Bound 1Gi", "v: phase Bound"];
    s2_05_both_sides_knowing_each_other_are_bound:
        World::new(claim().names("v"), [volume("v", "1Gi").available().refers("c", "u")])
        => ["complete v", "status Bound 1Gi", "v: phase Bound"];
    s2_06_a_named_volume_of_another_claim_is_left:
        World::new(claim().names("v").bound("1Gi"), [volume("v", "1Gi").phase("Released").refers("d", "w")])
        => ["status Pending -", "tell FailedBinding"];
    s2_08_a_named_volume_is_bound_whatever_the_selector:
        World::new(claim().names("v").selects("tier", "fast"), [volume("v", "1Gi").available()])
        => ["reserve v marked", "complete v", "status Bound 1Gi", "v: phase Bound"];
    s2_09_a_named_volume_that_is_too_small_is_refused:
        World::new(claim().names("v").size("2Gi").bound("2Gi"), [volume("v", "1Gi").available()])
        => ["status Pending -", "tell VolumeMismatch"];
    s2_10_a_named_volume_of_another_class_is_refused:
        World::new(claim().names("v"), [volume("v", "1Gi").available().class("gold")])
        => ["tell VolumeMismatch"];

    s3_01_a_completed_claim_without_a_volume_is_lost: World::new(claim().completed("").bound("1Gi"), [])
        => ["status Lost -", "tell ClaimLost"];
    s3_02_a_completed_claim_of_a_missing_volume_is_lost: World::new(claim().completed("v").bound("1Gi"), [])
        => ["status Lost -", "tell ClaimLost"];
    s3_03_a_completed_claim_takes_back_its_free_volume:
        World::new(claim().completed("v").marked(), [volume("v", "1Gi").available()])
        => ["reserve v marked", "status Bound 1Gi", "v: phase Bound"];
    s3_04_a_completed_claim_whose_volume_has_another_uid_is_misbound:
        World::new(claim().completed("v").bound("1Gi"), [volume("v", "1Gi").phase("Released").refers("c", "other")])
        => ["status Lost -", "tell ClaimMisbound"];
    s3_05_a_completed_pair_only_lacks_its_phases:
        World::new(claim().completed("v"), [volume("v", "1Gi").available().refers("c", "u")])
        => ["status Bound 1Gi", "v: phase Bound"];
    s3_06_a_completed_claim_whose_volume_is_of_another_claim_is_misbound:
        World::new(claim().completed("v").bound("1Gi"), [volume("v", "1Gi").phase("Released").refers("d", "w")])
        => ["status Lost -", "tell ClaimMisbound"];

    s4_01_a_free_volume_becomes_available: World::alone([volume("v", "1Gi")]) => ["v: phase Available"];
    s4_02_a_volume_reserved_by_name_becomes_available: World::alone([volume("v", "1Gi").refers("c", "")])
        => ["v: phase Available"];
    s4_03_a_volume_whose_claim_is_gone_is_released: World::alone([volume("v", "1Gi").phase("Bound").refers("c", "u")])
        => ["v: release"];
    s4_04_a_volume_whose_claim_was_replaced_is_released:
        World::new(claim().uid("new").names("x"), [volume("v", "1Gi").phase("Bound").refers("c", "u")])
        => ["v: release"];
    s4_06_a_volume_whose_claim_names_it_becomes_bound:
        World::new(claim().completed("v").bound("1Gi"), [volume("v", "1Gi").available().refers("c", "u")])
        => ["v: phase Bound"];
    s4_07_a_marked_volume_whose_claim_went_elsewhere_is_free_again:
        World::new(
            claim().completed("w").bound("1Gi"),
            [volume("v", "1Gi").phase("Bound").refers("c", "u").marked(), volume("w", "1Gi").phase("Bound").refers("c", "u")],
        )
        => ["v: unbind", "v: phase Available"];
    s4_08_an_unmarked_volume_whose_claim_went_elsewhere_keeps_its_reservation:
        World::new(
            claim().completed("w").bound("1Gi"),
            [volume("v", "1Gi").phase("Bound").refers("c", "u"), volume("w", "1Gi").phase("Bound").refers("c", "u")],
        )
        => ["v: unbind", "v: phase Available"];
    s4_10_a_released_volume_without_a_deleter_fails:
        World::alone([volume("v", "1Gi").available().refers("c", "u").policy("Delete")])
        => ["v: release", "v: phase Failed", "v: tell VolumeFailedDelete"];

    a_csi_volume_is_left_to_its_provisioner_for_deletion:
        World::alone([volume("v", "1Gi").phase("Bound").refers("c", "u").policy("Delete").csi()])
        => ["v: release"];
    a_provisioned_volume_whose_claim_went_elsewhere_is_released:
        World::new(
            claim().completed("w").bound("1Gi"),
            [
                volume("v", "1Gi").phase("Bound").refers("c", "u").policy("Delete").csi().provisioned("d"),
                volume("w", "1Gi").phase("Bound").refers("c", "u"),
            ],
        )
        => ["v: release"];
    a_class_asks_its_provisioner: World::new(claim().class("gold"), []).class("gold", "driver.example")
        => ["ask driver.example", "tell ExternalProvisioning"];
    a_missing_class_is_named: World::new(claim().class("gold"), []) => ["tell ProvisioningFailed"];
    a_class_that_makes_no_volumes_is_named: World::new(claim().class("gold"), []).class("gold", "kubernetes.io/no-provisioner")
        => ["tell ProvisioningFailed"];
    a_claim_without_a_class_gets_the_default: World::new(claim(), []).default_class("gold", "driver.example")
        => ["class gold", "ask driver.example", "tell ExternalProvisioning"];
    a_waiting_claim_with_a_chosen_node_asks_its_provisioner:
        World::new(claim().class("late").annotate("volume.kubernetes.io/selected-node", "n"), []).late_class("late")
        => ["ask driver.example", "tell ExternalProvisioning"];
    an_unbound_claim_that_is_deleted_gets_nothing:
        World::new(claim().deleting(), [volume("v", "1Gi").available()]) => ["unprotect"];
    a_claim_in_use_is_kept: World::new(claim().deleting().completed("v").bound("1Gi"), [
        volume("v", "1Gi").phase("Bound").refers("c", "u"),
    ]).pod(true) => [];
    a_pod_that_was_never_placed_does_not_keep_a_claim: World::new(claim().deleting().completed("v").bound("1Gi"), [
        volume("v", "1Gi").phase("Bound").refers("c", "u"),
    ]).pod(false) => ["unprotect"];
    an_unprotected_claim_is_protected_first: World::new(claim().unprotected(), []) => ["protect", "tell FailedBinding"];
    a_bound_volume_that_is_deleted_is_kept: World::new(claim().completed("v").bound("1Gi"), [
        volume("v", "1Gi").phase("Bound").refers("c", "u").deleting(),
    ]) => [];
    a_released_volume_that_is_deleted_goes: World::alone([volume("v", "1Gi").phase("Released").refers("c", "u").deleting()])
        => ["v: unprotect"];
}

#[test]
fn two_claims_of_one_volume_never_both_reserve_it() {
    use stowage_runtime::engine::Reserved;

    // The engine serialises by reservation: a reserved volume is no candidate for anybody else.
    let reserved = Reserved::default();
    let caches = crate::snapshot::Caches::default();
    caches.volumes.observe(volume("v", "1Gi").available().build());
    for name in ["a", "b"] {
        caches.claims.observe(claim().name(name).build());
    }
    let wanted = |name: &str, reserved: &Reserved| {
        let key = stowage_model::object::Key::namespaced("n", name);
        super::claim::decide(&caches.claim(&key, reserved).unwrap()).actions
    };
    assert!(matches!(wanted("a", &reserved)[..], [super::ClaimAction::Reserve { .. }]));
    let reserved = Reserved::of([stowage_model::object::ObjectId {
        kind: stowage_model::object::kinds::VOLUME,
        key: stowage_model::object::Key::cluster("v"),
    }]);
    assert!(matches!(wanted("b", &reserved)[..], [super::ClaimAction::Tell(_)]));
}
