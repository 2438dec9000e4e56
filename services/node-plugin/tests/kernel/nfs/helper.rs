//! The real port with a helper in the place of mount.nfs: all that is not tried is what the kernel does.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use node_plugin::nfs::Driver;
use stowage_csi::Channel;
use stowage_csi::v1::*;
use stowage_mount::LinuxMounter;
use tonic::Code;

use crate::nfs_world::test;
use crate::world::{Client, refused, unmount};

/// Where the helper is looked for after all others.
const FOLDER: &str = "/usr/local/sbin";

#[test]
fn a_helper_is_told_source_place_and_options_and_what_it_says_reaches_the_caller() {
    test(async |world| {
        if ["/sbin/mount.nfs", "/usr/sbin/mount.nfs"].iter().any(|path| Path::new(path).is_file()) {
            eprintln!("not tried with a helper of our own: mount.nfs is installed here");
            return;
        }
        // Only in the mount namespace of this test.
        mount(Some("x"), FOLDER, Some("tmpfs"), MsFlags::empty(), None::<&str>).unwrap();
        let (log, helper) = (world.root.join("log"), Path::new(FOLDER).join("mount.nfs"));
        let write = |text: String| {
            fs::write(&helper, text).unwrap();
            fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).unwrap();
        };
        let (said, served) = (log.display(), world.directory.display());
        write(format!("#!/bin/sh\necho \"$1 $3 $4 $5\" >> {said}\nexec mount --bind {served} \"$2\"\n"));
        let driver = Driver::new(&world.options(), std::sync::Arc::new(LinuxMounter));
        driver.recover().await;
        let client = Client { channel: Channel::in_process(driver.routes()), kubelet: world.root.join("kubelet/a") };
        let mut request = world.request("v", &[]);
        if let Some(volume_capability::AccessType::Mount(mount)) = &mut request.volume_capabilities[0].access_type {
            mount.mount_flags = vec!["nfsvers=4.1".into(), "hard".into()];
        }
        let volume = client.create(request.clone()).await.unwrap().volume_id;
        assert_eq!(world.tree(), ["v"]);
        let line = format!("{}:{} -n -o nosuid,nodev,noexec,nfsvers=4.1,hard\n", world.server, world.share());
        assert_eq!(fs::read_to_string(&log).unwrap(), line);
        client.delete(&volume).await.unwrap();

        write("#!/bin/sh\necho 'mount.nfs: access denied by server while mounting' >&2\nexit 32\n".into());
        let answer = client.create(request.clone()).await;
        let has_nfs = fs::read_to_string("/proc/filesystems").unwrap().contains("nfs");
        match has_nfs {
            true => assert_eq!(refused(answer, &["access denied"]), Code::PermissionDenied),
            false => assert_eq!(refused(answer, &["no file system nfs", "modprobe nfs"]), Code::Internal),
        }
        unmount(Path::new(FOLDER));
    });
}
