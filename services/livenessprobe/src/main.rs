use stowage_process::flags;

use livenessprobe::args::Args;

// It asks one question at a time: more threads would only cost memory.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    flags::parse::<Args>().run().await
}
