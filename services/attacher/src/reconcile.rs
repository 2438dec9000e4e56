//! What the driver lists against what the attachments say: every `--reconcile-sync`, for drivers that can list where their
//! volumes are published. An attachment that the list contradicts is doubted, and a doubted one is attached or detached
//! once more although its status looks right.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use stowage_csi::Family;
use stowage_csi::v1::ListVolumesRequest;
use stowage_csi::v1::controller_client::ControllerClient;
use stowage_model::VolumeAttachment;
use stowage_model::migration;
use stowage_runtime::caller::{Caller, Rpc};
use stowage_runtime::operation::Failure;
use stowage_runtime::queue::Queue;

use crate::watches::{Caches, Key};

const LIST: Rpc = Rpc { path: "/csi.v1.Controller/ListVolumes", family: Family::Read };

/// A driver that never comes to the end of its list.
const MOST_PAGES: usize = 100_000;

/// The attachments that the driver contradicts, by uid.
#[derive(Clone, Default)]
pub struct Doubts(Arc<Mutex<BTreeSet<String>>>);

impl Doubts {
    pub fn contains(&self, uid: &str) -> bool {
        self.lock().contains(uid)
    }

    pub fn remove(&self, uid: &str) {
        self.lock().remove(uid);
    }

    fn lock(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.0.lock().expect("no code panics while holding the doubts")
    }
}

/// The nodes that each volume is published to, by the driver's own ids.
pub type Published = BTreeMap<String, BTreeSet<String>>;

#[derive(Clone)]
pub struct Reconciler {
    pub caller: Caller,
    pub caches: Caches,
    pub doubts: Doubts,
    pub queue: Queue<Key>,
    pub period: Duration,
    /// Entries of one page; 0 leaves it to the driver.
    pub max_entries: i32,
}

impl Reconciler {
    /// Compares until the service ends, the first time at once: what went wrong while nobody looked has waited long enough.
    pub async fn keep_comparing(self) {
        loop {
            if let Err(Failure { code, message }) = self.compare().await {
                tracing::warn!(
                    code,
                    message,
                    "cannot list where volumes are published; asking again in {:?}",
                    self.period
                );
            }
            tokio::time::sleep(self.period).await;
        }
    }

    pub async fn compare(&self) -> Result<(), Failure> {
        // What changes while the driver lists is not in its list yet: that is no contradiction.
        let before: BTreeMap<String, u64> =
            self.caches.attachments.list().iter().map(|a| (a.meta.uid.clone(), a.meta.revision)).collect();
        let published = self.list().await?;
        let attachments = self.caches.attachments.list();
        let ours = attachments.iter().filter(|attachment| self.caches.is_ours(attachment));
        let mut kept = BTreeSet::new();
        for attachment in ours {
            let meta = &attachment.meta;
            kept.insert(meta.uid.clone());
            let (Some(found), Some(key)) = (self.is_published(attachment, &published), self.caches.key_of(attachment))
            else {
                continue;
            };
            let attached = attachment.status.attached;
            if found == attached {
                self.doubts.remove(&meta.uid);
            } else if before.get(&meta.uid) == Some(&meta.revision) {
                tracing::warn!(attachment = %meta.name, attached, found, "the driver contradicts the attachment's status");
                self.doubts.lock().insert(meta.uid.clone());
                self.queue.add(key);
            }
        }
        self.doubts.lock().retain(|uid| kept.contains(uid));
        Ok(())
    }

    /// None if it cannot be said: the volume or the node's id is not known.
    fn is_published(&self, attachment: &VolumeAttachment, published: &Published) -> Option<bool> {
        // By the id that it was published under, or the one that the node has by now: a driver may know a node by both, and
        // lists it by one.
        let recorded = attachment.node_id().map(str::to_owned);
        let ids: BTreeSet<String> =
            recorded.into_iter().chain(self.caches.node_id(&attachment.spec.node_name)).collect();
        let node_id = ids.first()?;
        let handle = match attachment.volume_name() {
            Some(name) => self.caches.csi_of(name)?.volume_handle,
            None => attachment.inline_csi()?.volume_handle.clone(),
        };
        let handle = migration::repair_handle(&self.caches.driver, &handle, node_id).ok()?;
        Some(published.get(&handle).is_some_and(|nodes| !nodes.is_disjoint(&ids)))
    }

    async fn list(&self) -> Result<Published, Failure> {
        let mut published = Published::new();
        let mut starting_token = String::new();
        for _ in 0..MOST_PAGES {
            let request = ListVolumesRequest { max_entries: self.max_entries, starting_token: starting_token.clone() };
            let send = async |channel, request| ControllerClient::new(channel).list_volumes(request).await;
            let page = self.caller.call(LIST, request, send).await.map_err(|refused| refused.failure())?;
            for entry in page.entries {
                if let (Some(volume), Some(status)) = (entry.volume, entry.status) {
                    published.entry(volume.volume_id).or_default().extend(status.published_node_ids);
                }
            }
            match page.next_token {
                end if end.is_empty() => return Ok(published),
                // The same page again and again, for ever.
                again if again == starting_token => break,
                next => starting_token = next,
            }
        }
        let message = format!("ListVolumes never comes to its end: next_token stays {starting_token:?}");
        Err(Failure { code: "Internal".to_owned(), message })
    }
}
