//! The port through which registration sockets are noticed.

mod inotify;

use std::io;

use futures::stream::BoxStream;

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
