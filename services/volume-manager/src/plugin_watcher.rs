//! The port through which registration sockets are noticed, and what is noted of them.

mod inotify;

use std::io;
use std::sync::Arc;

use futures::StreamExt;
use futures::stream::BoxStream;

use stowage_runtime::Stop;
use stowage_runtime::queue::Queue;

use crate::executor::{Executor, Operation};
use crate::state::State;
use crate::watches::{self, Key};

pub use inotify::RegistryDir;

/// A registration socket came or went.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PluginEvent {
    /// There from the start, new, or made anew.
    Appeared(String),
    Vanished(String),
}

/// Tells about the sockets in the plugin registry.
pub trait PluginSource: Send + Sync {
    /// Begins with the sockets that are there and goes on for ever; an error ends it.
    fn watch(&self) -> io::Result<BoxStream<'static, io::Result<PluginEvent>>>;
}

/// Notes sockets that come and go; ends only if they cannot be watched any more.
pub(crate) async fn follow(
    mut events: BoxStream<'static, io::Result<PluginEvent>>,
    state: Arc<State>,
    executor: Executor,
    queue: Queue<Key>,
) -> Stop {
    loop {
        match events.next().await {
            Some(Ok(PluginEvent::Appeared(socket))) => {
                // What an earlier appearance answered, or how often it did not, says nothing about this one.
                executor.forget(&Operation::Greet(socket.clone()));
                executor.forget(&Operation::Notify(socket.clone()));
                state.with_drivers(|drivers| drivers.socket_appeared(&socket));
                watches::plugin(&socket).into_iter().for_each(|key| queue.add(key));
            }
            Some(Ok(PluginEvent::Vanished(socket))) => {
                let driver = state.with_drivers(|drivers| drivers.socket_vanished(&socket));
                tracing::info!(socket, driver, "the registration socket is gone");
                watches::plugin(&socket).into_iter().for_each(|key| queue.add(key));
                driver.iter().for_each(|driver| executor.forget(&Operation::Refresh(driver.clone())));
                let of_driver = |driver: String| state.read(|states| watches::driver(states, &driver));
                driver.into_iter().flat_map(of_driver).for_each(|key| queue.add(key));
            }
            Some(Err(error)) => return Stop::Unable { reason: format!("cannot watch the plugin registry: {error}") },
            None => return Stop::Unable { reason: "the plugin registry is no longer watched".into() },
        }
    }
}
