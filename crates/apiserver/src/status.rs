//! The Kubernetes `Status` object: what every refused request is answered with.

use std::fmt::Display;

use serde::Serialize;

use crate::kind::Kind;
use crate::place::clipped;

/// A failed request, in the form every Kubernetes client understands.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Status {
    /// HTTP status code.
    pub code: u16,
    /// Machine-readable reason, empty where Kubernetes has no word for it.
    pub reason: &'static str,
    /// What went wrong, for people.
    pub message: String,
    /// What the failure is about.
    pub details: Box<Details>,
}

/// Which object and which of its fields a [`Status`] speaks of.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Details {
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// API group of its kind.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub group: &'static str,
    /// Its resource, or for invalid objects its kind.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub kind: &'static str,
    /// Its uid, where it matters.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// One entry per broken rule.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub causes: Vec<Cause>,
    /// How long a client should wait before it tries again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_after_seconds: Option<u32>,
}

/// One broken rule of a [`Status`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cause {
    /// Machine-readable reason, such as `FieldValueInvalid`.
    pub reason: &'static str,
    /// What is wrong with the field.
    pub message: String,
    /// Path of the field.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub field: String,
}

#[derive(Serialize)]
struct Wire<'a> {
    kind: &'static str,
    #[serde(rename = "apiVersion")]
    api_version: &'static str,
    metadata: serde_json::Map<String, serde_json::Value>,
    status: &'static str,
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<&'a Details>,
    code: u16,
}

impl Status {
    /// A failure with this code, reason and message and no details.
    pub fn new(code: u16, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: Box::default() }
    }

    /// 400: the request itself makes no sense.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(400, "BadRequest", message)
    }

    /// 404: there is no such object.
    pub fn not_found(kind: &Kind, name: &str) -> Self {
        Self::new(404, "NotFound", format!("{} {name:?} not found", kind.group_resource())).about(kind, name)
    }

    /// 409: an object of that name is there already.
    pub fn already_exists(kind: &Kind, name: &str) -> Self {
        Self::new(409, "AlreadyExists", format!("{} {name:?} already exists", kind.group_resource())).about(kind, name)
    }

    /// 409: the object is not, or no longer, what the caller thought.
    pub fn conflict(kind: &Kind, name: &str, why: impl std::fmt::Display) -> Self {
        let message = format!("Operation cannot be fulfilled on {} {name:?}: {why}", kind.group_resource());
        Self::new(409, "Conflict", message).about(kind, name)
    }

    /// 403: the object's state or the caller's rights do not allow it.
    pub fn forbidden(kind: &Kind, name: &str, why: impl std::fmt::Display) -> Self {
        Self::new(403, "Forbidden", format!("{} {name:?} is forbidden: {why}", kind.group_resource())).about(kind, name)
    }

    /// 405: this resource does not have that verb.
    pub fn method_not_allowed(message: impl Into<String>) -> Self {
        Self::new(405, "MethodNotAllowed", message)
    }

    /// 410: the asked revision is no longer kept; the caller must list again.
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(410, "Expired", message)
    }

    /// 415: the body's form is not one this server reads.
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(415, "UnsupportedMediaType", message)
    }

    /// 501: part of the Kubernetes API that this server does not have.
    pub fn not_implemented(message: impl Into<String>) -> Self {
        Self::new(501, "NotImplemented", message)
    }

    /// 500: the server's own fault.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(500, "InternalError", message)
    }

    /// 504: the revision is not there yet.
    pub(crate) fn too_large_revision(asked: u64, current: u64) -> Self {
        let message = format!("Too large resource version: {asked}, current: {current}");
        let mut status =
            Self::new(504, "Timeout", message).because("ResourceVersionTooLarge", "Too large resource version");
        status.details.retry_after_seconds = Some(1);
        status
    }

    /// 400: a strict write with fields that its kind does not have, or that are there twice.
    pub(crate) fn strict_decoding(kind: &Kind, sentences: &[String]) -> Self {
        Self::bad_request(format!(
            "{} in version {:?} cannot be handled as a {}: strict decoding error: {}",
            kind.kind,
            kind.api_version(),
            kind.kind,
            sentences.join(", ")
        ))
    }

    /// Says which object the failure is about.
    #[must_use]
    pub fn about(mut self, kind: &Kind, name: &str) -> Self {
        self.details.group = kind.group;
        self.details.kind = kind.plural;
        name.clone_into(&mut self.details.name);
        self
    }

    /// Adds one cause to the details.
    #[must_use]
    pub fn because(mut self, reason: &'static str, message: impl Into<String>) -> Self {
        self.details.causes.push(Cause { reason, message: message.into(), field: String::new() });
        self
    }

    /// The `Status` object as JSON.
    pub fn to_json(&self) -> Vec<u8> {
        let wire = Wire {
            kind: "Status",
            api_version: "v1",
            metadata: serde_json::Map::new(),
            status: "Failure",
            message: &self.message,
            reason: self.reason,
            details: (*self.details != Details::default()).then_some(&self.details),
            code: self.code,
        };
        serde_json::to_vec(&wire).expect("a status holds only strings and numbers")
    }
}

/// The broken rules of one object, gathered so that its author sees all of them at once; of very many, the first.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    causes: Vec<Cause>,
    written: usize,
}

/// Nobody mends more at a time, and each may show a part of the object.
const MAX_FAULTS: usize = 100;
/// Bytes of one sentence.
const MAX_SENTENCE: usize = 4 << 10;
/// Bytes of all sentences.
const MAX_SENTENCES: usize = 64 << 10;

impl Faults {
    pub fn required(&mut self, field: impl Display, detail: &str) {
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        self.push("FieldValueRequired", field, format_args!("Required value{detail}"));
    }

    pub fn invalid(&mut self, field: impl Display, value: impl Display, detail: impl Display) {
        self.push(
            "FieldValueInvalid",
            field,
            format_args!("Invalid value: {}: {detail}", clipped(value, MAX_SENTENCE)),
        );
    }

    /// A value of another type than its schema says.
    pub fn wrong_type(&mut self, field: impl Display, found: &str, detail: impl Display) {
        self.push("FieldValueTypeInvalid", field, format_args!("Invalid value: {found:?}: {detail}"));
    }

    pub fn forbidden(&mut self, field: impl Display, detail: &str) {
        self.push("FieldValueForbidden", field, format_args!("Forbidden: {detail}"));
    }

    pub fn unsupported(&mut self, field: impl Display, value: &str, supported: &[&str]) {
        let shown = |word: &&str| format!("{word:?}");
        let supported = supported.iter().take(MAX_FAULTS).map(shown).collect::<Vec<_>>().join(", ");
        let value = clipped(format_args!("{value:?}"), MAX_SENTENCE);
        let message = format_args!("Unsupported value: {value}: supported values: {supported}");
        self.push("FieldValueNotSupported", field, message);
    }

    pub fn duplicate(&mut self, field: impl Display, value: &serde_json::Value) {
        self.push("FieldValueDuplicate", field, format_args!("Duplicate value: {value}"));
    }

    pub fn not_found(&mut self, field: impl Display, value: &str) {
        self.push("FieldValueNotFound", field, format_args!("Not found: {value:?}"));
    }

    pub fn too_long(&mut self, field: impl Display, detail: &str) {
        self.push("FieldValueTooLong", field, format_args!("Too long: {detail}"));
    }

    pub fn too_many(&mut self, field: impl Display, count: usize, detail: &str) {
        self.push("FieldValueTooMany", field, format_args!("Too many: {count}: {detail}"));
    }

    pub fn is_empty(&self) -> bool {
        self.causes.is_empty()
    }

    /// Whether what else is found would not be told.
    pub fn is_full(&self) -> bool {
        self.causes.len() >= MAX_FAULTS || self.written >= MAX_SENTENCES
    }

    pub fn count(&self) -> usize {
        self.causes.len()
    }

    /// Whether a fault makes it useless to look at the object as a whole.
    pub fn has_blocking(&self) -> bool {
        const BLOCKING: [&str; 5] = [
            "FieldValueNotSupported",
            "FieldValueRequired",
            "FieldValueTooLong",
            "FieldValueTooMany",
            "FieldValueTypeInvalid",
        ];
        self.causes.iter().any(|cause| BLOCKING.contains(&cause.reason))
    }

    /// The faults as sentences.
    pub fn sentences(&self) -> impl Iterator<Item = String> {
        self.causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message))
    }

    /// Adds those of another list.
    pub fn append(&mut self, others: Self) {
        for cause in others.causes {
            self.push(cause.reason, cause.field, cause.message);
        }
    }

    /// The fields of the broken rules.
    #[cfg(test)]
    pub fn fields(&self) -> Vec<String> {
        self.causes.iter().map(|cause| cause.field.clone()).collect()
    }

    fn push(&mut self, reason: &'static str, field: impl Display, message: impl Display) {
        if self.is_full() {
            return;
        }
        let field = clipped(field, MAX_SENTENCE);
        let message = clipped(message, 2 * MAX_SENTENCE);
        self.written += field.len() + message.len();
        self.causes.push(Cause { reason, message, field });
    }

    /// Nothing if no rule was broken, else the 422 that names them all.
    pub fn into_result(self, kind: &Kind, name: &str) -> Result<(), Status> {
        if self.is_empty() {
            return Ok(());
        }
        let more = self.is_full().then(|| "and perhaps more".to_owned());
        let each: Vec<String> = self.causes.iter().map(|c| format!("{}: {}", c.field, c.message)).chain(more).collect();
        let all = if each.len() == 1 { each.concat() } else { format!("[{}]", each.join(", ")) };
        let qualified =
            if kind.group.is_empty() { kind.kind.to_owned() } else { format!("{}.{}", kind.kind, kind.group) };
        let mut status =
            Status::new(422, "Invalid", format!("{qualified} {name:?} is invalid: {all}")).about(kind, name);
        status.details.kind = kind.kind;
        status.details.causes = self.causes;
        Err(status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn very_many_faults_of_very_long_fields_make_a_status_that_can_be_sent() {
        let mut faults = Faults::default();
        let long = "x".repeat(1 << 20);
        for index in 0..100_000 {
            faults.invalid(format_args!("{long}[{index}]"), &long, &long);
        }
        let status = faults.into_result(Kind::named("Pod"), "p").unwrap_err();
        assert!(status.to_json().len() < 1 << 20 && status.message.contains("and perhaps more"));
    }
}
