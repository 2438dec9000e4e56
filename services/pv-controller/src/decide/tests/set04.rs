//! 8.4 volumes on their own.

use super::expect::*;
use super::fixtures::{claim, claim_named, volume};
use super::scenarios;
use super::world::World;

const NO_DELETER: &str = "no deleter for a fc volume: set persistentVolumeReclaimPolicy to Retain, then \
        delete its data and the object by hand";

/// What the claim's own sync writes once its volume is bound.
fn claims_half() -> Vec<String> {
    vec![pvc_done("v"), pvc_bound("1Gi")]
}

scenarios! {
    s4_01_a_free_volume_becomes_available: sync_volumes World::new([volume("v", "1Gi")])
        => vec![pv_phase("v", "Available")];
    s4_02_a_volume_reserved_by_name_becomes_available: sync_volumes World::new([volume("v", "1Gi").refers("c", "")])
        => vec![pv_phase("v", "Available")];
    s4_03_a_volume_whose_claim_is_gone_is_released:
        sync_volumes World::new([volume("v", "1Gi").phase("Bound").refers("c", "u")])
        => vec![pv_phase("v", "Released")];
    s4_04_a_volume_whose_claim_was_replaced_is_released:
        sync_volumes World::new([claim().uid("new"), volume("v", "1Gi").phase("Bound").refers("c", "u")])
        => vec![pv_phase("v", "Released")];
    s4_05a_a_marked_volume_whose_claim_names_none_is_left_to_the_claim:
        sync_volumes World::new([claim(), volume("v", "1Gi").phase("Bound").refers("c", "u").marked()])
        => vec![], then vec![pvc_done_marked("v"), pvc_bound("1Gi")];
    s4_05b_an_unmarked_volume_whose_claim_names_none_is_left_to_the_claim:
        sync_volumes World::new([claim(), volume("v", "1Gi").phase("Bound").refers("c", "u")])
        => vec![], then vec![pvc_done_marked("v"), pvc_bound("1Gi")];
    s4_06_a_volume_whose_claim_names_it_becomes_bound:
        sync_volumes World::new([claim().names("v"), volume("v", "1Gi").available().refers("c", "u")])
        => vec![pv_phase("v", "Bound")], then claims_half();
    s4_07_a_marked_volume_whose_claim_went_elsewhere_is_free_again:
        sync_volumes World::new([claim().names("w"), volume("v", "1Gi").phase("Bound").refers("c", "u").marked()])
        => vec![pv_free("v"), pv_phase("v", "Available")];
    s4_08_an_unmarked_volume_whose_claim_went_elsewhere_keeps_its_reservation:
        sync_volumes World::new([claim().names("w"), volume("v", "1Gi").phase("Bound").refers("c", "u")])
        => vec![pv_blank("v"), pv_phase("v", "Available")];
    s4_09_a_volume_in_use_is_not_deleted_whatever_its_policy:
        sync_volumes World::new([claim().names("v"), volume("v", "1Gi").available().refers("c", "u").policy("Delete")])
        => vec![pv_phase("v", "Bound")], then claims_half();
    s4_10_a_released_volume_without_a_deleter_fails:
        sync_volumes World::new([volume("v", "1Gi").available().refers("c", "u").policy("Delete").source("fc")])
        => vec![pv_phase("v", "Released"), pv_failed("v", NO_DELETER), text("Warning VolumeFailedDelete pv/v")];
    s4_11_a_claim_that_only_the_api_has_keeps_its_volume:
        sync_volumes World::new([volume("v", "1Gi").phase("Pending").refers("c", "u")]).unseen(claim().names("v"))
        => vec![pv_phase("v", "Bound")], then claims_half();
    s4_12_a_claim_that_the_api_has_under_the_right_uid_keeps_its_volume:
        sync_volumes World::new([
            claim_named("c", "old").names("v"), volume("v", "1Gi").phase("Pending").refers("c", "u"),
        ]).unseen(claim().names("v"))
        => vec![pv_phase("v", "Bound")], then claims_half();
}
