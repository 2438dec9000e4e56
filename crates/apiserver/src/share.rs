//! Something scarce, shared fairly: whoever has much of it leaves room for those who have little.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// Nobody gets more once they hold this many times what is free: one alone gets three quarters, two get three sevenths
/// each, and something is left for the next one who comes.
const GREED: usize = 3;

/// A number of places or bytes, and who holds how many; clones are the same shares.
#[derive(Debug, Clone)]
pub(crate) struct Shares {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    limit: usize,
    state: Mutex<State>,
    /// Something was given back.
    freed: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// What is not free; of what was forced, only as much as its holder would have got.
    held: usize,
    by_holder: BTreeMap<Arc<str>, usize>,
}

impl State {
    fn of(&self, holder: &str) -> usize {
        self.by_holder.get(holder).copied().unwrap_or(0)
    }
}

/// How a holder is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Claim {
    /// Leaves room for others.
    Fair,
    /// May have all that is free.
    All,
}

impl Shares {
    pub fn new(limit: usize) -> Self {
        Self { inner: Arc::new(Inner { limit, state: Mutex::default(), freed: Notify::new() }) }
    }

    /// Takes `amount` for `holder`, if it is there and the holder has not had enough.
    ///
    /// Something larger than all there is gets through when nothing else is held: it could never be done otherwise.
    pub fn take(&self, holder: &Arc<str>, amount: usize, claim: Claim) -> Option<Taken> {
        let mut state = self.lock();
        let free = self.inner.limit.saturating_sub(state.held);
        let fits = amount <= free || (state.held == 0 && free > 0);
        let enough = claim == Claim::Fair && state.of(holder) >= free.saturating_mul(GREED);
        if !fits || enough {
            return None;
        }
        Some(self.hand_out(&mut state, holder, amount, amount, claim))
    }

    /// Takes `amount` that is there already, whatever the limit says.
    ///
    /// All of it counts against its holder, and against others only what the holder could have taken: nobody loses their
    /// share because somebody else is given more than theirs.
    pub fn force(&self, holder: &Arc<str>, amount: usize, claim: Claim) -> Taken {
        let mut state = self.lock();
        let free = self.inner.limit.saturating_sub(state.held);
        let fair = match claim {
            // So much that afterwards the holder has GREED times what is free.
            Claim::Fair => free.saturating_mul(GREED).saturating_sub(state.of(holder)).div_ceil(GREED + 1),
            Claim::All => free,
        };
        self.hand_out(&mut state, holder, amount, amount.min(fair), claim)
    }

    /// Resolves when `holder` may have more.
    pub async fn room(&self, holder: &str, claim: Claim) {
        loop {
            let mut freed = std::pin::pin!(self.inner.freed.notified());
            // Registered before the look, so that nothing falls between the two.
            freed.as_mut().enable();
            if self.has_room(holder, claim) {
                return;
            }
            freed.await;
        }
    }

    pub fn has_room(&self, holder: &str, claim: Claim) -> bool {
        let state = self.lock();
        let free = self.inner.limit.saturating_sub(state.held);
        free > 0 && (claim == Claim::All || state.of(holder) < free.saturating_mul(GREED))
    }

    fn hand_out(&self, state: &mut State, holder: &Arc<str>, amount: usize, counted: usize, claim: Claim) -> Taken {
        state.held += counted;
        *state.by_holder.entry(holder.clone()).or_default() += amount;
        Taken { shares: self.clone(), holder: holder.clone(), amount, counted, claim }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one holder has; given back when dropped.
#[derive(Debug)]
pub(crate) struct Taken {
    shares: Shares,
    holder: Arc<str>,
    amount: usize,
    /// The part of it that others cannot have.
    counted: usize,
    claim: Claim,
}

impl Taken {
    /// Takes so much more; false if there is not so much.
    pub fn grow(&mut self, amount: usize) -> bool {
        let Some(mut more) = self.shares.take(&self.holder, amount, self.claim) else { return false };
        self.amount += std::mem::take(&mut more.amount);
        self.counted += std::mem::take(&mut more.counted);
        true
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.shares.lock();
        state.held -= self.counted;
        let left = state.of(&self.holder) - self.amount;
        if left == 0 {
            state.by_holder.remove(&self.holder);
        } else {
            state.by_holder.insert(self.holder.clone(), left);
        }
        drop(state);
        self.shares.inner.freed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn name(name: &str) -> Arc<str> {
        name.into()
    }

    /// As many as `holder` gets.
    fn flood(shares: &Shares, holder: &str) -> Vec<Taken> {
        std::iter::from_fn(|| shares.take(&name(holder), 1, Claim::Fair)).collect()
    }

    #[test]
    fn one_who_floods_leaves_a_quarter_and_so_does_everyone_after() {
        let shares = Shares::new(200);
        let first = flood(&shares, "a");
        assert_eq!(first.len(), 150);
        assert!(shares.take(&name("b"), 1, Claim::Fair).is_some());
        let second = flood(&shares, "b");
        assert!((20..50).contains(&second.len()), "{}", second.len());
        assert!(shares.take(&name("c"), 1, Claim::Fair).is_some(), "and a third one comes in");
        drop(first);
        assert!(shares.take(&name("a"), 1, Claim::Fair).is_some());
    }

    #[test]
    fn the_last_place_goes_to_one_who_has_none() {
        let shares = Shares::new(1);
        let taken = shares.take(&name("a"), 1, Claim::Fair).unwrap();
        assert!(shares.take(&name("b"), 1, Claim::Fair).is_none());
        drop(taken);
        assert!(shares.take(&name("b"), 1, Claim::Fair).is_some());
        assert!(Shares::new(0).take(&name("a"), 1, Claim::Fair).is_none());
    }

    #[test]
    fn who_may_have_all_gets_all() {
        let shares = Shares::new(10);
        let all: Vec<Taken> = std::iter::from_fn(|| shares.take(&name("a"), 1, Claim::All)).collect();
        assert_eq!(all.len(), 10);
    }

    #[test]
    fn what_is_larger_than_everything_gets_through_alone() {
        let shares = Shares::new(10);
        let large = shares.take(&name("a"), 50, Claim::Fair).unwrap();
        assert!(shares.take(&name("b"), 1, Claim::Fair).is_none());
        drop(large);
        let small = shares.take(&name("b"), 1, Claim::Fair).unwrap();
        assert!(shares.take(&name("a"), 50, Claim::Fair).is_none());
        drop(small);
        assert!(shares.inner.state.lock().unwrap().by_holder.is_empty(), "nobody is remembered who holds nothing");
    }

    #[test]
    fn what_grows_is_given_back_as_a_whole() {
        let shares = Shares::new(100);
        let mut body = shares.take(&name("a"), 0, Claim::Fair).unwrap();
        assert!(body.grow(40) && body.grow(20));
        assert!(!body.grow(60));
        drop(body);
        let state = shares.inner.state.lock().unwrap();
        assert_eq!((state.held, state.by_holder.len()), (0, 0));
    }

    #[test]
    fn what_is_forced_on_one_or_on_many_is_not_taken_from_others() {
        let shares = Shares::new(1000);
        let mut forced = vec![shares.force(&name("a"), 5000, Claim::Fair)];
        assert!(!shares.has_room("a", Claim::Fair));
        assert!(shares.take(&name("b"), 200, Claim::Fair).is_some(), "a quarter is left");
        for holder in ["c", "d"] {
            forced.push(shares.force(&name(holder), 5000, Claim::Fair));
            assert!(!shares.has_room(holder, Claim::Fair));
        }
        assert!(shares.has_room("b", Claim::Fair), "each leaves a quarter of what it finds");
        forced.push(shares.force(&name("a"), 5000, Claim::Fair));
        assert!(shares.has_room("b", Claim::Fair), "and who has had enough takes nothing more");
        drop(forced);
        let state = shares.inner.state.lock().unwrap();
        assert_eq!((state.held, state.by_holder.len()), (0, 0));
    }

    #[tokio::test]
    async fn who_waits_for_room_gets_it_when_others_give_back() {
        let shares = Shares::new(10);
        let held = shares.take(&name("a"), 10, Claim::All);
        let mut waiting = std::pin::pin!(shares.room("b", Claim::Fair));
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(held);
        waiting.await;
    }
}
