//! What was told of objects.

use std::collections::BTreeSet;

use stowage_model::Pod;
use stowage_model::object::{Key, Projection, kinds};
use stowage_model::phase::PodPhase;

use super::reader::{FEW, Reader};
use crate::explain::diagnose;
use crate::explain::gathered::{Gathered, Seen, Wanted};
use crate::explain::told::Told;

/// Where events of objects without a namespace are.
const CLUSTER_EVENTS: &str = "default";

/// All that matter, of a namespace or of every one.
pub async fn all(reader: &mut Reader<'_>, g: &mut Gathered, namespace: &str) -> anyhow::Result<()> {
    let starting = starting(g);
    let matters = |told: &Told| matters(told, &starting);
    let events = if namespace.is_empty() { vec![""] } else { vec![namespace, CLUSTER_EVENTS] };
    for namespace in events {
        let found = reader.list(namespace, "", matters).await?;
        hear(g, found);
    }
    Ok(())
}

/// The events of every object that may have some to tell; where these are many, all that matter of their namespaces are
/// read at once.
pub async fn around(reader: &mut Reader<'_>, g: &mut Gathered) -> anyhow::Result<()> {
    let about = subjects(g);
    if about.len() <= FEW {
        for (kind, key) in &about {
            let query = super::field("involvedObject.name", &key.name);
            // Objects of several kinds may have the name.
            let found = reader.list(namespace_of_events(key), &query, |told: &Told| told.subject().0 == *kind).await?;
            hear(g, found);
        }
        return Ok(());
    }
    let starting = starting(g);
    let of_these = |told: &Told| {
        let (kind, namespace, name) = told.subject();
        matters(told, &starting) && about.contains(&(kind, Key::namespaced(namespace, name)))
    };
    let namespaces: BTreeSet<&str> = about.iter().map(|(_, key)| namespace_of_events(key)).collect();
    for namespace in namespaces {
        let found = reader.list(namespace, "", of_these).await?;
        hear(g, found);
    }
    Ok(())
}

fn hear(g: &mut Gathered, found: Seen<Told>) {
    g.events.is_known &= found.is_known;
    g.events.extend(found.into_all());
}

fn namespace_of_events(about: &Key) -> &str {
    if about.namespace.is_empty() { CLUSTER_EVENTS } else { &about.namespace }
}

/// The kinds and keys of the objects whose events may tell something.
fn subjects(g: &Gathered) -> BTreeSet<(&'static str, Key)> {
    fn keys<T: Projection>(seen: &Seen<T>) -> impl Iterator<Item = (&'static str, Key)> {
        seen.all().iter().map(|object| (T::KIND.kind, object.key()))
    }
    let pods = g.pods.all().iter().filter(|pod| super::is_in_the_way(g, pod));
    let touched = super::touched(g);
    let is_unready = |key: &Key| g.snapshots.look(key).there().is_some_and(|snapshot| !snapshot.is_ready());
    let snapshots = touched.into_iter().filter(is_unready);
    // Of free volumes there may be thousands.
    let bound: BTreeSet<&str> = g.claims.all().iter().map(|claim| claim.spec.volume_name.as_str()).collect();
    let is_in_play = |volume: &Key| g.wanted == Wanted::Volume(volume.clone()) || bound.contains(&*volume.name);
    keys(&g.claims)
        .chain(pods.map(|pod| (kinds::POD.kind, pod.meta.key())))
        .chain(keys(&g.contents))
        .chain(keys(&g.volumes).filter(|(_, key)| is_in_play(key)))
        .chain(snapshots.map(|key| (kinds::VOLUME_SNAPSHOT.kind, key)))
        .collect()
}

/// The pods of which more than warnings is of interest.
fn starting(g: &Gathered) -> BTreeSet<Key> {
    let starting = |pod: &&Pod| matches!(pod.status.phase, PodPhase::Pending | PodPhase::Unknown);
    g.pods.all().iter().filter(starting).map(|pod| pod.meta.key()).collect()
}

/// Most events of a cluster are of pods that start as they should, and would leave no room for the others.
fn matters(told: &Told, starting: &BTreeSet<Key>) -> bool {
    told.is_warning() || (diagnose::is_news(&told.reason) && told.pod().is_none_or(|pod| starting.contains(&pod)))
}
