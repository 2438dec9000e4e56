//! Large answers are sent compressed to clients that take it.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use futures::stream;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};
use http::{HeaderMap, Response};
use http_body::{Body as _, Frame};
use http_body_util::{BodyExt as _, Full, StreamBody};

use super::Body;
use super::answer::Estimate;

/// Smaller bodies cost more to compress than to send (upstream's threshold).
const WORTH_IT: u64 = 128 << 10;

pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok());
    accepted.flat_map(|v| v.split(',')).any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, ""));
        name.trim() == "gzip" && !matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    })
}

/// Compresses a large body, as a whole or piece by piece as it comes; a watch's has no end and stays as it is.
pub(super) async fn gzip(response: Response<Body>) -> Response<Body> {
    if response.extensions().get::<Estimate>().is_some_and(|size| size.0 as u64 >= WORTH_IT) {
        return mark(response).map(pieces);
    }
    if response.body().size_hint().exact().is_none_or(|size| size < WORTH_IT) {
        return response;
    }
    let (parts, body) = response.into_parts();
    let Ok(whole) = body.collect().await;
    let whole = whole.to_bytes();
    let mut encoder = GzEncoder::new(Vec::with_capacity(whole.len() / 8), Compression::fast());
    match encoder.write_all(&whole).and_then(|()| encoder.finish()) {
        Ok(compressed) => mark(Response::from_parts(parts, Full::new(compressed.into()).boxed_unsync())),
        Err(_) => Response::from_parts(parts, Full::new(whole).boxed_unsync()),
    }
}

fn mark(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

fn pieces(body: Body) -> Body {
    let encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let pieces = stream::unfold(Some((body, encoder)), |state| async move {
        let (mut body, mut encoder) = state?;
        loop {
            let compressed = match body.frame().await {
                Some(Ok(frame)) => {
                    let Ok(data) = frame.into_data() else { continue };
                    encoder.write_all(&data).expect("writing to a vector does not fail");
                    std::mem::take(encoder.get_mut())
                }
                None => {
                    let rest = encoder.finish().expect("writing to a vector does not fail");
                    return Some((Ok(Frame::data(rest.into())), None));
                }
            };
            if !compressed.is_empty() {
                return Some((Ok(Frame::data(compressed.into())), Some((body, encoder))));
            }
        }
    });
    StreamBody::new(pieces).boxed_unsync()
}
