//! A local volume for one pod: shown in its directory.

use std::path::{Path, PathBuf};

use async_trait::async_trait;

use stowage_mount::{Access, MountOptions};
use stowage_runtime::events::Note;

use crate::fault::{Certainty, Fault};
use crate::host::VolumeHost;
use crate::plugin::{IsSetUp, SetUp, TearDown, VolumeMounter, VolumeUnmounter};
use crate::spec::VolumeSpec;
use crate::{mounted, ownership};

use super::{Local, Origin, global_mount, origin};

const SHARED_WITH_ANOTHER_GROUP: &str = "AlreadyMountedVolume";

#[async_trait]
impl VolumeMounter for Local {
    async fn set_up(&self, host: &VolumeHost, request: &SetUp<'_>) -> Result<IsSetUp, Fault> {
        let spec = request.spec;
        let source = match origin(host, spec).await? {
            (path, Origin::Directory) => path,
            (_, Origin::Device) => global_mount(&host.layout, &spec.name),
        };
        let dir = host.layout.pod_volume(&request.pod.meta.uid, Self::NAME, &spec.name);
        let others = used_by_others(host, &source, &dir).await?;
        if mounted::at(host, &dir).await?.is_none() {
            if others {
                tell_of_another_group(host, request, &source).await?;
            }
            host.mounter.create_dir(&dir).await.map_err(Fault::after("make the pod's volume directory"))?;
            if let Err(fault) = bind(host, spec, &source, &dir).await {
                return match request.is_reconstructed {
                    true => Err(fault),
                    false => Err(mounted::undone(fault, mounted::leave(host, &dir).await)),
                };
            }
        }
        // Owners are changed once, by the first pod that mounts it; by what is found mounted too, because a walk that was
        // interrupted leaves the mount.
        let gives = !others && !spec.read_only && !request.is_remount;
        if let Some(group) = request.fs_group.filter(|_| gives) {
            let given = ownership::give(host, request, &dir, group).await;
            given.map_err(|fault| fault.with_certainty(Certainty::Uncertain))?;
        }
        Ok(IsSetUp::default())
    }

    fn path(&self, host: &VolumeHost, spec: &VolumeSpec, pod_uid: &str) -> PathBuf {
        host.layout.pod_volume(pod_uid, Self::NAME, &spec.name)
    }
}

#[async_trait]
impl VolumeUnmounter for Local {
    async fn tear_down(&self, host: &VolumeHost, request: &TearDown<'_>) -> Result<(), Fault> {
        mounted::leave(host, &host.layout.pod_volume(request.pod_uid, Self::NAME, request.name)).await
    }

    fn mount_points(&self, host: &VolumeHost, request: &TearDown<'_>) -> Vec<PathBuf> {
        vec![host.layout.pod_volume(request.pod_uid, Self::NAME, request.name)]
    }
}

async fn used_by_others(host: &VolumeHost, source: &Path, dir: &Path) -> Result<bool, Fault> {
    let failed = Fault::before("resolve the pods' directory");
    let pods = host.mounter.canonical(&host.layout.pods()).await.map_err(failed)?;
    let places = mounted::references(host, source).await?;
    Ok(pods.is_some_and(|pods| places.iter().any(|place| place.starts_with(&pods) && place != dir)))
}

async fn tell_of_another_group(host: &VolumeHost, request: &SetUp<'_>, source: &Path) -> Result<(), Fault> {
    let Some(wanted) = request.fs_group else { return Ok(()) };
    let found = host.mounter.stat(source).await.map_err(Fault::before("look at the volume"))?;
    if let Some(found) = found.filter(|found| i64::from(found.gid) != wanted) {
        let (name, gid) = (&request.spec.name, found.gid);
        let message = format!(
            "The requested fsGroup is {wanted}, but the volume {name} has GID {gid}. The volume may not be shareable."
        );
        host.tell(request.pod, Note::warning(SHARED_WITH_ANOTHER_GROUP, message));
    }
    Ok(())
}

/// Options of the file system were given when its device was mounted; here only those of one mount count.
async fn bind(host: &VolumeHost, spec: &VolumeSpec, source: &Path, dir: &Path) -> Result<(), Fault> {
    let read_only = spec.read_only.then_some("ro");
    let all = MountOptions::new(spec.mount_options().iter().map(String::as_str).chain(read_only));
    let of_one_mount = |word: &String| MountOptions::new([word]).beyond_mount().is_none();
    let options = MountOptions { words: all.words.into_iter().filter(of_one_mount).collect() };
    let failed = "show the volume in the pod's directory";
    let plain = options.words.iter().all(|word| ["ro", "rw", "defaults"].contains(&word.as_str()));
    match &host.devices {
        Some(devices) if !plain => {
            let place = devices.locate(dir).await.map_err(Fault::after(failed))?;
            let Some(target) = devices.hold(&place).await.map_err(Fault::after(failed))? else {
                return Err(Fault::uncertain(format!("{} is gone", dir.display())));
            };
            devices.bind_at(source, &target, &options).await.map_err(Fault::after(failed))
        }
        _ => {
            let access = if options.read_only() { Access::ReadOnly } else { Access::ReadWrite };
            host.mounter.bind(source, dir, access).await.map_err(Fault::after(failed))
        }
    }
}
