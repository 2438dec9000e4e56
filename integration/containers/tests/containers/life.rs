use anyhow::ensure;
use futures::future::try_join_all;
use local_suite::objects;
use serde_json::json;
use stowage_model::object::kinds;

use container_suite::checker::{self, loops};
use container_suite::life::{BTRFS, EXT4, Life, Step, XFS};
use container_suite::machine::with_stack;
use container_suite::stack::{NODES, until};
use container_suite::table;

/// How many volumes the table speaks about.
const VOLUMES: usize = 50;
/// At the same time: a person's cluster does not get all its pods in one second either.
const TOGETHER: usize = 10;

#[test]
fn data_written_on_one_node_are_there_on_the_other_and_nothing_is_left_behind() -> anyhow::Result<()> {
    with_stack(async |stack| {
        let idle = table::memory(stack).await?;
        let mut class = objects::class(BTRFS.class, objects::DRIVER, "Immediate");
        class["parameters"] = json!({ "csi.storage.k8s.io/fstype": "btrfs" });
        stack.api.create(kinds::STORAGE_CLASS, class).await?;
        let first = [EXT4, XFS, BTRFS].map(|shape| Life::new(stack, shape.file_system).shaped(shape));
        try_join_all(first.iter().map(|life| life.up_to(Step::EndSecondPod))).await?;
        checker::at_rest(stack).await?;
        ensure!(loops(stack).await?.len() == first.len(), "one volume of each kind is in use");
        for life in &first {
            life.step(Step::EndSecondPod).await?;
            life.step(Step::EndClaim).await?;
        }
        checker::nothing_left(stack).await?;

        let lives: Vec<Life<'_>> = (0..VOLUMES)
            .map(|number| match number % 2 {
                0 => Life::new(stack, format!("many-{number}")),
                _ => Life::new(stack, format!("many-{number}")).reversed(),
            })
            .collect();
        for group in lives.chunks(TOGETHER) {
            try_join_all(group.iter().map(|life| life.up_to(Step::EndFirstPod))).await?;
        }
        checker::at_rest(stack).await?;
        ensure!(loops(stack).await?.len() == VOLUMES, "{VOLUMES} volumes are in use");
        let busy = table::memory(stack).await?;
        println!("{}", table::render(stack, &idle, &busy, VOLUMES).await?);

        // With everything mounted: draining is what unmounts it. Claims and volumes are kept.
        stack.shut_down().await?;
        for node in NODES {
            let below = stack.volume(node);
            let table = stowage_mount::MountTable::read()?;
            let left: Vec<_> = table.under(&below).map(|mount| mount.target.display().to_string()).collect();
            ensure!(left.is_empty(), "still mounted on {node} after the stack is down: {left:?}");
        }
        // The kernel lets go of a loop device when the last program that looks at it closes it.
        until("no loop device", async || Ok(loops(stack).await?.is_empty().then_some(()))).await?;
        let images = std::fs::read_dir(stack.volume("pool").join("volumes"))?
            .filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().extension().is_some_and(|end| end == "img")))
            .count();
        ensure!(images == VOLUMES, "{images} of {VOLUMES} volumes are kept");
        Ok(())
    })
}
