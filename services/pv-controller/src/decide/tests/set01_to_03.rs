//! 8.1 the claim does not care which volume, 8.2 it names one, 8.3 its binding was completed once.

use super::expect::*;
use super::fixtures::{Fixture, claim, claim_named, class, volume};
use super::scenarios;
use super::world::World;

/// Another claim that has volume `v`.
fn another() -> Fixture {
    claim_named("d", "w").completed("v").bound("1Gi")
}

scenarios! {
    s1_01_a_fitting_volume_is_bound: sync_claims World::new([claim(), volume("v", "1Gi").available()])
        => chosen("v", "1Gi");
    s1_02_a_volume_that_is_too_small_is_left:
        sync_claims World::new([claim().size("10Gi"), volume("v", "1Gi").available()])
        => vec![text("Normal FailedBinding pvc/c")];
    s1_03_a_bound_claim_without_the_mark_goes_back_to_pending:
        sync_claims World::new([claim().size("10Gi").bound("10Gi"), volume("v", "1Gi").available()])
        => vec![pvc_cleared("Pending"), text("Normal FailedBinding pvc/c")];
    s1_04_the_smallest_fitting_volume_wins:
        sync_claims World::new([claim(), volume("big", "10Gi").available(), volume("small", "1Gi").available()])
        => chosen("small", "1Gi");
    s1_05_a_volume_reserved_by_name_wins_and_is_not_marked:
        sync_claims World::new([
            claim(), volume("big", "10Gi").available().refers("c", ""), volume("small", "1Gi").available(),
        ])
        => reserved("big", "10Gi");
    s1_06_a_volume_reserved_by_uid_needs_no_write:
        sync_claims World::new([
            claim(), volume("big", "10Gi").available().refers("c", "u"), volume("small", "1Gi").available(),
        ])
        => provided("big", "10Gi");
    s1_07_a_volume_of_a_namesake_is_not_taken:
        sync_claims World::new([claim(), volume("v", "1Gi").available().refers("c", "other")])
        // The namesake is gone, which is for the volume's sync to see.
        => vec![text("Normal FailedBinding pvc/c")], then vec![pv_phase("v", "Released")];
    s1_08_a_crash_after_the_volumes_pointer_is_completed:
        sync_claims World::new([claim(), volume("v", "1Gi").available().refers("c", "u").marked()])
        => provided("v", "1Gi");
    s1_09_a_crash_after_the_volumes_phase_is_completed:
        sync_claims World::new([claim(), volume("v", "1Gi").phase("Bound").refers("c", "u").marked()])
        => vec![pvc_done_marked("v"), pvc_bound("1Gi")];
    s1_10_a_crash_after_the_claims_pointer_is_completed:
        sync_claims World::new([
            claim().completed("v").marked(), volume("v", "1Gi").phase("Bound").refers("c", "u").marked(),
        ])
        => vec![pvc_bound("1Gi")];
    s1_11_a_selector_that_matches_binds:
        sync_claims World::new([
            claim().selects("tier", "fast"), volume("v", "1Gi").available().label("tier", "fast"),
        ])
        => chosen("v", "1Gi");
    s1_12_a_selector_that_does_not_match_waits:
        sync_claims World::new([claim().selects("tier", "fast"), volume("v", "1Gi").available()])
        => vec![text("Normal FailedBinding pvc/c")];
    s1_13_a_class_that_waits_for_its_consumer_waits:
        sync_claims World::new([
            claim().class("late"), volume("v", "1Gi").available().class("late"), class("late", "d").late(),
        ])
        => vec![text("Normal WaitForFirstConsumer pvc/c")];
    s1_14_a_reserved_volume_does_not_wait_for_a_consumer:
        sync_claims World::new([
            claim().class("late"),
            volume("v", "1Gi").available().class("late").refers("c", ""),
            class("late", "d").late(),
        ])
        => reserved("v", "1Gi");
    s1_15_the_named_volume_wins_over_a_smaller_one:
        sync_claims World::new([
            claim().names("big"), volume("big", "10Gi").available(), volume("small", "1Gi").available(),
        ])
        => named("big", "10Gi");
    s1_16_a_named_volume_without_the_mode_is_refused:
        sync_claims World::new([claim().names("v").modes(&["ReadWriteMany"]), volume("v", "1Gi").available()])
        => vec![text("Warning VolumeMismatch pvc/c")];
    s1_17_volumes_that_are_not_available_are_left:
        sync_claims World::new([
            claim(),
            volume("a", "1Gi"),
            volume("b", "1Gi").phase("Failed"),
            volume("d", "1Gi").phase("Released"),
            volume("e", "1Gi").phase(""),
        ])
        // Their own syncs make them available.
        => vec![text("Normal FailedBinding pvc/c")],
            then [["a", "b", "d", "e"].map(|name| pv_phase(name, "Available")).to_vec(), chosen("a", "1Gi")].concat();
    s1_18_the_provisioned_volume_of_a_waiting_claim_is_bound:
        sync_claims World::new([
            claim().class("late").on_node("node1"),
            volume("v", "1Gi").available().class("late").refers("c", "u"),
            class("late", "d").late(),
        ])
        => provided("v", "1Gi");

    s2_01_a_missing_named_volume_is_waited_for: sync_claims World::new([claim().names("v")]) => vec![];
    s2_02_a_bound_claim_of_a_missing_volume_goes_back_to_pending:
        sync_claims World::new([claim().names("v").bound("1Gi")])
        => vec![pvc_cleared("Pending")];
    s2_03_a_named_free_volume_is_bound: sync_claims World::new([claim().names("v"), volume("v", "1Gi").available()])
        => named("v", "1Gi");
    s2_04_both_sides_naming_each_other_are_bound:
        sync_claims World::new([claim().names("v"), volume("v", "1Gi").available().refers("c", "")])
        => vec![pv_ref("v"), pv_phase("v", "Bound"), pvc_done("v"), pvc_bound("1Gi")];
    s2_05_both_sides_knowing_each_other_are_bound:
        sync_claims World::new([claim().names("v"), volume("v", "1Gi").available().refers("c", "u")])
        => vec![pv_phase("v", "Bound"), pvc_done("v"), pvc_bound("1Gi")];
    s2_06_a_named_volume_of_another_claim_is_left:
        sync_claims World::new([
            claim().names("v").bound("1Gi"), another(), volume("v", "1Gi").phase("Bound").refers("d", "w"),
        ])
        => vec![pvc_cleared("Pending"), text("Warning FailedBinding pvc/c")];
    s2_07_a_claim_whose_mark_of_completion_was_taken_away_keeps_its_status:
        sync_claims World::new([
            claim().names("v").bound("1Gi").marked(), another(), volume("v", "1Gi").phase("Bound").refers("d", "w"),
        ])
        => vec![text("Warning FailedBinding pvc/c")];
    s2_08_a_named_volume_is_bound_whatever_the_selector:
        sync_claims World::new([claim().names("v").selects("tier", "fast"), volume("v", "1Gi").available()])
        => named("v", "1Gi");
    s2_09_a_named_volume_that_is_too_small_is_refused:
        sync_claims World::new([claim().names("v").size("2Gi").bound("2Gi"), volume("v", "1Gi").available()])
        => vec![pvc_cleared("Pending"), text("Warning VolumeMismatch pvc/c")];
    s2_10_a_named_volume_of_another_class_is_refused:
        sync_claims World::new([claim().names("v"), volume("v", "1Gi").available().class("gold")])
        => vec![text("Warning VolumeMismatch pvc/c")];
    s2_11_a_named_volume_of_another_attributes_class_is_refused:
        sync_claims World::new([claim().names("v"), volume("v", "1Gi").available().attributes("gold")])
        => vec![text("Warning VolumeMismatch pvc/c")];
    s2_12_the_attributes_class_of_the_volume_is_in_effect:
        sync_claims World::new([claim().names("v").attributes("gold"), volume("v", "1Gi").available().attributes("gold")])
        => vec![
            pv_ref_marked("v"),
            pv_phase("v", "Bound"),
            pvc_done("v"),
            line("pvc/c/status", serde_json::json!({ "status": {
                "phase": "Bound",
                "accessModes": ["ReadWriteOnce", "ReadOnlyMany"],
                "capacity": { "storage": "1Gi" },
                "currentVolumeAttributesClassName": "gold",
            } })),
        ];
    // 2-13 is about a gate that is locked on since 1.36: attributes classes always count.

    s3_01_a_completed_claim_without_a_volume_is_lost: sync_claims World::new([claim().completed("").bound("1Gi")])
        => vec![pvc_cleared("Lost"), text("Warning ClaimLost pvc/c")];
    s3_02_a_completed_claim_of_a_missing_volume_is_lost:
        sync_claims World::new([claim().completed("v").bound("1Gi")])
        => vec![pvc_cleared("Lost"), text("Warning ClaimLost pvc/c")];
    s3_03_a_completed_claim_takes_back_its_free_volume:
        sync_claims World::new([claim().completed("v").marked(), volume("v", "1Gi").available()])
        => vec![pv_ref_marked("v"), pv_phase("v", "Bound"), pvc_bound("1Gi")];
    s3_04_a_completed_claim_whose_volume_has_another_uid_is_misbound:
        sync_claims World::new([
            claim().completed("v").bound("1Gi"), volume("v", "1Gi").phase("Bound").refers("c", "other"),
        ])
        // The namesake is gone, which is for the volume's sync to see.
        => vec![pvc_cleared("Lost"), text("Warning ClaimMisbound pvc/c")], then vec![pv_phase("v", "Released")];
    s3_05_a_completed_pair_only_lacks_its_phases:
        sync_claims World::new([claim().completed("v"), volume("v", "1Gi").available().refers("c", "u")])
        => vec![pv_phase("v", "Bound"), pvc_bound("1Gi")];
    s3_06_a_completed_claim_whose_volume_is_of_another_claim_is_misbound:
        sync_claims World::new([
            claim().completed("v").bound("1Gi"), another(), volume("v", "1Gi").phase("Bound").refers("d", "w"),
        ])
        => vec![pvc_cleared("Lost"), text("Warning ClaimMisbound pvc/c")];
    s3_07_a_completed_claim_takes_back_its_volume_whatever_the_selector:
        sync_claims World::new([
            claim().completed("v").marked().selects("tier", "fast"), volume("v", "1Gi").available(),
        ])
        => vec![pv_ref_marked("v"), pv_phase("v", "Bound"), pvc_bound("1Gi")];
}
