#[tokio::main]
async fn main() -> anyhow::Result<()> {
    stowage_runtime::flags::parse::<scheduler::args::Args>().run().await
}
