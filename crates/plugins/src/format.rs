//! A device with a file system, made if there is none, checked if there is one, and mounted.

use std::path::Path;

use stowage_mount::{Content, FileSystem, Host, MountOptions};

use crate::fault::Fault;
use crate::host::VolumeHost;

const DEFAULT: &str = "ext4";

/// A device that is to be mounted.
pub(crate) struct Format<'a> {
    pub device: &'a Path,
    pub target: &'a Path,
    /// Empty for ext4.
    pub fs_type: &'a str,
    pub read_only: bool,
    pub options: &'a [String],
}

/// Makes a file system on a blank device, checks one that is there, and mounts it. What is neither is left as it is.
pub(crate) async fn format_and_mount(host: &VolumeHost, wanted: &Format<'_>) -> Result<(), Fault> {
    let devices = devices(host)?;
    let (device, target) = (wanted.device, wanted.target);
    let kind = if wanted.fs_type.is_empty() { DEFAULT } else { wanted.fs_type };
    let at = device.display();
    let found = devices.probe(device).await.map_err(Fault::before("read what the device holds"))?;
    match (found, kind.parse::<FileSystem>()) {
        (Content::Blank, _) if wanted.read_only => {
            return Err(Fault::transient(format!("device {at} is blank, and a read-only volume is not formatted")));
        }
        (Content::Blank, Ok(kind)) => {
            let options: &[String] = match kind {
                // As upstream: no blocks for root, which nobody is here.
                FileSystem::Ext3 | FileSystem::Ext4 => &["-m0".to_owned()],
                _ => &[],
            };
            let made = devices.make_filesystem(device, kind, options).await;
            made.map_err(Fault::after("make the file system"))?;
        }
        (Content::Blank, Err(())) => {
            return Err(Fault::transient(format!(
                "device {at} is blank, and {kind:?} cannot be made here; use ext4 or xfs"
            )));
        }
        (Content::FileSystem(existing), _) if !wanted.read_only => {
            let checked = devices.check_filesystem(device, existing).await;
            checked.map_err(Fault::after("check the file system"))?;
        }
        (Content::FileSystem(_), _) => {}
        (other, _) => {
            return Err(Fault::transient(format!(
                "device {at} holds {other}, which is somebody's data; wipe it (wipefs --all {at}) if it is not"
            )));
        }
    }
    let read_only = wanted.read_only.then_some("ro");
    let words = wanted.options.iter().map(String::as_str).chain(read_only).chain(["defaults"]);
    let Some(source) = device.to_str() else {
        return Err(Fault::refused(format!("device {at} has a name that is not UTF-8")));
    };
    let options = MountOptions::new(words);
    let mounted = host.mounter.mount(source, target, kind, &options).await;
    mounted.map_err(|error| match found {
        Content::FileSystem(existing) if existing.name() != kind => Fault {
            code: Fault::OTHER_FILE_SYSTEM.to_owned(),
            ..Fault::uncertain(format!(
                "device {at} holds a file system of type {existing}, and {kind} is asked for: {error}"
            ))
        },
        _ => Fault::uncertain(format!("mount the device: {error}{}", wrong_option(&error, &options))),
    })
}

/// Which words may be the ones that the kernel did not know, for the end of a sentence.
pub(crate) fn wrong_option(error: &stowage_mount::Error, asked: &MountOptions) -> String {
    match (error.os_error(), asked.for_file_system()) {
        (Some(nix::libc::EINVAL), Some(words)) => {
            format!("; check the mount options that are for the file system: {words}")
        }
        _ => String::new(),
    }
}

/// Block devices and their file systems.
pub(crate) fn devices(host: &VolumeHost) -> Result<&dyn Host, Fault> {
    let found = host.devices.as_deref();
    found.ok_or_else(|| Fault::transient("this node has no port to block devices; run it on a machine that has some"))
}
