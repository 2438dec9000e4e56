//! Who may do what on this server: the switch between "everyone who is known" and roles, and what both need.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::auth::{Credentials, User};
use crate::rbac::{self, Policy, Request, Rule};
use crate::server::Core;
use crate::status::Status;
use crate::store::Event;
use crate::tokens::TokenKey;

/// The part of the server that decides about callers.
#[derive(Default)]
pub(crate) struct Access {
    /// Whether roles decide; if not, everyone who is known may do everything.
    roles_decide: AtomicBool,
    /// Revision of the newest published role or binding.
    changed: AtomicU64,
    /// The compiled roles, and the value of `changed` they were read at.
    policy: Mutex<Option<(u64, Arc<Policy>)>>,
    token_key: OnceLock<TokenKey>,
    credentials: OnceLock<Arc<Credentials>>,
}

impl Access {
    pub fn roles_decide(&self) -> bool {
        self.roles_decide.load(Ordering::Acquire)
    }

    pub fn let_roles_decide(&self) {
        self.roles_decide.store(true, Ordering::Release);
    }

    /// The first key that is given stays.
    pub fn use_token_key(&self, key: TokenKey) {
        let _first = self.token_key.set(key);
    }

    /// The first credentials that are given stay.
    pub fn use_credentials(&self, credentials: Arc<Credentials>) {
        let _first = self.credentials.set(credentials);
    }

    /// Notes that an event became visible.
    pub fn saw(&self, event: &Event) {
        if event.kind.group == rbac::GROUP {
            self.changed.fetch_max(event.revision, Ordering::AcqRel);
        }
    }
}

impl Core {
    /// Why `user` may do this; nothing if it may not.
    pub fn allows(&self, user: &User, request: &Request<'_>) -> Option<String> {
        if !self.access.roles_decide() {
            return Some(String::new());
        }
        self.policy().allows(user, request).map(str::to_owned)
    }

    /// Refuses what `user` may not do.
    pub fn authorize(&self, user: &User, request: &Request<'_>) -> Result<(), Status> {
        if !self.access.roles_decide() || user.is_master() || self.policy().allows(user, request).is_some() {
            return Ok(());
        }
        Err(rbac::refuse(user, request))
    }

    /// Every rule that holds for `user` in `namespace`.
    pub fn rules_of(&self, user: &User, namespace: &str) -> Vec<Rule> {
        if self.access.roles_decide() {
            self.policy().rules_of(user, namespace)
        } else {
            Policy::default().rules_of(&User::in_process(), namespace)
        }
    }

    /// The roles and bindings as they are now.
    pub fn policy(&self) -> Arc<Policy> {
        // Read before the store is: what is compiled is then at least as new as its mark.
        let changed = self.access.changed.load(Ordering::Acquire);
        let kept = self.access.policy.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((_, policy)) = kept.filter(|(at, _)| *at == changed) {
            return policy;
        }
        let policy = Arc::new(self.read(Policy::read));
        *self.access.policy.lock().unwrap_or_else(PoisonError::into_inner) = Some((changed, policy.clone()));
        policy
    }

    /// The key that signs tokens; made from the server's own identifiers unless one was given.
    pub fn token_key(&self) -> &TokenKey {
        self.access.token_key.get_or_init(|| {
            let mut seed = [0; 32];
            seed[..16].copy_from_slice(&self.next_id().to_le_bytes());
            seed[16..].copy_from_slice(&self.next_id().to_le_bytes());
            TokenKey::from_seed(&seed)
        })
    }

    /// The user of a static token.
    pub fn static_user(&self, token: &str) -> Option<User> {
        self.access.credentials.get()?.user(token)
    }
}
