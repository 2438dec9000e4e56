use node_plugin::args::Args;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    stowage_runtime::flags::parse::<Args>().run().await
}
