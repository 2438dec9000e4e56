//! Where a driver listens, as people write it: `/run/csi.sock`, `unix:///run/csi.sock` or `unix:/run/csi.sock`, and, for
//! whoever asks for it, `tcp://HOST:PORT`.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Longest path of a unix socket in bytes: `sun_path` holds 108, the last of them zero.
pub const MAX_PATH_BYTES: usize = 107;

/// Where a driver or plugin listens: on a unix socket, or on a port where somebody chose so.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint(Place);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    Unix(PathBuf),
    /// Host and port, as a resolver takes them.
    Tcp(String),
}

impl Endpoint {
    /// An endpoint at this path, if a socket can be there at all.
    pub fn at(path: impl Into<PathBuf>) -> Result<Self, Error> {
        let path = path.into();
        let bytes = path.as_os_str().as_encoded_bytes();
        if bytes.is_empty() {
            return Err(Error::Empty);
        }
        if bytes.contains(&0) || bytes.ends_with(b"/") {
            return Err(Error::NotASocketPath { path });
        }
        if bytes.len() > MAX_PATH_BYTES {
            return Err(Error::TooLong { length: bytes.len(), path });
        }
        Ok(Self(Place::Unix(path)))
    }

    fn on(text: &str, host_and_port: &str) -> Result<Self, Error> {
        let (host, port) = host_and_port.rsplit_once(':').unwrap_or((host_and_port, ""));
        // The brackets of an IPv6 address keep its colons from being taken for the port's.
        let is_host = match host.strip_prefix('[') {
            Some(address) => address.strip_suffix(']').is_some_and(|inner| inner.parse::<std::net::Ipv6Addr>().is_ok()),
            None => !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')),
        };
        let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
        match is_host && is_port {
            true => Ok(Self(Place::Tcp(host_and_port.to_owned()))),
            false => Err(Error::NotAPort { text: text.to_owned() }),
        }
    }

    /// The socket's path, if it is a unix socket.
    pub fn path(&self) -> Option<&Path> {
        match &self.0 {
            Place::Unix(path) => Some(path),
            Place::Tcp(_) => None,
        }
    }

    /// Host and port, if it is not.
    pub fn host_and_port(&self) -> Option<&str> {
        match &self.0 {
            Place::Unix(_) => None,
            Place::Tcp(address) => Some(address),
        }
    }
}

impl FromStr for Endpoint {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let Some((scheme, rest)) = text.split_once(':').filter(|_| !text.starts_with('/')) else {
            return match text {
                "" => Err(Error::Empty),
                _ if text.starts_with('/') => Self::at(text),
                _ => Err(Error::Relative { text: text.to_owned() }),
            };
        };
        match scheme.to_ascii_lowercase().as_str() {
            "unix" => match rest.strip_prefix("//") {
                // `unix://run/csi.sock` would make "run" a host: nearly always a forgotten slash.
                Some(path) if !path.is_empty() && !path.starts_with('/') => {
                    Err(Error::HasHost { text: text.to_owned(), path: path.to_owned() })
                }
                Some(path) => Self::at(path),
                None => Self::at(rest),
            },
            "tcp" => Self::on(text, rest.strip_prefix("//").unwrap_or(rest)),
            // As gRPC names a host: the part before the third slash would be a name server.
            "dns" => Self::on(text, rest.strip_prefix("///").unwrap_or(rest)),
            _ => Err(Error::UnknownScheme { text: text.to_owned(), scheme: scheme.to_owned() }),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Place::Unix(path) => write!(f, "unix:{}{}", if path.is_absolute() { "//" } else { "" }, path.display()),
            Place::Tcp(address) => write!(f, "tcp://{address}"),
        }
    }
}

/// Why a text is not an endpoint.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing was given.
    #[error("the endpoint is empty; give the driver's socket, such as unix:///run/csi/socket")]
    Empty,
    /// Another transport was asked for.
    #[error("endpoint {text:?}: {scheme:?} is not supported; write unix:///PATH, or tcp://HOST:PORT to use a network")]
    UnknownScheme {
        /// What was given.
        text: String,
        /// The part before the colon.
        scheme: String,
    },
    /// Two slashes where three are needed.
    #[error("endpoint {text:?} has a host part; write unix:///{path}")]
    HasHost {
        /// What was given.
        text: String,
        /// What follows the two slashes.
        path: String,
    },
    /// A bare relative path, which gRPC would take for a host name.
    #[error("endpoint {text:?} is neither an absolute path nor a unix: address; write unix:///PATH")]
    Relative {
        /// What was given.
        text: String,
    },
    /// No host and port, or none that can be.
    #[error("endpoint {text:?} names no host and port; write tcp://HOST:PORT, such as tcp://127.0.0.1:10000")]
    NotAPort {
        /// What was given.
        text: String,
    },
    /// The path cannot name a socket.
    #[error("endpoint path {path:?} cannot name a socket; it must not end in a slash or hold a zero byte")]
    NotASocketPath {
        /// The path given.
        path: PathBuf,
    },
    /// The path does not fit into a socket address.
    #[error(
        "endpoint path {path:?} has {length} bytes, the kernel allows {MAX_PATH_BYTES}; choose a shorter directory"
    )]
    TooLong {
        /// The path given.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_form_the_originals_take_names_the_same_socket() {
        for text in ["/run/csi.sock", "unix:///run/csi.sock", "unix:/run/csi.sock", "UNIX:///run/csi.sock"] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.path(), Some(Path::new("/run/csi.sock")), "{text}");
            assert_eq!(endpoint.to_string(), "unix:///run/csi.sock", "{text}");
        }
        assert_eq!("unix:csi.sock".parse::<Endpoint>().unwrap().path(), Some(Path::new("csi.sock")));
        assert_eq!("/run/a:b.sock".parse::<Endpoint>().unwrap().path(), Some(Path::new("/run/a:b.sock")));
    }

    #[test]
    fn a_port_is_used_where_it_is_asked_for() {
        for text in ["tcp://127.0.0.1:9000", "TCP://127.0.0.1:9000", "tcp:127.0.0.1:9000", "dns:///127.0.0.1:9000"] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!((endpoint.path(), endpoint.host_and_port()), (None, Some("127.0.0.1:9000")), "{text}");
            assert_eq!(endpoint.to_string(), "tcp://127.0.0.1:9000", "{text}");
        }
        assert!("tcp://[::1]:9000".parse::<Endpoint>().is_ok());
        assert!("tcp://csi-driver.storage.svc:9000".parse::<Endpoint>().is_ok());
    }

    #[test]
    fn a_bad_endpoint_is_refused_with_the_way_out() {
        for (text, says) in [
            ("", "empty"),
            ("unix://", "empty"),
            ("unix:", "empty"),
            ("csi.sock", "write unix:///PATH"),
            ("http://127.0.0.1:9000", "\"http\" is not supported"),
            ("localhost:9000", "\"localhost\" is not supported"),
            ("tcp://", "write tcp://HOST:PORT"),
            ("tcp://127.0.0.1", "write tcp://HOST:PORT"),
            ("tcp://:9000", "write tcp://HOST:PORT"),
            ("tcp://127.0.0.1:70000", "write tcp://HOST:PORT"),
            ("tcp://127.0.0.1:+1", "write tcp://HOST:PORT"),
            ("tcp://127.0.0.1:90/x", "write tcp://HOST:PORT"),
            ("tcp://::1:9000", "write tcp://HOST:PORT"),
            ("dns://8.8.8.8/host:9000", "write tcp://HOST:PORT"),
            ("unix-abstract:csi", "\"unix-abstract\" is not supported"),
            ("unix://run/csi.sock", "write unix:///run/csi.sock"),
            ("unix:///run/csi/", "must not end in a slash"),
            ("/run/a\0b", "zero byte"),
        ] {
            let message = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(message.contains(says), "{text:?} gave {message:?}");
        }
    }

    #[test]
    fn a_path_fits_up_to_the_last_byte_and_not_further() {
        assert!(Endpoint::at(format!("/{}", "x".repeat(MAX_PATH_BYTES - 1))).is_ok());
        let error = Endpoint::at(format!("/{}", "x".repeat(MAX_PATH_BYTES))).unwrap_err();
        assert!(error.to_string().contains("has 108 bytes, the kernel allows 107"), "{error}");
    }

    proptest! {
        #[test]
        fn what_is_shown_parses_to_the_same_endpoint(text in "\\PC{0,120}") {
            if let Ok(endpoint) = text.parse::<Endpoint>() {
                prop_assert_eq!(endpoint.to_string().parse::<Endpoint>(), Ok(endpoint));
            }
        }
    }
}
