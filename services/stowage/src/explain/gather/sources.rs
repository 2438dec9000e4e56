//! What new claims are filled from, and the new claims that are filled from what was deleted.

use std::collections::BTreeSet;

use stowage_model::Claim;
use stowage_model::object::{Key, kinds};

use super::reader::Reader;
use crate::explain::gathered::{Gathered, Seen, Wanted};

/// Adds the claims that the others are filled from.
pub async fn find(reader: &mut Reader<'_>, g: &mut Gathered) -> anyhow::Result<()> {
    let sources: BTreeSet<Key> = g.claims.all().iter().filter_map(|claim| source_of(g, claim)).collect();
    reader.find_all(&mut g.claims, &sources).await
}

/// Adds the claims that are filled from what was deleted, and returns their keys.
pub async fn copies(reader: &mut Reader<'_>, g: &mut Gathered, namespace: &str) -> anyhow::Result<BTreeSet<Key>> {
    let deleted = deleted(g);
    if deleted.is_empty() {
        return Ok(BTreeSet::new());
    }
    let known: BTreeSet<Key> = g.claims.all().iter().map(|claim| claim.meta.key()).collect();
    let copies = |claim: &Claim| {
        let is_of = |kind: &str, name: &str| deleted.iter().any(|one| (one.0, one.1.as_str()) == (kind, name));
        let source = claim.data_source().filter(|source| is_of(&source.kind, &source.name));
        source.is_some() && !claim.is_bind_completed() && !known.contains(&claim.meta.key())
    };
    let found: Seen<Claim> = reader.list(namespace, "", copies).await?;
    let keys = found.all().iter().map(|claim| claim.meta.key()).collect();
    g.claims.is_known &= found.is_known;
    g.claims.extend(found.into_all());
    Ok(keys)
}

/// The claim that a claim's data comes from, straight or by a snapshot that is still to be made.
fn source_of(g: &Gathered, claim: &Claim) -> Option<Key> {
    let source = claim.data_source().filter(|source| source.namespace.is_none())?;
    let key = Key::namespaced(claim.meta.namespace.as_str(), source.name.as_str());
    if source.kind == kinds::CLAIM.kind {
        return Some(key);
    }
    if source.kind != kinds::VOLUME_SNAPSHOT.kind {
        return None;
    }
    let snapshot = g.snapshots.look(&key).there().filter(|snapshot| !snapshot.is_ready())?;
    let name = snapshot.spec.source.persistent_volume_claim_name.as_deref()?;
    Some(Key::namespaced(key.namespace, name))
}

/// What is being deleted and may be held by who is filled from it: the claims, and a snapshot that was asked about.
fn deleted(g: &Gathered) -> BTreeSet<(&'static str, String)> {
    let claims = g.claims.all().iter().filter(|claim| claim.meta.is_deleting());
    let claims = claims.map(|claim| (kinds::CLAIM.kind, claim.meta.name.clone()));
    let snapshots = g.snapshots.all().iter().filter(|one| one.meta.is_deleting());
    let snapshots = snapshots.filter(|one| g.wanted == Wanted::Snapshot(one.meta.key()));
    claims.chain(snapshots.map(|one| (kinds::VOLUME_SNAPSHOT.kind, one.meta.name.clone()))).collect()
}
