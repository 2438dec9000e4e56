//! The life of one claim, with proof by the kernel's mount table and by its data.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use http::StatusCode;
use nix::sys::statvfs::statvfs;
use serde_json::{Value, json};
use stowage_model::names;
use stowage_model::object::kinds;
use stowage_mount::{LinuxMounter, Mounter as _};

use crate::api::Api;
use crate::objects;
use crate::stack::Place;

/// Enough for more than one extent.
pub const DATA_BYTES: usize = 1 << 20;

/// A claim and who uses it.
pub struct Life<'a> {
    pub api: &'a Api,
    pub place: &'a Place,
    pub claim: String,
}

impl Life<'_> {
    /// Creates the claim.
    pub async fn begin(&self, class: &str, size: &str) -> anyhow::Result<()> {
        self.api.create(kinds::CLAIM, objects::claim(&self.claim, class, size)).await
    }

    /// Creates a pod that uses the claim on a node.
    pub async fn start(&self, pod: &str, node: &str) -> anyhow::Result<()> {
        self.api.create(kinds::POD, objects::pod(pod, &self.claim, node)).await
    }

    /// Waits until the pod runs, and returns where the kernel has its volume mounted.
    pub async fn mounted(&self, pod: &str, node: &str) -> anyhow::Result<PathBuf> {
        let uid = self.api.until(kinds::POD, pod, |pod| running(pod?), "to run").await?;
        let volume = self.volume().await?;
        let path = self.place.node(node).join(names::pod_mount(&uid, &volume));
        let table = LinuxMounter.mounts().await.context("cannot read the mount table")?;
        let mount =
            table.at(&path).with_context(|| format!("{pod} runs but nothing is mounted at {}", path.display()))?;
        let volume = self.api.get(kinds::VOLUME, &volume).await?.context("a bound claim without its volume")?;
        let wanted = volume["spec"]["csi"]["fsType"].as_str().unwrap_or("ext4");
        ensure!(mount.fs_type == wanted, "{} is {}, not {wanted}", path.display(), mount.fs_type);
        Ok(path)
    }

    /// The name of the bound claim's volume.
    pub async fn volume(&self) -> anyhow::Result<String> {
        let claim = self.api.get(kinds::CLAIM, &self.claim).await?.context("the claim is gone")?;
        ensure!(claim["status"]["phase"] == "Bound", "claim {} is {}", self.claim, claim["status"]["phase"]);
        claim["spec"]["volumeName"].as_str().map(str::to_owned).context("a bound claim without a volume")
    }

    /// Writes data through the pod's mount.
    pub async fn write(&self, pod: &str, node: &str, data: &[u8]) -> anyhow::Result<()> {
        let path = self.mounted(pod, node).await?.join("data");
        let mut file = File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
        file.write_all(data).with_context(|| format!("cannot write {}", path.display()))?;
        file.sync_all().with_context(|| format!("cannot sync {}", path.display()))
    }

    /// Checks the data through the pod's mount.
    pub async fn check(&self, pod: &str, node: &str, data: &[u8]) -> anyhow::Result<()> {
        let path = self.mounted(pod, node).await?.join("data");
        let found = fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(found == data, "{} has other data than were written", path.display());
        Ok(())
    }

    /// Asks for another size, or says with which code and message that is refused.
    pub async fn ask(&self, size: &str) -> anyhow::Result<Result<Value, (StatusCode, String)>> {
        let more = json!({ "spec": { "resources": { "requests": { "storage": size } } } });
        self.api.change(kinds::CLAIM, &self.claim, &more).await
    }

    /// Waits until the claim says that it has so much and that nothing is left to do.
    pub async fn has(&self, size: &str) -> anyhow::Result<()> {
        let grown = |claim: Option<&Value>| {
            let status = &claim?["status"];
            let is_done = status["allocatedResourceStatuses"]["storage"].is_null();
            (is_done && status["capacity"]["storage"] == size).then_some(())
        };
        self.api.until(kinds::CLAIM, &self.claim, grown, &format!("to have {size}")).await
    }

    /// Deletes a pod and waits until it is gone, its volume unmounted.
    pub async fn stop(&self, pod: &str) -> anyhow::Result<()> {
        self.api.delete(kinds::POD, pod).await?;
        self.api.gone(kinds::POD, pod).await
    }

    /// Deletes the claim and waits until it is gone.
    pub async fn end(&self) -> anyhow::Result<()> {
        self.api.delete(kinds::CLAIM, &self.claim).await?;
        self.api.gone(kinds::CLAIM, &self.claim).await
    }
}

/// Waits until the API knows of no pod, claim, volume or attachment.
pub async fn all_over(api: &Api) -> anyhow::Result<()> {
    for kind in [kinds::POD, kinds::CLAIM, kinds::VOLUME, kinds::VOLUME_ATTACHMENT] {
        api.none_left(kind).await?;
    }
    Ok(())
}

/// What a mounted file system has, but for what it needs itself.
pub fn file_system_bytes(path: &Path) -> anyhow::Result<u64> {
    let told = statvfs(path).with_context(|| format!("cannot look at {}", path.display()))?;
    Ok(told.blocks() * told.fragment_size())
}

/// The uid of a pod that runs.
pub fn running(pod: &Value) -> Option<String> {
    let uid = pod["metadata"]["uid"].as_str()?;
    (pod["status"]["phase"] == "Running").then(|| uid.to_owned())
}
