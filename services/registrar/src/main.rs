use stowage_runtime::flags;

use registrar::args::Args;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    flags::parse::<Args>().run().await
}
