//! A path of the node, given to a pod as it is.

use std::path::{Component, Path, PathBuf};

use async_trait::async_trait;

use stowage_model::volume_source::{HostPathSource, SourceKind, VolumeSource};
use stowage_mount::NodeKind;

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::plugin::{Claim, IsSetUp, SetUp, TearDown, VolumeMounter, VolumePlugin, VolumeUnmounter};
use crate::spec::VolumeSpec;
use crate::traits::{Attributes, Traits};

use super::HostPath;

/// Paths of the node; nothing of them is in the pod's directory, and nothing of them is changed but what is to be made.
#[derive(Debug, Clone, Copy, Default)]
pub struct HostPathVolume;

impl VolumePlugin for HostPathVolume {
    fn name(&self) -> &str {
        HostPath::NAME
    }

    fn claims(&self) -> Vec<Claim> {
        vec![Claim::Source(SourceKind::HostPath)]
    }

    fn volume_name(&self, spec: &VolumeSpec) -> Result<String, Fault> {
        Ok(source_of(spec)?.path.clone())
    }

    fn traits(&self, spec: &VolumeSpec, _: &VolumeHost) -> Traits {
        let attributes = Attributes { read_only: spec.read_only, managed: false, se_linux_relabel: false };
        Traits { attributes, ..Traits::PLAIN }
    }

    fn mounter(&self) -> Option<&dyn VolumeMounter> {
        Some(self)
    }

    fn unmounter(&self) -> Option<&dyn VolumeUnmounter> {
        Some(self)
    }
}

#[async_trait]
impl VolumeMounter for HostPathVolume {
    async fn set_up(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<IsSetUp, Fault> {
        let source = source_of(request.spec)?;
        let refuse = |wrong: String| Fault::transient(format!("volume {}: {wrong}", request.spec.name));
        let path = checked(&source.path).map_err(refuse)?;
        let Some(wanted) = wanted(&source.kind).map_err(refuse)? else { return Ok(IsSetUp::default()) };
        match (kind(host, path).await?, wanted) {
            (Some(found), Wanted::Is(kind) | Wanted::OrCreate(kind)) if found == kind => {}
            (Some(found), Wanted::Is(_) | Wanted::OrCreate(_)) => {
                let (path, wanted) = (&source.path, &source.kind);
                let found = name(found);
                return Err(refuse(format!("hostPath.path {path}: type {wanted} is asked for, and it is a {found}")));
            }
            (None, Wanted::OrCreate(NodeKind::Directory)) => make_dirs(host, path).await?,
            (None, Wanted::OrCreate(_)) => {
                let made = host.mounter.make_file(path, 0o644).await;
                made.map_err(Fault::before("make the file of hostPath.path"))?;
            }
            (None, Wanted::Is(_)) => {
                let (path, wanted) = (&source.path, &source.kind);
                return Err(refuse(format!("hostPath.path {path}: type {wanted} is asked for, and there is nothing")));
            }
        }
        Ok(IsSetUp::default())
    }

    fn path(&self, _: &VolumeHost, spec: &VolumeSpec, _: &str) -> PathBuf {
        source_of(spec).map(|source| PathBuf::from(&source.path)).unwrap_or_default()
    }
}

#[async_trait]
impl VolumeUnmounter for HostPathVolume {
    async fn tear_down(&self, _: &VolumeHost, _: &TearDown<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn mount_points(&self, _: &VolumeHost, _: &TearDown<'_>) -> Vec<PathBuf> {
        Vec::new()
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Wanted {
    Is(NodeKind),
    OrCreate(NodeKind),
}

fn wanted(kind: &str) -> Result<Option<Wanted>, String> {
    Ok(Some(match kind {
        "" => return Ok(None),
        "DirectoryOrCreate" => Wanted::OrCreate(NodeKind::Directory),
        "Directory" => Wanted::Is(NodeKind::Directory),
        "FileOrCreate" => Wanted::OrCreate(NodeKind::File),
        "File" => Wanted::Is(NodeKind::File),
        "Socket" => Wanted::Is(NodeKind::Socket),
        "CharDevice" => Wanted::Is(NodeKind::CharDevice),
        "BlockDevice" => Wanted::Is(NodeKind::BlockDevice),
        other => {
            return Err(format!(
                "hostPath.type {other:?} is not known; use DirectoryOrCreate, Directory, FileOrCreate, File, Socket, \
                 CharDevice, BlockDevice or nothing"
            ));
        }
    }))
}

fn name(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::File => "file",
        NodeKind::Directory => "directory",
        NodeKind::Link => "link",
        NodeKind::Socket => "socket",
        NodeKind::Pipe => "pipe",
        NodeKind::CharDevice => "character device",
        NodeKind::BlockDevice => "block device",
    }
}

fn checked(path: &str) -> Result<&Path, String> {
    let checked = Path::new(path);
    if checked.components().any(|part| part == Component::ParentDir) {
        return Err(format!("hostPath.path {path:?} must not contain \"..\""));
    }
    if !checked.is_absolute() || path.contains('\0') {
        return Err(format!("hostPath.path {path:?} must be absolute"));
    }
    Ok(checked)
}

/// What a path leads to; links are followed, as containers will.
pub(crate) async fn kind(host: &VolumeHost, path: &Path) -> Result<Option<NodeKind>, Fault> {
    let failed = "look at the volume's path";
    let Some(real) = host.mounter.canonical(path).await.map_err(Fault::before(failed))? else { return Ok(None) };
    Ok(host.mounter.stat(&real).await.map_err(Fault::before(failed))?.map(|found| found.node))
}

/// All that is missing, each with the mode that upstream gives it.
async fn make_dirs(host: &VolumeHost, path: &Path) -> Result<(), Fault> {
    let missing: Vec<&Path> = path.ancestors().collect();
    for part in missing.into_iter().rev() {
        if kind(host, part).await?.is_none() {
            let made = host.mounter.create_dir_with(part, 0o755).await;
            made.map_err(Fault::before("make the directory of hostPath.path"))?;
        }
    }
    Ok(())
}

fn source_of(spec: &VolumeSpec) -> Result<&HostPathSource, Fault> {
    match &spec.source {
        VolumeSource::HostPath(source) => Ok(source),
        other => Err(Fault::refused(format!("volume {}: source {other} is not a hostPath", spec.name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_that_climbs_or_is_not_absolute_is_refused() {
        for wrong in ["/a/../b", "..", "a/b", "", "/a/..", "/a\0b"] {
            assert!(checked(wrong).is_err(), "{wrong:?}");
        }
        assert!(checked("/a/..b/c..").is_ok());
    }
}
