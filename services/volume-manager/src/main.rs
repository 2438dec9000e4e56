use std::time::Duration;

use stowage_runtime::flags;

use volume_manager::args::Args;

/// Calls to the kernel at once; each has a thread, with its stack and its share of the allocator.
const MOST_CALLS: usize = 64;

/// A thread that ever ran costs memory for as long as it is kept.
const KEEP_THREADS: Duration = Duration::from_secs(1);

fn main() -> anyhow::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).max_blocking_threads(MOST_CALLS).thread_keep_alive(KEEP_THREADS);
    builder.enable_all().build()?.block_on(flags::parse::<Args>().run())
}
