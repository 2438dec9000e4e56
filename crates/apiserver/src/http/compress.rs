//! Large answers are sent compressed to clients that take it.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};
use http::{HeaderMap, Response};
use http_body::Body as _;
use http_body_util::{BodyExt as _, Full};

use super::Body;

/// Smaller bodies cost more to compress than to send (upstream's threshold).
const WORTH_IT: u64 = 128 << 10;

pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|v| v.to_str().ok());
    accepted.flat_map(|v| v.split(',')).any(|one| {
        let (name, weight) = one.split_once(';').unwrap_or((one, ""));
        name.trim() == "gzip" && !matches!(weight.trim(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000")
    })
}

/// Compresses a whole body; a watch's has no end and stays as it is.
pub(super) async fn gzip(response: Response<Body>) -> Response<Body> {
    if response.body().size_hint().exact().is_none_or(|size| size < WORTH_IT) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(whole) = body.collect().await;
    let whole = whole.to_bytes();
    let mut encoder = GzEncoder::new(Vec::with_capacity(whole.len() / 8), Compression::fast());
    let body = match encoder.write_all(&whole).and_then(|()| encoder.finish()) {
        Ok(compressed) => {
            parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            parts.headers.insert(VARY, HeaderValue::from_static("Accept-Encoding"));
            compressed.into()
        }
        Err(_) => whole,
    };
    Response::from_parts(parts, Full::new(body).boxed_unsync())
}
