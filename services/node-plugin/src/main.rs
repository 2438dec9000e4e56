use std::time::Duration;

use clap::Parser as _;
use node_plugin::MOST_CALLS;
use node_plugin::args::{Alive, Args, LAST_THREADS};

/// A thread that ever ran costs memory for as long as it is kept.
const KEEP_THREADS: Duration = Duration::from_secs(1);

fn main() -> anyhow::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).max_blocking_threads(MOST_CALLS).thread_keep_alive(KEEP_THREADS);
    let runtime = builder.enable_all().build()?;
    let mut words = std::env::args_os();
    let ended = match words.nth(1) {
        Some(word) if word == Alive::WORD => {
            runtime.block_on(Alive::parse_from(std::iter::once(word).chain(words)).run())
        }
        _ => runtime.block_on(stowage_process::flags::parse::<Args>().run()),
    };
    runtime.shutdown_timeout(LAST_THREADS);
    ended
}
