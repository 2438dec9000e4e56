//! The loop's view of this service: which key is decided how.

use std::sync::Arc;

use jiff::Timestamp;

use stowage_model::csi_driver::CsiDriver;
use stowage_model::csi_node::CsiNode;
use stowage_model::node::Node;
use stowage_model::pod::Pod;
use stowage_mount::Mounter;
use stowage_runtime::Context;
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::{Controller, Decision, Reserved};
use stowage_runtime::events::Recorder;
use stowage_runtime::operation::Operations;

use crate::decide::{self, Action, Key, Operation, Why};
use crate::error::Error;
use crate::layout::Layout;
use crate::options::Options;
use crate::wake::Wake;
use crate::world::State;

/// Everything a decision reads and an action touches.
pub struct Manager {
    pub(crate) context: Context,
    pub(crate) host: Arc<dyn Mounter>,
    pub(crate) options: Options,
    pub(crate) layout: Layout,
    pub(crate) state: Arc<State>,
    pub(crate) wake: Wake,
    pub(crate) pods: Cache<Pod>,
    pub(crate) nodes: Cache<Node>,
    pub(crate) csi_nodes: Cache<CsiNode>,
    pub(crate) csi_drivers: Cache<CsiDriver>,
    pub(crate) operations: Operations<Operation, ()>,
    pub(crate) recorder: Recorder,
}

fn explain<W>(decision: Decision<Action, W>, why: impl FnOnce(W) -> Why) -> Decision<Action, Why> {
    Decision { wake_at: decision.wake_at, ..Decision::act(decision.actions, why(decision.why)) }
}

impl Controller for Manager {
    type Key = Key;
    type Action = Action;
    type Why = Why;
    type Error = Error;

    const NAME: &'static str = "volume-manager";

    fn decide(&self, key: &Key, now: Timestamp, _reserved: &Reserved) -> Decision<Action, Why> {
        match key {
            Key::Node => explain(decide::node::decide(&self.node_snapshot(), now), Why::Node),
            Key::CsiNode => explain(decide::csi_node::decide(&self.csi_node_snapshot()), Why::CsiNode),
            Key::Plugin(socket) => explain(decide::plugin::decide(&self.plugin_snapshot(socket), now), Why::Plugin),
            Key::Pod(uid) => explain(decide::pod::decide(&self.pod_snapshot(uid), now), Why::Pod),
            Key::Volume(volume) => explain(decide::volume::decide(&self.volume_snapshot(volume), now), Why::Volume),
        }
    }

    async fn apply(self: Arc<Self>, _key: Key, action: Action) -> Result<(), Error> {
        self.carry_out(action).await
    }

    fn keys(&self) -> Vec<Key> {
        let mut keys = vec![Key::Node, Key::CsiNode];
        keys.extend(self.pods.list().iter().map(|pod| Key::Pod(pod.meta.uid.clone())));
        self.state.with(|world| {
            keys.extend(world.plugins.keys().cloned().map(Key::Plugin));
            keys.extend(world.volumes().into_iter().map(Key::Volume));
            let gone = world.resolutions.keys().chain(&world.pod_dirs);
            keys.extend(gone.cloned().map(Key::Pod));
        });
        keys.sort();
        keys.dedup();
        keys
    }
}
