//! From a pod on a node to its volumes, beside the goals; each kind of volume, beside the kubelet.
//!
//! `cargo bench -p volume-manager --bench pods -- [--sizes 1,100,500] [--rounds 3] [--attach]` has pods with a volume of a
//! CSI driver that answers at once, `-- --plugin NAME|all [--rounds 3]` one kind of volume or all.
//!
//! Server and driver are in this process; the volume manager is a process of its own, over HTTPS and real sockets, with
//! the kernel's mounts in a namespace that only the two see. `STOWAGE_BENCH_ROOT` chooses the disk.
#![allow(clippy::unwrap_used, clippy::panic)]

mod attach;
mod driver;
mod node;
mod plugins;
mod process;
mod requests;
mod seen;
mod volumes;
mod world;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

use volumes::Plugin;

fn value<'a>(words: &'a [String], flag: &str) -> Option<&'a str> {
    words.iter().position(|word| word == flag).and_then(|at| words.get(at + 1)).map(String::as_str)
}

fn chosen(name: &str) -> Vec<Plugin> {
    let chosen: Vec<Plugin> = Plugin::ALL.into_iter().filter(|plugin| name == "all" || plugin.name() == name).collect();
    let names = Plugin::ALL.map(Plugin::name).join(", ");
    assert!(!chosen.is_empty(), "--plugin {name} is not measured; there are all, {names}");
    chosen
}

fn main() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: mounts need root");
        return;
    }
    // Before there is a second thread, which would keep the mounts of the machine.
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS).unwrap();
    mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).unwrap();
    let words: Vec<String> = std::env::args().skip(1).collect();
    let rounds: usize = value(&words, "--rounds").unwrap_or("3").parse().unwrap();
    let sizes = value(&words, "--sizes").unwrap_or("1,100,500").split(',').map(|size| size.parse().unwrap());
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        match value(&words, "--plugin") {
            Some(name) => plugins::report(&chosen(name), rounds).await,
            None => {
                let attached = words.iter().any(|word| word == "--attach");
                node::report(&sizes.collect::<Vec<usize>>(), rounds, attached).await;
            }
        }
    });
}
