//! A CSI driver in memory: the contract's semantics over plain state, and a script for how calls go wrong.
//!
//! It watches its callers: publishing without staging, unstaging what is published, detaching what is staged and the like
//! are refused as a real driver would, and noted as violations of the design's invariants.

mod controller;
mod identity;
mod node;
mod script;
mod state;

use std::future::{Future, pending};
use std::sync::{Arc, Mutex, MutexGuard};

use tonic::service::Routes;
use tonic::{Response, Status};

use stowage_csi::v1::controller_server::ControllerServer;
use stowage_csi::v1::identity_server::IdentityServer;
use stowage_csi::v1::node_server::NodeServer;

use crate::changes::Changes;
use crate::mounter::MemoryMounter;

pub use script::Step;
pub use state::{Made, State};

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
}

#[derive(Default)]
struct Inner {
    state: State,
    script: Script,
}

impl Driver {
    /// A driver that has no volumes and does everything right.
    pub fn new(name: impl Into<String>, changes: Changes) -> Self {
        Self(Arc::new(Shared { name: name.into(), inner: Mutex::default(), changes }))
    }

    /// The name it tells.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How the next calls of an RPC, such as `CreateVolume`, go; after these they go well.
    pub fn script(&self, rpc: &str, steps: impl IntoIterator<Item = Step>) {
        self.lock().script.add(rpc, steps);
    }

    /// A copy of what the driver has, and of what it found wrong.
    pub fn snapshot(&self) -> State {
        self.lock().state.clone()
    }

    /// The services of the driver's process on a node: Identity, Controller and Node.
    pub fn routes(&self, node_id: &str, node: MemoryMounter) -> Routes {
        self.lock().state.nodes.insert(node_id.to_owned());
        let service = || Service { driver: self.clone(), node_id: node_id.to_owned(), node: node.clone() };
        Routes::new(IdentityServer::new(service()))
            .add_service(ControllerServer::new(service()))
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
