//! Devices as pods have them: the link that a container would be given, and what is written through it.

use std::fs::{self, File};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileTypeExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, ensure};
use stowage_model::names;
use stowage_model::object::kinds;
use stowage_mount::{Host as _, LinuxMounter, LoopDevice};

use crate::life::{Life, running};

impl Life<'_> {
    /// Waits until the pod runs, and returns the device that its link leads to.
    pub async fn mapped(&self, pod: &str, node: &str) -> anyhow::Result<PathBuf> {
        let uid = self.api.until(kinds::POD, pod, |pod| running(pod?), "to run").await?;
        let link = self.place.node(node).join(names::pod_device(&uid, &self.volume().await?));
        let device = fs::canonicalize(&link).with_context(|| format!("{} leads nowhere", link.display()))?;
        let kind = fs::metadata(&device).with_context(|| format!("cannot look at {}", device.display()))?.file_type();
        ensure!(kind.is_block_device(), "{} is no device", device.display());
        Ok(device)
    }

    /// Writes data to the start of the pod's device.
    pub async fn write_device(&self, pod: &str, node: &str, data: &[u8]) -> anyhow::Result<()> {
        let device = self.mapped(pod, node).await?;
        let failed = || format!("cannot write {}", device.display());
        let mut file = File::options().write(true).open(&device).with_context(failed)?;
        file.write_all(data).with_context(failed)?;
        file.sync_all().with_context(failed)
    }

    /// Checks the data at the start of the pod's device; returns how many bytes the device has.
    pub async fn check_device(&self, pod: &str, node: &str, data: &[u8]) -> anyhow::Result<u64> {
        let device = self.mapped(pod, node).await?;
        let failed = || format!("cannot read {}", device.display());
        let mut file = File::open(&device).with_context(failed)?;
        let mut found = vec![0; data.len()];
        file.read_exact(&mut found).with_context(failed)?;
        ensure!(found == data, "{} has other data than were written", device.display());
        file.seek(SeekFrom::End(0)).with_context(failed)
    }

    /// The loop devices that keep the claim's device in place for pods of a node.
    pub async fn locks(&self, node: &str) -> anyhow::Result<Vec<LoopDevice>> {
        let users = self.place.node(node).join("plugins/kubernetes.io/csi/volumeDevices");
        let users = users.join(self.volume().await?).join("dev");
        let mut loops = LinuxMounter.loops().await.context("cannot list loop devices")?;
        loops.retain(|device| device.backing.starts_with(&users));
        Ok(loops)
    }
}
