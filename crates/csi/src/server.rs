//! Offers services on a unix socket that is private from its first moment, or on a port.
//!
//! The order is: bind, set the mode, listen. A socket that does not listen refuses every connection, so nobody gets in
//! under the mode the umask happened to give. The directory is locked meanwhile, so that of two servers that start
//! together neither mistakes the other's socket, bound but not listening yet, for a stale one.

mod authority;
mod tcp;

use std::{
    fmt,
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    str::FromStr,
};

use futures::{Stream, TryStreamExt};
use nix::{
    errno::Errno,
    sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket},
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{UnixListener, UnixSocket};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    service::Routes,
    transport::{Server, server::Connected},
};

use crate::calls::LoggedCalls;
use crate::{Endpoint, endpoint};
use authority::{AnyAuthority, MAX_FRAME, MAX_LIST};

pub use tcp::Port;

/// Connections the kernel keeps for us until we accept them.
const BACKLOG: u32 = 128;

/// The permission bits of a socket, as given to `--socket-mode`: octal, such as `0660`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SocketMode(u32);

impl SocketMode {
    /// These permission bits; bits beyond `0777` are dropped.
    pub const fn new(bits: u32) -> Self {
        Self(bits & 0o777)
    }

    /// The permission bits.
    pub const fn bits(self) -> u32 {
        self.0
    }
}

impl Default for SocketMode {
    /// Owner and group only: whoever can connect to a driver is as good as root on its volumes.
    fn default() -> Self {
        Self(0o660)
    }
}

impl FromStr for SocketMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let digits = text.strip_prefix("0o").unwrap_or(text);
        match u32::from_str_radix(digits, 8) {
            Ok(bits) if bits <= 0o777 && !digits.starts_with('+') => Ok(Self(bits)),
            _ => Err(Error::ParseMode { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04o}", self.0)
    }
}

impl fmt::Debug for SocketMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SocketMode({self})")
    }
}

/// Where a driver listens: a private socket, or a port where that was asked for.
#[derive(Debug)]
pub enum Listener {
    /// On a socket.
    Socket(Socket),
    /// On a port.
    Port(Port),
}

impl Listener {
    /// Listens at the endpoint; the mode is a socket's. Must be called inside a tokio runtime.
    pub async fn bind(endpoint: &Endpoint, mode: SocketMode) -> Result<Self, Error> {
        match (endpoint.path(), endpoint.host_and_port()) {
            (Some(path), _) => Socket::bind(path, mode).map(Self::Socket),
            (None, address) => Port::bind(address.unwrap_or_default()).await.map(Self::Port),
        }
    }

    /// Answers until `stop`, then refuses new calls and lets those in flight finish.
    pub async fn serve(self, routes: Routes, stop: impl Future<Output = ()>) -> Result<(), Error> {
        match self {
            Self::Socket(socket) => socket.serve(routes, stop).await,
            Self::Port(port) => port.serve(routes, stop).await,
        }
    }
}

/// A socket that listens; connections wait until [`serve`](Self::serve). Its file goes when this is dropped.
#[derive(Debug)]
pub struct Socket {
    listener: UnixListener,
    file: SocketFile,
}

impl Socket {
    /// Listens at this path with this mode. A socket left there by a server that is gone is replaced; one that
    /// somebody answers on, and anything that is not a socket, is left alone. Must be called inside a tokio runtime.
    pub fn bind(path: impl Into<PathBuf>, mode: SocketMode) -> Result<Self, Error> {
        let path = path.into();
        Endpoint::at(&path).map_err(|source| Error::CheckPath { source })?;
        let failed = |source| Error::Bind { path: path.clone(), source };

        let _lock = lock_directory_of(&path)?;
        clear_stale(&path)?;
        let socket = UnixSocket::new_stream().map_err(failed)?;
        socket.bind(&path).map_err(failed)?;
        let set = || -> io::Result<Identity> {
            fs::set_permissions(&path, Permissions::from_mode(mode.bits()))?;
            Identity::of(&path)
        };
        let identity = set().map_err(|source| {
            // Ours without doubt: bound under the lock a moment ago.
            let _ = fs::remove_file(&path);
            Error::SetMode { path: path.clone(), mode, source }
        })?;
        let file = SocketFile { path: path.clone(), identity };
        let listener = socket.listen(BACKLOG).map_err(failed)?;
        Ok(Self { listener, file })
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.file.path
    }

    /// Answers until `stop`, then refuses new calls, lets those in flight finish, and removes the socket. Dropping
    /// the future instead ends at once, and removes the socket too.
    pub async fn serve(self, routes: Routes, stop: impl Future<Output = ()>) -> Result<(), Error> {
        let Self { listener, file } = self;
        let served = answer(UnixListenerStream::new(listener), routes, stop).await;
        served.map_err(|source| Error::Serve { place: format!("{:?}", file.path), source })
    }
}

/// Answers on every connection, and logs the calls at `-v=5`.
async fn answer<S>(
    connections: impl Stream<Item = io::Result<S>>,
    routes: Routes,
    stop: impl Future<Output = ()>,
) -> Result<(), tonic::transport::Error>
where
    S: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    // Said aloud, because what passes through `AnyAuthority` is held to the same limits.
    Server::builder()
        .max_frame_size(MAX_FRAME as u32)
        .http2_max_header_list_size(MAX_LIST as u32)
        .layer(tower::layer::layer_fn(LoggedCalls::new))
        .add_routes(routes.prepare())
        .serve_with_incoming_shutdown(connections.map_ok(AnyAuthority::new), stop)
        .await
}

/// Which file this is: a path may name another one by now, and an inode number may have been used again.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
    modified: (i64, i64),
}

impl Identity {
    fn of(path: &Path) -> io::Result<Self> {
        let data = fs::symlink_metadata(path)?;
        Ok(Self { device: data.dev(), inode: data.ino(), modified: (data.mtime(), data.mtime_nsec()) })
    }
}

#[derive(Debug)]
struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // A successor may have taken the path while we drained; without the lock it could do so between look and leap.
        let Ok(_lock) = lock_directory_of(&self.path) else { return };
        if Identity::of(&self.path).is_ok_and(|now| now == self.identity)
            && let Err(error) = fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove our socket");
        }
    }
}

/// Held for a few system calls and never over an await, so waiting for it is short.
fn lock_directory_of(path: &Path) -> Result<File, Error> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let lock = || -> io::Result<File> {
        let file = File::open(directory)?;
        file.lock()?;
        Ok(file)
    };
    lock().map_err(|source| Error::LockDirectory { directory: directory.to_owned(), source })
}

fn clear_stale(path: &Path) -> Result<(), Error> {
    let examine = |source| Error::Examine { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(examine(error)),
        Ok(data) if !data.file_type().is_socket() => return Err(Error::NotASocket { path: path.to_owned() }),
        Ok(_) => {}
    }
    match knock(path) {
        Err(Errno::ECONNREFUSED) => {
            tracing::info!(path = %path.display(), "removing a socket nobody answers on");
            fs::remove_file(path).map_err(|source| Error::RemoveStale { path: path.to_owned(), source })
        }
        Err(Errno::ENOENT) => Ok(()),
        // A full backlog is somebody who is busy; a socket of another type is somebody too.
        Ok(()) | Err(Errno::EAGAIN | Errno::EPROTOTYPE) => Err(Error::InUse { path: path.to_owned() }),
        Err(errno) => Err(examine(errno.into())),
    }
}

/// Connects without waiting: the directory is locked meanwhile.
fn knock(path: &Path) -> Result<(), Errno> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let client = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(std::os::fd::AsRawFd::as_raw_fd(&client), &UnixAddr::new(path)?)
}

/// Why a socket could not be offered.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The mode is not one.
    #[error("socket mode {text:?} is not an octal number from 0 to 0777; write 0660, for example")]
    ParseMode {
        /// What was given.
        text: String,
    },
    /// No socket can be at this path.
    #[error("{source}")]
    CheckPath {
        /// What is wrong with it.
        source: endpoint::Error,
    },
    /// The directory is missing or not ours.
    #[error("cannot use the directory {directory:?} for a socket: {source}; create it first")]
    LockDirectory {
        /// The socket's directory.
        directory: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// What is at the path cannot be looked at.
    #[error("cannot tell whether somebody serves on {path:?}: {source}")]
    Examine {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Something else has this name.
    #[error("{path:?} exists and is not a socket; remove it or choose another path")]
    NotASocket {
        /// The socket's path.
        path: PathBuf,
    },
    /// Another server is alive there.
    #[error("another process answers on {path:?}; stop it or choose another path")]
    InUse {
        /// The socket's path.
        path: PathBuf,
    },
    /// A stale socket stays.
    #[error("cannot remove the stale socket {path:?}: {source}")]
    RemoveStale {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel does not let us listen.
    #[error("cannot listen on {path:?}: {source}")]
    Bind {
        /// The socket's path.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// The address is none of this machine, or taken.
    #[error("cannot listen on tcp://{address}: {source}; choose a free port of this machine")]
    BindPort {
        /// Host and port.
        address: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The mode cannot be set, so nobody is let in.
    #[error("cannot set mode {mode} on {path:?}: {source}")]
    SetMode {
        /// The socket's path.
        path: PathBuf,
        /// The mode wanted.
        mode: SocketMode,
        /// What the kernel said.
        source: io::Error,
    },
    /// Serving ended by itself.
    #[error("serving on {place} failed: {source}")]
    Serve {
        /// Where.
        place: String,
        /// What tonic said.
        source: tonic::transport::Error,
    },
}

#[cfg(test)]
mod tests;
