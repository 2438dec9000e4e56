//! What can go wrong between us and the API server, and what it means for the next step.

use std::time::Duration;

use serde::de::Error as _;

use stowage_model::object::{Key, Kind, ObjectId};

/// What kube-apiserver says of a JSON Patch that the object does not allow, and nothing besides: its `test` failed, or there
/// is nothing where it points to.
const NOT_APPLICABLE: &str = "the server rejected our request due to an error in our request";

/// A request to the Kubernetes API did not do what was asked, or did not say so.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server said no.
    #[error("{verb} {} {}: {reason} ({code}): {message}", id.kind.kind, id.key)]
    Refused {
        /// What was asked.
        verb: &'static str,
        /// Of which object.
        id: Box<ObjectId>,
        /// HTTP status code.
        code: u16,
        /// Kubernetes' machine-readable reason.
        reason: String,
        /// Kubernetes' sentence.
        message: String,
        /// How long the server asks us to wait.
        retry_after: Option<Duration>,
    },
    /// No answer came: it may or may not have been done.
    #[error("{verb} {} {}: no answer from the API server: {source}", id.kind.kind, id.key)]
    Unanswered {
        /// What was asked.
        verb: &'static str,
        /// Of which object.
        id: Box<ObjectId>,
        /// What the client saw.
        source: Box<kube::Error>,
    },
    /// The answer could not be read.
    #[error("{verb} {} {}: cannot read the answer: {source}", id.kind.kind, id.key)]
    Decode {
        /// What was asked.
        verb: &'static str,
        /// Of which object.
        id: Box<ObjectId>,
        /// Where reading stopped.
        source: serde_json::Error,
    },
    /// The request could not be built, for example because a name is no path segment.
    #[error("{verb} {} {}: cannot build the request: {source}", id.kind.kind, id.key)]
    Build {
        /// What was to be asked.
        verb: &'static str,
        /// Of which object.
        id: Box<ObjectId>,
        /// Why not.
        source: http::Error,
    },
    /// The object was not named, so nothing was asked.
    #[error("{verb} {}: it has no name", kind.kind)]
    Unnamed {
        /// What was to be asked.
        verb: &'static str,
        /// Of an object of which kind.
        kind: Kind,
    },
}

impl Error {
    pub(super) fn from_client(verb: &'static str, id: &ObjectId, source: kube::Error) -> Self {
        let id = Box::new(id.clone());
        match source {
            // Internal errors and gateway timeouts do not say whether the write was stored.
            kube::Error::Api(status) if matches!(status.code, 500 | 502 | 504) => {
                Self::Unanswered { verb, id, source: Box::new(kube::Error::Api(status)) }
            }
            kube::Error::Api(status) => {
                let seconds = status.details.as_ref().map_or(0, |details| details.retry_after_seconds);
                let throttled = matches!(status.code, 429 | 503);
                Self::Refused {
                    verb,
                    id,
                    code: status.code,
                    retry_after: throttled.then(|| Duration::from_secs(u64::from(seconds).max(1))),
                    reason: status.reason,
                    message: status.message,
                }
            }
            kube::Error::SerdeError(source) => Self::Decode { verb, id, source },
            source => Self::Unanswered { verb, id, source: Box::new(source) },
        }
    }

    pub(super) fn decode(verb: &'static str, id: &ObjectId, source: serde_json::Error) -> Self {
        Self::Decode { verb, id: Box::new(id.clone()), source }
    }

    pub(super) fn build(verb: &'static str, id: &ObjectId, source: http::Error) -> Self {
        Self::Build { verb, id: Box::new(id.clone()), source }
    }

    pub(super) fn list(kind: Kind, source: serde_json::Error) -> Self {
        Self::Decode { verb: "list", id: Box::new(ObjectId { kind, key: Key::cluster("") }), source }
    }

    pub(super) fn other_object(verb: &'static str, id: &ObjectId, found: &Key) -> Self {
        let source = serde_json::Error::custom(format!("it is about {found}"));
        Self::Decode { verb, id: Box::new(id.clone()), source }
    }

    pub(super) fn conflict(verb: &'static str, id: &ObjectId, message: &str) -> Self {
        Self::Refused {
            verb,
            id: Box::new(id.clone()),
            code: 409,
            reason: "Conflict".into(),
            message: message.into(),
            retry_after: None,
        }
    }

    /// A policy or a validation refuses with the same code and reason, but with a sentence of its own.
    pub(super) fn failed_test_is_conflict(self) -> Self {
        match self {
            Self::Refused { verb, id, code: 422, message, retry_after, .. } if message.starts_with(NOT_APPLICABLE) => {
                Self::Refused { verb, id, code: 409, reason: "Conflict".into(), message, retry_after }
            }
            other => other,
        }
    }

    fn code_and_reason(&self) -> Option<(u16, &str)> {
        match self {
            Self::Refused { code, reason, .. } => Some((*code, reason)),
            _ => None,
        }
    }

    /// What the server answered with, as HTTP has it, also where that leaves open what was done.
    pub fn code(&self) -> Option<u16> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::Unanswered { source, .. } => match &**source {
                kube::Error::Api(status) => Some(status.code),
                _ => None,
            },
            _ => None,
        }
    }

    /// There is no such object, or nothing at all at its path.
    pub fn is_not_found(&self) -> bool {
        matches!(self.code_and_reason(), Some((404, _)))
    }

    /// The API server itself says that there is no such object; a gateway's 404 proves nothing.
    pub fn is_absent(&self) -> bool {
        matches!(self.code_and_reason(), Some((404, "NotFound")))
    }

    /// Somebody else wrote first; decide again on the fresh view.
    pub fn is_conflict(&self) -> bool {
        matches!(self.code_and_reason(), Some((409, reason)) if reason != "AlreadyExists")
    }

    /// The name is taken.
    pub fn is_already_exists(&self) -> bool {
        matches!(self.code_and_reason(), Some((409, "AlreadyExists")))
    }

    /// We lack the right.
    pub fn is_forbidden(&self) -> bool {
        matches!(self.code_and_reason(), Some((403, _)))
    }

    /// The object or its namespace does not accept this, now or ever.
    pub fn is_invalid(&self) -> bool {
        matches!(self.code_and_reason(), Some((400 | 422, _)))
    }

    /// Nobody knows whether it was done.
    pub fn is_unanswered(&self) -> bool {
        matches!(self, Self::Unanswered { .. } | Self::Decode { .. })
    }

    /// What we believed about the object is not (certainly) true any more.
    pub fn is_stale(&self) -> bool {
        self.is_unanswered() || self.is_conflict() || self.is_already_exists() || self.is_not_found()
    }

    /// Whether people must hear of it: the server has answered, and it is not only that somebody else was faster.
    pub fn must_be_told(&self) -> bool {
        match self {
            Self::Refused { verb, .. } => {
                // What is being created cannot be missing itself: its namespace is.
                let is_gone = self.is_not_found() && *verb != "create";
                !(self.is_conflict() || self.is_already_exists() || is_gone)
            }
            Self::Unanswered { source, .. } => matches!(**source, kube::Error::Api(_)),
            Self::Decode { .. } | Self::Build { .. } | Self::Unnamed { .. } => true,
        }
    }

    /// The server has forgotten the revision that was asked for.
    pub fn is_expired(&self) -> bool {
        matches!(self.code_and_reason(), Some((410, _)))
    }

    /// How long the server asks us to wait before trying again.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Refused { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use stowage_model::object::{Key, kinds};

    use super::*;

    fn answered(verb: &'static str, code: u16, reason: &str) -> Error {
        let status = json!({ "status": "Failure", "code": code, "reason": reason, "message": "a webhook is down" });
        let id = ObjectId { kind: kinds::CLAIM, key: Key::namespaced("default", "c") };
        Error::from_client(verb, &id, kube::Error::Api(Box::new(serde_json::from_value(status).unwrap())))
    }

    #[test]
    fn what_the_server_says_is_told_unless_somebody_else_was_faster() {
        let told = [("patch", 500), ("patch", 502), ("create", 504), ("patch", 403), ("create", 422), ("create", 404)];
        for (verb, code) in told {
            assert!(answered(verb, code, "Whatever").must_be_told(), "{verb} {code}");
        }
        for (verb, code, reason) in [
            ("patch", 409, "Conflict"),
            ("create", 409, "AlreadyExists"),
            ("patch", 404, "NotFound"),
            ("delete", 404, "NotFound"),
        ] {
            assert!(!answered(verb, code, reason).must_be_told(), "{verb} {code}");
        }
    }

    fn of_json_patch(body: serde_json::Value) -> Error {
        let id = ObjectId { kind: kinds::VOLUME, key: Key::cluster("pv") };
        let status = Box::new(serde_json::from_value(body).unwrap());
        Error::from_client("patch", &id, kube::Error::Api(status)).failed_test_is_conflict()
    }

    /// Both bodies are as kube-apiserver's sources make them (not recorded), with code 422 and reason Invalid. Every one used to be taken for a conflict, so that
    /// nobody was told of a policy that refuses our finalizer.
    #[test]
    fn only_a_json_patch_that_does_not_apply_is_a_conflict_and_not_one_that_a_policy_refuses() {
        let failed_test = of_json_patch(json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "the server rejected our request due to an error in our request",
            "reason": "Invalid", "details": {}, "code": 422,
        }));
        assert!(failed_test.is_conflict() && !failed_test.must_be_told(), "{failed_test}");
        let denial =
            "ValidatingAdmissionPolicy 'finalizers' with binding 'finalizers' denied request: no finalizers here";
        let denied = of_json_patch(json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": format!("persistentvolumes \"pv\" is forbidden: {denial}"),
            "reason": "Invalid",
            "details": { "name": "pv", "kind": "persistentvolumes", "causes": [{ "message": denial }] },
            "code": 422,
        }));
        assert!(!denied.is_stale() && denied.is_invalid() && denied.must_be_told(), "{denied}");
        assert!(denied.to_string().contains(denial), "{denied}");
    }

    #[test]
    fn only_the_servers_own_word_makes_an_object_absent() {
        assert!(answered("get", 404, "NotFound").is_absent());
        let gateway = answered("get", 404, "");
        assert!(gateway.is_not_found() && !gateway.is_absent());
    }

    #[test]
    fn an_internal_error_leaves_open_whether_it_was_done_and_a_lost_connection_is_not_told() {
        assert!(answered("patch", 500, "InternalError").is_unanswered());
        let id = ObjectId { kind: kinds::CLAIM, key: Key::namespaced("default", "c") };
        let lost = Error::from_client("patch", &id, kube::Error::Service("connection reset".into()));
        assert!(lost.is_unanswered() && !lost.must_be_told());
    }
}
