use std::time::Duration;

use stowage_runtime::flags;

use volume_manager::args::Args;

/// Calls to the kernel at once; each has a thread, with its stack and its share of the allocator.
const MOST_CALLS: usize = 64;

/// A thread that ever ran costs memory for as long as it is kept.
const KEEP_THREADS: Duration = Duration::from_secs(1);

/// A call to a server that does not answer (nfs) cannot be ended from here; who stops us is not to wait for it.
const LAST_CALLS: Duration = Duration::from_secs(5);

fn main() -> anyhow::Result<()> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).max_blocking_threads(MOST_CALLS).thread_keep_alive(KEEP_THREADS);
    let runtime = builder.enable_all().build()?;
    let ended = runtime.block_on(flags::parse::<Args>().run());
    runtime.shutdown_timeout(LAST_CALLS);
    ended
}
