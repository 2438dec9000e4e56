//! Who may talk to the server.

use http::HeaderMap;
use sha2::{Digest, Sha256};

use crate::status::Status;

/// The tokens that open the server.
pub struct Credentials {
    admin: String,
}

impl Credentials {
    /// One administrator with this token.
    pub fn admin(token: impl Into<String>) -> Self {
        Self { admin: token.into() }
    }

    /// Refuses a request that does not show a known token.
    pub(crate) fn check(&self, headers: &HeaderMap) -> Result<(), Status> {
        let shown = headers
            .get(http::header::AUTHORIZATION)
            .and_then(|v| v.to_str().ok())
            .and_then(|v| v.strip_prefix("Bearer ").or_else(|| v.strip_prefix("bearer ")));
        // Digests are compared, so that the time taken tells nothing about the token.
        if shown.is_some_and(|token| Sha256::digest(token.trim()) == Sha256::digest(&self.admin)) {
            return Ok(());
        }
        Err(Status::new(401, "Unauthorized", "Unauthorized"))
    }
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Credentials(..)")
    }
}
