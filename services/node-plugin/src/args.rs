use std::path::{Component, Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::{Parser, ValueEnum};
use stowage_csi::server::SocketMode;
use stowage_csi::{Channel, Deadline, Endpoint, identity};
use stowage_mount::LinuxMounter;
use stowage_process::args::LogArgs;
use stowage_process::launch;

use crate::nfs;
use crate::pool::is_pool_name;

/// The name clusters know the shared driver by unless told otherwise.
pub const DRIVER_NAME: &str = "shared.csi.stowage.dev";
/// The name clusters know the local driver by unless told otherwise.
pub const LOCAL_DRIVER_NAME: &str = "local.csi.stowage.dev";
/// The topology key under which a node of the local driver is known; its value is the node's name.
pub const TOPOLOGY_KEY: &str = "topology.stowage.dev/node";
/// Where a kubelet keeps its pods and plugins unless told otherwise.
pub const KUBELET_ROOT: &str = "/var/lib/kubelet";
/// CSI's and Kubernetes' limit for a topology value, in bytes.
const MAX_TOPOLOGY_VALUE: usize = 63;
/// CSI's limit for a plugin name, in characters.
const MAX_DRIVER_NAME: usize = 63;
/// Node names become file names in the pool; Kubernetes allows 253 bytes, a file name with our endings 255.
const MAX_NODE_ID: usize = 190;

/// Which services this process offers besides Identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// Makes, removes and attaches volumes: one per cluster.
    Controller,
    /// Stages and publishes volumes: one per node.
    Node,
    /// Both.
    All,
}

/// Which of the two drivers this process is: whether volumes must be attached is a property of a driver's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
    /// Pools that only this node sees: no attachments, topology by node; every node runs it with --mode all.
    Local,
    /// Pools that several nodes see: one controller, and a node uses a volume only while it is attached to it.
    Shared,
}

impl Kind {
    pub fn driver_name(self) -> &'static str {
        match self {
            Kind::Local => LOCAL_DRIVER_NAME,
            Kind::Shared => DRIVER_NAME,
        }
    }
}

/// What --driver says: one of the drivers for pools, or the one for NFS servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// Pools that only this node sees.
    Local,
    /// Pools that several nodes see.
    Shared,
    /// Directories of NFS servers, in place of csi-driver-nfs.
    Nfs,
}

/// Holds a directory for each driver of this machine. Not where pools are likely to be: a disk that is away would take the
/// note of having seen it along.
const STATE: &str = "/var/lib/stowage-state";

/// What the driver needs to know, checked.
#[derive(Debug, Clone)]
pub struct Options {
    pub kind: Kind,
    pub driver_name: String,
    pub endpoint: Endpoint,
    pub socket_mode: SocketMode,
    pub node_id: String,
    pub pools: Vec<PoolOption>,
    pub mode: Mode,
    /// Whether a pool that was never seen may be begun.
    pub prepare_pools: bool,
    /// Where it is noted which pools were seen. Not beside the socket: CSI keeps that directory for sockets.
    pub state_dir: PathBuf,
    /// How many times the space of a pool may be promised; 1 promises only what is there.
    pub overcommit: f64,
    /// How many volumes this node may have at once; 0 leaves it to the cluster.
    pub max_volumes: i64,
    /// The directories below which callers may have volumes mounted; nothing outside of them is touched.
    pub target_roots: Vec<PathBuf>,
}

/// One `--pool NAME=PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolOption {
    pub name: String,
    pub path: PathBuf,
}

impl FromStr for PoolOption {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, path) = text.split_once('=').ok_or("write NAME=PATH, such as fast=/mnt/fast")?;
        if !is_pool_name(name) {
            return Err(format!("pool name {name:?} must be 1 to 32 of a-z, 0-9 and inner dashes"));
        }
        let path = PathBuf::from(path);
        match path.is_absolute() {
            true => Ok(PoolOption { name: name.into(), path }),
            false => Err(format!("pool path {path:?} must be absolute")),
        }
    }
}

/// A CSI driver for volumes in pools of this node, in pools that several nodes see, or on NFS servers.
#[derive(Debug, Parser)]
#[command(name = "node-plugin", version)]
pub struct Args {
    /// Socket to serve on: unix:///PATH, or tcp://HOST:PORT, where whoever reaches the port can use and delete volumes
    #[arg(long, value_name = "ENDPOINT", env = "CSI_ENDPOINT")]
    endpoint: Endpoint,
    /// Permission bits of the socket
    #[arg(long, value_name = "OCTAL", default_value_t)]
    socket_mode: SocketMode,
    /// Name of this node, as the cluster knows it
    #[arg(long, value_name = "NAME", value_parser = parse_node_id)]
    nodeid: String,
    /// A directory for volumes, as NAME=PATH; may be repeated, and is needed unless --driver=nfs
    #[arg(long = "pool", value_name = "NAME=PATH")]
    pools: Vec<PoolOption>,
    /// Which services to offer
    #[arg(long, value_enum, default_value_t = Mode::All)]
    mode: Mode,
    /// Which driver to be
    #[arg(long, value_enum, default_value_t = Choice::Shared)]
    driver: Choice,
    /// Name of the driver [default: local.csi.stowage.dev, shared.csi.stowage.dev or nfs.csi.k8s.io, by --driver]
    #[arg(long, value_name = "NAME", value_parser = parse_driver_name)]
    drivername: Option<String>,
    /// Directory that outlives the driver, to note there which pools it has seen [default: /var/lib/stowage-state/NAME OF THE DRIVER]
    #[arg(long, value_name = "PATH")]
    state_dir: Option<PathBuf>,
    /// Whether to make the folders of a pool that has none and was never seen from here
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", action = clap::ArgAction::Set)]
    prepare_pools: bool,
    /// How many times the space of a pool may be promised to volumes
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0, value_parser = parse_overcommit)]
    overcommit: f64,
    /// How many volumes this node may have at once; 0 leaves it to the cluster
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    max_volumes_per_node: i64,
    /// A directory below which volumes may be staged and published; may be repeated [default: /var/lib/kubelet; anywhere with --driver=nfs]
    #[arg(long = "target-root", value_name = "PATH", value_parser = parse_root)]
    target_roots: Vec<PathBuf>,
    #[command(flatten)]
    nfs: nfs::Flags,
    #[command(flatten)]
    log: LogArgs,
}

/// Kubelets give up on a check after their own time; this only keeps it from hanging without one.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long the last calls may take. A cluster kills after 30 s unless told otherwise, and a thread in a call that never ends
/// has [some more](LAST_THREADS).
const LAST_CALLS: Duration = Duration::from_secs(20);
/// A thread that waits for a disk or a server cannot be ended from here; who stops us is not to wait for it either.
pub const LAST_THREADS: Duration = Duration::from_secs(5);

/// Asks a running driver whether it answers, for liveness probes
///
/// Not by Probe, which tells of a pool that is away or full: a restart would cure neither, and would keep the driver
/// from removing volumes.
#[derive(Debug, Parser)]
#[command(name = "node-plugin alive")]
pub struct Alive {
    /// The driver's own --endpoint
    #[arg(value_name = "unix:///PATH")]
    endpoint: Endpoint,
}

impl Alive {
    /// The word that asks for this instead of serving.
    pub const WORD: &str = "alive";

    pub async fn run(self) -> anyhow::Result<()> {
        identity::plugin_name(&Channel::unix(&self.endpoint), Deadline(PATIENCE)).await?;
        Ok(())
    }
}

impl Args {
    /// Options of the driver for NFS servers; none if that is not what is asked for.
    pub fn nfs_options(&self) -> Option<nfs::Options> {
        if self.driver != Choice::Nfs {
            return None;
        }
        let name = self.drivername.clone().unwrap_or_else(|| nfs::DRIVER_NAME.to_owned());
        let options = self.nfs.options(name, self.endpoint.clone(), self.socket_mode, self.nodeid.clone());
        Some(nfs::Options { mode: self.mode, target_roots: self.target_roots.clone(), ..options })
    }

    pub fn options(&self) -> anyhow::Result<Options> {
        let kind = match self.driver {
            Choice::Local => Kind::Local,
            Choice::Shared => Kind::Shared,
            Choice::Nfs => anyhow::bail!("--driver=nfs has no pools"),
        };
        anyhow::ensure!(
            !self.pools.is_empty(),
            "--pool is missing; give each directory for volumes as --pool NAME=PATH"
        );
        for (index, pool) in self.pools.iter().enumerate() {
            anyhow::ensure!(
                !self.pools[..index].iter().any(|other| {
                    let nested = other.path.starts_with(&pool.path) || pool.path.starts_with(&other.path);
                    other.name == pool.name || nested
                }),
                "--pool {}={} is given twice or lies within another; give each pool its own name and path",
                pool.name,
                pool.path.display()
            );
        }
        anyhow::ensure!(
            kind == Kind::Shared || is_topology_value(&self.nodeid),
            "--nodeid {} cannot be a topology value; use at most {MAX_TOPOLOGY_VALUE} bytes with a letter or digit at both ends",
            self.nodeid
        );
        let driver_name = self.drivername.clone().unwrap_or_else(|| kind.driver_name().to_owned());
        let state_dir = self.state_dir.clone().unwrap_or_else(|| Path::new(STATE).join(&driver_name));
        Ok(Options {
            kind,
            driver_name,
            endpoint: self.endpoint.clone(),
            socket_mode: self.socket_mode,
            node_id: self.nodeid.clone(),
            pools: self.pools.clone(),
            mode: self.mode,
            prepare_pools: self.prepare_pools,
            state_dir,
            overcommit: self.overcommit,
            max_volumes: self.max_volumes_per_node,
            target_roots: match self.target_roots.is_empty() {
                true => vec![KUBELET_ROOT.into()],
                false => self.target_roots.clone(),
            },
        })
    }

    pub async fn run(self) -> anyhow::Result<()> {
        let process = launch::start(&self.log, self.nodeid.clone())?;
        let shutdown = process.shutdown.clone();
        let stopped = Box::pin(async move { shutdown.requested().await });
        let service = match self.nfs_options() {
            Some(options) => nfs::run(options, Arc::new(LinuxMounter), stopped),
            None => crate::run(self.options()?, Arc::new(LinuxMounter), stopped),
        };
        launch::run(&process, None, in_time(process.shutdown.requested(), service)).await
    }
}

/// Ends also where a call does not: whoever repeats it goes on where this process was cut short, as after a kill.
async fn in_time<E>(shutdown: impl Future<Output = ()>, service: impl Future<Output = Result<(), E>>) -> Result<(), E> {
    let late = async {
        shutdown.await;
        tokio::time::sleep(LAST_CALLS).await;
    };
    tokio::select! {
        biased;
        served = service => served,
        () = late => {
            tracing::warn!("the last calls are given up; repeated, they go on where they were");
            Ok(())
        }
    }
}

/// Whether a node's name can be part of a file name.
pub fn is_node_id(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    !text.is_empty() && text.len() <= MAX_NODE_ID && !text.starts_with('.') && text.chars().all(fits)
}

fn is_topology_value(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().last()];
    text.len() <= MAX_TOPOLOGY_VALUE && ends.iter().all(|end| end.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

fn parse_node_id(text: &str) -> Result<String, String> {
    let good = is_node_id(text);
    let message = || format!("must be 1 to {MAX_NODE_ID} letters, digits, dashes, dots or underscores, no dot first");
    good.then(|| text.to_owned()).ok_or_else(message)
}

fn parse_driver_name(text: &str) -> Result<String, String> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    let ends = [text.chars().next(), text.chars().last()];
    let good = text.len() <= MAX_DRIVER_NAME
        && text.chars().all(inner)
        && ends.iter().all(|end| end.is_some_and(|c| c.is_ascii_alphabetic()));
    let message = || format!("must be a domain name of at most {MAX_DRIVER_NAME} characters, such as {DRIVER_NAME}");
    good.then(|| text.to_owned()).ok_or_else(message)
}

pub fn parse_root(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let plain = path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)));
    match path.is_absolute() && plain && path.parent().is_some() {
        true => Ok(path.components().collect()),
        false => Err(format!("must be an absolute path without .. and not /, such as {KUBELET_ROOT}")),
    }
}

fn parse_overcommit(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if (1.0..=1e6).contains(&factor) => Ok(factor),
        _ => Err("must be a number from 1 to 1000000; 1 promises only the space that is there".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> Result<Args, clap::Error> {
        let all = ["node-plugin", "--endpoint=unix:///run/csi.sock", "--nodeid=n1"].iter().chain(words);
        stowage_process::flags::try_parse_from(all.map(Into::into))
    }

    #[test]
    fn the_flags_of_the_manifests_parse() {
        let args = parse(&["--pool", "a=/mnt/a", "-pool=b=/mnt/b=c", "--mode=node", "-v=5"]).unwrap();
        let options = args.options().unwrap();
        assert_eq!(options.driver_name, DRIVER_NAME);
        assert_eq!(options.mode, Mode::Node);
        assert_eq!(options.target_roots, [Path::new(KUBELET_ROOT)]);
        assert_eq!(options.pools[1], PoolOption { name: "b".into(), path: "/mnt/b=c".into() });
    }

    #[test]
    fn each_driver_has_its_own_name_unless_told_otherwise() {
        let name = |words: &[&str]| parse(words).unwrap().options().unwrap().driver_name;
        assert_eq!(name(&["--pool=a=/x", "--driver=local"]), LOCAL_DRIVER_NAME);
        assert_eq!(name(&["--pool=a=/x", "--driver=local", "--drivername=disks.example.org"]), "disks.example.org");
        let long = format!("--nodeid={}", "n".repeat(64));
        let words = ["node-plugin", "--endpoint=unix:///run/csi.sock", "--pool=a=/x", "--driver=local", &long];
        let args: Args = stowage_process::flags::try_parse_from(words.into_iter().map(Into::into)).unwrap();
        assert!(args.options().unwrap_err().to_string().contains("at most 63 bytes"));
    }

    #[test]
    fn a_bad_flag_is_refused_with_its_name_and_the_way_out() {
        for (words, says) in [
            (&["--pool=a"][..], "NAME=PATH"),
            (&["--pool=A=/x"], "pool name \"A\""),
            (&["--pool=a=x"], "must be absolute"),
            (&["--pool=a=/x", "--drivername=-x"], "domain name"),
            (&["--pool=a=/x", "--nodeid=../n"], "dots or underscores"),
            (&["--pool=a=/x", "--endpoint=tcp://127.0.0.1"], "write tcp://HOST:PORT"),
            (&["--pool=a=/x", "--endpoint=csi.sock"], "write unix:///PATH"),
            (&["--pool=a=/x", "--overcommit=0.5"], "from 1"),
            (&["--pool=a=/x", "--target-root=/"], "not /"),
            (&["--pool=a=/x", "--target-root=kubelet"], "absolute"),
            (&["--pool=a=/x", "--target-root=/a/../b"], "without .."),
        ] {
            let message = parse(words).unwrap_err().to_string();
            assert!(message.contains(says), "{words:?}: {message}");
        }
        assert!(parse(&[]).unwrap().options().unwrap_err().to_string().contains("--pool is missing"));
        let twice = parse(&["--pool=a=/x", "--pool=a=/y"]).unwrap().options().unwrap_err();
        assert!(twice.to_string().contains("given twice"), "{twice}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_never_ends_keeps_the_process_only_so_long_after_it_was_asked_to_stop() {
        use std::future::{pending, ready};
        assert_eq!(in_time(ready(()), pending::<Result<(), ()>>()).await, Ok(()));
        let unasked = in_time(pending(), pending::<Result<(), ()>>());
        assert!(tokio::time::timeout(10 * LAST_CALLS, unasked).await.is_err());
        let ending = async {
            tokio::time::sleep(LAST_CALLS / 2).await;
            Err("its socket is gone")
        };
        assert_eq!(in_time(ready(()), ending).await, Err("its socket is gone"));
    }

    #[test]
    fn the_flags_of_csi_driver_nfs_parse_with_its_defaults() {
        assert!(parse(&["--pool=a=/x"]).unwrap().nfs_options().is_none());
        let options = |words: &[&str]| {
            let words: Vec<_> = ["--driver=nfs", "-v=5"].iter().chain(words).copied().collect();
            parse(&words).unwrap().nfs_options().unwrap()
        };
        let plain = options(&[]);
        assert_eq!((plain.driver_name.as_str(), plain.mode), ("nfs.csi.k8s.io", Mode::All));
        assert_eq!((plain.mount_permissions, plain.on_delete), (0, nfs::OnDelete::Delete));
        assert_eq!((plain.working_mount_dir.as_path(), plain.remember_stats.as_secs()), (Path::new("/tmp"), 600));
        assert!(plain.compress && !plain.pack_by_program && !plain.remove_archived && plain.target_roots.is_empty());
        let set = options(&[
            "--drivername=nfs2.csi.k8s.io",
            "--mount-permissions=0777",
            "--working-mount-dir=/work",
            "--default-ondelete-policy=retain",
            "--vol-stats-cache-expire-in-minutes=3",
            "--remove-archived-volume-path=true",
            "--use-tar-command-in-snapshot",
            "--enable-snapshot-compression=false",
        ]);
        assert_eq!((set.driver_name.as_str(), set.mount_permissions), ("nfs2.csi.k8s.io", 0o777));
        assert_eq!((set.on_delete, set.remember_stats.as_secs()), (nfs::OnDelete::Retain, 180));
        assert!(!set.compress && set.pack_by_program && set.remove_archived);
        assert_eq!(options(&["--vol-stats-cache-expire-in-minutes=-1"]).remember_stats.as_secs(), 600);
        let refusal = parse(&["--driver=nfs"]).unwrap().options().unwrap_err();
        assert!(refusal.to_string().contains("no pools"), "{refusal}");
    }
}
