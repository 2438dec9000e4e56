//! Bodies of requests: read whole, in time, and only as many bytes as there is room for.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt as _;

use crate::share::Taken;
use crate::status::Status;

use super::limits::{Asker, Pots, later};

/// No object, and so no request, may be larger than this (as upstream's limit on requests).
const MAX_BODY: usize = 3 << 20;
/// Who sends more than this is cut off without an answer.
const MAX_UNREAD: usize = 64 << 20;

/// What reading a stranger's body may cost.
pub(super) struct Allowance {
    pub bytes: Pots,
    pub asker: Asker,
    pub timeout: Duration,
}

/// A body, and the room it takes until it is dropped.
pub(super) struct Read {
    pub bytes: Bytes,
    _held: Option<Taken>,
}

/// Reads a body; without an allowance, for the program around us, as long as it takes.
pub(super) async fn read<B>(body: B, allowance: Option<Allowance>) -> Result<Read, Status>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    // Most requests have none, and need no room.
    if body.is_end_stream() {
        return Ok(Read { bytes: Bytes::new(), _held: None });
    }
    let Some(Allowance { bytes, asker, timeout }) = allowance else {
        return Ok(Read { bytes: collect(body, |_| true).await?, _held: None });
    };
    let mut held = bytes.take(&asker, 0).ok_or_else(later)?;
    let read = tokio::time::timeout(timeout, collect(body, |more| held.grow(more))).await;
    let late = |_| Status::new(504, "Timeout", "the body of the request did not come in time");
    let bytes = read.map_err(late)??;
    Ok(Read { bytes, _held: Some(held) })
}

async fn collect<B>(body: B, mut may_hold: impl FnMut(usize) -> bool) -> Result<Bytes, Status>
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Display,
{
    let mut body = std::pin::pin!(body);
    let mut whole = BytesMut::new();
    let mut size = 0_usize;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|error| Status::bad_request(format!("the body of the request cannot be read: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        size += data.len();
        if size > MAX_UNREAD {
            break;
        }
        // What is too much is still taken, and dropped: a client that is cut off while it writes never sees the answer.
        if size <= MAX_BODY {
            // A buffer that grows has up to twice the size of what is in it.
            if !may_hold(data.len() * 2) {
                return Err(later());
            }
            whole.extend_from_slice(&data);
        }
    }
    if size > MAX_BODY {
        return Err(Status::new(
            413,
            "RequestEntityTooLarge",
            format!("Request entity too large: limit is {MAX_BODY}"),
        ));
    }
    Ok(whole.freeze())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::stream;
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::super::limits::Level;
    use super::*;

    fn asker(name: &str) -> Asker {
        Asker { level: Level::Workload, name: name.into() }
    }

    fn allowance(bytes: &Pots, name: &str) -> Option<Allowance> {
        Some(Allowance { bytes: bytes.clone(), asker: asker(name), timeout: Duration::from_secs(60) })
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_end_is_given_up_and_gives_its_room_back() {
        let bytes = Pots::each(100);
        let begun = stream::iter([Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"begun")))]);
        let body = StreamBody::new(futures::StreamExt::chain(begun, stream::pending()));
        let refused = read(body, allowance(&bytes, "a")).await.err().unwrap();
        assert_eq!((refused.code, refused.reason), (504, "Timeout"));
        assert!(bytes.take(&asker("b"), 100).is_some());
    }

    #[tokio::test]
    async fn bodies_that_are_held_leave_room_for_those_of_others() {
        let bytes = Pots::each(100);
        let body = |size| Full::new(Bytes::from(vec![b'x'; size]));
        let held = read(body(40), allowance(&bytes, "a")).await.unwrap();
        let refused = read(body(5), allowance(&bytes, "a")).await.err().unwrap();
        assert_eq!((refused.code, refused.details.retry_after_seconds), (429, Some(1)));
        assert!(read(body(5), allowance(&bytes, "b")).await.is_ok());
        assert!(read(body(0), allowance(&bytes, "a")).await.is_ok(), "an empty one needs none");
        drop(held);
        assert_eq!(read(body(5), allowance(&bytes, "a")).await.unwrap().bytes.len(), 5);
    }
}
