//! A tenant who may write to the whole share.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tonic::Code;

use crate::nfs_world::{NfsWorld, test};
use crate::world::{Client, of_snapshot, of_volume, refused};

/// Something on this machine that is nobody's business.
fn victim(world: &NfsWorld) -> PathBuf {
    let victim = world.root.join("victim");
    fs::create_dir_all(victim.join("inner")).unwrap();
    fs::write(victim.join("inner/file"), "precious").unwrap();
    victim
}

fn assert_untouched(victim: &PathBuf) {
    assert_eq!(fs::read_to_string(victim.join("inner/file")).unwrap(), "precious");
    let names = |path: &PathBuf| fs::read_dir(path).unwrap().count();
    assert_eq!((names(victim), names(&victim.join("inner"))), (1, 1));
}

async fn every_call_fails(world: &NfsWorld, client: &Client, way: &str) {
    let link = |answer: Result<(), tonic::Status>| assert_eq!(refused(answer, &["link"]), Code::Internal);
    let parameters = [("subDir", way)];
    link(client.create(world.request("pvc-1", &parameters)).await.map(drop));
    link(client.delete(&world.id(&format!("{way}#pvc-1#"))).await);
    link(client.delete(&world.id(&format!("{way}#pvc-1#archive"))).await);
    link(client.snapshot(&world.id(&format!("{way}#pvc-1#")), "s").await.map(drop));
    link(client.create(world.request_from("c", of_volume(&world.id(&format!("{way}#pvc-1#"))))).await.map(drop));
}

#[test]
fn a_link_on_the_way_to_a_volume_is_not_followed() {
    test(async |world| {
        let client = world.client().await;
        let victim = victim(&world);
        for leads in [victim.clone(), "../../../victim".into()] {
            symlink(&leads, world.directory.join("link")).unwrap();
            every_call_fails(&world, &client, "link/inner").await;
            assert_untouched(&victim);
            fs::remove_file(world.directory.join("link")).unwrap();
        }
        fs::remove_dir_all(victim).unwrap();
    });
}

#[test]
fn a_link_in_place_of_a_volume_is_removed_or_moved_itself() {
    test(async |world| {
        let client = world.client().await;
        let victim = victim(&world);
        let place = world.directory.join("v");
        symlink(&victim, &place).unwrap();
        assert_eq!(
            refused(client.create(world.request("v", &[])).await, &["not a directory"]),
            Code::FailedPrecondition
        );
        let copy = client.create(world.request_from("c", of_volume(&world.id("v##")))).await;
        assert_eq!(refused(copy, &["v##"]), Code::NotFound);
        assert_eq!(refused(client.snapshot(&world.id("v##"), "s").await, &["v##"]), Code::NotFound);
        client.delete(&world.id("v##archive")).await.unwrap();
        assert!(world.directory.join("archived-v").is_symlink() && !place.is_symlink());
        client.delete(&world.id("archived-v##")).await.unwrap();
        assert_untouched(&victim);
        fs::remove_dir_all(victim).unwrap();
    });
}

#[test]
fn links_within_a_volume_are_copied_packed_and_removed_as_links() {
    test(async |world| {
        let client = world.client().await;
        let victim = victim(&world);
        let volume = client.create(world.request("v", &[])).await.unwrap().volume_id;
        symlink(&victim, world.directory.join("v/link")).unwrap();
        let snapshot = client.snapshot(&volume, "s").await.unwrap().snapshot_id;
        let restored = client.create(world.request_from("r", of_snapshot(&snapshot))).await.unwrap().volume_id;
        let copied = client.create(world.request_from("c", of_volume(&volume))).await.unwrap().volume_id;
        for name in ["r", "c"] {
            assert_eq!(fs::read_link(world.directory.join(name).join("link")).unwrap(), victim);
        }
        client.delete_snapshot(&snapshot).await.unwrap();
        for id in [volume, restored, copied] {
            client.delete(&id).await.unwrap();
        }
        assert_untouched(&victim);
        fs::remove_dir_all(victim).unwrap();
    });
}

#[test]
fn a_snapshot_that_was_replaced_by_a_link_or_a_pipe_is_not_read() {
    test(async |world| {
        let client = world.client().await;
        let victim = victim(&world);
        fs::write(victim.join("v.tar.gz"), "secret").unwrap();
        let id = world.id("s#s#v");
        symlink(&victim, world.directory.join("s")).unwrap();
        let restore = async || client.create(world.request_from("r", of_snapshot(&id))).await;
        assert_eq!(refused(restore().await, &["link"]), Code::Internal);
        assert_eq!(refused(client.delete_snapshot(&id).await, &["link"]), Code::Internal);
        fs::remove_file(world.directory.join("s")).unwrap();
        fs::create_dir(world.directory.join("s")).unwrap();
        symlink(victim.join("v.tar.gz"), world.directory.join("s/v.tar.gz")).unwrap();
        assert_eq!(refused(restore().await, &["s#s#v"]), Code::NotFound);
        fs::remove_file(world.directory.join("s/v.tar.gz")).unwrap();
        nix::unistd::mkfifo(&world.directory.join("s/v.tar.gz"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(refused(restore().await, &["s#s#v"]), Code::NotFound);
        client.delete_snapshot(&id).await.unwrap();
        fs::remove_file(victim.join("v.tar.gz")).unwrap();
        assert_untouched(&victim);
        fs::remove_dir_all(victim).unwrap();
    });
}

#[test]
fn an_archive_with_tricks_in_it_is_refused_and_what_was_unpacked_of_it_goes() {
    test(async |world| {
        let client = world.client().await;
        let victim = victim(&world);
        fs::create_dir(world.directory.join("s")).unwrap();
        let evil = world.root.join("evil");
        fs::write(&evil, "evil").unwrap();
        let mut tar = std::process::Command::new("tar");
        let archive = world.directory.join("s/v.tar");
        tar.arg("-C")
            .arg(&world.root)
            .arg("-cf")
            .arg(archive)
            .arg("--transform=s,evil,../../../victim/inner/file,")
            .arg("-P");
        crate::world::run(tar.arg("evil"));
        let restored = client.create(world.request_from("r", of_snapshot(&world.id("s#s#v")))).await;
        assert_eq!(refused(restored, &["leads out of it"]), Code::Internal);
        assert_eq!(world.tree(), ["s", "s/v.tar"]);
        assert_untouched(&victim);
        client.delete_snapshot(&world.id("s#s#v")).await.unwrap();
        fs::remove_dir_all(victim).unwrap();
    });
}

#[test]
fn a_working_directory_that_somebody_else_prepared_is_not_used() {
    test(async |world| {
        let client = world.client().await;
        client.create(world.request("v", &[])).await.unwrap();
        let own = fs::read_dir(world.root.join("work")).unwrap().next().unwrap().unwrap().path();
        fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        assert_eq!(refused(client.delete(&world.id("v##")).await, &["directory of its own"]), Code::Internal);
        fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
        client.delete(&world.id("v##")).await.unwrap();
    });
}

/// Puts each of two names in the other's place, over and over, until it is dropped.
struct Swapper(Arc<AtomicBool>, Option<std::thread::JoinHandle<u64>>);

impl Swapper {
    fn new(directory: PathBuf, one: &'static str, other: &'static str) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = ended.clone();
        let swap = move || {
            let directory = fs::File::open(directory).unwrap();
            let mut count = 0;
            while !seen.load(Ordering::Relaxed) {
                let exchange = nix::fcntl::RenameFlags::RENAME_EXCHANGE;
                count += u64::from(nix::fcntl::renameat2(&directory, one, &directory, other, exchange).is_ok());
            }
            count
        };
        Swapper(ended, Some(std::thread::spawn(swap)))
    }

    fn end(mut self) -> u64 {
        self.0.store(true, Ordering::Relaxed);
        self.1.take().unwrap().join().unwrap()
    }
}

#[test]
fn a_directory_that_is_swapped_for_a_link_while_it_is_used_leads_nowhere() {
    test(async |world| {
        let client = world.client().await;
        let victim = victim(&world);
        fs::create_dir(world.directory.join("a")).unwrap();
        symlink(&victim, world.directory.join("link")).unwrap();
        // So that the directory itself is not removed with the last volume in it.
        fs::write(world.directory.join("a/kept"), "").unwrap();
        let swapper = Swapper::new(world.directory.clone(), "a", "link");
        let mut made = 0;
        for _ in 0..200 {
            made += u32::from(client.create(world.request("v", &[("subDir", "a/inner")])).await.is_ok());
            let _ = client.snapshot(&world.id("a/inner#v#"), "s").await;
            let _ = client.delete(&world.id("a/inner#v#archive")).await;
            let _ = client.delete(&world.id("a/inner#v#")).await;
        }
        println!("{made} of 200 were made, swapped {} times", swapper.end());
        assert_untouched(&victim);
        for entry in fs::read_dir(&world.directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_symlink() { fs::remove_file(path).unwrap() } else { fs::remove_dir_all(path).unwrap() }
        }
        fs::remove_dir_all(victim).unwrap();
    });
}

#[test]
fn what_is_swapped_into_a_volume_while_it_is_copied_or_packed_is_not_copied() {
    test(async |world| {
        let client = world.client().await;
        let victim = victim(&world);
        let volume = client.create(world.request("v", &[])).await.unwrap().volume_id;
        let root = world.directory.join("v");
        fs::create_dir_all(root.join("inner")).unwrap();
        fs::write(root.join("inner/file"), "own").unwrap();
        symlink(victim.join("inner"), root.join("link")).unwrap();
        let swapper = Swapper::new(root.clone(), "inner", "link");
        let mut copied = 0;
        for _ in 0..100 {
            let snapshot = world.id("s#s#v");
            let made = client.snapshot(&volume, "s").await.is_ok();
            let restored = client.create(world.request_from("r", of_snapshot(&snapshot))).await.is_ok();
            let cloned = client.create(world.request_from("c", of_volume(&volume))).await.is_ok();
            copied += u32::from(made) + u32::from(restored) + u32::from(cloned);
            for copy in ["r", "c"] {
                for name in ["inner", "link"] {
                    let way = world.directory.join(copy).join(name);
                    let file = way.join("file");
                    // A link is copied as one; what it leads to is not.
                    if !way.is_symlink() && file.try_exists().unwrap() {
                        assert_eq!(fs::read_to_string(file).unwrap(), "own");
                    }
                }
            }
            client.delete_snapshot(&snapshot).await.unwrap();
            for id in ["r##", "c##"] {
                client.delete(&world.id(id)).await.unwrap();
            }
        }
        println!("{copied} of 300 copies were made, swapped {} times", swapper.end());
        assert!(copied > 0);
        client.delete(&volume).await.unwrap();
        assert_untouched(&victim);
        fs::remove_dir_all(victim).unwrap();
    });
}
