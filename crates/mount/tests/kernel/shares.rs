use std::fs;
use std::path::Path;

use nix::mount::{MsFlags, mount};
use stowage_mount::Shares;

use crate::{HOST, in_own_namespace};

/// A share within a share is another volume, or the server's: nobody asked to have that removed or copied.
#[test]
fn what_is_mounted_within_a_share_is_neither_removed_nor_copied_with_what_is_around_it() {
    in_own_namespace(async |dir| {
        let target = HOST.make_private(&dir.join("private"), "share").await.unwrap();
        let inner = target.path().join("volume/inner");
        fs::create_dir_all(inner.join("own")).unwrap();
        let elsewhere = dir.join("elsewhere");
        fs::create_dir(&elsewhere).unwrap();
        fs::write(elsewhere.join("kept"), "data").unwrap();
        mount(Some(&elsewhere), &inner, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();

        let share = HOST.share(&target).await.unwrap();
        let (volume, copy) = (Path::new("volume"), Path::new("copy"));
        HOST.make_dirs_in(&share, copy).await.unwrap();
        for refused in [HOST.remove_in(&share, volume).await, HOST.copy_tree_in(&share, volume, &share, copy).await] {
            let error = refused.unwrap_err();
            let told = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            assert!(format!("{error} {told}").contains("\"inner\" in it is a mount of its own"), "{error}: {told}");
        }
        assert_eq!(fs::read_to_string(elsewhere.join("kept")).unwrap(), "data");
        assert!(!target.path().join("copy/inner/kept").try_exists().unwrap());

        nix::mount::umount(&inner).unwrap();
        HOST.remove_in(&share, volume).await.unwrap();
        assert!(!target.path().join("volume").try_exists().unwrap());
    });
}
