//! What an OCI image holds, read-only. Nothing is pulled: images are layouts in a directory of this machine.

mod collect;
mod find;
mod manifest;
mod reference;

use std::path::PathBuf;

use async_trait::async_trait;

use stowage_model::volume_source::{ImageSource, SourceKind, VolumeSource};
use stowage_mount::{Digest, Host, MountOptions};

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{
    Claim, Found, IsSetUp, Reconstructed, Reconstructor, SetUp, TearDown, VolumeMounter, VolumePlugin, VolumeUnmounter,
};
use crate::spec::VolumeSpec;
use crate::traits::{Attributes, Traits};
use crate::{mounted, reconstructed};

use find::Images;
use reference::Reference;

/// As runtimes mount image volumes; what borrows rights and devices has no use in them.
const OPTIONS: [&str; 4] = ["ro", "noexec", "nosuid", "nodev"];

/// Images whose layouts lie in a directory: `NAME/` or `NAME.tar`. Each is unpacked once below the node's root.
#[derive(Debug, Clone, Default)]
pub struct Image {
    dir: Option<PathBuf>,
}

impl Image {
    /// As Kubernetes calls it.
    pub const NAME: &str = "kubernetes.io/image";

    /// With layouts in this directory; `images` below the node's root if none is named.
    pub fn from(dir: Option<PathBuf>) -> Self {
        Self { dir }
    }

    fn images<'a>(&self, host: &'a VolumeHost, devices: &'a dyn Host) -> Images<'a> {
        let dir = self.dir.clone().unwrap_or_else(|| host.layout.root().join("images"));
        Images { host, devices, dir, store: host.layout.plugin(Self::NAME) }
    }
}

impl VolumePlugin for Image {
    fn name(&self) -> &str {
        Self::NAME
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Source(SourceKind::Image)]
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault> {
        Ok(source_of(spec)?.reference.clone())
    }

    fn traits(&self, _: &VolumeSpec, _: &VolumeHost) -> Traits {
        let attributes = Attributes { read_only: true, managed: false, se_linux_relabel: false };
        Traits { attributes, ..Traits::PLAIN }
    }

    fn mounter(&self) -> Option<&dyn VolumeMounter> {
        Some(self)
    }

    fn unmounter(&self) -> Option<&dyn VolumeUnmounter> {
        Some(self)
    }

    fn reconstructor(&self) -> Option<&dyn Reconstructor> {
        Some(self)
    }
}

#[async_trait]
impl VolumeMounter for Image {
    async fn set_up(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<IsSetUp, Fault> {
        let spec = request.spec;
        let dir = self.path(host, spec, &request.pod.meta.uid);
        if mounted::at(host, &dir).await?.is_some() {
            return Ok(IsSetUp::default());
        }
        let refuse = |wrong: String| Fault::transient(format!("volume {}: {wrong}", spec.name));
        let Some(devices) = &host.devices else {
            return Err(refuse(
                "image: nothing can be unpacked on this node; use a node with a disk of its own".into(),
            ));
        };
        let source = source_of(spec)?;
        let reference: Reference = source.reference.parse().map_err(refuse)?;
        let policy = Policy::of(&source.pull_policy, &reference).map_err(refuse)?;
        let images = self.images(host, devices.as_ref());
        let digest = match (policy, images.known(&reference).await?) {
            (Policy::IfNotPresent | Policy::Never, Some(digest)) => digest,
            _ => images
                .bring(&reference)
                .await
                .map_err(|fault| Fault { message: format!("volume {}: {}", spec.name, fault.message), ..fault })?,
        };
        host.mounter.create_dir(&dir).await.map_err(Fault::after("make the pod's volume directory"))?;
        match bind(devices.as_ref(), &images, &digest, &dir).await {
            Ok(()) => Ok(IsSetUp::default()),
            Err(fault) if request.is_reconstructed => Err(fault),
            Err(fault) => Err(mounted::undone(fault, mounted::leave(host, &dir).await)),
        }
    }

    fn path(&self, host: &VolumeHost, spec: &VolumeSpec, pod_uid: &str) -> PathBuf {
        host.layout.pod_volume(pod_uid, Self::NAME, &spec.name)
    }
}

async fn bind(devices: &dyn Host, images: &Images<'_>, digest: &Digest, dir: &std::path::Path) -> Result<(), Fault> {
    let failed = "show the image in the pod's directory";
    let place = devices.locate(dir).await.map_err(Fault::after(failed))?;
    let Some(target) = devices.hold(&place).await.map_err(Fault::after(failed))? else {
        return Err(Fault::uncertain(format!("{} is gone", dir.display())));
    };
    let source = images.unpacked(digest);
    devices.bind_at(&source, &target, &MountOptions::new(OPTIONS)).await.map_err(Fault::after(failed))?;
    // It may have been collected just before: then it goes, whatever still shows it.
    match devices.stat(&source).await.map_err(Fault::after(failed))? {
        Some(_) => Ok(()),
        None => Err(Fault::uncertain("the image was removed while it was mounted; it is unpacked again".to_owned())),
    }
}

#[async_trait]
impl VolumeUnmounter for Image {
    /// What was unpacked stays for the next pod, as in a runtime's store, unless nobody can want it.
    async fn tear_down(&self, host: &VolumeHost, request: &TearDown<'_>) -> Result<(), Fault> {
        mounted::leave(host, &host.layout.pod_volume(request.pod_uid, Self::NAME, request.name)).await?;
        let Some(devices) = &host.devices else { return Ok(()) };
        if let Err(error) = self.images(host, devices.as_ref()).collect().await {
            tracing::warn!(%error, "images that nobody needs stay for now");
        }
        Ok(())
    }

    fn mount_points(&self, host: &VolumeHost, request: &TearDown<'_>) -> Vec<PathBuf> {
        vec![host.layout.pod_volume(request.pod_uid, Self::NAME, request.name)]
    }
}

#[async_trait]
impl Reconstructor for Image {
    async fn reconstruct(&self, _: &VolumeHost, found: &Found<'_>) -> Result<Reconstructed, Fault> {
        Ok(reconstructed::of_pod(Self::NAME, found, VolumeSource::Image(ImageSource::default())))
    }
}

/// Whether an image that was unpacked before is looked for again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Policy {
    Always,
    IfNotPresent,
    Never,
}

impl Policy {
    /// What the API server would have filled in: always, where the tag is one that moves.
    fn of(policy: &str, reference: &Reference) -> Result<Self, String> {
        match policy {
            "Always" => Ok(Self::Always),
            "IfNotPresent" => Ok(Self::IfNotPresent),
            "Never" => Ok(Self::Never),
            "" if reference.is_latest() => Ok(Self::Always),
            "" => Ok(Self::IfNotPresent),
            other => Err(format!("image.pullPolicy {other:?} is not known; use Always, IfNotPresent or Never")),
        }
    }
}

fn source_of(spec: &VolumeSpec) -> Result<&ImageSource, Fault> {
    match &spec.source {
        VolumeSource::Image(source) => Ok(source),
        other => Err(Fault::refused(format!("volume {}: source {other} is not an image", spec.name))),
    }
}
