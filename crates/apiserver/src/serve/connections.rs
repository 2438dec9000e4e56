//! Who is connected: how many in all, from one address, by one user, and without having said who they are.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use tokio::sync::Notify;

use crate::auth::User;
use crate::http::{Level, Limits, later};
use crate::share::{Shares, Taken};
use crate::status::Status;

/// All connections; clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct Connections {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    per_address: usize,
    /// Most that have not said who they are; the others have the rest, so that neither keeps the other out.
    strangers: usize,
    known: Known,
    state: Mutex<State>,
}

/// Connections of those who said who they are: administrators and the system have some that nobody else gets.
#[derive(Debug)]
struct Known {
    masters: Shares,
    system: Shares,
    all: Shares,
}

/// Administrators and the system have so large a part of the known connections each for themselves.
const RESERVE: usize = 8;

impl Known {
    fn new(count: usize) -> Self {
        let reserve = (count / RESERVE).max(1);
        let all = Shares::new(count.saturating_sub(2 * reserve).max(1));
        Self { masters: Shares::new(reserve), system: Shares::new(reserve), all }
    }

    fn take(&self, user: &User) -> Option<Taken> {
        let level = Level::of_user(user);
        let holder = Arc::from(user.name.as_str());
        let reserve = match level {
            Level::Masters => self.masters.take(&holder, 1, level.claim()),
            Level::System => self.system.take(&holder, 1, level.claim()),
            Level::LeaderElection | Level::Workload => None,
        };
        reserve.or_else(|| self.all.take(&holder, 1, level.claim()))
    }
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    by_address: BTreeMap<IpAddr, usize>,
    /// Those who have not said who they are; the oldest first.
    strangers: BTreeMap<u64, Stranger>,
}

#[derive(Debug)]
struct Stranger {
    address: IpAddr,
    leave: Arc<Notify>,
}

impl Connections {
    pub fn new(limits: &Limits) -> Self {
        let strangers = (limits.connections / 2).max(1);
        let known = Known::new(limits.connections.saturating_sub(strangers));
        let per_address = limits.connections_per_address;
        Self { inner: Arc::new(Inner { per_address, strangers, known, state: Mutex::default() }) }
    }

    /// Lets somebody in, if need be in the place of the one who has longest not said who they are.
    ///
    /// Nothing if there is no such one: then all who are there are known.
    pub fn admit(&self, address: IpAddr) -> Option<Visitor> {
        let mut state = self.inner.lock();
        if state.by_address.get(&address).is_some_and(|count| *count >= self.inner.per_address) {
            state.send_away(|stranger| stranger.address == address)?;
        }
        if state.strangers.len() >= self.inner.strangers {
            state.send_away(|_| true)?;
        }
        let id = state.next;
        state.next += 1;
        *state.by_address.entry(address).or_default() += 1;
        let leave = Arc::new(Notify::new());
        state.strangers.insert(id, Stranger { address, leave: leave.clone() });
        Some(Visitor { connections: self.clone(), id, address, leave, known: OnceLock::new() })
    }

    /// Makes half of those who have not said who they are leave, the older half, and says how many.
    pub fn make_room(&self) -> usize {
        let mut state = self.inner.lock();
        let many = state.strangers.len().div_ceil(2);
        (0..many).filter_map(|_| state.send_away(|_| true)).count()
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Tells the oldest stranger of these to leave.
    fn send_away(&mut self, which: impl Fn(&Stranger) -> bool) -> Option<()> {
        let id = self.strangers.iter().find(|(_, stranger)| which(stranger)).map(|(id, _)| *id)?;
        let stranger = self.strangers.remove(&id)?;
        stranger.leave.notify_one();
        self.forget(stranger.address);
        Some(())
    }

    fn forget(&mut self, address: IpAddr) {
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Visitor {
    connections: Connections,
    id: u64,
    address: IpAddr,
    leave: Arc<Notify>,
    known: OnceLock<Taken>,
}

impl Visitor {
    /// Notes who it is, at the first request that says so; refuses one who has too many connections already.
    pub fn is(&self, user: &User) -> Result<(), Status> {
        if self.is_known() {
            return Ok(());
        }
        let inner = &self.connections.inner;
        let taken = inner.known.take(user).ok_or_else(later)?;
        let mut state = inner.lock();
        // Who was told to leave meanwhile leaves, and of two requests at the same time one is enough.
        if state.strangers.remove(&self.id).is_some() {
            let _first = self.known.set(taken);
        }
        Ok(())
    }

    pub fn is_known(&self) -> bool {
        self.known.get().is_some()
    }

    /// Resolves when somebody else needs the place.
    pub async fn sent_away(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Visitor {
    fn drop(&mut self) {
        let mut state = self.connections.inner.lock();
        // One who was told to leave is no longer counted.
        if state.strangers.remove(&self.id).is_some() || self.is_known() {
            state.forget(self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

    fn connections(connections: usize, connections_per_address: usize) -> Connections {
        Connections::new(&Limits { connections, connections_per_address, ..Limits::default() })
    }

    fn user(name: &str) -> User {
        User::new(name, [""; 0])
    }

    #[tokio::test]
    async fn the_oldest_stranger_makes_room_and_those_who_are_known_stay() {
        let all = connections(10, 10);
        let known = all.admit(HERE).unwrap();
        known.is(&user("a")).unwrap();
        let strangers: Vec<Visitor> = (0..5).map(|_| all.admit(HERE).unwrap()).collect();
        assert!(strangers[0].sent_away().now_or_never().is_none());
        let next = all.admit(HERE).unwrap();
        assert!(strangers[0].sent_away().now_or_never().is_some());
        assert!(strangers[1].sent_away().now_or_never().is_none());
        next.is(&user("b")).unwrap();
        assert!(known.sent_away().now_or_never().is_none());
        strangers[0].is(&user("c")).unwrap();
        assert!(!strangers[0].is_known(), "who was told to leave leaves");
        drop((known, strangers, next));
        assert!(all.inner.lock().by_address.is_empty());
    }

    #[tokio::test]
    async fn when_the_system_has_no_more_to_give_the_older_half_of_the_strangers_leaves() {
        let all = connections(16, 16);
        let known = all.admit(HERE).unwrap();
        known.is(&user("a")).unwrap();
        let strangers: Vec<Visitor> = (0..5).map(|_| all.admit(HERE).unwrap()).collect();
        assert_eq!(all.make_room(), 3);
        let left = |visitor: &Visitor| visitor.sent_away().now_or_never().is_some();
        assert_eq!(strangers.iter().map(left).collect::<Vec<_>>(), [true, true, true, false, false]);
        assert!(!left(&known));
    }

    #[test]
    fn one_address_does_not_take_the_places_of_others() {
        let all = connections(8, 2);
        let known: Vec<Visitor> = (0..2).map(|_| all.admit(THERE).unwrap()).collect();
        known.iter().for_each(|visitor| visitor.is(&user("a")).unwrap());
        assert!(all.admit(THERE).is_none());
        assert!(all.admit(HERE).is_some());
    }

    #[test]
    fn one_user_with_many_connections_leaves_some_for_others() {
        let all = connections(64, 64);
        let connect = |name: &str| {
            let visitor = all.admit(HERE).unwrap();
            visitor.is(&user(name)).map(|()| visitor)
        };
        let flood: Vec<Visitor> = std::iter::from_fn(|| connect("a").ok()).collect();
        assert_eq!(flood.len(), 18);
        assert!(connect("b").is_ok());
        let more: Vec<Visitor> = (0..10)
            .flat_map(|n| std::iter::from_fn(move || Some(n)).take(32))
            .filter_map(|n| connect(&n.to_string()).ok())
            .collect();
        assert!(connect("another").is_err(), "{}", more.len());
        for user in [User::new("admin", ["system:masters"]), user("system:node:n1")] {
            let kept: Vec<Visitor> = (0..3).map(|_| all.admit(HERE).unwrap()).collect();
            kept.iter().for_each(|visitor| visitor.is(&user).unwrap());
        }
    }
}
