//! Questions that are answered and not kept: who a token is, and who may do what.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::auth::User;
use crate::server::Shared;
use crate::status::Status;

mod access;
mod token;

pub(crate) use token::request as request_token;

/// A resource that can only be created, and whose answer is the object with its status filled in.
#[derive(Debug)]
pub(crate) struct Review {
    pub group: &'static str,
    pub version: &'static str,
    pub plural: &'static str,
    pub singular: &'static str,
    pub kind: &'static str,
    pub namespaced: bool,
}

const AUTHENTICATION: Review = Review {
    group: "authentication.k8s.io",
    version: "v1",
    plural: "tokenreviews",
    singular: "tokenreview",
    kind: "TokenReview",
    namespaced: false,
};
const AUTHORIZATION: Review = Review { group: "authorization.k8s.io", ..AUTHENTICATION };

pub(crate) static REVIEWS: &[Review] = &[
    AUTHENTICATION,
    Review { plural: "selfsubjectreviews", singular: "selfsubjectreview", kind: "SelfSubjectReview", ..AUTHENTICATION },
    Review {
        plural: "localsubjectaccessreviews",
        singular: "localsubjectaccessreview",
        kind: "LocalSubjectAccessReview",
        namespaced: true,
        ..AUTHORIZATION
    },
    Review {
        plural: "selfsubjectaccessreviews",
        singular: "selfsubjectaccessreview",
        kind: "SelfSubjectAccessReview",
        ..AUTHORIZATION
    },
    Review {
        plural: "selfsubjectrulesreviews",
        singular: "selfsubjectrulesreview",
        kind: "SelfSubjectRulesReview",
        ..AUTHORIZATION
    },
    Review {
        plural: "subjectaccessreviews",
        singular: "subjectaccessreview",
        kind: "SubjectAccessReview",
        ..AUTHORIZATION
    },
];

pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Review> {
    REVIEWS.iter().find(|r| r.group == group && r.version == version && r.plural == plural)
}

/// Answers one review, asked by `user`.
pub(crate) fn answer(
    shared: &Arc<Shared>,
    review: &Review,
    namespace: &str,
    user: &User,
    mut body: Value,
) -> Result<Value, Status> {
    let Some(members) = body.as_object_mut() else {
        return Err(Status::bad_request("the body of the request is not a JSON object"));
    };
    let api_version = format!("{}/{}", review.group, review.version);
    for (name, wanted) in [("kind", review.kind), ("apiVersion", api_version.as_str())] {
        let found = members.entry(name).or_insert_with(|| wanted.into());
        if *found != *wanted {
            return Err(Status::bad_request(format!(
                "the object provided has {name} {found}, the URL is of {wanted:?}"
            )));
        }
    }
    members.entry("metadata").or_insert_with(|| json!({"creationTimestamp": null}));
    let spec = members.get("spec").cloned().unwrap_or(Value::Null);
    let status = match review.kind {
        "TokenReview" => token::review(&shared.core, &spec)?,
        "SelfSubjectReview" => json!({"userInfo": user_info(user)}),
        "SelfSubjectAccessReview" => access::review(&shared.core, user, &spec)?,
        "SelfSubjectRulesReview" => access::rules(&shared.core, user, &spec)?,
        "LocalSubjectAccessReview" => {
            let asked = spec.pointer("/resourceAttributes/namespace").and_then(Value::as_str).unwrap_or_default();
            if asked != namespace {
                return Err(Status::bad_request(format!(
                    "spec.resourceAttributes.namespace {asked:?} is not the namespace of the request, {namespace:?}"
                )));
            }
            access::review(&shared.core, &access::subject(&spec)?, &spec)?
        }
        _ => access::review(&shared.core, &access::subject(&spec)?, &spec)?,
    };
    members.insert("status".to_owned(), status);
    Ok(body)
}

fn user_info(user: &User) -> Value {
    let mut info = json!({"username": user.name, "groups": user.groups});
    if !user.uid.is_empty() {
        info["uid"] = user.uid.as_str().into();
    }
    if !user.extra.is_empty() {
        info["extra"] = json!(user.extra);
    }
    info
}
