//! A node whose NFS mounts show a directory of this machine, unless a server is named; the rest is real.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;

use stowage_mount::{
    Access, Counting, Devices, DirEntry, DiskUsage, FileInfo, FileKind, FolderWork, Folders, Held, Holders, LoopDevice,
    Measures, MountOptions, MountTable, Mounter, Orphans, Owned, Ownership, OwnershipWalk, Progress, Result, SubPath,
    SubPaths, Usage,
};

/// Names a server and a share that may be written to, as SERVER:/SHARE, where the kernel has nfs.
const REAL: &str = "STOWAGE_TEST_NFS";

/// The server and share that are mounted by the kernel itself, if they are named.
pub fn real() -> Option<(String, String)> {
    let real = std::env::var(REAL).ok()?;
    // An address of version 6 has colons too; the share begins with a slash.
    let (server, share) = real.split_once(":/").unwrap_or_else(|| panic!("{REAL}={real} is not SERVER:/SHARE"));
    Some((server.to_owned(), format!("/{share}")))
}

pub struct Served {
    pub inner: Arc<Counting>,
    pub exported: PathBuf,
}

macro_rules! pass_on {
    ($trait:ident { $($name:ident($($word:ident: $kind:ty),*) -> $answer:ty;)* } $($more:tt)*) => {
        #[async_trait]
        impl $trait for Served {
            $(async fn $name(&self, $($word: $kind),*) -> Result<$answer> {
                self.inner.$name($($word),*).await
            })*
            $($more)*
        }
    };
}

pass_on!(Ownership {
    own(walk: &OwnershipWalk, progress: &Progress) -> Owned;
});
pass_on!(SubPaths {
    prepare_sub_path(sub_path: &SubPath) -> FileKind;
    clean_sub_paths(directory: &Path) -> ();
});
pass_on!(Orphans {
    remove_orphan(pod: &Path) -> ();
    holders(held: &Held) -> Holders;
});
pass_on!(Devices {
    lock_device(file: &Path) -> LoopDevice;
    device_lock(file: &Path) -> Option<LoopDevice>;
    unlock_device(file: &Path) -> ();
    is_device_in_use(device: &Path) -> bool;
});
pass_on!(Folders {
    in_folder(path: &Path, work: FolderWork) -> ();
});
pass_on!(Measures {
    disk_usage(path: &Path, entries_per_second: u32) -> DiskUsage;
    project_usage(path: &Path) -> Option<DiskUsage>;
});
pass_on!(Mounter {
    mounts() -> MountTable;
    resolve(path: &Path) -> Option<PathBuf>;
    bind(source: &Path, target: &Path, access: Access) -> ();
    unmount(target: &Path) -> ();
    unmount_lazily(target: &Path) -> ();
    unmount_by_force(target: &Path) -> ();
    remount(target: &Path, options: &MountOptions) -> ();
    selinux() -> bool;
    create_dir(path: &Path) -> ();
    create_dir_with(path: &Path, mode: u32) -> ();
    remove_dir(path: &Path) -> ();
    remove_all(path: &Path) -> ();
    write_file(path: &Path, contents: &[u8]) -> ();
    write_file_with(path: &Path, contents: &[u8], mode: u32) -> ();
    make_file(path: &Path, mode: u32) -> ();
    symlink(to: &Path, path: &Path) -> ();
    read_link(path: &Path) -> Option<PathBuf>;
    canonical(path: &Path) -> Option<PathBuf>;
    read_file(path: &Path) -> Option<Vec<u8>>;
    remove_file(path: &Path) -> ();
    list_dir(path: &Path) -> Option<Vec<DirEntry>>;
    stat(path: &Path) -> Option<FileInfo>;
    usage(path: &Path) -> Usage;
}
    async fn mount(&self, source: &str, target: &Path, fs_type: &str, options: &MountOptions) -> Result<()> {
        match fs_type.starts_with("nfs") && real().is_none() {
            true => {
                let access = if options.read_only() { Access::ReadOnly } else { Access::ReadWrite };
                self.inner.bind(&self.exported, target, access).await
            }
            false => self.inner.mount(source, target, fs_type, options).await,
        }
    }
);
