//! Who talks to the server: tokens, client certificates, service accounts.

use std::collections::BTreeMap;

use http::HeaderMap;
use sha2::{Digest, Sha256};

use crate::server::Core;
use crate::status::Status;

pub(crate) mod certificate;
mod tokens_file;

pub use tokens_file::ReadTokens;

/// Members of this group may do everything, whatever the roles say.
pub(crate) const MASTERS: &str = "system:masters";
/// Everyone who showed who they are is in this group.
pub(crate) const AUTHENTICATED: &str = "system:authenticated";
/// Everyone else, whom only impersonation makes here.
pub(crate) const UNAUTHENTICATED: &str = "system:unauthenticated";
pub(crate) const ANONYMOUS: &str = "system:anonymous";

/// Somebody who makes requests.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct User {
    /// Name, such as `admin` or `system:serviceaccount:default:attacher`.
    pub name: String,
    /// Identifier that a later user of the same name does not have; may be empty.
    pub uid: String,
    /// Groups the user is a member of.
    pub groups: Vec<String>,
    /// What else the authenticator knows.
    pub extra: BTreeMap<String, Vec<String>>,
}

impl User {
    /// A user of these groups.
    pub fn new(name: impl Into<String>, groups: impl IntoIterator<Item = impl Into<String>>) -> Self {
        let mut groups: Vec<String> = groups.into_iter().map(Into::into).collect();
        if !groups.iter().any(|g| g == AUTHENTICATED) {
            groups.push(AUTHENTICATED.to_owned());
        }
        Self { name: name.into(), groups, ..Self::default() }
    }

    /// The program around the server.
    pub(crate) fn in_process() -> Self {
        Self::new("system:apiserver", [MASTERS])
    }

    /// Whether no role can keep this user from anything.
    pub(crate) fn is_master(&self) -> bool {
        self.groups.iter().any(|g| g == MASTERS)
    }
}

/// The tokens that open the server.
///
/// Only digests are kept, so that the time a comparison takes tells nothing about a token.
pub struct Credentials {
    users: BTreeMap<[u8; 32], User>,
}

impl Credentials {
    /// One administrator with this token.
    pub fn admin(token: impl AsRef<str>) -> Self {
        let admin = User::new("admin", [MASTERS]);
        Self { users: BTreeMap::from([(digest(token.as_ref()), admin)]) }
    }

    /// Adds the users of a static token file: lines of `token,user,uid,"group1,group2"`, as upstream reads them.
    pub fn with_tokens(mut self, file: &str) -> Result<Self, ReadTokens> {
        for (token, user) in tokens_file::parse(file)? {
            self.users.insert(digest(&token), user);
        }
        Ok(self)
    }

    /// The user of a static token.
    pub(crate) fn user(&self, token: &str) -> Option<User> {
        self.users.get(&digest(token)).cloned()
    }

    /// Who sent these headers over a connection of `peer`; nobody if there is nothing to go by.
    ///
    /// A token that is shown must be good: there is no falling back from a bad one.
    pub(crate) fn identify(
        &self,
        core: &Core,
        headers: &HeaderMap,
        peer: Option<&User>,
    ) -> Result<Option<User>, Status> {
        let Some(token) = bearer(headers)? else { return Ok(peer.cloned()) };
        if let Some(user) = self.user(token) {
            return Ok(Some(user));
        }
        match core.token_key().check(core, token, &[]) {
            Ok(checked) => Ok(Some(checked.user)),
            Err(why) => {
                tracing::debug!(%why, "a token was refused");
                Err(unauthorized())
            }
        }
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(..)")
    }
}

pub(crate) fn unauthorized() -> Status {
    Status::new(401, "Unauthorized", "Unauthorized")
}

fn digest(token: &str) -> [u8; 32] {
    Sha256::digest(token).into()
}

fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Status> {
    let Some(value) = headers.get(http::header::AUTHORIZATION) else { return Ok(None) };
    // One that cannot be read is shown all the same.
    let value = value.to_str().map_err(|_| unauthorized())?;
    let token = value.split_once(' ').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"));
    Ok(token.map(|(_, token)| token.trim()))
}
