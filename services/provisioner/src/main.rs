//! Stands in for the csi-provisioner sidecar.

use provisioner::Args;
use stowage_runtime::flags;

/// One thread: it mostly waits, and threads that wake each other take a third more processor time for the same claims.
#[tokio::main(flavor = "current_thread")]
async fn main() -> anyhow::Result<()> {
    flags::parse::<Args>().run().await
}
