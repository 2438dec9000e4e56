//! Tokens of pods' service accounts: asked for once, kept in memory, renewed before they end.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;
use serde_json::json;

use stowage_model::object::{Key, ObjectId, kinds};
use stowage_model::pod::Pod;
use stowage_runtime::Context;
use stowage_runtime::backoff::Backoff;

/// The kubelet renews a token when four fifths of its time are over, and at the latest after a day.
const RENEWED_AT_THE_LATEST: SignedDuration = SignedDuration::from_hours(24);

/// Between attempts to renew a token that is good for a while yet; a kubelet tries about once a minute.
const RENEWAL: Backoff = Backoff { base: Duration::from_secs(1), max: Duration::from_secs(60) };

/// What a token is asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wanted {
    /// Whom it is for; empty for the API server.
    pub audience: String,
    /// How long it should be good, in seconds; the server's default if absent.
    pub expiration_seconds: Option<i64>,
}

/// A token of a service account, bound to a pod.
#[derive(Clone, PartialEq, Eq)]
pub struct Token {
    /// The token itself.
    pub token: String,
    /// When it ends.
    pub expires_at: Timestamp,
    /// When it should be renewed.
    pub renew_at: Timestamp,
}

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Token").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}

/// Why there is no token.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused.
    #[error("token of service account {account} for audience {audience:?}: {source}")]
    Request {
        /// The service account.
        account: Key,
        /// Whom it was for.
        audience: String,
        /// What the server said.
        source: stowage_runtime::api::Error,
    },
    /// The API server's answer has no token.
    #[error("token of service account {account}: the API server's answer cannot be read: {source}")]
    Read {
        /// The service account.
        account: Key,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

#[derive(Clone)]
struct Held {
    token: Token,
    /// Attempts to renew it that failed, one after the other.
    failures: u32,
}

/// By the pod's uid, then by what was asked for.
type Kept = BTreeMap<String, BTreeMap<Wanted, Held>>;

/// The tokens of the pods of one node. They are in memory only, and gone with their pod.
#[derive(Default)]
pub struct Tokens {
    kept: Mutex<Kept>,
}

impl Tokens {
    /// A token that is good for a while yet. One that could not be renewed is given until it ends, and is to be renewed
    /// after a pause that grows.
    pub async fn get(&self, context: &Context, pod: &Pod, wanted: &Wanted) -> Result<Token, Error> {
        let now = context.clock.now();
        let kept = self.lock().get(&pod.meta.uid).and_then(|tokens| tokens.get(wanted)).cloned();
        if let Some(held) = kept.as_ref().filter(|held| now < held.token.renew_at) {
            return Ok(held.token.clone());
        }
        let held = match (request(context, pod, wanted).await, kept.filter(|held| now < held.token.expires_at)) {
            (Ok(token), _) => Held { token, failures: 0 },
            (Err(error), None) => return Err(error),
            (Err(error), Some(old)) => {
                let held = put_off(old, context);
                let Token { expires_at, renew_at, .. } = held.token;
                tracing::warn!(%error, %expires_at, %renew_at, "a token could not be renewed yet");
                held
            }
        };
        self.lock().entry(pod.meta.uid.clone()).or_default().insert(wanted.clone(), held.clone());
        Ok(held.token)
    }

    /// Drops the tokens of a pod that is gone.
    pub fn forget(&self, pod_uid: &str) {
        self.lock().remove(pod_uid);
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().expect("no code panics while holding the tokens")
    }
}

/// A token that could not be renewed just now.
fn put_off(Held { token, failures }: Held, context: &Context) -> Held {
    let failures = failures.saturating_add(1);
    let pause = context.random.jitter(RENEWAL.delay(failures), 0.2);
    let later = context.clock.now().checked_add(pause).unwrap_or(token.expires_at);
    Held { token: Token { renew_at: later.min(token.expires_at), ..token }, failures }
}

async fn request(context: &Context, pod: &Pod, wanted: &Wanted) -> Result<Token, Error> {
    #[derive(Deserialize)]
    struct Answer {
        status: Status,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Status {
        token: String,
        expiration_timestamp: Timestamp,
    }
    let account = Key::namespaced(pod.meta.namespace.as_str(), account_of(pod));
    let audiences: Vec<&str> =
        Some(wanted.audience.as_str()).filter(|audience| !audience.is_empty()).into_iter().collect();
    let body = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {
            "audiences": audiences,
            "expirationSeconds": wanted.expiration_seconds,
            "boundObjectRef": { "apiVersion": "v1", "kind": "Pod", "name": pod.meta.name, "uid": pod.meta.uid },
        },
    });
    let asked_at = context.clock.now();
    let id = ObjectId { kind: kinds::SERVICE_ACCOUNT, key: account.clone() };
    let audience = || wanted.audience.clone();
    let answer = context.api.post(&id, "token", &body).await.map_err(|source| Error::Request {
        account: account.clone(),
        audience: audience(),
        source,
    })?;
    let Answer { status } = serde_json::from_value(answer).map_err(|source| Error::Read { account, source })?;
    let lifetime = status.expiration_timestamp.duration_since(asked_at);
    let good_for = (lifetime * 4 / 5).min(RENEWED_AT_THE_LATEST);
    let renew_at = asked_at.checked_add(good_for).unwrap_or(status.expiration_timestamp);
    Ok(Token { token: status.token, expires_at: status.expiration_timestamp, renew_at })
}

/// The service account a pod acts as.
pub fn account_of(pod: &Pod) -> &str {
    match pod.spec.service_account_name.as_str() {
        "" => "default",
        name => name,
    }
}
