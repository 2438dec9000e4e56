//! Reads what the server answers: the object, or its refusal with the time that it asks us to wait.

use bytes::Bytes;
use http::header::RETRY_AFTER;
use http::response::Parts;
use http_body_util::BodyExt;
use kube::client::Body;
use kube::core::Status;
use kube::core::response::StatusDetails;
use serde::de::DeserializeOwned;

pub(crate) async fn read<T: DeserializeOwned>(response: http::Response<Body>) -> Result<T, kube::Error> {
    serde_json::from_slice(&whole(response).await?).map_err(kube::Error::SerdeError)
}

/// All of the answer's body, unless it is a refusal.
pub(super) async fn whole(response: http::Response<Body>) -> Result<Bytes, kube::Error> {
    Ok(accepted(response).await?.collect().await?.to_bytes())
}

/// The answer's body, unless it is a refusal.
pub(crate) async fn accepted(response: http::Response<Body>) -> Result<Body, kube::Error> {
    let (head, body) = response.into_parts();
    if head.status.is_client_error() || head.status.is_server_error() {
        let body = body.collect().await?.to_bytes();
        return Err(kube::Error::Api(Box::new(refusal(&head, &body))));
    }
    Ok(body)
}

/// Proxies and the server's own limiter answer in plain text, and only the header says when to come again.
fn refusal(head: &Parts, body: &[u8]) -> Status {
    let mut status: Status =
        serde_json::from_slice(body).unwrap_or_else(|_| Status::failure(String::from_utf8_lossy(body).trim(), ""));
    // Others put codes of their own there.
    status.code = head.status.as_u16();
    let seconds = head.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.trim().parse().ok());
    if let Some(seconds) = seconds {
        let none = || StatusDetails {
            name: String::new(),
            group: String::new(),
            kind: String::new(),
            uid: String::new(),
            causes: Vec::new(),
            retry_after_seconds: 0,
        };
        let details = status.details.get_or_insert_with(none);
        details.retry_after_seconds = details.retry_after_seconds.max(seconds);
    }
    status
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use stowage_model::object::{Key, ObjectId, kinds};

    use super::*;
    use crate::api::Error;

    async fn refused(code: u16, wait: Option<&str>, body: String) -> Error {
        let mut response = http::Response::builder().status(code);
        if let Some(wait) = wait {
            response = response.header(RETRY_AFTER, wait);
        }
        let answer = read::<Value>(response.body(Body::from(body.into_bytes())).unwrap()).await;
        let id = ObjectId { kind: kinds::CLAIM, key: Key::namespaced("n", "c") };
        Error::from_client("patch", &id, answer.unwrap_err())
    }

    #[tokio::test]
    async fn the_time_to_wait_is_in_the_header_or_in_the_body() {
        let plain = refused(429, Some("7"), "Too many requests, please try again later.\n".into()).await;
        assert_eq!(plain.retry_after(), Some(Duration::from_secs(7)));
        assert!(plain.to_string().contains("Too many requests"), "{plain}");

        let status = json!({ "status": "Failure", "code": 503, "details": { "retryAfterSeconds": 3 } }).to_string();
        assert_eq!(refused(503, None, status).await.retry_after(), Some(Duration::from_secs(3)));
        assert_eq!(refused(429, Some("soon"), "no".into()).await.retry_after(), Some(Duration::from_secs(1)));
    }

    #[tokio::test]
    async fn a_refusal_in_a_form_that_nobody_knows_keeps_its_code() {
        assert!(refused(404, None, "{}".into()).await.is_not_found());
        assert!(refused(503, None, r#"{"code":14}"#.into()).await.retry_after().is_some());
        assert!(refused(403, None, "<html>".into()).await.is_forbidden());
    }
}
