//! How much is worked on, held and waited for at a time, and by whom.

use std::sync::Arc;
use std::time::Duration;

use crate::auth::User;
use crate::metrics::{KindOfRequest, Metrics};
use crate::share::{Claim, Shares, Taken};
use crate::status::Status;

use super::asked::Asked;

/// What the server gives to all its clients together, and to one of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Requests that read, at a time and at each level; watches are not counted.
    pub reading: usize,
    /// Requests that change something, at a time and at each level.
    pub mutating: usize,
    /// How long a request's body, the work for it, and the client's taking of its answer may take each.
    pub request_timeout: Duration,
    /// How long somebody may be connected without having said who they are.
    pub header_timeout: Duration,
    /// HTTP/2 streams of one connection.
    pub streams_per_connection: u32,
    /// Connections in all.
    pub connections: usize,
    /// Connections from one address.
    pub connections_per_address: usize,
    /// Bytes of request bodies in all; each level has a quarter.
    pub body_bytes: usize,
    /// Bytes of answers that are not yet sent, in all; each level has a quarter, and one connection a quarter of that.
    pub unsent_bytes: usize,
    /// Watches at each level.
    pub watches: usize,
}

impl Default for Limits {
    /// Upstream's defaults, where it has them.
    fn default() -> Self {
        Self {
            reading: 400,
            mutating: 200,
            request_timeout: Duration::from_secs(60),
            header_timeout: Duration::from_secs(10),
            // Upstream's is 100, but a client of ours carries all its watches over one connection.
            streams_per_connection: 1000,
            connections: 4096,
            // A whole stack may be behind one address, so that this only leaves room for a few others.
            connections_per_address: 3072,
            body_bytes: 256 << 20,
            unsent_bytes: 256 << 20,
            // About 3 KB each.
            watches: 16_384,
        }
    }
}

/// Who competes with whom: each level has its own of everything that is scarce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Level {
    /// Administrators, who must get in to mend things.
    Masters,
    /// Nodes, the components of the control plane and what runs in kube-system.
    System,
    /// Leases of everybody else: who cannot renew one stops working.
    LeaderElection,
    /// Everything else.
    Workload,
}

impl Level {
    pub const COUNT: usize = 4;

    fn of(user: &User, asked: &Asked) -> Self {
        match Self::of_user(user) {
            Self::Workload if asked.is_about_one_lease() => Self::LeaderElection,
            level => level,
        }
    }

    /// The level of a user, whatever they ask for.
    pub fn of_user(user: &User) -> Self {
        let account = user.name.strip_prefix("system:serviceaccount:");
        let system = match account {
            Some(account) => account.starts_with("kube-system:"),
            None => user.name.starts_with("system:") && user.name != "system:anonymous",
        };
        if user.is_master() {
            Self::Masters
        } else if system {
            Self::System
        } else {
            Self::Workload
        }
    }

    /// Administrators are few and trusted; they often share one name.
    pub fn claim(self) -> Claim {
        if self == Self::Masters { Claim::All } else { Claim::Fair }
    }
}

/// Who asks, as shares know them.
#[derive(Debug, Clone)]
pub(crate) struct Asker {
    pub level: Level,
    pub name: Arc<str>,
}

impl Asker {
    pub(super) fn of(user: &User, asked: &Asked) -> Self {
        Self { level: Level::of(user, asked), name: user.name.as_str().into() }
    }
}

/// Something of which each level has as much, so that none waits for what another has; clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Pots {
    levels: [Shares; Level::COUNT],
}

impl Pots {
    /// So much for each level.
    pub fn each(amount: usize) -> Self {
        Self { levels: std::array::from_fn(|_| Shares::new(amount)) }
    }

    /// So much for all levels together.
    pub fn divided(amount: usize) -> Self {
        Self::each(amount.div_ceil(Level::COUNT))
    }

    pub fn of(&self, level: Level) -> &Shares {
        &self.levels[level as usize]
    }

    pub fn take(&self, asker: &Asker, amount: usize) -> Option<Taken> {
        self.of(asker.level).take(&asker.name, amount, asker.level.claim())
    }

    pub fn force(&self, asker: &Asker, amount: usize) -> Taken {
        self.of(asker.level).force(&asker.name, amount, asker.level.claim())
    }

    pub fn has_room(&self, asker: &Asker) -> bool {
        self.of(asker.level).has_room(&asker.name, asker.level.claim())
    }
}

/// The places that requests take: for each level some for reads and some for writes, shared fairly by its users.
#[derive(Debug, Clone)]
pub(crate) struct Places {
    reading: Pots,
    mutating: Pots,
}

/// One taken place; free again when dropped.
pub(crate) struct Place {
    _taken: Taken,
    gauge: prometheus_client::metrics::gauge::Gauge,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.gauge.dec();
    }
}

impl Places {
    pub fn new(limits: &Limits) -> Self {
        Self { reading: Pots::each(limits.reading), mutating: Pots::each(limits.mutating) }
    }

    /// Takes a place for a request, or says when to come back.
    pub(super) fn take(&self, asker: &Asker, asked: &Asked, metrics: &Metrics) -> Result<Place, Status> {
        let (pots, request_kind) =
            if asked.is_mutating() { (&self.mutating, "mutating") } else { (&self.reading, "readOnly") };
        let labels = KindOfRequest { request_kind };
        match pots.take(asker, 1) {
            Some(taken) => {
                let gauge = metrics.in_flight.get_or_create(&labels).clone();
                gauge.inc();
                Ok(Place { _taken: taken, gauge })
            }
            None => {
                metrics.rejected.get_or_create(&labels).inc();
                Err(later())
            }
        }
    }
}

/// Too much at a time; soon there will be room.
pub(crate) fn later() -> Status {
    let mut status = Status::new(429, "TooManyRequests", "Too many requests, please try again later.");
    status.details.retry_after_seconds = Some(1);
    status
}

#[cfg(test)]
mod tests {
    use http::Method;

    use crate::kind::Kinds;

    use super::super::route::Route;
    use super::*;

    const MAPS: &str = "/api/v1/namespaces/default/configmaps";
    const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases/l";

    fn asked(method: Method, path: &str) -> Asked {
        Asked::new(&method, path, None, &Route::parse(&Kinds::default(), path))
    }

    fn account(name: &str) -> User {
        User::new(format!("system:serviceaccount:{name}"), ["system:serviceaccounts"])
    }

    #[test]
    fn masters_the_system_and_leases_have_places_of_their_own() {
        let write = asked(Method::POST, MAPS);
        for (user, asked, level) in [
            (User::new("admin", ["system:masters"]), &write, Level::Masters),
            (User::new("system:kube-controller-manager", [""; 0]), &write, Level::System),
            (User::new("system:node:n1", ["system:nodes"]), &write, Level::System),
            (account("kube-system:pv-controller"), &write, Level::System),
            (account("kube-systems:me"), &write, Level::Workload),
            (account("tenant:editor"), &write, Level::Workload),
            (account("tenant:editor"), &asked(Method::PUT, LEASE), Level::LeaderElection),
            (account("tenant:editor"), &asked(Method::GET, LEASE), Level::LeaderElection),
            (account("tenant:editor"), &asked(Method::GET, LEASE.trim_end_matches("/l")), Level::Workload),
            (User::new("system:anonymous", [""; 0]), &write, Level::Workload),
        ] {
            assert_eq!(Level::of(&user, asked), level, "{} {asked:?}", user.name);
        }
    }

    #[test]
    fn one_account_that_floods_is_sent_away_and_others_go_on() {
        let places = Places::new(&Limits { reading: 8, mutating: 8, ..Limits::default() });
        let metrics = Metrics::default();
        let write = asked(Method::POST, MAPS);
        let take = |user: &User, asked: &Asked| places.take(&Asker::of(user, asked), asked, &metrics);
        let tenant = account("tenant:editor");
        let flood: Vec<Place> = std::iter::from_fn(|| take(&tenant, &write).ok()).collect();
        assert_eq!(flood.len(), 6);
        let refused = take(&tenant, &write).err().unwrap();
        assert_eq!((refused.code, refused.details.retry_after_seconds), (429, Some(1)));
        assert!(take(&account("tenant:other"), &write).is_ok());
        assert!(take(&tenant, &asked(Method::GET, MAPS)).is_ok(), "reads have places of their own");
        assert!(take(&tenant, &asked(Method::PUT, LEASE)).is_ok(), "and so have leases");
        let ten: Vec<Place> = (0..10)
            .flat_map(|n| std::iter::repeat_with(move || account(&format!("tenant:{n}"))).take(8))
            .filter_map(|user| take(&user, &write).ok())
            .collect();
        assert!(ten.len() <= 2, "{}", ten.len());
        assert!(take(&account("kube-system:controller"), &write).is_ok());
        assert!(take(&User::new("admin", ["system:masters"]), &write).is_ok());
    }
}
