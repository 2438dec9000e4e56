//! Where an empty directory is, and how it comes and goes.

use std::path::{Path, PathBuf};

use stowage_mount::{FileKind, Mount, MountOptions};

use crate::fault::Fault;
use crate::host::VolumeHost;
use crate::layout::Layout;
use crate::mounted;

use super::{EmptyDir, Medium};

pub const TMPFS: &str = "tmpfs";
const HUGETLBFS: &str = "hugetlbfs";

/// Anybody may use it: what keeps others away is the pod's own directory.
const MODE: u32 = 0o777;

/// An empty directory, and the mark that says that it is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub dir: PathBuf,
    marks: PathBuf,
}

impl Place {
    /// A volume of its own.
    pub(crate) fn own(layout: &Layout, pod_uid: &str, name: &str) -> Self {
        let dir = layout.pod_volume(pod_uid, EmptyDir::NAME, name);
        Self { dir, marks: layout.pod_plugin(pod_uid, EmptyDir::NAME, name) }
    }

    /// One that holds the files of another plugin's volume.
    pub(crate) fn wrapped(layout: &Layout, pod_uid: &str, plugin: &str, name: &str) -> Self {
        let dir = layout.pod_volume(pod_uid, plugin, name);
        Self { dir, marks: layout.pod_plugin(pod_uid, EmptyDir::NAME, &format!("wrapped_{name}")) }
    }

    fn ready(&self) -> PathBuf {
        self.marks.join("ready")
    }
}

/// Makes the directory, unless it is complete already; says whether anything was done. The mark is the caller's to make.
pub(crate) async fn set_up(
    host: &VolumeHost,
    place: &Place,
    medium: &Medium,
    mode: Option<u32>,
) -> Result<bool, Fault> {
    let mode = mode.map(|mode| mode & 0o1777);
    let look = Fault::before("look at the volume's directory");
    let is_ready = host.mounter.stat(&place.ready()).await.map_err(look)?.is_some();
    let found = mounted::at(host, &place.dir).await?;
    match medium {
        Medium::Disk => {
            let look = Fault::before("look at the volume's directory");
            let dir = host.mounter.stat(&place.dir).await.map_err(look)?;
            if is_ready && dir.is_some_and(|dir| dir.kind == FileKind::Directory) {
                return Ok(false);
            }
            unmark(host, place).await?;
            make_dir(host, &place.dir, mode.unwrap_or(MODE)).await?;
        }
        Medium::Memory { size } => match found {
            Some(mount) if mount.fs_type == TMPFS => return Ok(!is_ready),
            found => {
                refuse_foreign(found.as_ref(), &place.dir)?;
                unmark(host, place).await?;
                make_dir(host, &place.dir, MODE).await?;
                mount_memory(host, &place.dir, *size, mode).await?;
            }
        },
        Medium::HugePages { page_size } => match found {
            Some(mount) if mount.fs_type == HUGETLBFS => {
                check_page_size(&mount, page_size)?;
                return Ok(!is_ready);
            }
            found => {
                refuse_foreign(found.as_ref(), &place.dir)?;
                unmark(host, place).await?;
                make_dir(host, &place.dir, mode.unwrap_or(MODE)).await?;
                let mut words = vec![format!("pagesize={page_size}")];
                words.extend(mode.map(|mode| format!("mode={mode:o}")));
                let mounted = host.mounter.mount("nodev", &place.dir, HUGETLBFS, &MountOptions::new(words)).await;
                mounted.map_err(|error| {
                    let hint = "check that the node has huge pages of this size (/sys/kernel/mm/hugepages)";
                    Fault::uncertain(format!("mount huge pages: {error}; {hint}"))
                })?;
            }
        },
    }
    Ok(true)
}

/// The directory of the plugin in the pod's is for all to pass, as the kubelet has it for these kinds alone.
async fn make_dir(host: &VolumeHost, dir: &Path, mode: u32) -> Result<(), Fault> {
    if let Some(above) = dir.parent() {
        let look = Fault::before("look at the volume's directory");
        if host.mounter.stat(above).await.map_err(look)?.is_none() {
            let made = host.mounter.create_dir_with(above, 0o755).await;
            made.map_err(Fault::after("make the directory for the pod's volumes"))?;
        }
    }
    host.mounter.create_dir_with(dir, mode).await.map_err(Fault::after("make the volume's directory"))
}

/// Without `noswap` where the kernel does not know it: Linux has it since 6.4, and not in user namespaces.
async fn mount_memory(host: &VolumeHost, dir: &Path, size: Option<u64>, mode: Option<u32>) -> Result<(), Fault> {
    let mut words: Vec<String> = size.map(|bytes| format!("size={bytes}")).into_iter().collect();
    words.extend(mode.map(|mode| format!("mode={mode:o}")));
    let with_noswap = words.iter().cloned().chain(["noswap".to_owned()]);
    match host.mounter.mount(TMPFS, dir, TMPFS, &MountOptions::new(with_noswap)).await {
        Err(error) if error.is_unsupported() || error.is_forbidden() => {
            let mounted = host.mounter.mount(TMPFS, dir, TMPFS, &MountOptions::new(words)).await;
            mounted.map_err(Fault::after("mount a file system in memory"))
        }
        mounted => mounted.map_err(Fault::after("mount a file system in memory")),
    }
}

fn refuse_foreign(found: Option<&Mount>, dir: &Path) -> Result<(), Fault> {
    match found {
        Some(mount) => Err(Fault::uncertain(format!(
            "{} has a {} mounted that is not the volume's; unmount it",
            dir.display(),
            mount.fs_type
        ))),
        None => Ok(()),
    }
}

fn check_page_size(mount: &Mount, wanted: &stowage_model::Quantity) -> Result<(), Fault> {
    let told = mount.super_options.iter().find_map(|option| option.strip_prefix("pagesize="));
    // The kernel says 2M where a quantity says 2Mi.
    let size = told.and_then(|text| format!("{text}i").parse::<stowage_model::Quantity>().ok());
    match size {
        Some(size) if size != *wanted => Err(Fault::uncertain(format!(
            "{} is mounted with pages of {size}, and {wanted} is asked for; delete the pod and create it anew",
            mount.target.display()
        ))),
        _ => Ok(()),
    }
}

/// Says that the directory is complete.
pub(crate) async fn mark_ready(host: &VolumeHost, place: &Place) -> Result<(), Fault> {
    let (ready, failed) = (place.ready(), "mark the volume as ready");
    if host.mounter.stat(&ready).await.map_err(Fault::after(failed))?.is_some() {
        return Ok(());
    }
    host.mounter.create_dir(&place.marks).await.map_err(Fault::after(failed))?;
    host.mounter.make_file(&ready, 0o644).await.map_err(Fault::after(failed))
}

async fn unmark(host: &VolumeHost, place: &Place) -> Result<(), Fault> {
    let failed = "remove the mark that the volume is ready";
    let ready = place.ready();
    if host.mounter.stat(&ready).await.map_err(Fault::after(failed))?.is_some() {
        host.mounter.remove_file(&ready).await.map_err(Fault::after(failed))?;
    }
    Ok(())
}

/// Removes the directory with all that is in it. What it is made of is told by the kernel, not by anybody's spec.
pub(crate) async fn tear_down(host: &VolumeHost, place: &Place) -> Result<(), Fault> {
    unmark(host, place).await?;
    host.mounter.remove_dir(&place.marks).await.map_err(Fault::after("remove the volume's marks"))?;
    mounted::unmount_all(host, &place.dir, |mount| [TMPFS, HUGETLBFS].contains(&mount.fs_type.as_str())).await?;
    host.mounter.remove_all(&place.dir).await.map_err(Fault::after("remove the volume's directory"))
}
