use std::time::Duration;

use node_plugin::args::Args;

/// Threads for calls that wait for the kernel; each that ever ran costs memory for as long as it is kept.
const MOST_THREADS: usize = 32;
const KEEP_THREADS: Duration = Duration::from_secs(1);

fn main() -> anyhow::Result<()> {
    let args = stowage_runtime::flags::parse::<Args>();
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).max_blocking_threads(MOST_THREADS).thread_keep_alive(KEEP_THREADS);
    builder.enable_all().build()?.block_on(args.run())
}
