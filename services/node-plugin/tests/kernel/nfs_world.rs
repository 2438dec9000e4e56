//! A machine with an NFS server: a directory that is bind-mounted instead, or a real one.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use node_plugin::nfs::{Driver, OnDelete, Options};
use stowage_csi::Channel;
use stowage_csi::v1::volume_capability::access_mode::Mode as AccessMode;
use stowage_csi::v1::*;
use stowage_mount::{
    DeviceNumber, Error, Host, LinuxMounter, MountOptions, MountTable, NetworkMount, Packer, Place, Result, Share,
    ShareEntry, Shares, Target, Targets, Usage,
};

use crate::world::{self, Answer, Client, capability, text};

/// Names a server and a share that may be written to, as SERVER:/SHARE.
const REAL: &str = "STOWAGE_TEST_NFS";
pub const SERVER: &str = "nfs.example.org";

/// Runs a test with a share that is empty, and is to be left so.
pub fn test<F: Future<Output = ()>>(body: impl FnOnce(NfsWorld) -> F + Send + 'static) {
    world::test(async |world| {
        let served = world.root.join("served");
        fs::create_dir(&served).unwrap();
        fs::create_dir_all(world.root.join("kubelet/a/pods")).unwrap();
        let (server, share) = match std::env::var(REAL) {
            Ok(real) => real.split_once(':').map(|(server, share)| (server.into(), PathBuf::from(share))).unwrap(),
            Err(_) => {
                eprintln!("not tried on a server: set {REAL}=SERVER:/SHARE where the kernel has nfs");
                (SERVER.to_owned(), PathBuf::from("/"))
            }
        };
        let real = std::env::var(REAL).is_ok();
        let view = LinuxMounter.hold(&served).await.unwrap().unwrap();
        let own = world.root.file_name().unwrap().to_string_lossy().into_owned();
        if real {
            LinuxMounter
                .mount_network(&format!("{server}:{}", share.display()), &view, "nfs", &MountOptions::default())
                .await
                .unwrap();
        }
        let share = share.join(own.trim_start_matches('.'));
        let directory = served.join(own.trim_start_matches('.'));
        fs::create_dir(&directory).unwrap();
        fs::create_dir(directory.join("exports")).unwrap();
        let nfs = NfsWorld {
            root: world.root.clone(),
            served,
            directory: directory.join("exports"),
            server,
            share,
            real,
            mood: Arc::default(),
        };
        body(nfs).await;
        let left: Vec<_> =
            fs::read_dir(directory.join("exports")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        fs::remove_dir_all(&directory).unwrap();
        if real {
            LinuxMounter.unmount_network(&view, false).await.unwrap();
        }
        assert_eq!(left, Vec::<OsString>::new(), "left on the share");
        let own = fs::read_dir(world.root.join("work")).into_iter().flatten().flatten();
        let left: Vec<_> = own.flat_map(|own| fs::read_dir(own.path()).unwrap()).collect();
        assert!(left.is_empty(), "left mounted: {left:?}");
    });
}

pub struct NfsWorld {
    pub root: PathBuf,
    /// What the server has, seen from this machine.
    served: PathBuf,
    /// The share of this test, seen from this machine.
    pub directory: PathBuf,
    pub server: String,
    share: PathBuf,
    real: bool,
    pub mood: Arc<Mood>,
}

impl NfsWorld {
    /// The path of the test's share on its server.
    pub fn share(&self) -> String {
        text(&self.share.join("exports"))
    }

    /// How ids begin.
    pub fn id(&self, rest: &str) -> String {
        format!("{}#{}#{rest}", self.server, self.share().trim_matches('/'))
    }

    pub fn options(&self) -> Options {
        Options {
            driver_name: "nfs.csi.k8s.io".into(),
            endpoint: format!("unix://{}", self.root.join("a.sock").display()).parse().unwrap(),
            socket_mode: Default::default(),
            node_id: "a".into(),
            mode: node_plugin::Mode::All,
            target_roots: vec![self.root.join("kubelet")],
            mount_permissions: 0,
            working_mount_dir: self.root.join("work"),
            on_delete: OnDelete::Delete,
            remember_stats: Duration::from_secs(600),
            remove_archived: false,
            pack_by_program: false,
            compress: true,
        }
    }

    pub fn host(&self, inner: Arc<dyn Host>) -> Arc<dyn Shares> {
        match self.real {
            true => inner,
            false => Arc::new(Binding { inner, served: self.served.clone(), mood: self.mood.clone() }),
        }
    }

    /// A driver on this port, started as a process would be.
    pub async fn start(&self, options: &Options, inner: Arc<dyn Host>) -> Client {
        let driver = Driver::new(options, self.host(inner));
        driver.recover().await;
        Client { channel: Channel::in_process(driver.routes()), kubelet: self.root.join("kubelet/a") }
    }

    pub async fn client(&self) -> Client {
        self.start(&self.options(), Arc::new(LinuxMounter)).await
    }

    pub async fn client_with(&self, change: impl FnOnce(&mut Options)) -> Client {
        let mut options = self.options();
        change(&mut options);
        self.start(&options, Arc::new(LinuxMounter)).await
    }

    /// A good request, to be spoiled one field per test.
    pub fn request(&self, name: &str, parameters: &[(&str, &str)]) -> CreateVolumeRequest {
        let mut all = world::map(&[("server", &self.server), ("share", &self.share())]);
        all.extend(world::map(parameters));
        CreateVolumeRequest {
            name: name.into(),
            parameters: all,
            volume_capabilities: vec![capability(AccessMode::MultiNodeMultiWriter)],
            ..Default::default()
        }
    }

    pub fn request_from(&self, name: &str, source: volume_content_source::Type) -> CreateVolumeRequest {
        let volume_content_source = Some(VolumeContentSource { r#type: Some(source) });
        CreateVolumeRequest { volume_content_source, ..self.request(name, &[]) }
    }

    pub fn publish_request(&self, client: &Client, volume: &Volume, pod: &str) -> NodePublishVolumeRequest {
        NodePublishVolumeRequest {
            volume_id: volume.volume_id.clone(),
            volume_context: volume.volume_context.clone(),
            target_path: text(&client.target(pod)),
            volume_capability: Some(capability(AccessMode::MultiNodeMultiWriter)),
            ..Default::default()
        }
    }

    /// The ways of all that is on the share.
    pub fn tree(&self) -> Vec<String> {
        fn walk(directory: &Path, way: &str, seen: &mut Vec<String>) {
            for entry in fs::read_dir(directory).unwrap() {
                let entry = entry.unwrap();
                let way = format!("{way}{}", entry.file_name().to_string_lossy());
                if entry.file_type().unwrap().is_dir() {
                    walk(&entry.path(), &format!("{way}/"), seen);
                }
                seen.push(way);
            }
        }
        let mut seen = Vec::new();
        walk(&self.directory, "", &mut seen);
        seen.sort();
        seen
    }
}

pub async fn publish(client: &Client, request: NodePublishVolumeRequest) -> Answer<()> {
    client.node().node_publish_volume(request).await.map(drop)
}

/// How the server behaves that is none. A real one cannot be told, which each change of mood answers.
#[derive(Default)]
pub struct Mood {
    hangs: AtomicBool,
    forgot: AtomicBool,
}

impl Mood {
    /// From now on it does not answer, so that nothing can be unmounted without force.
    pub fn hang(&self) -> bool {
        self.hangs.store(true, Ordering::Relaxed);
        std::env::var(REAL).is_err()
    }

    /// It was restarted, and no longer knows what is mounted.
    pub fn forget(&self) -> bool {
        self.forgot.store(true, Ordering::Relaxed);
        std::env::var(REAL).is_err()
    }
}

/// Shows a local directory where a server's would be; the rest is real. Some servers are known for their answers.
struct Binding {
    inner: Arc<dyn Host>,
    served: PathBuf,
    mood: Arc<Mood>,
}

impl Binding {
    async fn bind(&self, source: &str, target: &Target, options: &MountOptions) -> Result<()> {
        let (server, path) = source.rsplit_once(':').unwrap();
        let refuse = |output: &str| {
            Err(Error::MountNetwork { from: source.into(), target: target.path().into(), output: output.into() })
        };
        match server {
            "denied" => return refuse("mount.nfs: access denied by server while mounting"),
            "silent" => {
                return Err(Error::AwaitServer { from: source.into(), target: target.path().into(), seconds: 110 });
            }
            _ => {}
        }
        if options.words.iter().any(|word| word == "bogus") {
            return refuse("mount.nfs: an incorrect mount option was specified");
        }
        let directory = self.served.join(path.trim_start_matches('/'));
        match fs::symlink_metadata(&directory).is_ok_and(|about| about.is_dir()) {
            true => self.inner.bind_at(&directory, target, options).await,
            false => refuse("mount.nfs: mounting failed, reason given by server: No such file or directory"),
        }
    }
}

macro_rules! pass_on {
    ($trait:ident { $($name:ident($($word:ident: $kind:ty),*) -> $answer:ty;)* } $($more:tt)*) => {
        #[tonic::async_trait]
        impl $trait for Binding {
            $(async fn $name(&self, $($word: $kind),*) -> Result<$answer> {
                self.inner.$name($($word),*).await
            })*
            $($more)*
        }
    };
}

pass_on!(Targets {
    locate(path: &Path) -> PathBuf;
    hold(path: &Path) -> Option<Target>;
    make_and_hold(path: &Path) -> Target;
    enter(target: &Target, name: &str) -> Option<Target>;
    usage_at(target: &Target) -> Usage;
    btrfs_device(target: &Target) -> Option<DeviceNumber>;
    make_dir_at(target: &Target) -> ();
    make_file_at(target: &Target) -> ();
    remove_dir_at(target: &Target) -> ();
    remove_file_at(target: &Target) -> ();
    mount_at(source: &str, target: &Target, fs_type: &str, options: &MountOptions) -> ();
    bind_at(source: &Path, target: &Target, options: &MountOptions) -> ();
    bind_seen_at(source: &Target, seen: &Place, target: &Target, options: &MountOptions) -> ();
    unmount_at(target: &Target) -> ();
    freeze(target: &Target, seen: &Place) -> ();
    thaw(target: &Target, seen: &Place) -> ();
}
    async fn look_at(&self, target: &Target) -> Result<Option<Place>> {
        let seen = self.inner.look_at(target).await?;
        let stale = || std::io::Error::from_raw_os_error(nix::libc::ESTALE);
        match seen {
            Some(place) if place.is_mount && self.mood.forgot.load(Ordering::Relaxed) => {
                Err(Error::AccessFile { action: "look at", path: target.path().into(), source: stale() })
            }
            other => Ok(other),
        }
    }
);

pass_on!(Shares {
    make_private(directory: &Path, name: &str) -> Target;
    private_places(directory: &Path) -> Vec<PathBuf>;
    discard(target: &Target) -> ();
    share(target: &Target) -> Share;
    look_in(share: &Share, way: &Path) -> Option<ShareEntry>;
    list_in(share: &Share, way: &Path) -> Option<Vec<OsString>>;
    make_dirs_in(share: &Share, way: &Path) -> ();
    set_mode_in(share: &Share, way: &Path, mode: u32) -> ();
    remove_in(share: &Share, way: &Path) -> ();
    remove_empty_in(share: &Share, way: &Path) -> bool;
    rename_in(share: &Share, from: &Path, to: &Path) -> ();
    flush_share(share: &Share) -> ();
    copy_tree_in(from: &Share, source: &Path, to: &Share, target: &Path) -> ();
    pack_in(from: (&Share, &Path), to: (&Share, &Path), compress: bool, packer: Packer) -> ();
    is_whole_archive(share: &Share, archive: &Path) -> bool;
    unpack_in(from: &Share, archive: &Path, to: &Share, target: &Path) -> ();
}
    async fn mount_network(&self, source: &str, target: &Target, _: &str, options: &MountOptions) -> Result<()> {
        self.bind(source, target, options).await
    }

    async fn unmount_network(&self, target: &Target, force: bool) -> Result<()> {
        if self.mood.hangs.load(Ordering::Relaxed) && !force {
            return std::future::pending().await;
        }
        self.mood.hangs.store(false, Ordering::Relaxed);
        self.mood.forgot.store(false, Ordering::Relaxed);
        self.inner.unmount_network(target, force).await
    }

    /// What is mounted of the directory that stands for the server.
    async fn network_at(&self, target: &Target) -> Result<Option<NetworkMount>> {
        self.inner.network_at(target).await?;
        let device = fs::metadata(&self.served).unwrap().dev();
        let is_ours = |number: DeviceNumber| nix::sys::stat::makedev(number.major.into(), number.minor.into()) == device;
        let table = MountTable::read()?;
        let found = table.at(target.path()).filter(|mount| is_ours(mount.device));
        Ok(found.map(|mount| NetworkMount { source: "a server".into(), read_only: mount.is_read_only() }))
    }
);

/// The values of a request, changed.
pub fn with(values: &BTreeMap<String, String>, pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    let mut values = values.clone();
    values.extend(world::map(pairs));
    values
}
