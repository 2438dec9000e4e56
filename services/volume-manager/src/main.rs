use stowage_runtime::flags;

use volume_manager::args::Args;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    flags::parse::<Args>().run().await
}
