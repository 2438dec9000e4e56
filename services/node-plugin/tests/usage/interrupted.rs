//! The local driver killed at every change of a volume's life, for everything a volume can be.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use stowage_mount::{Counting, LinuxMounter, Stop};

use crate::expand::{GROWN, expand_controller, expand_node};
use crate::volumes::{Made, ROOM, file_systems, may_grow};
use crate::world::{Answer, Client, World, run, test};

/// The life of a volume, step by step; each step is repeated until it is answered, as a cluster would.
pub struct Life {
    made: Made,
    volume: String,
    step: usize,
}

impl Life {
    const STEPS: usize = 15;

    pub fn new(made: Made) -> Self {
        Life { made, volume: String::new(), step: 0 }
    }

    pub fn is_over(&self) -> bool {
        self.step == Self::STEPS
    }

    /// Goes on until the end or the first call that fails.
    pub async fn go_on(&mut self, client: &Client) -> Answer<()> {
        let made = self.made;
        while self.step < Self::STEPS {
            match self.step {
                0 => self.volume = made.create(client, &format!("pvc {made:?}"), ROOM).await?,
                1 | 8 => made.stage(client, &self.volume).await?,
                2 | 9 => made.publish(client, &self.volume, "pod", false).await?,
                3 => self.write(client),
                4 if made == Made::Directory => {}
                5 if !self.grows() => {}
                4 => drop(expand_controller(client, &self.volume, GROWN).await?),
                5 => drop(expand_node(client, &self.volume, &client.target("pod"), GROWN).await?),
                6 | 13 => client.unpublish(&self.volume, "pod").await?,
                7 => client.unstage(&self.volume).await?,
                10 => {
                    self.read(client);
                    if let Made::Of(kind) = made {
                        let total = client.stats_of(&self.volume, &client.target("pod")).await?.usage[0].total;
                        assert!(total > ROOM, "{kind} has {total} bytes of {GROWN}");
                    }
                }
                // A reader of a block volume has a device of its own.
                11 => made.publish(client, &self.volume, "reader", true).await?,
                12 => client.unpublish(&self.volume, "reader").await?,
                _ => {
                    client.unstage(&self.volume).await?;
                    client.delete(&self.volume).await?;
                }
            }
            self.step += 1;
        }
        Ok(())
    }

    /// While it is mounted; it does when it is mounted again.
    fn grows(&self) -> bool {
        match self.made {
            Made::Of(kind) => may_grow(kind),
            Made::Block => true,
            Made::Directory => false,
        }
    }

    fn write(&self, client: &Client) {
        let target = client.target("pod");
        match self.made {
            Made::Block => {
                let device = fs::OpenOptions::new().write(true).open(target).unwrap();
                device.write_all_at(b"written", 8192).unwrap();
                device.sync_all().unwrap();
            }
            _ => fs::write(target.join("data"), "written").unwrap(),
        }
    }

    fn read(&self, client: &Client) {
        let target = client.target("pod");
        let mut found = [0; 7];
        match self.made {
            Made::Block => fs::File::open(target).unwrap().read_exact_at(&mut found, 8192).unwrap(),
            _ => found.copy_from_slice(&fs::read(target.join("data")).unwrap()),
        }
        assert_eq!(&found, b"written");
    }
}

/// As a kubelet does: what is in use for a moment, here by a program that another test has just forked, is tried again.
/// Ends early when the driver is dead.
async fn insist(life: &mut Life, client: &Client, is_dead: impl Fn() -> bool) -> Answer<()> {
    let mut answer = life.go_on(client).await;
    for _ in 0..100 {
        match &answer {
            Err(error) if error.code() == tonic::Code::Unavailable && !is_dead() => {
                // Nothing tells when the other program has begun.
                std::thread::yield_now();
                answer = life.go_on(client).await;
            }
            _ => break,
        }
    }
    answer
}

/// Killed before and after each change.
async fn sweep(world: &World, made: Made) {
    let life = || Life::new(made);
    // A new pool is prepared only once.
    world.local("a").await.info().await.unwrap();
    let counting = Arc::new(Counting::new(Arc::new(LinuxMounter)));
    life().go_on(&world.local_on("a", counting.clone())).await.unwrap();
    let changes = counting.changes();
    assert!(changes.len() > 12, "{changes:#?}");
    for at in 1..=changes.len() as u64 {
        for stop in [Stop::After(at), Stop::Before(at)] {
            let dying = Arc::new(Counting::stopping(Arc::new(LinuxMounter), stop));
            let mut life = life();
            let mortal = world.local_on("a", dying.clone());
            let died = insist(&mut life, &mortal, || dying.is_dead()).await;
            assert!(dying.is_dead(), "{made:?} {stop:?} was not reached: {died:?}");
            let code = died.unwrap_err().code();
            assert_eq!(code, tonic::Code::Unavailable, "{made:?} {stop:?} {}", changes[at as usize - 1]);
            let restarted = world.local("a").await;
            let ended = insist(&mut life, &restarted, || false).await;
            ended.unwrap_or_else(|error| panic!("{made:?} {stop:?}: {error}"));
            assert_eq!(world.files(), Vec::<String>::new(), "{made:?} {stop:?}");
            assert_eq!(world.loops(), Vec::<PathBuf>::new(), "{made:?} {stop:?}");
        }
    }
    println!("{made:?}: {} changes", changes.len());
}

#[test]
fn a_driver_killed_at_any_change_goes_on_with_ext4() {
    test(async |world| sweep(&world, Made::Of("ext4")).await);
}

#[test]
fn a_driver_killed_at_any_change_goes_on_with_xfs_and_btrfs() {
    test(async |world| {
        for kind in file_systems().into_iter().filter(|kind| *kind != "ext4") {
            sweep(&world, Made::Of(kind)).await;
        }
    });
}

#[test]
fn a_driver_killed_at_any_change_goes_on_with_blocks_and_directories() {
    test(async |world| {
        sweep(&world, Made::Block).await;
        sweep(&world, Made::Directory).await;
    });
}

#[test]
fn whatever_part_of_a_mkfs_reached_the_disk_it_is_made_again() {
    test(async |world| {
        let client = world.local("a").await;
        for kind in file_systems() {
            let made = Made::Of(kind);
            let volume = made.create(&client, kind, ROOM).await.unwrap();
            let image = world.only_image();
            run(Command::new(format!("mkfs.{kind}")).arg("-q").arg(&image));
            let bytes = fs::read(&image).unwrap();
            let written: Vec<_> = bytes.chunks(4096).enumerate().filter(|(_, block)| **block != [0; 4096]).collect();
            // Of the blocks a mkfs writes, each time others never arrived.
            for pattern in 0..4usize {
                let torn = fs::File::create(&image).unwrap();
                torn.set_len(bytes.len() as u64).unwrap();
                for (order, (block, contents)) in written.iter().enumerate() {
                    let lost = match pattern {
                        0 => order == 0,
                        1 => order % 2 == 0,
                        2 => order >= written.len() / 2,
                        _ => order % 3 == 1,
                    };
                    if !lost {
                        torn.write_all_at(contents, *block as u64 * 4096).unwrap();
                    }
                }
                drop(torn);
                fs::write(image.with_extension("formatting"), kind).unwrap();
                made.stage(&client, &volume).await.unwrap_or_else(|error| panic!("{kind} {pattern}: {error}"));
                fs::write(client.staging().join("data"), "x").unwrap();
                client.unstage(&volume).await.unwrap();
                assert!(!image.with_extension("formatting").try_exists().unwrap());
            }
            client.delete(&volume).await.unwrap();
        }
    });
}
