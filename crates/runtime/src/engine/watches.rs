//! What a controller watches: caches, in which order they are filled, and which change wakes which keys.

use std::sync::{Arc, Weak};

use futures::future::{BoxFuture, FutureExt as _, join_all};

use stowage_model::object::Projection;

use super::Controller;
use super::serve::Setup;
use crate::cache::{Cache, Change};
use crate::watch::{self, Scope};

/// A cache to be filled: its feed, and when it is full for the first time.
struct Feed {
    run: BoxFuture<'static, ()>,
    synced: Option<BoxFuture<'static, ()>>,
}

/// The declarations of one controller.
pub struct Watches<'a, C: Controller> {
    setup: &'a Setup<C::Key>,
    controller: Weak<C>,
    /// What is listed together; a later group is listed once the earlier ones are there.
    groups: Vec<Vec<Feed>>,
}

impl<'a, C: Controller> Watches<'a, C> {
    pub(super) fn new(setup: &'a Setup<C::Key>, controller: &Arc<C>) -> Self {
        Self { setup, controller: Arc::downgrade(controller), groups: vec![Vec::new()] }
    }

    /// Caches objects of a kind; nothing is decided before they are there. `wakes` names the keys whose decision a change
    /// may alter.
    pub fn cache<T: Projection, K: IntoIterator<Item = C::Key>>(
        &mut self,
        cache: &Cache<T>,
        scope: Scope,
        wakes: impl Fn(&C, &Change<'_, T>) -> K + Send + Sync + 'static,
    ) {
        let ready = self.setup.context.readiness.handle(format!("{} {}", C::NAME, T::KIND.plural));
        let full = cache.clone();
        let synced = async move {
            full.synced().await;
            ready.ready();
        };
        self.add(cache, scope, wakes, Some(synced.boxed()));
    }

    /// The same for a kind that the server may not serve, or not yet: definitions of resources come later. It is asked
    /// for again and again, and not waited for: until [`Cache::is_synced`] nothing follows from what is not in it, and
    /// whoever rests for that reason is woken by the first list.
    pub fn optional<T: Projection, K: IntoIterator<Item = C::Key>>(
        &mut self,
        cache: &Cache<T>,
        scope: Scope,
        wakes: impl Fn(&C, &Change<'_, T>) -> K + Send + Sync + 'static,
    ) {
        self.add(cache, scope, wakes, None);
        let (controller, queue, full) = (Weak::clone(&self.controller), self.setup.queue.clone(), cache.clone());
        // What is missing from the list wakes nobody by itself.
        let listed = async move {
            full.synced().await;
            if let Some(controller) = controller.upgrade() {
                controller.keys().into_iter().for_each(|key| queue.add(key));
            }
        };
        if let Some(group) = self.groups.last_mut() {
            group.push(Feed { run: listed.boxed(), synced: None });
        }
    }

    /// What is declared from here on is listed after all that was declared before.
    pub fn then(&mut self) {
        self.groups.push(Vec::new());
    }

    fn add<T: Projection, K: IntoIterator<Item = C::Key>>(
        &mut self,
        cache: &Cache<T>,
        scope: Scope,
        wakes: impl Fn(&C, &Change<'_, T>) -> K + Send + Sync + 'static,
        synced: Option<BoxFuture<'static, ()>>,
    ) {
        // Weak, because the controller owns the caches that own this.
        let (controller, queue) = (Weak::clone(&self.controller), self.setup.queue.clone());
        cache.on_change(move |change| {
            if let Some(controller) = controller.upgrade() {
                let keys = wakes(&controller, change).into_iter();
                match change.is_reminder {
                    true => keys.for_each(|key| queue.remind(key)),
                    false => keys.for_each(|key| queue.add(key)),
                }
            }
        });
        let context = &self.setup.context;
        let run = watch::feed(context.api.clone(), cache.clone(), scope, context.random.clone());
        if let Some(group) = self.groups.last_mut() {
            group.push(Feed { run, synced });
        }
    }

    /// Begins to watch, and returns when all that must be known is.
    pub(super) async fn begin(self) {
        for group in self.groups {
            let mut filled = Vec::new();
            for feed in group {
                self.setup.spawner.spawn(feed.run);
                filled.extend(feed.synced);
            }
            join_all(filled).await;
        }
    }
}

/// For tests of controllers: from here on a change in a cache wakes its keys, and no server is asked for anything.
pub fn subscribe<C: Controller>(setup: &Setup<C::Key>, controller: &Arc<C>) {
    controller.watches(&mut Watches::new(setup, controller));
}
