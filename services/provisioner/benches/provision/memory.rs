//! What our binary, a process of its own, has in memory.

use std::path::Path;
use std::time::Duration;

use stowage_model::{Claim, Volume};

use crate::phases::Phases;
use crate::process::Process;
use crate::world::World;

/// With nothing to do, with 200 claims just made, and with as many as are asked for.
pub async fn measure(ours: &Path, count: usize) {
    let mut world = World::start(Duration::ZERO, None).await;
    world.start_binder();
    let process = Process::provisioner(&mut world, ours, &[]).await;
    let (claims, volumes) = (world.watch::<Claim>().await, world.watch::<Volume>().await);
    let phases = Phases::watch(&claims, &volumes);
    world.ask("first", 1).await;
    phases.until_bound(1).await;
    let idle = process.megabytes();
    world.ask("few", 200).await;
    phases.until_bound(201).await;
    let few = process.megabytes();
    world.ask("many", count - 201).await;
    phases.until_bound(count).await;
    let many = process.megabytes();
    println!("memory: {idle:.1} MB idle, {few:.1} MB with 200 claims just made, {many:.1} MB with {count} just made");
    drop(process);
    let process = Process::provisioner(&mut world, ours, &[]).await;
    world.ask("last", 1).await;
    phases.until_bound(count + 1).await;
    println!("memory: {:.1} MB after a restart with {count} volumes", process.megabytes());
}
