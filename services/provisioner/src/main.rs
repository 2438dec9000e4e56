//! Stands in for the csi-provisioner sidecar.

use provisioner::Args;
use stowage_runtime::flags;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    flags::parse::<Args>().run().await
}
