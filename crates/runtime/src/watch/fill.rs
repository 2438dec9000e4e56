//! What a watch fills: a cache, behind a door that knows no type. So the protocol is compiled once, and not once for each
//! kind in each service.

use std::collections::BTreeSet;
use std::sync::Arc;

use futures::future::{BoxFuture, FutureExt as _};
use serde::Deserialize;

use stowage_model::object::{Key, Kind, Meta, Projection};

use crate::api::{self, Api};
use crate::cache::Cache;

/// A cache of objects of any kind; they come as the server sent them. One that cannot be read is reported and left
/// unknown.
pub(super) trait Fill: Send + Sync {
    fn kind(&self) -> Kind;

    /// A list that begins.
    fn list(&self) -> Box<dyn Listing + '_>;

    /// An object was added or changed; says at which revision, 0 where that cannot be read either.
    fn changed(&self, raw: &str) -> u64;

    /// An object is gone; says at which revision, 0 where that cannot be read.
    fn deleted(&self, raw: &str) -> u64;

    /// Everything up to this revision was seen.
    fn advance(&self, revision: u64);

    /// The server let a watch in, or refused one.
    fn set_followed(&self, followed: bool);

    /// Waits for an object that must be read, the next after `last`.
    fn next_unread<'a>(&'a self, last: Option<&'a Key>) -> BoxFuture<'a, Key>;

    /// The object could not be read; the others have their turn before it.
    fn read_later(&self, key: &Key);

    /// Reads an object live.
    fn refresh<'a>(&'a self, api: &'a Api, key: &'a Key) -> BoxFuture<'a, Result<(), api::Error>>;
}

/// A list on its way, page by page.
pub(super) trait Listing: Send {
    /// One more object.
    fn add(&mut self, raw: &str);

    /// That was all, at this revision.
    fn end(self: Box<Self>, revision: u64);
}

struct Listed<'a, T> {
    cache: &'a Cache<T>,
    objects: Vec<Arc<T>>,
    unreadable: BTreeSet<Key>,
}

impl<T: Projection> Listing for Listed<'_, T> {
    fn add(&mut self, raw: &str) {
        match read::<T>(raw) {
            Ok(object) => self.objects.push(self.cache.kept(object)),
            Err(Some(meta)) => _ = self.unreadable.insert(meta.key()),
            Err(None) => {}
        }
    }

    fn end(self: Box<Self>, revision: u64) {
        self.cache.relist_with(self.objects, self.unreadable, revision);
    }
}

impl<T: Projection> Fill for Cache<T> {
    fn kind(&self) -> Kind {
        T::KIND
    }

    fn list(&self) -> Box<dyn Listing + '_> {
        Box::new(Listed { cache: self, objects: Vec::new(), unreadable: BTreeSet::new() })
    }

    fn changed(&self, raw: &str) -> u64 {
        match read::<T>(raw) {
            Ok(object) => {
                let revision = object.meta().revision;
                self.watched(object);
                revision
            }
            Err(Some(meta)) => {
                self.mark_unreadable(meta.key());
                Cache::advance(self, meta.revision);
                meta.revision
            }
            Err(None) => 0,
        }
    }

    fn deleted(&self, raw: &str) -> u64 {
        // To end an object its metadata is enough.
        let meta = read::<T>(raw).map(|object| Box::new(object.meta().clone())).map_or_else(|meta| meta, Some);
        meta.map_or(0, |meta| {
            self.watched_deletion(&meta);
            meta.revision
        })
    }

    fn advance(&self, revision: u64) {
        Cache::advance(self, revision);
    }

    fn set_followed(&self, followed: bool) {
        Cache::set_followed(self, followed);
    }

    fn next_unread<'a>(&'a self, last: Option<&'a Key>) -> BoxFuture<'a, Key> {
        Cache::next_unread(self, last).boxed()
    }

    fn read_later(&self, key: &Key) {
        Cache::read_later(self, key);
    }

    fn refresh<'a>(&'a self, api: &'a Api, key: &'a Key) -> BoxFuture<'a, Result<(), api::Error>> {
        async move { api.refresh(self, key).await.map(drop) }.boxed()
    }
}

/// The object, or at least its metadata, or nothing.
fn read<T: Projection>(raw: &str) -> Result<T, Option<Box<Meta>>> {
    T::read(raw.as_bytes()).map_err(|error| unreadable(T::KIND, raw, &error))
}

fn unreadable(kind: Kind, raw: &str, error: &serde_json::Error) -> Option<Box<Meta>> {
    #[derive(Deserialize)]
    struct Unreadable {
        metadata: Box<Meta>,
    }
    let meta = serde_json::from_str::<Unreadable>(raw).ok().map(|object| object.metadata);
    let name = meta.as_ref().map(|meta| meta.key().to_string()).unwrap_or_default();
    tracing::error!(kind = kind.kind, name, %error, "object cannot be read: nothing is decided about it");
    meta
}
