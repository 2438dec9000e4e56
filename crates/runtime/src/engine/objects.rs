//! One kind of object as actions read and write it.

use std::sync::Arc;

use serde_json::Value;

use stowage_model::object::{Key, Meta, Projection};

use super::Error;
use crate::api::{Api, Part, Patch, Target};
use crate::cache::Cache;

/// One kind of object, its cache and the server behind it: what fails says of which kind it was.
pub struct Objects<'a, T> {
    api: &'a Api,
    cache: &'a Cache<T>,
}

impl<'a, T: Projection> Objects<'a, T> {
    /// The objects of this cache.
    pub fn new(api: &'a Api, cache: &'a Cache<T>) -> Self {
        Self { api, cache }
    }

    /// Reads an object afresh, whatever became of it: what to do while its view is unknown.
    pub async fn refresh(&self, key: &Key) -> Result<Option<Arc<T>>, Error> {
        self.api.refresh(self.cache, key).await.map_err(Error::read(T::KIND.kind))
    }

    /// Reads the very object that was decided on afresh, before what cannot be taken back; gone or replaced is
    /// [`Error::Stale`].
    pub async fn fresh(&self, decided: &Meta) -> Result<Arc<T>, Error> {
        let fresh = self.refresh(&decided.key()).await?;
        fresh.filter(|fresh| fresh.meta().uid == decided.uid).ok_or(Error::Stale(T::KIND.kind))
    }

    /// Patches the fields we own.
    pub async fn patch(&self, target: &Target, part: Part, patch: Patch) -> Result<Arc<T>, Error> {
        self.api.patch(self.cache, target, part, patch).await.map_err(Error::write("write the object"))
    }

    /// Merges into the status, whatever its version: for fields that have one writer.
    pub async fn merge_status(&self, meta: &Meta, body: Value) -> Result<(), Error> {
        self.patch(&Target::any_version(meta), Part::Status, Patch::Merge(body)).await.map(drop)
    }

    /// Adds a finalizer, unless it is there.
    pub async fn add_finalizer(&self, meta: &Meta, finalizer: &str) -> Result<(), Error> {
        self.change(meta, Patch::add_finalizer(meta, finalizer)).await
    }

    /// Removes a finalizer, if it is there, and leaves those of others alone.
    pub async fn remove_finalizer(&self, meta: &Meta, finalizer: &str) -> Result<(), Error> {
        self.change(meta, Patch::remove_finalizer(meta, finalizer)).await
    }

    /// Whatever its version: the patch tests for itself that the list is as it was.
    async fn change(&self, meta: &Meta, patch: Option<Patch>) -> Result<(), Error> {
        match patch {
            Some(patch) => self.patch(&Target::any_version(meta), Part::Main, patch).await.map(drop),
            None => Ok(()),
        }
    }
}
