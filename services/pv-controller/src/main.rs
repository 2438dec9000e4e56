#[tokio::main]
async fn main() -> anyhow::Result<()> {
    stowage_runtime::flags::parse::<pv_controller::args::Args>().run().await
}
