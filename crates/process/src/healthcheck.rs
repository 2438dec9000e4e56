//! `SERVICE healthcheck ADDRESS`: asks a running service how it is, for images that have neither shell nor curl.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use stowage_csi::{Connector, Deadline, UnixConnector, identity};

/// The first word after the program's name.
const WORD: &str = "healthcheck";
/// Engines give up on a check after their own time; this only keeps it from hanging without one.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than any answer of an admin server to a probe.
const LONGEST_ANSWER: u64 = 4096;

/// Why a service is not healthy, or why that cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No address, or none that can be asked.
    #[error(
        "healthcheck {address:?}: write http://HOST:PORT/PATH for an admin server or unix:///PATH for a CSI driver"
    )]
    Address {
        /// What was given.
        address: String,
    },
    /// Nobody answers.
    #[error("{address} does not answer: {source}")]
    Ask {
        /// Who was asked.
        address: String,
        /// What the system said.
        source: io::Error,
    },
    /// Somebody answers, but not with 200.
    #[error("{address}: {answer}")]
    Unhealthy {
        /// Who was asked.
        address: String,
        /// What it said.
        answer: String,
    },
}

/// Asks, tells on stderr what is wrong, and ends the process, if this process was started as a check.
pub(crate) fn end_if_asked() {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_none_or(|word| word != WORD) {
        return;
    }
    let address = words.next().unwrap_or_default();
    match check(&address.to_string_lossy()) {
        Ok(()) => std::process::exit(0),
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1)
        }
    }
}

fn check(address: &str) -> Result<(), Error> {
    let is_driver = address.starts_with("unix://") || address.starts_with("tcp://");
    match (address.strip_prefix("http://"), is_driver) {
        (Some(rest), _) => ask_admin(address, rest),
        (None, true) => ask_driver(address),
        (None, false) => Err(Error::Address { address: address.to_owned() }),
    }
}

fn ask_admin(address: &str, rest: &str) -> Result<(), Error> {
    let (host, path) = rest.split_once('/').ok_or_else(|| Error::Address { address: address.to_owned() })?;
    let failed = |source| Error::Ask { address: address.to_owned(), source };
    let answer = get(host, path).map_err(failed)?;
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let status = head.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some("200") => Ok(()),
        _ => Err(Error::Unhealthy { address: address.to_owned(), answer: format!("{status}: {body}") }),
    }
}

fn get(host: &str, path: &str) -> io::Result<String> {
    let mut last = io::ErrorKind::AddrNotAvailable.into();
    for resolved in host.to_socket_addrs()? {
        match TcpStream::connect_timeout(&resolved, PATIENCE) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(PATIENCE))?;
                stream.set_write_timeout(Some(PATIENCE))?;
                let question = format!("GET /{path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
                stream.write_all(question.as_bytes())?;
                let mut answer = String::new();
                stream.take(LONGEST_ANSWER).read_to_string(&mut answer)?;
                return Ok(answer);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// On a thread of its own: the caller may already be inside a runtime.
fn ask_driver(address: &str) -> Result<(), Error> {
    let failed = |source| Error::Ask { address: address.to_owned(), source };
    let probed = std::thread::scope(|scope| {
        let probing = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let channel = UnixConnector.connect(address).map_err(io::Error::other)?;
                identity::probe(&channel, Deadline(PATIENCE)).await.map_err(io::Error::other)
            })
        });
        probing.join().unwrap_or_else(|_| Err(io::Error::other("the check itself failed")))
    });
    match probed.map_err(failed)? {
        true => Ok(()),
        false => Err(Error::Unhealthy { address: address.to_owned(), answer: "not ready yet".to_owned() }),
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use tokio::net::TcpSocket;

    use super::*;

    /// The address of a server that gives this answer once.
    fn answering(answer: &'static str) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = Vec::new();
            while !asked.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                stream.read_exact(&mut byte).unwrap();
                asked.extend(byte);
            }
            assert!(asked.starts_with(b"GET /readyz HTTP/1.1\r\n"));
            stream.write_all(answer.as_bytes()).unwrap();
        });
        format!("http://{address}/readyz")
    }

    #[test]
    fn an_answer_of_200_is_healthy_and_any_other_is_told_with_its_reason() {
        check(&answering("HTTP/1.1 200 OK\r\n\r\nok")).unwrap();
        let away = answering("HTTP/1.1 503 Service Unavailable\r\n\r\nwaiting for claims");
        let error = check(&away).unwrap_err().to_string();
        assert!(error.ends_with("HTTP/1.1 503 Service Unavailable: waiting for claims"), "{error}");
    }

    #[test]
    fn nobody_there_and_no_address_are_told_apart() {
        // Bound and not listening: nobody else gets the port meanwhile.
        let closed = TcpSocket::new_v4().unwrap();
        closed.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let error = check(&format!("http://{}/readyz", closed.local_addr().unwrap())).unwrap_err();
        assert!(matches!(error, Error::Ask { .. }), "{error}");
        let error = check("unix:///nowhere/csi.sock").unwrap_err();
        assert!(matches!(error, Error::Ask { .. }), "{error}");
        for wrong in ["", "8080", "http://localhost:80"] {
            let error = check(wrong).unwrap_err().to_string();
            assert!(error.contains("http://HOST:PORT/PATH"), "{error}");
        }
    }
}
