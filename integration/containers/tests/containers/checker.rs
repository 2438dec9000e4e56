//! The checker itself: what is planted is found, and named.

use std::future::pending;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_csi::v1::volume_capability::access_mode::Mode;
use stowage_csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use stowage_csi::v1::{CapacityRange, CreateVolumeRequest, DeleteVolumeRequest, VolumeCapability};
use stowage_csi::{Connector as _, Deadline, UnixConnector};
use stowage_mount::{Host as _, LinuxMounter, LoopOptions};

use tokio::time::timeout;

use container_suite::checker::{Observation, nothing_left, nothing_left_after, watched};
use container_suite::machine::with_stack;
use local_suite::api::PATIENCE;

const CALL: Deadline = Deadline(Duration::from_secs(10));
/// What is planted does not go by itself.
const SHORT: Duration = Duration::from_secs(3);

fn request(name: &str) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes: 16 << 20, limit_bytes: 0 }),
        volume_capabilities: vec![VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }],
        ..CreateVolumeRequest::default()
    }
}

#[test]
fn a_planted_orphan_volume_and_a_planted_loop_device_fail_the_check() -> anyhow::Result<()> {
    with_stack(async |stack| {
        nothing_left(stack).await.context("before anything is planted")?;

        let channel = UnixConnector.connect(&stack.driver_socket().display().to_string())?;
        let mut driver = ControllerClient::new(channel);
        let made = CALL.call(request("planted"), |request| driver.create_volume(request)).await?;
        let id = made.volume.context("the driver made nothing")?.volume_id;
        let found = Observation::of(stack).await?.violations();
        ensure!(found.iter().any(|one| one.id == "P1" && one.text.contains(&id)), "the orphan is not found: {found:?}");
        let said = nothing_left_after(stack, SHORT).await.err().context("an orphan passes")?.to_string();
        ensure!(said.contains("P1") && said.contains(&id), "{said}");
        let beside = timeout(PATIENCE, watched(stack, pending::<anyhow::Result<()>>()));
        let said = beside.await?.err().context("an orphan passes while something goes on")?.to_string();
        ensure!(said.contains("P1") && said.contains(&id), "{said}");

        let key = id.split('.').nth(1).context("a handle without a key")?;
        let image = stack.volume("pool").join("volumes").join(format!("{key}.img"));
        let device = LinuxMounter.attach_loop(&image, "planted", LoopOptions::default()).await?;
        // The device outlives the volume, which the checker would name first.
        let delete = DeleteVolumeRequest { volume_id: id, ..DeleteVolumeRequest::default() };
        let deleted = CALL.call(delete, |request| driver.delete_volume(request)).await;
        let found = nothing_left_after(stack, SHORT).await;
        LinuxMounter.detach_loop(&device).await?;
        deleted?;
        let said = found.err().context("a loop device passes")?.to_string();
        ensure!(said.contains("L1") && said.contains(&device.path.display().to_string()), "{said}");

        nothing_left(stack).await.context("after what was planted is gone")
    })
}
