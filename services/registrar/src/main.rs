use stowage_process::flags;

use registrar::args::Args;

// It waits for a few calls in its whole life: more threads would only cost memory.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    flags::parse::<Args>().run().await
}
