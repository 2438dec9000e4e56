//! A body whose message is copied on its way.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http_body::{Frame, SizeHint};
use tonic::{Status, body::Body};

use super::Ending;

/// Before each message gRPC has a byte for compression and four for the length.
const PREFIX: usize = 5;

type Tell = Box<dyn FnOnce(&[u8], Ending<'_>) + Send>;

/// Passes a body on, and tells once what message was in it.
pub(super) struct Copied {
    body: Body,
    seen: Vec<u8>,
    /// None once it was told.
    tell: Option<Tell>,
    /// Whether to tell as soon as there is a whole message, or when it is known how the body ends.
    early: bool,
}

impl Copied {
    pub(super) fn until_message(body: Body, tell: impl FnOnce(&[u8], Ending<'_>) + Send + 'static) -> Self {
        Self { body, seen: Vec::new(), tell: Some(Box::new(tell)), early: true }
    }

    pub(super) fn until_end(body: Body, tell: impl FnOnce(&[u8], Ending<'_>) + Send + 'static) -> Self {
        Self { body, seen: Vec::new(), tell: Some(Box::new(tell)), early: false }
    }

    /// The first message, as far as it is there, and whether it is whole. What is compressed is not read.
    fn message(&self) -> (&[u8], bool) {
        let Some((&[compressed, a, b, c, d], rest)) = self.seen.split_first_chunk::<PREFIX>() else {
            return (&[], false);
        };
        let length = u32::from_be_bytes([a, b, c, d]) as usize;
        match rest.get(..length) {
            Some(_) if compressed != 0 => (&[], true),
            Some(message) => (message, true),
            None => (&[], false),
        }
    }

    fn tell(&mut self, ending: Ending<'_>) {
        if let Some(tell) = self.tell.take() {
            tell(self.message().0, ending);
            self.seen = Vec::new();
        }
    }
}

impl http_body::Body for Copied {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(frame)) => {
                if let (Some(data), true) = (frame.data_ref(), self.tell.is_some()) {
                    self.seen.extend_from_slice(data);
                }
                if self.early && self.message().1 {
                    self.tell(Ending::Whole(None));
                } else if let Some(trailers) = frame.trailers_ref() {
                    self.tell(Ending::Whole(Some(trailers)));
                }
            }
            Some(Err(status)) => self.tell(Ending::Broken(status)),
            None => self.tell(Ending::Whole(None)),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        // A request nobody reads to its end was never sent; an answer was, and there was one.
        if !self.early {
            self.tell(Ending::Dropped);
        }
    }
}
