//! What the two binaries, processes of their own, have in memory.

use std::path::PathBuf;

use tokio::process::{Child, Command};

use stowage_model::VolumeSnapshot;
use stowage_testing::bench::{self, Running};

use crate::{ask, world};

/// With nothing to do, and with so many snapshots.
pub async fn measure(count: usize) {
    let world = world(count + 1).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let identity = stowage_apiserver::Identity::generate(&[address.ip()]).unwrap();
    let kubeconfig = world.directory.path().join("kubeconfig");
    identity.write_kubeconfig(&kubeconfig, address).unwrap();
    let server = world.server.clone();
    let _served = Running(tokio::spawn(async move {
        let limits = stowage_apiserver::Limits::default();
        let front = stowage_apiserver::Front::new(identity.tls(), identity.credentials(), limits).unwrap();
        server.serve(listener, front, std::future::pending()).await;
    }));
    let reach = format!("--kubeconfig={}", kubeconfig.display());
    let snapshotter = PathBuf::from(env!("CARGO_BIN_EXE_snapshotter"));
    let controller = start(snapshotter.with_file_name("snapshot-controller"), std::slice::from_ref(&reach));
    let sidecar = start(snapshotter, &[reach, format!("--csi-address={}", world.socket().display())]);
    let (snapshots, _watch) = bench::watch::<VolumeSnapshot>(&world.user).await;
    let both = || [&controller, &sidecar].map(|child| megabytes(child.id().unwrap(), "VmRSS:"));
    // One shows that both are up.
    ask(&world, count, 1).await;
    bench::until(&snapshots, 1, VolumeSnapshot::is_ready).await;
    let idle = both();
    ask(&world, 0, count).await;
    bench::until(&snapshots, count + 1, VolumeSnapshot::is_ready).await;
    let full = both();
    for (name, at) in [("snapshot-controller", 0), ("snapshotter", 1)] {
        println!("memory: {name}: {:.1} MB idle, {:.1} MB with {count} snapshots", idle[at], full[at]);
    }
    for mut child in [controller, sidecar] {
        child.kill().await.unwrap();
    }
}

fn start(binary: PathBuf, words: &[String]) -> Child {
    let mut command = Command::new(&binary);
    command.args(words).stderr(std::process::Stdio::null()).kill_on_drop(true);
    command.spawn().unwrap_or_else(|error| panic!("{}: {error}", binary.display()))
}

fn megabytes(pid: u32, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<f64>().unwrap() / 1024.0
}
