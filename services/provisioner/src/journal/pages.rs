//! The Lease objects behind the journal.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard};

use serde_json::{Value, json};

use stowage_model::lease::Lease;
use stowage_model::names;
use stowage_model::object::{Key, ObjectId, kinds};
use stowage_runtime::api::{self, Api};
use stowage_runtime::backoff::Backoff;

use super::{Error, Journal, book};

/// Label of the journal's Leases; its value is the driver's name as lease names have it.
const LABEL: &str = "provisioner.stowage.dev/intents-of";

/// How often a page is written again when somebody else wrote it first or no answer came.
const TRIES: u32 = 6;

/// Between the tries of a write that got no answer.
const SILENCE: Backoff =
    Backoff { base: std::time::Duration::from_millis(200), max: std::time::Duration::from_secs(6) };

/// Reads and writes the pages of one driver's journal.
pub struct Pages {
    api: Api,
    namespace: String,
    driver: String,
    /// Whose end ends the pages that have no record, as an owner reference.
    owner: Option<Value>,
    known: Mutex<Known>,
}

/// What answers said about the Leases; no watch feeds it.
#[derive(Default)]
struct Known {
    existing: BTreeSet<usize>,
    /// Each page as our last write left it. Somebody else's write makes ours fail by its version, and it is read again.
    written: BTreeMap<usize, Value>,
}

impl Pages {
    pub fn new(api: Api, namespace: impl Into<String>, driver: &str) -> Self {
        let driver = names::sanitised(driver).to_ascii_lowercase();
        Self { api, namespace: namespace.into(), driver, owner: None, known: Mutex::default() }
    }

    /// The same, for pages that are of no use once this object is gone.
    pub fn owned_by(self, owner: Option<Value>) -> Self {
        Self { owner, ..self }
    }

    /// Lets the page go with its owner, unless it has a record: whoever comes after is to find that.
    fn own(&self, page: &mut Value) {
        let Some(owner) = &self.owner else { return };
        let annotations = page["metadata"]["annotations"].as_object();
        let is_record = |key: &String| key.starts_with(book::RECORD) || key.starts_with(book::PLACES);
        let has_record = annotations.is_some_and(|all| all.keys().any(is_record));
        page["metadata"]["ownerReferences"] = if has_record { json!([]) } else { json!([owner]) };
    }

    /// The Lease of a page.
    pub fn key(&self, page: usize) -> Key {
        Key::namespaced(&self.namespace, format!("{}-intents-{page}", self.driver))
    }

    fn page_of(&self, name: &str) -> Option<usize> {
        name.strip_prefix(&self.driver)?.strip_prefix("-intents-")?.parse().ok()
    }

    /// The pages that exist, by a fresh list.
    pub async fn list(&self) -> Result<Vec<usize>, api::Error> {
        let query = format!("labelSelector={LABEL}%3D{}", self.driver);
        let (leases, others) = self.api.list_all::<Lease>(&self.namespace, &query).await?;
        let names = leases.iter().map(|lease| lease.meta.name.as_str());
        let names = names.chain(others.iter().filter_map(|lease| lease["metadata"]["name"].as_str()));
        let pages: BTreeSet<usize> = names.filter_map(|name| self.page_of(name)).collect();
        self.lock().existing.extend(&pages);
        Ok(pages.into_iter().collect())
    }

    /// How many records the pages hold, by fresh reads.
    pub async fn count(&self) -> Result<usize, api::Error> {
        let mut records = 0;
        for page in self.list().await? {
            let id = ObjectId { kind: kinds::LEASE, key: self.key(page) };
            let lease = self.api.get_raw(&id).await?.unwrap_or_default();
            let annotations = lease["metadata"]["annotations"].as_object();
            records += annotations.map_or(0, |all| all.keys().filter(|key| key.starts_with(book::RECORD)).count());
        }
        Ok(records)
    }

    /// Whether the page was there when it was last written or listed.
    pub fn exists(&self, page: usize) -> bool {
        self.lock().existing.contains(&page)
    }

    /// Brings one page to what the book says: as our last write left it, or else read live; edited, and put back under
    /// its version.
    pub async fn write(&self, journal: &Journal, page: usize, take: bool) -> Result<book::Edit, Failure> {
        let key = self.key(page);
        let mut tries = 0;
        loop {
            let error = match self.try_write(journal, page, &key, take).await {
                Ok(edit) => return Ok(edit),
                Err(Refused::Deposed { by }) => {
                    return Err(Failure::Lost(Error::Deposed { lease: key.to_string(), by }));
                }
                Err(Refused::Api(error)) => error,
            };
            if error.is_forbidden() {
                return Err(Failure::Forbidden(error));
            }
            tries += 1;
            if !error.is_stale() || tries >= TRIES {
                return Err(Failure::Lost(Error::Write { lease: key.to_string(), reason: error.to_string() }));
            }
            tracing::debug!(lease = %key, %error, "journal page written again");
            if error.is_unanswered() {
                tokio::time::sleep(SILENCE.delay(tries)).await;
            }
        }
    }

    async fn try_write(&self, journal: &Journal, page: usize, key: &Key, take: bool) -> Result<book::Edit, Refused> {
        let id = ObjectId { kind: kinds::LEASE, key: key.clone() };
        // Taken, so that only a write that is answered brings it back.
        let written = self.lock().written.remove(&page);
        let lease = match written {
            Some(lease) => Some(lease),
            None => self.api.get_raw(&id).await?,
        };
        let (edit, lease) = match lease {
            Some(mut lease) => {
                let mut edit = journal.lock().book.edit(page, &mut lease, take);
                if let Some(by) = edit.deposed_by.take() {
                    return Err(Refused::Deposed { by });
                }
                self.own(&mut lease);
                lease["metadata"]["resourceVersion"] = self.api.put_back(&id, &lease).await?.into();
                (edit, lease)
            }
            None => {
                let (edit, body) = {
                    let book = &mut journal.lock().book;
                    let mut body = book.new_page(&key.namespace, &key.name, json!({ LABEL: self.driver }));
                    let edit = book.edit(page, &mut body, take);
                    self.own(&mut body);
                    (edit, body)
                };
                (edit, self.api.create_raw(kinds::LEASE, body).await?)
            }
        };
        let mut known = self.lock();
        known.existing.insert(page);
        known.written.insert(page, lease);
        Ok(edit)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("no code panics while holding the pages")
    }
}

/// Why one try failed.
enum Refused {
    Deposed { by: String },
    Api(api::Error),
}

impl From<api::Error> for Refused {
    fn from(error: api::Error) -> Self {
        Self::Api(error)
    }
}

impl Failure {
    /// For whoever waited for the page.
    pub fn into_error(self, pages: &Pages, page: usize) -> Error {
        match self {
            Self::Forbidden(error) => Error::Allow { lease: pages.key(page).to_string(), reason: error.to_string() },
            Self::Lost(error) => error,
        }
    }
}

/// Why a page was not written.
pub enum Failure {
    /// We lack the right.
    Forbidden(api::Error),
    /// Anything else.
    Lost(Error),
}
