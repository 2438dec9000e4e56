//! Where a driver listens, as people write it: `/run/csi.sock`, `unix:///run/csi.sock` or `unix:/run/csi.sock`.

use std::{
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

/// Longest path of a unix socket in bytes: `sun_path` holds 108, the last of them zero.
pub const MAX_PATH_BYTES: usize = 107;

/// The unix socket of a driver or plugin; CSI knows no other transport.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Endpoint {
    path: PathBuf,
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
        Ok(Self { path })
    }

    /// The socket's path.
    pub fn path(&self) -> &Path {
        &self.path
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
        if !scheme.eq_ignore_ascii_case("unix") {
            return Err(Error::UnknownScheme { text: text.to_owned(), scheme: scheme.to_owned() });
        }
        match rest.strip_prefix("//") {
            // `unix://run/csi.sock` would make "run" a host: nearly always a forgotten slash.
            Some(path) if !path.is_empty() && !path.starts_with('/') => {
                Err(Error::HasHost { text: text.to_owned(), path: path.to_owned() })
            }
            Some(path) => Self::at(path),
            None => Self::at(rest),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "unix:{}{}", if self.path.is_absolute() { "//" } else { "" }, self.path.display())
    }
}

/// Why a text is not an endpoint.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Nothing was given.
    #[error("the endpoint is empty; give the driver's socket, such as unix:///run/csi/socket")]
    Empty,
    /// Another transport was asked for.
    #[error("endpoint {text:?}: {scheme:?} is not supported, CSI runs over unix sockets only; write unix:///PATH")]
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
            assert_eq!(endpoint.path(), Path::new("/run/csi.sock"), "{text}");
            assert_eq!(endpoint.to_string(), "unix:///run/csi.sock", "{text}");
        }
        assert_eq!("unix:csi.sock".parse::<Endpoint>().unwrap().path(), Path::new("csi.sock"));
        assert_eq!("/run/a:b.sock".parse::<Endpoint>().unwrap().path(), Path::new("/run/a:b.sock"));
    }

    #[test]
    fn a_bad_endpoint_is_refused_with_the_way_out() {
        for (text, says) in [
            ("", "empty"),
            ("unix://", "empty"),
            ("unix:", "empty"),
            ("csi.sock", "write unix:///PATH"),
            ("tcp://127.0.0.1:9000", "\"tcp\" is not supported"),
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
