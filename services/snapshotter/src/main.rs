//! Stands in for the csi-snapshotter sidecar.

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    stowage_runtime::flags::parse::<snapshotter::Args>().run().await
}
