//! A directory that another machine exports, mounted for a pod.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;

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

use super::{Nfs, PORT};

/// How long a server may take to let a mount go before it is taken by force, as the kubelet has it.
const PATIENCE: Duration = Duration::from_secs(60);

/// The versions that are tried where no option names one, as mount.nfs does.
const VERSIONS: [&str; 4] = ["vers=4.2", "vers=4.1", "vers=4.0", "vers=3"];

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
        let address = address(&source_of(spec)?.server).await?;
        host.mounter.create_dir(&dir).await.map_err(Fault::after("make the pod's volume directory"))?;
        match mount(host, spec, &export, address, &dir).await {
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

/// The kernel wants the address; names are resolved by whoever asks it to mount.
async fn address(server: &str) -> Result<IpAddr, Fault> {
    let unknown = |why: String| Fault::transient(format!("nfs.server {server} has no address: {why}; check its name"));
    if let Ok(address) = server.parse() {
        return Ok(address);
    }
    let mut found = tokio::net::lookup_host((server, PORT)).await.map_err(|error| unknown(error.to_string()))?;
    found.next().map(|socket| socket.ip()).ok_or_else(|| unknown("the answer is empty".to_owned()))
}

/// The words of one attempt.
fn options(spec: &VolumeSpec, address: IpAddr, version: Option<&str>) -> MountOptions {
    let read_only = spec.read_only.then_some("ro");
    let words = spec.mount_options().iter().map(String::as_str).chain(read_only).chain(version);
    let mut options = MountOptions::new(words);
    // Before version 4, locks need a daemon of this machine that containers do not bring along.
    let is_three = options.words.iter().any(|word| ["vers=3", "nfsvers=3"].contains(&word.as_str()));
    if is_three && !options.words.iter().any(|word| word == "lock" || word == "nolock") {
        options.words.push("nolock".to_owned());
    }
    options.words.push(format!("addr={address}"));
    options
}

fn versions(spec: &VolumeSpec) -> Vec<Option<&'static str>> {
    let named = MountOptions::new(spec.mount_options());
    let is_version = |word: &String| ["vers=", "nfsvers=", "v4", "v3"].iter().any(|start| word.starts_with(start));
    match named.words.iter().any(is_version) {
        true => vec![None],
        false => VERSIONS.into_iter().map(Some).collect(),
    }
}

async fn mount(host: &VolumeHost, spec: &VolumeSpec, export: &str, address: IpAddr, dir: &Path) -> Result<(), Fault> {
    let mut last = None;
    for version in versions(spec) {
        match host.mounter.mount(export, dir, "nfs", &options(spec, address, version)).await {
            Ok(()) => return Ok(()),
            Err(error) => {
                let other_version = [nix::libc::EPROTONOSUPPORT, nix::libc::EINVAL].map(Some);
                let goes_on = other_version.contains(&error.os_error());
                last = Some(error);
                if !goes_on {
                    break;
                }
            }
        }
    }
    let Some(error) = last else { return Err(Fault::uncertain("no version of NFS was tried")) };
    let hint = match error.os_error() {
        Some(nix::libc::ENODEV) => "; this kernel has no nfs: load it (modprobe nfs), or install the kernel's modules",
        Some(nix::libc::EACCES | nix::libc::EPERM) => "; check that the server exports the path to this node",
        Some(nix::libc::ENOENT) => "; check nfs.path on the server",
        _ => "",
    };
    Err(Fault::uncertain(format!("mount {export}: {error}{hint}")))
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
        let address = "fd00::1".parse().unwrap();
        assert_eq!(
            options(&spec(true, &["hard,timeo=5"]), address, Some("vers=4.2")).words,
            ["hard", "timeo=5", "ro", "vers=4.2", "addr=fd00::1"]
        );
    }

    #[test]
    fn a_version_that_is_asked_for_is_the_only_one_that_is_tried() {
        assert_eq!(versions(&spec(false, &["nfsvers=4.1"])), [None]);
        assert_eq!(versions(&spec(false, &["hard"])).len(), 4);
        let three = options(&spec(false, &["vers=3"]), "::1".parse().unwrap(), None);
        assert!(three.words.contains(&"nolock".to_owned()), "{three:?}");
    }

    #[test]
    fn servers_and_paths_that_could_smuggle_something_in_are_refused() {
        for (server, path) in [("", "/x"), ("a,b", "/x"), ("a b", "/x"), ("a", "x"), ("a/b", "/x"), ("a", "/x\0")] {
            assert!(export(&source(server, path)).is_err(), "{server:?} {path:?}");
        }
    }
}
