//! Reading all objects of a kind, live and a page at a time.

use http::Method;
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;

use stowage_model::object::{Key, Kind, ObjectId, Projection};

use super::{Api, Error, parse};
use crate::watch::escape;

/// Objects per page of a list: large enough to be cheap, small enough to keep memory flat.
const PAGE: u32 = 500;

/// One page of a list, its objects as the server sent them. What only looks like an answer is no empty list: finalizers
/// go and caches are emptied because of one.
#[derive(Deserialize)]
pub(crate) struct Page {
    metadata: PageMeta,
    /// `null` where Go had none; never missing.
    #[serde(deserialize_with = "Option::deserialize")]
    items: Option<Vec<Box<RawValue>>>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PageMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    next: String,
}

impl Page {
    pub(crate) fn items(&self) -> impl Iterator<Item = &str> {
        self.items.iter().flatten().map(|item| item.get())
    }

    /// What leads to the next page, unless this is the last.
    pub(crate) fn next(&self) -> Option<&str> {
        Some(self.metadata.next.as_str()).filter(|next| !next.is_empty())
    }

    /// The revision at which the list was made.
    pub(crate) fn revision(&self) -> Option<u64> {
        self.metadata.resource_version.parse().ok()
    }
}

/// The objects of a kind that were wanted.
#[derive(Debug)]
pub struct Selected<T> {
    /// Those that were wanted, in the server's order.
    pub objects: Vec<T>,
    /// How many could not be read.
    pub unreadable: usize,
    /// Whether every object was looked at, and not only as many as were to be kept.
    pub is_whole: bool,
}

impl Api {
    /// A page of the objects in a namespace, or in all, that the query selects: the first, or what `next` leads to.
    pub(crate) async fn page(
        &self,
        kind: Kind,
        namespace: &str,
        query: &str,
        next: Option<&str>,
    ) -> Result<Page, Error> {
        let id = ObjectId { kind, key: Key::namespaced(namespace, "") };
        let mut path = format!("{}?limit={PAGE}", kind.collection_path(namespace));
        if !query.is_empty() {
            path.push('&');
            path.push_str(query);
        }
        if let Some(next) = next {
            path.push_str("&continue=");
            path.push_str(&escape(next));
        }
        parse("get", &id, &self.exchange(Method::GET, &path, &id, None, "").await?)
    }

    /// All objects of a namespace that the query selects, a page at a time: those that can be read, and the others as
    /// they are.
    pub async fn list_all<T: Projection>(&self, namespace: &str, query: &str) -> Result<(Vec<T>, Vec<Value>), Error> {
        let (mut readable, mut others) = (Vec::new(), Vec::new());
        let mut next: Option<String> = None;
        loop {
            let page = self.page(T::KIND, namespace, query, next.as_deref()).await?;
            for item in page.items() {
                match T::read(item.as_bytes()) {
                    Ok(object) => readable.push(object),
                    Err(_) => others.push(serde_json::from_str(item).map_err(|source| Error::list(T::KIND, source))?),
                }
            }
            match page.next() {
                Some(following) => next = Some(following.to_owned()),
                None => return Ok((readable, others)),
            }
        }
    }

    /// The objects of a namespace, or of all, that are wanted: a page at a time, and no more of them kept than `most`.
    pub async fn select<T: Projection>(
        &self,
        namespace: &str,
        query: &str,
        most: usize,
        wanted: impl Fn(&T) -> bool + Send,
    ) -> Result<Selected<T>, Error> {
        let mut selected = Selected { objects: Vec::new(), unreadable: 0, is_whole: false };
        let mut next: Option<String> = None;
        loop {
            let page = self.page(T::KIND, namespace, query, next.as_deref()).await?;
            for item in page.items() {
                match T::read(item.as_bytes()) {
                    Ok(object) if !wanted(&object) => {}
                    Ok(_) if selected.objects.len() == most => return Ok(selected),
                    Ok(object) => selected.objects.push(object),
                    Err(_) => selected.unreadable += 1,
                }
            }
            match page.next() {
                Some(following) => next = Some(following.to_owned()),
                None => return Ok(Selected { is_whole: true, ..selected }),
            }
        }
    }

    /// The first object that is wanted, of all namespaces and whole: the read that precedes an irreversible act on what
    /// such objects use. Raw, so that an object of which only some part cannot be read is looked at all the same.
    pub async fn find_raw(&self, kind: Kind, wanted: impl Fn(&Value) -> bool + Send) -> Result<Option<Value>, Error> {
        let mut next: Option<String> = None;
        loop {
            let page = self.page(kind, "", "", next.as_deref()).await?;
            for item in page.items() {
                let object = serde_json::from_str(item).map_err(|source| Error::list(kind, source))?;
                if wanted(&object) {
                    return Ok(Some(object));
                }
            }
            match page.next() {
                Some(following) => next = Some(following.to_owned()),
                None => return Ok(None),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_a_list_is_an_empty_one() {
        for list in [r#"{"metadata":{},"items":[]}"#, r#"{"metadata":{"resourceVersion":"7"},"items":null}"#] {
            assert_eq!(serde_json::from_str::<Page>(list).unwrap().items().count(), 0);
        }
        for other in ["{}", r#"{"metadata":{}}"#, r#"{"items":[]}"#] {
            assert!(serde_json::from_str::<Page>(other).is_err(), "{other}");
        }
        let without = serde_json::from_str::<Page>(r#"{"metadata":{},"items":[]}"#).unwrap();
        assert_eq!(without.revision(), None);
    }
}
