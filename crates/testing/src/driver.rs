//! A CSI driver in memory: the contract's semantics over plain state, and a script for how calls go wrong.
//!
//! It watches its callers: publishing without staging, unstaging what is published, detaching what is staged and the like
//! are refused as a real driver would, and noted as violations of the design's invariants.

mod abilities;
mod changes;
mod controller;
mod figures;
mod group;
mod identity;
mod node;
mod script;
mod snapshots;
mod state;

use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard};

use tonic::service::Routes;
use tonic::{Response, Status};

use stowage_csi::v1::controller_server::ControllerServer;
use stowage_csi::v1::group_controller_server::GroupControllerServer;
use stowage_csi::v1::identity_server::IdentityServer;
use stowage_csi::v1::node_server::NodeServer;
use stowage_runtime::clock::Clock;

use crate::changes::Changes;
use crate::clock::VirtualClock;
use crate::mounter::MemoryMounter;

pub use abilities::Abilities;
pub use changes::Growth;
pub use controller::TOPOLOGY;
pub use figures::POOL;
pub use script::Step;
pub use state::{Cut, Grouped, Made, Source, State};

use script::Script;

/// The largest volume this driver can make: 1 PiB.
pub const LARGEST: i64 = 1 << 50;

/// A driver; clones are the same driver, as its controller and its nodes are.
#[derive(Clone)]
pub struct Driver(Arc<Shared>);

struct Shared {
    name: String,
    inner: Mutex<Inner>,
    changes: Changes,
    clock: VirtualClock,
}

#[derive(Default)]
struct Inner {
    state: State,
    script: Script,
}

impl Driver {
    /// A driver that has no volumes and does everything right; it knows nothing of snapshots and clones.
    pub fn new(name: impl Into<String>, changes: Changes) -> Self {
        Self(Arc::new(Shared { name: name.into(), inner: Mutex::default(), changes, clock: VirtualClock::start() }))
    }

    /// The name it tells.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How the next calls of an RPC, such as `CreateVolume`, go; after these they go well.
    pub fn script(&self, rpc: &str, steps: impl IntoIterator<Item = Step>) {
        self.lock().script.add(rpc, steps);
    }

    /// What it can do from now on; who asked before knows only what it could do then.
    pub fn enable(&self, abilities: Abilities) {
        self.lock().state.abilities = abilities;
    }

    /// Of every snapshot that is cut from now on, so many answers say that it is not ready.
    pub fn ready_after(&self, looks: u32) {
        self.lock().state.ready_after = looks;
    }

    /// How volumes grow from now on.
    pub fn grow(&self, growth: Growth) {
        self.lock().state.growth = growth;
    }

    /// From now on each node has volumes of its own, of which the driver on another node knows nothing.
    pub fn be_local(&self) {
        self.lock().state.is_local = true;
    }

    /// Writes to a volume, as a pod does that has it; what a snapshot holds is told by it.
    pub fn write(&self, volume: &str, content: u64) {
        self.change(|state| state.write(volume, content));
    }

    /// Cuts a snapshot of a volume as an administrator does who goes round Kubernetes; no object need own it.
    pub fn cut(&self, volume: &str) -> Result<String, Status> {
        let id = self.change(|state| {
            state.next_moment();
            state.cut(volume, "by hand", None)
        })?;
        self.adopt(&id);
        Ok(id)
    }

    /// The same of several volumes at once; the id of the group.
    pub fn cut_group(&self, volumes: &[String]) -> Result<String, Status> {
        let id = self.change(|state| state.cut_group(volumes, "by hand"))?;
        self.adopt(&id);
        Ok(id)
    }

    /// Takes over a volume, a snapshot or a group, so that no object need own it any more.
    pub fn adopt(&self, id: &str) {
        self.change(|state| {
            let State { volumes, snapshots, groups, .. } = state;
            if let Some(made) = volumes.get_mut(id) {
                made.by_hand = true;
            }
            if let Some(group) = groups.get_mut(id) {
                group.by_hand = true;
            }
            for (name, cut) in snapshots {
                cut.by_hand |= name == id || cut.group.as_deref() == Some(id);
            }
        });
    }

    /// Removes a volume, a snapshot or a group that the test made or took over.
    pub fn discard(&self, id: &str) {
        self.change(|state| {
            state.volumes.remove(id);
            state.groups.remove(id);
            state.snapshots.retain(|name, cut| name != id && cut.group.as_deref() != Some(id));
        });
    }

    /// Takes a volume off a node, as an administrator does who goes round Kubernetes.
    pub fn lose_publication(&self, volume: &str) {
        self.change(|state| state.attached.remove(volume));
    }

    /// A change that no call asks for.
    fn change<T>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let result = {
            let state = &mut self.lock().state;
            state.now = self.0.clock.now();
            act(state)
        };
        self.0.changes.announce();
        result
    }

    /// A copy of what the driver has, and of what it found wrong.
    pub fn snapshot(&self) -> State {
        self.lock().state.clone()
    }

    /// The services of the driver's process on a node: Identity, Controller, GroupController and Node.
    pub fn routes(&self, node_id: &str, node: MemoryMounter) -> Routes {
        self.lock().state.nodes.insert(node_id.to_owned());
        let service = || Service { driver: self.clone(), node_id: node_id.to_owned(), node: node.clone() };
        Routes::new(IdentityServer::new(service()))
            .add_service(ControllerServer::new(service()))
            .add_service(GroupControllerServer::new(service()))
            .add_service(NodeServer::new(service()))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.inner.lock().expect("no code panics while holding the driver")
    }

    /// Does what the script says about this call around doing it.
    async fn answer<T>(
        &self,
        rpc: &'static str,
        about: &str,
        act: impl FnOnce(&mut State) -> Result<T, Status>,
    ) -> Result<Response<T>, Status> {
        let step = self.lock().script.next(rpc);
        let act = async {
            let result = {
                let mut inner = self.lock();
                inner.state.now = self.0.clock.now();
                let result = act(&mut inner.state);
                let code = result.as_ref().map_or_else(|status| format!("{:?}", status.code()), |_| "Ok".to_owned());
                inner.state.calls.push(format!("{rpc} {about} {code}"));
                result
            };
            self.0.changes.announce();
            result.map(Response::new)
        };
        scripted(step, act).await
    }
}

async fn scripted<T>(step: Step, act: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    match step {
        Step::Succeed => act.await,
        Step::Fail(code, message) => Err(Status::new(code, message)),
        Step::Hang => pending().await,
        Step::DoneThenHang => {
            let _ = act.await;
            pending().await
        }
        Step::DoneThenFail(code, message) => {
            let _ = act.await;
            Err(Status::new(code, message))
        }
        Step::Slow(delay) => {
            tokio::time::sleep(delay).await;
            act.await
        }
    }
}

/// The driver as one process serves it.
struct Service {
    driver: Driver,
    node_id: String,
    node: MemoryMounter,
}

#[cfg(test)]
mod tests;
