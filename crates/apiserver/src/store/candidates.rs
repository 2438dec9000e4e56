//! Lists in two steps: what may be selected is taken from the store, and selected beside it, as reading objects takes long.

use std::sync::Arc;

use super::{Page, Query, Store};
use crate::kind::Kind;
use crate::object::{Key, Object};
use crate::status::Status;

/// The objects of a list before those with the wrong content are left out.
#[derive(Debug)]
pub(crate) struct Candidates {
    revision: u64,
    objects: Vec<(Key, Arc<Object>)>,
    /// Selected objects beyond the page, where keys alone tell.
    beyond: usize,
}

impl Store {
    /// What a list of a kind may have on its page.
    pub(crate) fn candidates(&self, kind: &Kind, query: &Query) -> Result<Candidates, Status> {
        let continued = query.after.as_ref().map(|(revision, _)| *revision);
        let revision = continued.or(query.at).unwrap_or(self.published);
        let mut found = Candidates { revision, objects: Vec::new(), beyond: 0 };
        let Some(table) = self.table(kind) else { return Ok(found) };
        if revision < table.compacted && continued.is_none() {
            return Err(Status::expired(format!("The resourceVersion for the provided list is too old: {revision}")));
        }
        if revision < table.compacted {
            return Err(Status::expired(
                "the provided continue parameter is too old to display a consistent list result; start a new list \
                 without the continue parameter",
            ));
        }
        if revision > self.published {
            return Err(Status::bad_request("the continue parameter is of a revision that does not exist yet"));
        }
        let by_key = query.selector.is_of_keys();
        let limit = query.limit.filter(|_| by_key).unwrap_or(usize::MAX);
        let after = query.after.as_ref().map(|(_, key)| key);
        table.visit_at(&query.namespace, after, revision, |key, object| {
            if !query.selector.matches_key(key) {
                return;
            }
            if found.objects.len() < limit {
                found.objects.push((key.clone(), object.clone()));
            } else {
                found.beyond += 1;
            }
        });
        Ok(found)
    }
}

impl Candidates {
    /// The page that was asked for.
    pub fn page(self, query: &Query) -> Page {
        let mut page = Page { revision: self.revision, items: Vec::new(), rest: None };
        let limit = query.limit.unwrap_or(usize::MAX);
        let by_key = query.selector.is_of_keys();
        let mut last = None;
        let mut left = self.beyond;
        for (key, object) in self.objects {
            if !by_key && !query.selector.matches(&key, &object) {
                continue;
            }
            if page.items.len() < limit {
                page.items.push(object);
                last = Some(key);
            } else {
                left += 1;
            }
        }
        page.rest = last.filter(|_| left > 0).map(|key| (key, left));
        page
    }
}
