use clap::Parser as _;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    apiserver::Args::parse().run().await
}
