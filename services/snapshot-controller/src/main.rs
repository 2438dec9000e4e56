#[tokio::main]
async fn main() -> anyhow::Result<()> {
    stowage_runtime::flags::parse::<snapshot_controller::args::Args>().run().await
}
