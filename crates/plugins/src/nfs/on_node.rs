//! A directory that another machine exports, mounted for a pod.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;

use stowage_model::volume_source::{NfsSource, SourceKind, VolumeSource};
use stowage_mount::MountOptions;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{
    Claim, Found, IsSetUp, Reconstructed, Reconstructor, SetUp, TearDown, VolumeMetrics, VolumeMounter, VolumePlugin,
    VolumeStats, VolumeUnmounter,
};
use crate::spec::VolumeSpec;
use crate::traits::{Attributes, Metrics, Traits};
use crate::{mounted, reconstructed, stats};

use super::Nfs;
use super::attempts::{Attempts, addresses};

/// How long a server may take to let a mount go before it is taken by force, as the kubelet has it.
const PATIENCE: Duration = Duration::from_secs(60);

/// Directories that other machines export. The kernel is asked itself, so that no helper is needed.
#[derive(Debug, Clone, Copy, Default)]
pub struct NfsVolume;

impl VolumePlugin for NfsVolume {
    fn name(&self) -> &str {
        Nfs::NAME
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Source(SourceKind::Nfs)]
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault> {
        let source = source_of(spec)?;
        Ok(format!("{}/{}", source.server, source.path))
    }

    fn traits(&self, spec: &VolumeSpec, _: &VolumeHost) -> Traits {
        Traits {
            supports_mount_options: true,
            metrics: Metrics::StatFs,
            attributes: Attributes { read_only: spec.read_only, managed: false, se_linux_relabel: false },
            ..Traits::PLAIN
        }
    }

    fn mounter(&self) -> Option<&dyn VolumeMounter> {
        Some(self)
    }

    fn unmounter(&self) -> Option<&dyn VolumeUnmounter> {
        Some(self)
    }

    fn metrics(&self) -> Option<&dyn VolumeMetrics> {
        Some(self)
    }

    fn reconstructor(&self) -> Option<&dyn Reconstructor> {
        Some(self)
    }
}

#[async_trait]
impl VolumeMounter for NfsVolume {
    async fn set_up(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<IsSetUp, Fault> {
        let spec = request.spec;
        let export =
            export(source_of(spec)?).map_err(|wrong| Fault::transient(format!("volume {}: {wrong}", spec.name)))?;
        let dir = self.path(host, spec, &request.pod.meta.uid);
        if mounted::at(host, &dir).await?.is_some() {
            return Ok(IsSetUp::default());
        }
        let server = &source_of(spec)?.server;
        let from = addresses(server).await.map_err(|error| {
            Fault::transient(format!("nfs.server {server} has no address: {error}; check its name"))
        })?;
        host.mounter.create_dir(&dir).await.map_err(Fault::after("make the pod's volume directory"))?;
        match mount(host, spec, &export, &from, &dir).await {
            Ok(()) => Ok(IsSetUp::default()),
            Err(fault) if request.is_reconstructed => Err(fault),
            Err(fault) => Err(mounted::undone(fault, mounted::leave(host, &dir).await)),
        }
    }

    fn path(&self, host: &VolumeHost, spec: &VolumeSpec, pod_uid: &str) -> PathBuf {
        host.layout.pod_volume(pod_uid, Nfs::NAME, &spec.name)
    }
}

#[async_trait]
impl VolumeUnmounter for NfsVolume {
    async fn tear_down(&self, host: &VolumeHost, request: &TearDown<'_>) -> Result<(), Fault> {
        let dir = host.layout.pod_volume(request.pod_uid, Nfs::NAME, request.name);
        if mounted::at(host, &dir).await?.is_some()
            && tokio::time::timeout(PATIENCE, host.mounter.unmount(&dir)).await.is_err()
        {
            let forced = host.mounter.unmount_by_force(&dir).await;
            forced.map_err(Fault::after("unmount an export whose server does not answer"))?;
        }
        mounted::leave(host, &dir).await
    }

    fn mount_points(&self, host: &VolumeHost, request: &TearDown<'_>) -> Vec<PathBuf> {
        vec![host.layout.pod_volume(request.pod_uid, Nfs::NAME, request.name)]
    }
}

#[async_trait]
impl VolumeMetrics for NfsVolume {
    async fn stats(&self, host: &VolumeHost, _: &VolumeSpec, path: &Path) -> Result<VolumeStats, Fault> {
        stats::of_file_system(host, path).await
    }
}

#[async_trait]
impl Reconstructor for NfsVolume {
    async fn reconstruct(&self, _: &VolumeHost, found: &Found<'_>) -> Result<Reconstructed, Fault> {
        Ok(reconstructed::of_pod(Nfs::NAME, found, VolumeSource::Nfs(NfsSource::default())))
    }
}

/// As mount(8) writes it; an IPv6 address is bracketed.
fn export(source: &NfsSource) -> Result<String, String> {
    let NfsSource { server, path, .. } = source;
    if server.is_empty() || server.contains(|letter: char| letter.is_whitespace() || ",/\0".contains(letter)) {
        return Err(format!("nfs.server {server:?} is no name and no address"));
    }
    if !path.starts_with('/') || path.contains('\0') {
        return Err(format!("nfs.path {path:?} must be absolute"));
    }
    match server.parse::<IpAddr>() {
        Ok(IpAddr::V6(address)) => Ok(format!("[{address}]:{path}")),
        _ => Ok(format!("{server}:{path}")),
    }
}

/// The words of the volume; a reader's mount can only be read.
fn attempts(spec: &VolumeSpec) -> Attempts<'_> {
    let read_only = spec.read_only.then_some("ro");
    Attempts { words: spec.mount_options().iter().map(String::as_str).chain(read_only).collect() }
}

async fn mount(host: &VolumeHost, spec: &VolumeSpec, export: &str, from: &[IpAddr], dir: &Path) -> Result<(), Fault> {
    let call = |options: MountOptions| async move { host.mounter.mount(export, dir, "nfs", &options).await }.boxed();
    let mounted = attempts(spec).mount(from, call).await;
    mounted.map_err(|failed| Fault::uncertain(format!("mount {export}: {failed}")))
}

fn source_of(spec: &VolumeSpec) -> Result<&NfsSource, Fault> {
    match &spec.source {
        VolumeSource::Nfs(source) => Ok(source),
        other => Err(Fault::refused(format!("volume {}: source {other} is not an nfs volume", spec.name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(server: &str, path: &str) -> NfsSource {
        NfsSource { server: server.into(), path: path.into(), read_only: false }
    }

    fn spec(read_only: bool, words: &[&str]) -> VolumeSpec {
        let mut spec = reconstructed::persistent("v", VolumeSource::Nfs(source("::1", "/x")), false);
        spec.read_only = read_only;
        spec.persistent.as_mut().unwrap().mount_options = words.iter().map(|word| (*word).to_owned()).collect();
        spec
    }

    #[test]
    fn row_143_an_ipv6_server_is_bracketed_and_a_reader_mounts_read_only() {
        assert_eq!(export(&source("fd00::1", "/x")).unwrap(), "[fd00::1]:/x");
        assert_eq!(export(&source("server", "/x")).unwrap(), "server:/x");
        assert_eq!(attempts(&spec(true, &["hard,timeo=5"])).words, ["hard,timeo=5", "ro"]);
        assert_eq!(attempts(&spec(false, &["hard"])).words, ["hard"]);
    }

    #[test]
    fn servers_and_paths_that_could_smuggle_something_in_are_refused() {
        for (server, path) in [("", "/x"), ("a,b", "/x"), ("a b", "/x"), ("a", "x"), ("a/b", "/x"), ("a", "/x\0")] {
            assert!(export(&source(server, path)).is_err(), "{server:?} {path:?}");
        }
    }
}
