//! Service-account tokens: JSON web tokens that this server signs and checks itself.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::{SignedDuration, Timestamp};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::auth::User;
use crate::kind::Kind;
use crate::object::text;
use crate::server::Core;

/// Who issues the tokens, and the audience of those that are for this server.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The key that signs tokens. Ed25519, so that signing needs no randomness.
pub struct TokenKey(Ed25519KeyPair);

/// What a token says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Claims {
    pub iss: String,
    pub sub: String,
    pub aud: Vec<String>,
    pub iat: i64,
    pub nbf: i64,
    pub exp: i64,
    pub jti: String,
    #[serde(rename = "kubernetes.io")]
    pub bound: Bound,
}

/// What must still be there for a token to be good.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Bound {
    pub namespace: String,
    pub serviceaccount: Reference,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<Reference>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node: Option<Reference>,
}

/// One object by name and uid.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Reference {
    pub name: String,
    pub uid: String,
}

/// A good token's user and the audiences it is for.
#[derive(Debug)]
pub(crate) struct Checked {
    pub user: User,
    pub audiences: Vec<String>,
}

impl TokenKey {
    /// The key made from this secret.
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(Ed25519KeyPair::from_seed_unchecked(seed).expect("any 32 bytes are a seed"))
    }

    pub(crate) fn sign(&self, claims: &Claims) -> String {
        let header = json!({"alg": "EdDSA", "typ": "JWT", "kid": self.id()});
        let claims = serde_json::to_vec(claims).expect("claims hold only strings and numbers");
        let signed = format!("{}.{}", URL_SAFE_NO_PAD.encode(header.to_string()), URL_SAFE_NO_PAD.encode(claims));
        let signature = URL_SAFE_NO_PAD.encode(self.0.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }

    fn id(&self) -> String {
        use sha2::Digest as _;
        URL_SAFE_NO_PAD.encode(sha2::Sha256::digest(self.0.public_key()))
    }

    fn claims(&self, token: &str) -> Result<Claims, &'static str> {
        let (signed, signature) = token.rsplit_once('.').ok_or("it is not a JSON web token")?;
        let (header, claims) = signed.split_once('.').ok_or("it is not a JSON web token")?;
        let decode = |part: &str| URL_SAFE_NO_PAD.decode(part).map_err(|_| "it is not base64");
        let header: Value = serde_json::from_slice(&decode(header)?).map_err(|_| "its header is not JSON")?;
        if text(&header, "/alg") != "EdDSA" {
            return Err("it is signed in a way this server does not use");
        }
        let key = UnparsedPublicKey::new(&ED25519, self.0.public_key());
        key.verify(signed.as_bytes(), &decode(signature)?).map_err(|_| "its signature is not of this server")?;
        serde_json::from_slice(&decode(claims)?).map_err(|_| "its claims are not those of a service account")
    }

    /// Checks a token for one of `audiences` (this server's own if there are none).
    pub(crate) fn check(&self, core: &Core, token: &str, audiences: &[String]) -> Result<Checked, &'static str> {
        let claims = self.claims(token)?;
        let now = core.now().as_second();
        if claims.iss != ISSUER {
            return Err("another issuer made it");
        }
        if now >= claims.exp {
            return Err("it has expired");
        }
        if now < claims.nbf {
            return Err("it is not valid yet");
        }
        let own = [ISSUER.to_owned()];
        let wanted = if audiences.is_empty() { &own } else { audiences };
        let audiences: Vec<String> = claims.aud.iter().filter(|a| wanted.contains(a)).cloned().collect();
        if audiences.is_empty() {
            return Err("it is for another audience");
        }
        let bound = &claims.bound;
        let account = &bound.serviceaccount;
        if claims.sub != subject(&bound.namespace, &account.name) {
            return Err("its subject is not its service account");
        }
        still_there(core, "ServiceAccount", &bound.namespace, account).ok_or("its service account is gone")?;
        let others = [("Pod", &bound.pod), ("Secret", &bound.secret), ("Node", &bound.node)];
        for (kind, reference) in others {
            let namespace = if kind == "Node" { "" } else { bound.namespace.as_str() };
            // A token may name both its pod and the node the pod is on; the pod alone decides then.
            if kind == "Node" && bound.pod.is_some() {
                continue;
            }
            if let Some(reference) = reference {
                still_there(core, kind, namespace, reference).ok_or("the object it is bound to is gone")?;
            }
        }
        Ok(Checked { user: user(&claims), audiences })
    }
}

impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey(..)")
    }
}

pub(crate) fn subject(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

pub(crate) fn after(now: Timestamp, seconds: i64) -> Timestamp {
    now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX)
}

fn still_there(core: &Core, kind: &str, namespace: &str, reference: &Reference) -> Option<()> {
    let found = core.read(|store| store.get(Kind::named(kind), namespace, &reference.name)).ok()?;
    (text(&found.tree(), "/metadata/uid") == reference.uid).then_some(())
}

fn user(claims: &Claims) -> User {
    let bound = &claims.bound;
    let groups = ["system:serviceaccounts".to_owned(), format!("system:serviceaccounts:{}", bound.namespace)];
    let mut user = User::new(claims.sub.as_str(), groups);
    user.uid.clone_from(&bound.serviceaccount.uid);
    let mut extra = |name: &str, value: String| {
        user.extra.insert(format!("authentication.kubernetes.io/{name}"), vec![value]);
    };
    extra("credential-id", format!("JTI={}", claims.jti));
    for (kind, reference) in [("pod", &bound.pod), ("node", &bound.node)] {
        if let Some(reference) = reference {
            extra(&format!("{kind}-name"), reference.name.clone());
            extra(&format!("{kind}-uid"), reference.uid.clone());
        }
    }
    user
}
