//! One read of the API, and what comes of one that is refused.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail};

use stowage_model::object::{Key, Kind, Projection};
use stowage_runtime::api::{Api, Error};

use crate::explain::gathered::{Seen, Unread};

/// No more of a kind are kept: some hundred bytes each.
const MOST: usize = 50_000;

/// So many objects are got one by one: a list of their kind may be thousands.
pub const FEW: usize = 20;

/// Reads, and notes what may not be read.
pub struct Reader<'a> {
    api: &'a Api,
    pub unread: Vec<Unread>,
    /// How often it asked; a list of many pages is one.
    pub asked: usize,
}

impl<'a> Reader<'a> {
    pub fn new(api: &'a Api) -> Self {
        Self { api, unread: Vec::new(), asked: 0 }
    }

    /// The object that the whole answer is about.
    pub async fn asked_for<T: Projection>(&mut self, key: &Key) -> anyhow::Result<T> {
        let plural = T::KIND.plural;
        self.asked += 1;
        match self.api.get::<T>(key).await {
            Ok(Some(object)) => Ok(object),
            Err(error) if error.is_not_found() && !error.is_absent() => bail!(
                "the API server does not serve {} of {}; install their CustomResourceDefinitions",
                plural,
                T::KIND.api_version()
            ),
            Ok(None) => {
                let all = if T::KIND.namespaced { " -A" } else { "" };
                bail!("there is no {} {key}; `kubectl get {plural}{all}` lists them", T::KIND.kind)
            }
            Err(error) if error.is_forbidden() => Err(error)
                .with_context(|| format!("{} {key} may not be read; ask for the right to get {plural}", T::KIND.kind)),
            Err(error) => Err(error.into()),
        }
    }

    /// Adds an object to what was seen, unless it is there already.
    pub async fn find<T: Projection>(&mut self, seen: &mut Seen<T>, key: &Key) -> anyhow::Result<()> {
        if seen.look(key).there().is_some() {
            return Ok(());
        }
        self.asked += 1;
        match self.api.get::<T>(key).await {
            Ok(found) => seen.extend(found),
            Err(error) => {
                seen.is_known &= self.is_known_after::<T>(error, "get")?;
            }
        }
        Ok(())
    }

    /// As `find` for each of them; where they are many of a namespace, it is listed instead.
    pub async fn find_all<T: Projection>(&mut self, seen: &mut Seen<T>, keys: &BTreeSet<Key>) -> anyhow::Result<()> {
        let mut missing: BTreeMap<&str, BTreeSet<&Key>> = BTreeMap::new();
        for key in keys.iter().filter(|key| seen.look(key).there().is_none()) {
            missing.entry(&key.namespace).or_default().insert(key);
        }
        for (namespace, keys) in missing {
            if keys.len() > FEW {
                let found: Seen<T> = self.list(namespace, "", |one: &T| keys.contains(&one.key())).await?;
                seen.is_known &= found.is_known;
                seen.extend(found.into_all());
                continue;
            }
            for key in keys {
                self.find(seen, key).await?;
            }
        }
        Ok(())
    }

    pub async fn list<T: Projection>(
        &mut self,
        namespace: &str,
        query: &str,
        wanted: impl Fn(&T) -> bool + Send,
    ) -> anyhow::Result<Seen<T>> {
        self.asked += 1;
        match self.api.select::<T>(namespace, query, MOST, wanted).await {
            Ok(selected) => {
                if selected.unreadable > 0 {
                    self.note(T::KIND, format!("{} of them make no sense and were skipped", selected.unreadable));
                }
                if !selected.is_whole {
                    self.note(T::KIND, format!("only the first {MOST} were looked at; name a namespace with -n"));
                }
                let is_known = selected.is_whole && selected.unreadable == 0;
                Ok(Seen::new(selected.objects, is_known))
            }
            Err(error) => Ok(Seen::new(Vec::new(), self.is_known_after::<T>(error, "list")?)),
        }
    }

    /// Whether a failed read tells that there is nothing. What nobody answers ends the whole.
    fn is_known_after<T: Projection>(&mut self, error: Error, verb: &str) -> anyhow::Result<bool> {
        if error.is_forbidden() {
            let plural = T::KIND.plural;
            self.note(T::KIND, format!("forbidden: {verb} {plural} is not among your rights"));
            return Ok(false);
        }
        // A kind that is not served has no objects.
        if error.is_not_found() {
            return Ok(true);
        }
        Err(error).context("cannot read the cluster's state")
    }

    fn note(&mut self, kind: Kind, why: String) {
        let unread = Unread { kind, why };
        if !self.unread.contains(&unread) {
            self.unread.push(unread);
        }
    }
}
