#[tokio::main]
async fn main() -> anyhow::Result<()> {
    stowage_runtime::flags::parse::<resizer::args::Args>().run().await
}
