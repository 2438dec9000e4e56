//! Plugin registration without sockets: the registrar's and the volume manager's ports over the world's sockets.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::Arc;

use futures::StreamExt;
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream};
use tonic::service::Routes;

use registrar::serve::{self, Serve};
use stowage_testing::{Gate, Port, Sockets};
use volume_manager::plugin_watcher::{PluginEvent, PluginSource};

/// Offers registration at a path of the world; being stopped leaves a socket nobody answers at, as a killed process does.
pub struct SimulatedServe {
    pub sockets: Sockets,
    pub gate: Arc<Gate>,
}

#[tonic::async_trait]
impl Serve for SimulatedServe {
    async fn serve(
        &self,
        endpoint: &str,
        routes: Routes,
        shutdown: BoxFuture<'static, ()>,
    ) -> Result<(), serve::Error> {
        let listen = async { Some(self.sockets.listen(endpoint, routes)) };
        let listening = self.gate.act(Port::Node, format!("listen {endpoint}"), listen, || None).await;
        shutdown.await;
        if let Some(listening) = listening {
            listening.close();
        }
        Ok(())
    }
}

/// Notices the sockets of a directory of the world.
pub struct SimulatedRegistry {
    pub sockets: Sockets,
    pub dir: String,
}

impl PluginSource for SimulatedRegistry {
    fn watch(&self) -> io::Result<BoxStream<'static, io::Result<PluginEvent>>> {
        let (sockets, dir) = (self.sockets.clone(), self.dir.clone());
        let known: BTreeMap<String, u64> = BTreeMap::new();
        let events = stream::unfold((known, VecDeque::new()), move |(mut known, mut waiting)| {
            let (sockets, dir) = (sockets.clone(), dir.clone());
            async move {
                loop {
                    if let Some(event) = waiting.pop_front() {
                        return Some((Ok(event), (known, waiting)));
                    }
                    let seen = sockets.changes().count();
                    let found = sockets.in_dir(&dir);
                    let gone = known.keys().filter(|path| !found.contains_key(*path)).cloned();
                    waiting.extend(gone.map(PluginEvent::Vanished));
                    let new = found.iter().filter(|(path, instance)| known.get(*path) != Some(*instance));
                    waiting.extend(new.map(|(path, _)| PluginEvent::Appeared(path.clone())));
                    known = found;
                    if waiting.is_empty() {
                        sockets.changes().beyond(seen).await;
                    }
                }
            }
        });
        Ok(events.boxed())
    }
}
