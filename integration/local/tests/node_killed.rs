//! The volume manager, and its driver, killed with SIGKILL at the worst moments of a volume's life on a real kernel, and
//! the node spoiled while they are away. Meanwhile somebody looks at M1, M2 and R1; in the end everything is mounted with
//! its data, or gone wholly.

#[path = "node_killed/calls.rs"]
mod calls;
#[path = "node_killed/devices.rs"]
mod devices;
#[path = "node_killed/node.rs"]
mod node;
#[path = "node_killed/spoiled.rs"]
mod spoiled;
#[path = "node_killed/walk.rs"]
mod walk;

use local_suite::machine;

use node::Node;

#[test]
fn a_kill_in_the_middle_of_a_call_to_the_driver_loses_nothing() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let mut node = Node::start(&root).await?;
        node.case("killed between stage and publish", calls::between_stage_and_publish).await?;
        node.case("killed with the driver before it hears of a publish", calls::before_it_hears_of_a_publish).await?;
        node.case("killed before it hears of an unpublish", calls::before_it_hears_of_an_unpublish).await?;
        node.case("killed with the driver that is to unpublish", calls::with_the_driver_that_is_to_unpublish).await?;
        node.case("killed with the driver before it hears of an unstage", calls::before_it_hears_of_an_unstage).await?;
        node.case("killed with the driver while a volume grows", calls::while_a_volume_grows).await?;
        node.case("killed while a device is mapped", devices::while_a_device_is_mapped).await?;
        node.case("killed while a device is unmapped", devices::while_a_device_is_unmapped).await?;
        node.case("killed while files are given to a group", walk::while_files_are_given_to_a_group).await?;
        node.end().await
    })
}

#[test]
fn a_node_spoiled_while_nobody_looks_after_it_is_put_in_order() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let mut node = Node::start(&root).await?;
        node.case("one of two pods deleted meanwhile", spoiled::one_of_two_pods_deleted).await?;
        node.case("metadata emptied or cut off", spoiled::metadata_emptied_or_cut_off).await?;
        node.case("metadata of a pod that goes is lost", spoiled::metadata_of_a_pod_that_goes_is_lost).await?;
        node.case("a target that is busy", spoiled::a_busy_target).await?;
        node.case("a target that is gone with its directory", spoiled::a_target_that_is_gone).await?;
        node.case("staging lost alone", spoiled::staging_lost_alone).await?;
        node.case("all mounts lost, as by a reboot", spoiled::all_mounts_lost).await?;
        node.case("all mounts lost, and the pods deleted", spoiled::all_mounts_lost_and_the_pods_deleted).await?;
        node.end().await
    })
}
