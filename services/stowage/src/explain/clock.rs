//! What time it is where Leases and events are dated.

use http::{HeaderMap, Request};
use jiff::Timestamp;
use jiff::fmt::rfc2822;
use kube::client::Body;

use stowage_runtime::api::Api;

/// The time by the API server's clock, to the second; by this machine's where the server does not tell it. Components
/// share the server's far more often than the machine that a person sits at.
pub async fn now(api: &Api) -> Timestamp {
    told(api).await.unwrap_or_else(Timestamp::now)
}

async fn told(api: &Api) -> Option<Timestamp> {
    let request = Request::get("/version").body(Body::empty()).ok()?;
    // Whatever the answer is, a refusal too, it has a date.
    let answer = api.client().send(request).await.ok()?;
    dated(answer.headers())
}

fn dated(headers: &HeaderMap) -> Option<Timestamp> {
    let date = headers.get(http::header::DATE)?.to_str().ok()?;
    Some(rfc2822::parse(date).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_says_what_time_it_is() {
        let mut headers = HeaderMap::new();
        assert_eq!(dated(&headers), None);
        headers.insert(http::header::DATE, "Thu, 01 Jan 2026 00:10:00 GMT".parse().unwrap());
        assert_eq!(dated(&headers), Some("2026-01-01T00:10:00Z".parse().unwrap()));
        headers.insert(http::header::DATE, "a moment ago".parse().unwrap());
        assert_eq!(dated(&headers), None);
    }
}
