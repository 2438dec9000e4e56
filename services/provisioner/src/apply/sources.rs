//! Holding sources, letting them go, and looking at them.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::{Value, json};

use stowage_model::attributes_class::AttributesClass;
use stowage_model::object::{Key, Projection, kinds};
use stowage_model::volume_snapshot::VolumeSnapshotContent;
use stowage_runtime::api::{self, Api, Part, Target};
use stowage_runtime::cache::Cache;
use stowage_runtime::engine::Error;
use stowage_runtime::operation::{Ended, Failure};

use crate::controller::{Controller, Key as Controlled};
use crate::decide::finalizer;
use crate::intent::{Source, SourceKind};
use crate::snapshot::{FORBIDDEN, LookedUp};
use crate::source::{Look, Origin, Restorable};

impl Controller {
    /// From now on the source stays until it is let go.
    pub async fn protect(&self, source: &Source) -> Result<(), Error> {
        let origin = source.origin();
        match self.edit_finalizers(&origin, &source.uid, add).await {
            // As the original: where the role does not let snapshots be held, they are used without.
            Err(error) if source.kind == SourceKind::Snapshot && error.is_forbidden() => {
                if !self.forbid_protecting() {
                    tracing::warn!(
                        %error,
                        "VolumeSnapshots may be deleted while volumes are made from them: allow the provisioner to update them"
                    );
                }
                Ok(())
            }
            edited => edited.map_err(Error::write("protect the source of the volume")),
        }
    }

    /// Nothing is being made from it: who reserved it has seen that no record names it.
    pub async fn unprotect(&self, origin: &Origin, uid: &str) -> Result<(), Error> {
        let edited = self.edit_finalizers(origin, uid, remove).await;
        edited.map_err(Error::write("free the source of the volumes made from it"))
    }

    /// By update and not by patch: the original's role allows no more.
    async fn edit_finalizers(&self, origin: &Origin, uid: &str, edit: Edit) -> Result<(), api::Error> {
        let target = Target { key: (*origin.key).clone(), uid: uid.to_owned(), revision: None };
        let finalizer = finalizer(origin.kind);
        match origin.kind {
            SourceKind::Claim => replace(self.api(), &self.caches.claims, &target, finalizer, edit).await,
            SourceKind::Snapshot => replace(self.api(), &self.caches.snapshots, &target, finalizer, edit).await,
        }
    }

    pub fn look(&self, origin: &Origin) -> Result<(), Error> {
        let (api, snapshots, key) = (self.api().clone(), self.caches.snapshots.clone(), (*origin.key).clone());
        let look = async move {
            match look(&api, &snapshots, &key).await {
                Ok(look) => Ended::Done(look),
                Err(error) => {
                    tracing::warn!(snapshot = %key, %error, "cannot look at the snapshot");
                    Ended::Failed(Failure { code: "ApiUnavailable".into(), message: error.to_string() })
                }
            }
        };
        self.looks.start((*origin.key).clone(), look);
        Ok(())
    }

    /// As the original: the class is read for the claim, and not watched, which the shipped role does not allow.
    pub fn look_up(&self, key: &Controlled, name: String) -> Result<(), Error> {
        let Controlled::Claim(uid) = key else { return Ok(()) };
        let (api, unserved) = (self.api().clone(), Arc::clone(&self.attributes_unserved));
        self.attributes.start(uid.clone(), async move {
            match api.get::<AttributesClass>(&Key::cluster(&name)).await {
                Ok(class) => Ended::Done(LookedUp { name, class }),
                Err(error) => {
                    let is_unserved = async || api.serves(kinds::ATTRIBUTES_CLASS).await.is_ok_and(|serves| !serves);
                    if error.is_not_found() && is_unserved().await && !unserved.swap(true, Ordering::Relaxed) {
                        tracing::warn!(
                            "the server does not serve VolumeAttributesClasses: claims get volumes without them until \
                             this process ends; with --feature-gates=VolumeAttributesClass=true they wait for them"
                        );
                    }
                    tracing::warn!(class = name, %error, "cannot read the VolumeAttributesClass");
                    let code = if error.is_forbidden() { FORBIDDEN } else { "ApiUnavailable" };
                    Ended::Failed(Failure { code: code.into(), message: error.to_string() })
                }
            }
        });
        Ok(())
    }
}

type Edit = fn(&mut Value, &str);

async fn replace<T: Projection>(
    api: &Api,
    cache: &Cache<T>,
    target: &Target,
    finalizer: &'static str,
    edit: Edit,
) -> Result<(), api::Error> {
    api.replace(cache, target, Part::Main, move |object| edit(object, finalizer)).await.map(drop)
}

/// An object that is going takes no more finalizers; the answer shows that it is.
fn add(object: &mut Value, finalizer: &str) {
    let metadata = &mut object["metadata"];
    if metadata["deletionTimestamp"].is_string() {
        return;
    }
    match metadata["finalizers"].as_array_mut() {
        Some(finalizers) if finalizers.iter().any(|present| present == finalizer) => {}
        Some(finalizers) => finalizers.push(finalizer.into()),
        None => metadata["finalizers"] = json!([finalizer]),
    }
}

fn remove(object: &mut Value, finalizer: &str) {
    if let Some(finalizers) = object["metadata"]["finalizers"].as_array_mut() {
        finalizers.retain(|present| present != finalizer);
    }
}

async fn look(api: &Api, snapshots: &Cache<Restorable>, key: &Key) -> Result<Look, api::Error> {
    let snapshot = match api.refresh(snapshots, key).await {
        // A kind that is not served has no objects either.
        Err(error) if error.is_not_found() => None,
        read => read?,
    };
    let is_ready = snapshot.as_ref().is_some_and(|snapshot| snapshot.is_ready);
    let bound_to = snapshot.and_then(|snapshot| snapshot.bound_to.as_deref().map(str::to_owned));
    let content = match &bound_to {
        Some(name) => api.get::<VolumeSnapshotContent>(&Key::cluster(name)).await?,
        None => None,
    };
    Ok(Look { bound_to, is_ready, content: content.map(Into::into) })
}
