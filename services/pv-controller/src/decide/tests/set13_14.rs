//! 8.5 classes and volume modes.

use super::expect::*;
use super::fixtures::{Fixture, claim, volume};
use super::scenarios;
use super::world::World;

fn block() -> Fixture {
    claim().mode("Block")
}

fn free(name: &str, size: &str) -> Fixture {
    volume(name, size).available()
}

scenarios! {
    s13_01_the_class_decides: sync_claims World::new([claim().class("gold"), free("a", "1Gi"), free("b", "10Gi").class("gold")])
        => chosen("b", "10Gi");
    s13_02_no_class_means_none: sync_claims World::new([claim(), free("a", "1Gi").class("gold"), free("b", "10Gi")])
        => chosen("b", "10Gi");
    s13_03_another_class_is_not_taken:
        sync_claims World::new([claim().class("gold"), free("a", "1Gi").class("silver"), free("b", "10Gi").class("gold")])
        => chosen("b", "10Gi");
    s13_04_the_empty_class_is_none: sync_claims World::new([claim().class(""), free("v", "1Gi")])
        => chosen("v", "1Gi");
    s13_05_a_missing_class_is_none: sync_claims World::new([claim(), free("v", "1Gi")]) => chosen("v", "1Gi");

    s14_01_block_binds_block: sync_claims World::new([block(), free("v", "1Gi").mode("Block")]) => chosen("v", "1Gi");
    s14_02_filesystem_binds_filesystem:
        sync_claims World::new([claim().mode("Filesystem"), free("v", "1Gi").mode("Filesystem")])
        => chosen("v", "1Gi");
    s14_03_a_file_system_is_no_device: sync_claims World::new([block(), free("v", "1Gi")])
        => vec![text("Normal FailedBinding pvc/c")];
    s14_04_a_device_is_no_file_system: sync_claims World::new([claim(), free("v", "1Gi").mode("Block")])
        => vec![text("Normal FailedBinding pvc/c")];
    s14_05_a_missing_class_makes_no_volume:
        sync_claims World::new([block().class("gold"), free("v", "1Gi").class("gold")])
        => vec![text("Warning ProvisioningFailed pvc/c")];
    s14_05_1_a_missing_class_makes_no_volume_either:
        sync_claims World::new([claim().class("gold"), free("v", "1Gi").class("silver")])
        => vec![text("Warning ProvisioningFailed pvc/c")];
    s14_05_2_a_named_volume_of_another_class_is_refused:
        sync_claims World::new([claim().class("gold").names("v"), free("v", "1Gi").class("silver")])
        => vec![text("Warning VolumeMismatch pvc/c")];
    s14_07_a_reserved_volume_of_the_same_mode_is_bound:
        sync_claims World::new([block(), free("v", "1Gi").mode("Block").refers("c", "")])
        => reserved("v", "1Gi");
    s14_08_a_named_volume_of_the_other_mode_is_refused:
        sync_claims World::new([block().names("v"), free("v", "1Gi")])
        => vec![text("Warning VolumeMismatch pvc/c")];
    s14_08_1_a_reserved_volume_of_the_other_mode_is_left:
        sync_claims World::new([block(), free("v", "1Gi").refers("c", "")])
        => vec![text("Normal FailedBinding pvc/c")];
    s14_09_a_named_volume_of_the_same_mode_is_bound:
        sync_claims World::new([block().names("v"), free("v", "1Gi").mode("Block")])
        => named("v", "1Gi");
    s14_10_a_reserved_file_system_is_bound:
        sync_claims World::new([claim().mode("Filesystem"), free("v", "1Gi").refers("c", "")])
        => reserved("v", "1Gi");
    s14_11_a_named_file_system_is_bound:
        sync_claims World::new([claim().mode("Filesystem").names("v"), free("v", "1Gi").mode("Filesystem")])
        => named("v", "1Gi");
    s14_12_a_reserved_file_system_is_bound_to_a_claim_that_says_nothing:
        sync_claims World::new([claim(), free("v", "1Gi").mode("Filesystem").refers("c", "")])
        => reserved("v", "1Gi");
    s14_13_modes_that_differ_are_told_on_both_sides:
        sync_volumes World::new([claim(), free("v", "1Gi").mode("Block").refers("c", "u").marked()])
        => vec![text("Warning VolumeMismatch pv/v"), text("Warning VolumeMismatch pvc/c")];
    s14_13_1_modes_that_differ_the_other_way_are_told_too:
        sync_volumes World::new([block(), free("v", "1Gi").refers("c", "u").marked()])
        => vec![text("Warning VolumeMismatch pv/v"), text("Warning VolumeMismatch pvc/c")];
    // The claim's own sync binds them.
    s14_14_equal_modes_leave_the_volume_to_the_claim:
        sync_volumes World::new([block(), free("v", "1Gi").mode("Block").refers("c", "u").marked()])
        => vec![], then provided("v", "1Gi");
    s14_14_1_equal_file_systems_leave_the_volume_to_the_claim:
        sync_volumes World::new([claim(), free("v", "1Gi").refers("c", "u").marked()])
        => vec![], then provided("v", "1Gi");
}
