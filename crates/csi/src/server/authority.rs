//! Lets a client call us what it likes.
//!
//! A Go client that dials a unix socket and says nothing more, as the kubelet's plugin manager does, sends the socket's
//! path as `:authority`. Nobody reads it on a unix socket, but h2 refuses the request: it is no authority of a URI. So
//! what the client sends is read on its way to h2, and each `:authority` becomes `localhost`; all else stays as it is.

mod block;
mod filter;
mod hpack;

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

use filter::Filter;

pub(super) use filter::MAX_FRAME;
pub(super) use hpack::MAX_LIST;

/// An accepted connection on which any `:authority` is taken.
pub(super) struct AnyAuthority<S> {
    stream: S,
    filter: Filter,
}

impl<S> AnyAuthority<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, filter: Filter::new() }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for AnyAuthority<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let Self { stream, filter } = self.get_mut();
        loop {
            if buf.remaining() == 0 || filter.drain(buf) || filter.refused() {
                return Poll::Ready(Ok(()));
            }
            let start = buf.filled().len();
            ready!(Pin::new(&mut *stream).poll_read(cx, buf))?;
            if buf.filled().len() == start {
                return Poll::Ready(Ok(()));
            }
            // Most bytes are payload and stay where the kernel put them.
            let stays = filter.feed(&buf.filled()[start..]);
            buf.set_filled(start + stays);
            if stays > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for AnyAuthority<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, data)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, data)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

impl<S: Connected> Connected for AnyAuthority<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests;
