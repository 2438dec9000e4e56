//! Who has a volume that the driver made, by a fresh look at all PersistentVolumes: the read before it is deleted as nobody's.
//!
//! A look costs as much as there are volumes, so those who wait for one share the next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use serde_json::Value;
use tokio::sync::oneshot;

use stowage_model::names::VolumeHandle;
use stowage_model::object::{Projection, kinds};
use stowage_model::volume::Volume;
use stowage_runtime::api::{self, Api};

use crate::decide::has_handle;
use crate::facts::Facts;
use crate::ownership;

/// The object that has the volume, if one has.
type Holder = Option<Value>;

/// What a look found for one of those who share it; that it failed goes to all of them.
type Found = Result<Holder, Arc<api::Error>>;

/// Why it cannot be told for certain who has a volume.
#[derive(Debug, thiserror::Error)]
#[error(
    "PersistentVolume {name:?} may have the volume {handle} and cannot be read: {source}; mend or delete the object"
)]
pub struct Unreadable {
    pub name: String,
    pub handle: VolumeHandle,
    pub source: serde_json::Error,
}

#[derive(Default)]
pub struct Holders {
    /// One look at a time.
    turn: tokio::sync::Mutex<()>,
    waiting: Mutex<BTreeMap<VolumeHandle, Vec<oneshot::Sender<Found>>>>,
}

impl Holders {
    /// The object that has the volume of the driver, by a look that begins no earlier than this call.
    /// In node deployment it is of this node.
    pub async fn find(&self, api: &Api, facts: &Facts, handle: &VolumeHandle) -> Found {
        loop {
            let (sender, mut answer) = oneshot::channel();
            self.lock().entry(handle.clone()).or_default().push(sender);
            let _turn = self.turn.lock().await;
            match answer.try_recv() {
                // Whoever looked meanwhile took the question along.
                Ok(found) => return found,
                Err(oneshot::error::TryRecvError::Empty) => self.look(api, facts).await,
                // Whoever took it along was dropped over it.
                Err(oneshot::error::TryRecvError::Closed) => continue,
            }
            if let Ok(found) = answer.try_recv() {
                return found;
            }
        }
    }

    /// Looks for all who wait now.
    async fn look(&self, api: &Api, facts: &Facts) {
        let asked = std::mem::take(&mut *self.lock());
        let found = Mutex::new(BTreeMap::new());
        let count = asked.len();
        let take = |object: &Value| {
            let mut found = found.lock().expect("no code panics while holding what was found");
            for handle in asked.keys().filter(|handle| owns(object, handle, facts)) {
                found.insert(handle.clone(), object.clone());
            }
            found.len() == count
        };
        let failed = api.find_raw(kinds::VOLUME, take).await.err().map(Arc::new);
        let mut found = found.into_inner().expect("no code panics while holding what was found");
        for (handle, senders) in asked {
            let answer = match &failed {
                None => Ok(found.remove(&handle)),
                Some(error) => Err(Arc::clone(error)),
            };
            for sender in senders {
                // Whoever no longer waits was dropped with its action.
                let _ = sender.send(answer.clone());
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<VolumeHandle, Vec<oneshot::Sender<Found>>>> {
        self.waiting.lock().expect("no code panics while holding who waits")
    }
}

/// Whether the object stands for the volume. Of one that cannot be read as a whole, its source tells; where not even that can
/// be read, it may.
fn owns(object: &Value, handle: &VolumeHandle, facts: &Facts) -> bool {
    let read = |object: &Value| Volume::read(object.to_string().as_bytes()).ok();
    let may_be_here = |volume: Option<Volume>| volume.is_none_or(|volume| ownership::may_be_here(&volume, facts));
    let csi = &object["spec"]["csi"];
    if csi.is_object() {
        let has_handle = csi["driver"] == facts.driver.as_str() && csi["volumeHandle"] == handle.as_str();
        return has_handle && may_be_here(read(object));
    }
    let whole = read(object);
    match whole.clone().or_else(|| read(&source_of(object))) {
        Some(volume) => has_handle(&volume, handle, &facts.driver) && may_be_here(whole),
        None => object.to_string().contains(handle.as_str()),
    }
}

/// Only what says which volume it is.
fn source_of(object: &Value) -> Value {
    const OTHERS: [&str; 11] = [
        "capacity",
        "accessModes",
        "claimRef",
        "persistentVolumeReclaimPolicy",
        "storageClassName",
        "volumeMode",
        "mountOptions",
        "nodeAffinity",
        "volumeAttributesClassName",
        "status",
        "finalizers",
    ];
    let mut source = object.clone();
    for part in ["metadata", "spec"] {
        if let Some(fields) = source[part].as_object_mut() {
            fields.retain(|field, _| !OTHERS.contains(&field.as_str()));
        }
    }
    source.as_object_mut().and_then(|fields| fields.remove("status"));
    source
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http::{Request, Response};
    use kube::client::Body;
    use serde_json::json;

    use super::*;
    use crate::fixture::{HANDLE, VOLUME, facts, volume_json};

    fn is_owner(handle: &str, spoil: impl FnOnce(&mut Value)) -> bool {
        let mut object = volume_json();
        spoil(&mut object);
        owns(&object, &handle.into(), &facts())
    }

    #[test]
    fn an_object_has_its_volume_also_when_something_else_about_it_cannot_be_read() {
        let spoils: [fn(&mut Value); 4] = [
            |_| {},
            |object| object["spec"]["claimRef"] = "nobody".into(),
            |object| object["spec"]["capacity"]["storage"] = "much".into(),
            |object| object["metadata"]["finalizers"] = json!({ "of": "the future" }),
        ];
        for spoil in spoils {
            assert!(is_owner(HANDLE, spoil));
            assert!(!is_owner("another", spoil));
        }
        assert!(!is_owner(HANDLE, |object| object["spec"]["csi"]["driver"] = "other.example".into()));
    }

    /// What is no CSI volume is called as its object.
    #[test]
    fn an_unreadable_object_that_is_no_csi_volume_is_known_by_its_name_and_maker() {
        let host_path = |object: &mut Value| {
            object["spec"]["csi"] = Value::Null;
            object["spec"]["hostPath"] = json!({ "path": "/x" });
            object["spec"]["capacity"]["storage"] = "much".into();
        };
        assert!(is_owner(VOLUME, host_path) && !is_owner("another", host_path));
        let unreadable = |object: &mut Value| {
            host_path(object);
            object["metadata"]["annotations"] = 7.into();
        };
        assert!(is_owner(VOLUME, unreadable), "nobody can tell whose it is");
        assert!(!is_owner("another", unreadable));
    }

    /// A server with two pages of volumes, the first with one that cannot be read; says how many pages it has sent.
    fn two_pages() -> (Api, Arc<AtomicUsize>) {
        let sent = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&sent);
        let service = tower::service_fn(move |request: Request<Body>| {
            let counted = Arc::clone(&counted);
            async move {
                tokio::task::yield_now().await;
                let turn = counted.fetch_add(1, Ordering::Relaxed);
                assert!(request.uri().query().unwrap_or_default().contains("limit="), "{}", request.uri());
                let mut volume = volume_json();
                volume["metadata"]["uid"] = format!("{turn}").into();
                let is_second = request.uri().query().unwrap_or_default().contains("continue=next");
                let meta = if is_second { json!({ "resourceVersion": "9" }) } else { json!({ "continue": "next" }) };
                if !is_second {
                    volume["spec"]["csi"] = Value::Null;
                    volume["spec"]["claimRef"] = 7.into();
                }
                let list = json!({ "kind": "PersistentVolumeList", "metadata": meta, "items": [volume] });
                Ok::<_, std::io::Error>(Response::new(Body::from(list.to_string().into_bytes())))
            }
        });
        (Api::new(kube::Client::new(service, "default")), sent)
    }

    /// One unreadable object stopped every cleanup.
    #[tokio::test(start_paused = true)]
    async fn the_owner_is_found_beyond_the_first_page_and_an_object_that_cannot_be_read() {
        let (api, sent) = two_pages();
        let owner = Holders::default().find(&api, &facts(), &HANDLE.into()).await.unwrap();
        assert_eq!((owner.unwrap()["metadata"]["name"].as_str(), sent.load(Ordering::Relaxed)), (Some(VOLUME), 2));
        assert_eq!(Holders::default().find(&api, &facts(), &"nobody".into()).await.unwrap(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn who_asks_during_a_look_shares_the_next_one() {
        let ((api, sent), holders) = (two_pages(), Holders::default());
        let others = (0..15).map(|number| VolumeHandle::from(format!("h{number}")));
        let handles: Vec<VolumeHandle> = others.chain([VolumeHandle::from(HANDLE)]).collect();
        let facts = facts();
        let found = futures::future::join_all(handles.iter().map(|handle| holders.find(&api, &facts, handle))).await;
        let found: Vec<bool> = found.into_iter().map(|owner| owner.unwrap().is_some()).collect();
        assert_eq!(found.iter().position(|is_found| *is_found), Some(15));
        assert!(sent.load(Ordering::Relaxed) <= 4, "{} pages for sixteen", sent.load(Ordering::Relaxed));
        assert!(holders.lock().is_empty());
    }

    /// They used to look again, one after the other: while lists time out, the last of sixteen waited sixteen times as long.
    #[tokio::test(start_paused = true)]
    async fn who_shared_a_look_that_failed_is_told_and_may_ask_again() {
        let turn = Arc::new(AtomicUsize::new(0));
        let service = tower::service_fn(move |_: Request<Body>| {
            let fails = turn.fetch_add(1, Ordering::Relaxed) == 1;
            async move {
                tokio::task::yield_now().await;
                let list = json!({ "metadata": {}, "items": [volume_json()] });
                let body = if fails { "{}".to_owned() } else { list.to_string() };
                Ok::<_, std::io::Error>(Response::new(Body::from(body.into_bytes())))
            }
        });
        let (api, holders) = (Api::new(kube::Client::new(service, "default")), Holders::default());
        let handles = [HANDLE, "b", "c"].map(VolumeHandle::from);
        let facts = facts();
        let find = |index: usize| holders.find(&api, &facts, &handles[index]);
        // The second takes the third's question along, and fails.
        let (first, second, third) = tokio::join!(find(0), find(1), find(2));
        assert!(first.unwrap().is_some() && second.is_err() && third.is_err());
        assert_eq!(find(2).await.unwrap(), None);
        assert!(holders.lock().is_empty());
    }
}
