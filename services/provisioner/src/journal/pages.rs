//! The Lease objects behind the journal.

use serde_json::{Value, json};

use stowage_model::lease::Lease;
use stowage_model::names;
use stowage_model::object::Key;
use stowage_runtime::api::{self, Api, Part, Target};
use stowage_runtime::cache::Cache;

use super::{Error, Journal, book};

/// Label of the journal's Leases; its value is the driver's name as lease names have it.
const LABEL: &str = "provisioner.stowage.dev/intents-of";

/// How often a page is written again when somebody else wrote it first or no answer came.
const TRIES: u32 = 5;

/// Reads and writes the pages of one driver's journal.
pub struct Pages {
    api: Api,
    namespace: String,
    driver: String,
    /// What our own answers said about the Leases; no watch feeds it.
    leases: Cache<Lease>,
}

impl Pages {
    pub fn new(api: Api, namespace: impl Into<String>, driver: &str) -> Self {
        let driver = names::sanitised(driver).to_ascii_lowercase();
        Self { api, namespace: namespace.into(), driver, leases: Cache::new() }
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
        let mut pages: Vec<usize> = names.filter_map(|name| self.page_of(name)).collect();
        pages.sort_unstable();
        // Only their uids matter here; the write reads them again.
        for lease in leases {
            self.leases.observe(lease);
        }
        Ok(pages)
    }

    /// Whether the page was there when it was last written or listed.
    pub fn exists(&self, page: usize) -> bool {
        self.leases.get(&self.key(page)).is_some()
    }

    /// Brings one page to what the book says: read live, edited, put back under its version.
    pub async fn write(&self, journal: &Journal, page: usize, take: bool) -> Result<book::Edit, Failure> {
        let key = self.key(page);
        let mut tries = 0;
        loop {
            let mut edit = book::Edit::default();
            let written = match self.leases.get(&key) {
                Some(lease) => {
                    let target = Target::any_version(&lease.meta);
                    let change = |lease: &mut Value| edit = journal.lock().book.edit(page, lease, take);
                    self.api.replace(&self.leases, &target, Part::Main, change).await
                }
                None => {
                    let body = {
                        let book = &mut journal.lock().book;
                        let mut body = book.new_page(&key.namespace, &key.name, json!({ LABEL: self.driver }));
                        edit = book.edit(page, &mut body, take);
                        body
                    };
                    self.api.create(&self.leases, body).await
                }
            };
            if let Some(by) = edit.deposed_by {
                return Err(Failure::Lost(Error::Deposed { lease: key.to_string(), by }));
            }
            match written {
                Ok(_) => return Ok(edit),
                Err(error) if error.is_forbidden() => return Err(Failure::Forbidden(error)),
                Err(error) if error.is_stale() && tries < TRIES => {
                    tries += 1;
                    tracing::debug!(lease = %key, %error, "journal page written again");
                }
                Err(error) => {
                    return Err(Failure::Lost(Error::Write { lease: key.to_string(), reason: error.to_string() }));
                }
            }
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
