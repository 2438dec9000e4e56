//! The life of claims through real processes, sockets and the kernel; nothing may be left of it.

use anyhow::ensure;
use futures::future::try_join_all;
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};

use local_suite::life::{DATA_BYTES, Life, all_over};
use local_suite::objects::{IMMEDIATE, WAITING};
use local_suite::stack::{NODES, Place, Service, Stack};
use local_suite::{leftovers, machine};

/// One writes on a node, the next one reads on the other, then all is deleted.
async fn live(life: &Life<'_>, class: &str, (from, to): (&str, &str)) -> anyhow::Result<()> {
    let mut data = vec![0; DATA_BYTES];
    StdRng::seed_from_u64(1).fill_bytes(&mut data);
    let (writer, reader) = (format!("{}-writer", life.claim), format!("{}-reader", life.claim));
    life.begin(class, "32Mi").await?;
    life.start(&writer, from).await?;
    life.write(&writer, from, &data).await?;
    // Otherwise finding nothing in the end would prove nothing.
    let there = leftovers::of_volumes(&life.place.root).await?;
    for kind in ["mount ", "loop device ", "file ", "pod directory "] {
        ensure!(there.iter().any(|thing| thing.starts_with(kind)), "a mounted volume without a {kind}: {there:?}");
    }
    life.stop(&writer).await?;
    life.start(&reader, to).await?;
    life.check(&reader, to, &data).await?;
    life.stop(&reader).await?;
    life.end().await
}

#[test]
fn claims_live_and_move_and_leave_nothing_behind() -> anyhow::Result<()> {
    machine::with_mounts(async |root| {
        let mut stack = Stack::start(Place::prepare(&root)?, &Service::all()).await?;
        let there = (NODES[0], NODES[1]);
        let back = (NODES[1], NODES[0]);
        let plans = [("now", IMMEDIATE, there), ("later", WAITING, there), ("now-back", IMMEDIATE, back)];
        try_join_all(plans.map(async |(claim, class, way)| {
            let life = Life { api: &stack.api, place: &stack.place, claim: claim.to_owned() };
            live(&life, class, way).await
        }))
        .await?;
        all_over(&stack.api).await?;
        stack.all_run()?;
        leftovers::none(&root).await?;
        stack.stop().await?;
        leftovers::none(&root).await?;
        let sockets = leftovers::sockets(&root)?;
        ensure!(sockets.is_empty(), "sockets left after SIGTERM: {sockets:?}");
        Ok(())
    })
}
