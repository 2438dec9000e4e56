//! Looking through all objects of a kind, live and a page at a time.

use http::Method;
use serde::Deserialize;
use serde_json::Value;

use stowage_model::object::{Key, Kind, ObjectId};

use super::{Api, Error};
use crate::watch::{PAGE, escape};

#[derive(Deserialize)]
struct Page {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default)]
    items: Option<Vec<Value>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct PageMeta {
    #[serde(rename = "continue")]
    next: String,
}

impl Api {
    /// The first object that is wanted, of all namespaces and whole: the read that precedes an irreversible act on what
    /// such objects use. Raw, so that an object of which only some part cannot be read is looked at all the same.
    pub async fn find_raw(&self, kind: Kind, wanted: impl Fn(&Value) -> bool + Send) -> Result<Option<Value>, Error> {
        let id = ObjectId { kind, key: Key::cluster("") };
        let first = format!("{}?limit={PAGE}", kind.collection_path(""));
        let mut path = first.clone();
        loop {
            let page: Page = self.send_to(Method::GET, &path, &id, None, "").await?;
            if let Some(found) = page.items.into_iter().flatten().find(&wanted) {
                return Ok(Some(found));
            }
            if page.metadata.next.is_empty() {
                return Ok(None);
            }
            path = format!("{first}&continue={}", escape(&page.metadata.next));
        }
    }
}
