//! A volume of files for one pod: an empty directory, and the files in it, written at once.

use std::path::PathBuf;

use async_trait::async_trait;

use crate::empty_dir::{self, Medium, Place};
use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::mounted;
use crate::plugin::{IsSetUp, SetUp, TearDown, VolumeMounter, VolumeUnmounter};
use crate::spec::VolumeSpec;

use super::build::{Built, build};
use super::{Files, nested};

#[async_trait]
impl VolumeMounter for Files {
    /// Nothing is touched until all files are known. A running pod keeps its old files when new ones cannot be written.
    async fn set_up(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<IsSetUp, Fault> {
        let built = build(host, request).await?;
        let place = Place::wrapped(&host.layout, &request.pod.meta.uid, self.name, &request.spec.name);
        let again_at = built.again_at;
        match self.write(host, request, &place, built).await {
            Ok(()) => Ok(IsSetUp { again_at, device: None }),
            Err(fault) if request.is_remount || request.is_reconstructed => Err(fault),
            Err(fault) => Err(mounted::undone(fault, empty_dir::tear_down(host, &place).await)),
        }
    }

    fn path(&self, host: &VolumeHost, spec: &VolumeSpec, pod_uid: &str) -> PathBuf {
        Place::wrapped(&host.layout, pod_uid, self.name, &spec.name).dir
    }
}

#[async_trait]
impl VolumeUnmounter for Files {
    async fn tear_down(&self, host: &VolumeHost, request: &TearDown<'_>) -> Result<(), Fault> {
        if *self == Self::PROJECTED {
            host.tokens.forget(request.pod_uid);
        }
        empty_dir::tear_down(host, &Place::wrapped(&host.layout, request.pod_uid, self.name, request.name)).await
    }

    fn mount_points(&self, host: &VolumeHost, request: &TearDown<'_>) -> Vec<PathBuf> {
        match self.in_memory {
            true => vec![Place::wrapped(&host.layout, request.pod_uid, self.name, request.name).dir],
            false => Vec::new(),
        }
    }
}

impl Files {
    async fn write(&self, host: &VolumeHost, request: &SetUp<'_>, place: &Place, built: Built) -> Result<(), Fault> {
        empty_dir::set_up(host, place, &self.medium(host, request).await?, None).await?;
        empty_dir::mark_ready(host, place).await?;
        let places = nested::mount_points(&request.spec.name, request.pod);
        nested::make(host, &place.dir, &places).await?;
        super::writer::write(host, request, &place.dir, built.payload).await
    }

    async fn medium(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<Medium, Fault> {
        match self.in_memory {
            true => empty_dir::memory(host, request.pod, None).await,
            false => Ok(Medium::Disk),
        }
    }
}
