#[tokio::main]
async fn main() -> anyhow::Result<()> {
    stowage_runtime::flags::parse::<attach_detach_controller::args::Args>().run().await
}
