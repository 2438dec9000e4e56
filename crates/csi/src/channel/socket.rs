//! Over a socket: tonic's lazy, reconnecting channel, with every way the connection can break told as one.

use std::{
    error::Error as StdError,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Frame, SizeHint};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch;
use tonic::{
    Status, TimeoutExpired,
    body::Body,
    transport::{Endpoint as Transport, Uri},
};
use tower::{Service, ServiceExt, service_fn};

use super::Connections;
use crate::Endpoint;

/// Nobody answered at the endpoint, so this very request reached no driver. It is the source of such a status.
#[derive(Debug, thiserror::Error)]
#[error("cannot connect to {endpoint}: {source}; is the driver running, and is this its socket?")]
pub struct Unreachable {
    endpoint: Endpoint,
    source: io::Error,
}

impl Unreachable {
    /// The error behind this status, if the request never left because nobody was there.
    pub fn in_status(status: &Status) -> Option<&Self> {
        chain(status).find_map(|error| error.downcast_ref())
    }
}

pub(super) fn connect(
    endpoint: &Endpoint,
    count: watch::Sender<Connections>,
) -> impl Service<Request<Body>, Response = Response<Body>, Error = Status, Future: Send> + Clone + Send + Sync + use<>
{
    let label: Arc<str> = endpoint.to_string().into();
    let (endpoint, count) = (endpoint.clone(), Arc::new(count));
    let connector = service_fn(move |_: Uri| {
        let (endpoint, count) = (endpoint.clone(), Arc::clone(&count));
        async move {
            match open(&endpoint).await {
                Ok(stream) => {
                    count.send_modify(|count| count.made += 1);
                    Ok(TokioIo::new(Counted { stream, count }))
                }
                Err(source) => Err(Unreachable { endpoint, source }),
            }
        }
    });
    // gRPC wants an authority; Go's client sends this one for unix sockets, and drivers have seen no other.
    let channel = Transport::from_static("http://localhost").connect_with_connector_lazy(connector);
    let broken = label.clone();
    channel
        .map_err(move |error| status_of(error.into(), &broken))
        .map_response(move |response: Response<Body>| check_end(response, &label))
}

/// Either sort of stream, as the transport sees it.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A stream whose end is counted. The transport reads also while no call is made, and drops it when the driver is gone.
struct Counted {
    stream: Box<dyn Stream>,
    count: Arc<watch::Sender<Connections>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.count.send_modify(|count| count.lost += 1);
    }
}

impl AsyncRead for Counted {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

async fn open(endpoint: &Endpoint) -> io::Result<Box<dyn Stream>> {
    match (endpoint.path(), endpoint.host_and_port()) {
        (Some(path), _) => Ok(Box::new(UnixStream::connect(path).await?)),
        (None, Some(address)) => {
            let stream = TcpStream::connect(address).await?;
            // Requests are small and answered one by one: nothing is won by waiting for more bytes.
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
        (None, None) => Err(io::ErrorKind::AddrNotAvailable.into()),
    }
}

fn status_of(error: Box<dyn StdError + Send + Sync>, label: &str) -> Status {
    if chain(&*error).any(|e| e.is::<TimeoutExpired>()) {
        return Status::deadline_exceeded("no answer from the driver within the call's deadline");
    }
    let message = match chain(&*error).find_map(|e| e.downcast_ref::<Unreachable>()) {
        Some(unreachable) => unreachable.to_string(),
        None => lost(label, &*error),
    };
    let mut status = Status::unavailable(message);
    status.set_source(error.into());
    status
}

fn lost(label: &str, error: &(dyn StdError + 'static)) -> String {
    let causes: Vec<_> = chain(error).map(ToString::to_string).collect();
    format!("lost the connection to {label} before the answer: {}", causes.join(": "))
}

fn chain<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error| error.source())
}

fn check_end(response: Response<Body>, label: &Arc<str>) -> Response<Body> {
    // An answer that is not gRPC at all has no grpc-status to wait for; tonic reads its HTTP status instead.
    let ended = has_status(response.headers()) || response.status() != StatusCode::OK;
    let label = label.clone();
    response.map(|body| Body::new(Answer { body, ended, label }))
}

fn has_status(headers: &HeaderMap) -> bool {
    headers.contains_key("grpc-status")
}

/// The body of an answer, which is whole only once the driver's `grpc-status` was seen.
struct Answer {
    body: Body,
    ended: bool,
    label: Arc<str>,
}

impl http_body::Body for Answer {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(match frame {
            Some(Ok(frame)) => {
                self.ended |= frame.trailers_ref().is_some_and(has_status);
                Some(Ok(frame))
            }
            Some(Err(error)) => {
                self.ended = true;
                Some(Err(Status::unavailable(lost(&self.label, &error))))
            }
            None if self.ended => None,
            None => {
                self.ended = true;
                let message =
                    format!("lost the connection to {} before the answer: it ended without status", self.label);
                Some(Err(Status::unavailable(message)))
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        self.ended && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
