//! Reads what an explanation is made of: get and list only, a page at a time, and no more of a kind than fits.
//!
//! What may not be read is noted, and nothing is concluded from its absence.

mod reader;
mod sources;

use std::collections::BTreeSet;

use stowage_model::object::{Key, Kind, Projection};
use stowage_model::phase::PodPhase;
use stowage_model::{Claim, Lease, Pod, StorageCapacity, Volume, VolumeAttachment, VolumeSnapshot, names};
use stowage_runtime::api::Api;
use stowage_runtime::watch::escape;

use self::reader::Reader;
use super::diagnose::{self, lease_names};
use super::gathered::{Gathered, Seen, Wanted};
use super::told::Told;

/// Where kubelets keep their Leases: one per node, and of no use here.
const NODE_LEASES: &str = "kube-node-lease";

/// Reads what the answer needs.
pub async fn gather(api: &Api, wanted: Wanted) -> anyhow::Result<Gathered> {
    let mut reader = Reader { api, unread: Vec::new() };
    let mut gathered = Gathered::new(wanted.clone());
    match &wanted {
        Wanted::All { namespace } => all(&mut reader, &mut gathered, namespace.as_deref().unwrap_or_default()).await?,
        Wanted::Claim(key) => {
            gathered.claims.push(reader.asked_for(key).await?);
            around(&mut reader, &mut gathered, &key.namespace, BTreeSet::from([key.clone()])).await?;
        }
        Wanted::Pod(key) => {
            let pod: Pod = reader.asked_for(key).await?;
            let claims = pod.claims().collect();
            gathered.pods.push(pod);
            around(&mut reader, &mut gathered, &key.namespace, claims).await?;
        }
        Wanted::Volume(key) => {
            let volume: Volume = reader.asked_for(key).await?;
            let claim = volume.spec.claim_ref.as_ref().map(|reference| reference.key());
            gathered.volumes.push(volume);
            let namespace = claim.as_ref().map(|claim| claim.namespace.clone()).unwrap_or_default();
            around(&mut reader, &mut gathered, &namespace, claim.into_iter().collect()).await?;
        }
        Wanted::Snapshot(key) => {
            let snapshot: VolumeSnapshot = reader.asked_for(key).await?;
            let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref();
            let claim = claim.map(|name| Key::namespaced(key.namespace.as_str(), name));
            gathered.snapshots.push(snapshot);
            around(&mut reader, &mut gathered, &key.namespace, claim.into_iter().collect()).await?;
        }
    }
    gathered.unread = reader.unread;
    Ok(gathered)
}

async fn all(reader: &mut Reader<'_>, g: &mut Gathered, namespace: &str) -> anyhow::Result<()> {
    g.claims = reader.list(namespace, "", |_| true).await?;
    let matters = |pod: &Pod| pod.claims().next().is_some() || (!pod.is_terminal() && !is_at_work(pod));
    g.pods = reader.list(namespace, "", matters).await?;
    g.volumes = reader.list("", "", |_| true).await?;
    if !namespace.is_empty() {
        owners(reader, g).await?;
    }
    g.attachments = reader.list("", "", |_| true).await?;
    g.nodes = reader.list("", "", |_| true).await?;
    g.snapshots = reader.list(namespace, "", |_| true).await?;
    if !g.snapshots.all().is_empty() {
        g.contents = reader.list("", "", |_| true).await?;
        g.snapshot_classes = reader.list("", "", |_| true).await?;
    }
    of_the_cluster(reader, g).await?;
    g.leases = reader.list("", "", |lease: &Lease| lease.meta.namespace != NODE_LEASES).await?;
    let starting = |pod: &&Pod| matches!(pod.status.phase, PodPhase::Pending | PodPhase::Unknown);
    let starting: BTreeSet<Key> = g.pods.all().iter().filter(starting).map(|pod| pod.meta.key()).collect();
    // Most events of a cluster are of pods that start as they should, and would leave no room for the others.
    let matters = |told: &Told| {
        told.is_warning() || (diagnose::is_news(&told.reason) && told.pod().is_none_or(|pod| starting.contains(&pod)))
    };
    let events = if namespace.is_empty() { vec![""] } else { vec![namespace, CLUSTER_EVENTS] };
    for namespace in events {
        let found: Seen<Told> = reader.list(namespace, "", matters).await?;
        g.events.is_known &= found.is_known;
        g.events.extend(found.into_all());
    }
    Ok(())
}

/// Where events of objects without a namespace are.
const CLUSTER_EVENTS: &str = "default";

fn is_at_work(pod: &Pod) -> bool {
    pod.status.phase == PodPhase::Running && !pod.meta.is_deleting()
}

/// What claims of one namespace depend on, and who depends on them.
async fn around(
    reader: &mut Reader<'_>,
    g: &mut Gathered,
    namespace: &str,
    claims: BTreeSet<Key>,
) -> anyhow::Result<()> {
    for key in &claims {
        reader.find(&mut g.claims, key).await?;
    }
    if !namespace.is_empty() {
        let known: BTreeSet<Key> = g.pods.all().iter().map(|pod| pod.meta.key()).collect();
        let uses = |pod: &Pod| pod.claims().any(|claim| claims.contains(&claim)) && !known.contains(&pod.meta.key());
        let users: Seen<Pod> = reader.list(namespace, "", uses).await?;
        g.pods.is_known = users.is_known;
        g.pods.extend(users.into_all());
        // What else a pod waits for: a claim that was not read would be taken for one that is not there.
        let read: BTreeSet<Key> = g.claims.all().iter().map(|claim| claim.meta.key()).chain(claims).collect();
        let live = g.pods.all().iter().filter(|pod| !pod.is_terminal());
        let others: BTreeSet<Key> = live.flat_map(|pod| pod.claims()).filter(|claim| !read.contains(claim)).collect();
        for key in &others {
            reader.find(&mut g.claims, key).await?;
        }
        let snapshots: Seen<VolumeSnapshot> = reader.list(namespace, "", |_| true).await?;
        let known = g.snapshots.all().first().map(|snapshot| snapshot.meta.key());
        g.snapshots.is_known = snapshots.is_known;
        let others = snapshots.into_all().into_iter().filter(|snapshot| Some(snapshot.meta.key()) != known);
        g.snapshots.extend(others);
        sources::find(reader, g, namespace).await?;
    }
    volumes(reader, g).await?;
    owners(reader, g).await?;
    contents(reader, g).await?;
    of_the_cluster(reader, g).await?;

    let volumes: BTreeSet<String> = g.volumes.all().iter().map(|volume| volume.meta.name.clone()).collect();
    let mut nodes: BTreeSet<String> = g.pods.all().iter().map(|pod| pod.spec.node_name.clone()).collect();
    let matters = |one: &VolumeAttachment| {
        one.volume_name().is_some_and(|name| volumes.contains(name)) || nodes.contains(&one.spec.node_name)
    };
    g.attachments = reader.list("", "", matters).await?;
    if g.pods.all().iter().any(|pod| !pod.is_scheduled()) {
        g.nodes = reader.list("", "", |_| true).await?;
        // Whether there is room on nodes is told by all that is attached.
        g.attachments = reader.list("", "", |_| true).await?;
    } else {
        nodes.extend(g.attachments.all().iter().map(|one| one.spec.node_name.clone()));
        nodes.extend(g.claims.all().iter().filter_map(|claim| claim.selected_node().map(str::to_owned)));
        for node in nodes.iter().filter(|node| !node.is_empty()) {
            reader.find(&mut g.nodes, &Key::cluster(node.as_str())).await?;
        }
    }
    for name in lease_names(&g.drivers_in_play()) {
        let found: Seen<Lease> = reader.list("", &field("metadata.name", &name), |_| true).await?;
        g.leases.is_known &= found.is_known;
        g.leases.extend(found.into_all());
    }
    events(reader, g).await
}

async fn volumes(reader: &mut Reader<'_>, g: &mut Gathered) -> anyhow::Result<()> {
    let names: BTreeSet<String> = g.claims.all().iter().map(|claim| claim.spec.volume_name.clone()).collect();
    for name in names.iter().filter(|name| !name.is_empty()) {
        reader.find(&mut g.volumes, &Key::cluster(name.as_str())).await?;
    }
    if names.contains("") {
        let known: BTreeSet<String> = g.volumes.all().iter().map(|volume| volume.meta.name.clone()).collect();
        let claims = g.claims.all();
        // One that belongs to another claim is no candidate.
        let matters = |volume: &Volume| {
            let is_free = volume.spec.claim_ref.is_none() || claims.iter().any(|claim| volume.is_bound_to(claim));
            is_free && !known.contains(&volume.meta.name)
        };
        let found: Seen<Volume> = reader.list("", "", matters).await?;
        g.volumes.is_known &= found.is_known;
        g.volumes.extend(found.into_all());
    }
    Ok(())
}

/// The claims that have the volumes which others name: whether they live decides what may be done with their data.
async fn owners(reader: &mut Reader<'_>, g: &mut Gathered) -> anyhow::Result<()> {
    let named = g.claims.all().iter().filter(|claim| claim.names_volume());
    let taken = named.filter_map(|claim| {
        let volume = g.volumes.named(&claim.spec.volume_name).there().filter(|volume| !volume.is_bound_to(claim))?;
        volume.spec.claim_ref.as_ref().map(|reference| reference.key())
    });
    let owners: BTreeSet<Key> = taken.collect();
    reader.find_all(&mut g.claims, &owners).await
}

async fn contents(reader: &mut Reader<'_>, g: &mut Gathered) -> anyhow::Result<()> {
    let names: BTreeSet<String> = g
        .snapshots
        .all()
        .iter()
        .filter(|snapshot| !snapshot.is_ready() || snapshot.meta.is_deleting())
        .flat_map(|snapshot| {
            let given = snapshot.spec.source.volume_snapshot_content_name.clone();
            let bound = snapshot.bound_content().map(str::to_owned);
            let made = names::snapshot_content(&snapshot.meta.uid);
            bound.or(given).or(Some(made))
        })
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    for name in &names {
        reader.find(&mut g.contents, &Key::cluster(name.as_str())).await?;
    }
    g.snapshot_classes = reader.list("", "", |_| true).await?;
    Ok(())
}

async fn of_the_cluster(reader: &mut Reader<'_>, g: &mut Gathered) -> anyhow::Result<()> {
    g.classes = reader.list("", "", |_| true).await?;
    g.drivers = reader.list("", "", |_| true).await?;
    g.csi_nodes = reader.list("", "", |_| true).await?;
    if g.claims.all().iter().any(|claim| !claim.names_volume()) {
        let classes: BTreeSet<&str> = g.claims.all().iter().map(Claim::class_name).collect();
        let matters = |one: &StorageCapacity| classes.contains(one.storage_class_name.as_str());
        g.capacities = reader.list("", "", matters).await?;
    }
    if g.claims.all().iter().any(|claim| !claim.attributes_classes().is_empty()) {
        g.attributes_classes = reader.list("", "", |_| true).await?;
    }
    Ok(())
}

/// The events of every object that may have some to tell.
async fn events(reader: &mut Reader<'_>, g: &mut Gathered) -> anyhow::Result<()> {
    fn keys<T: Projection>(seen: &Seen<T>) -> impl Iterator<Item = (Kind, Key)> {
        seen.all().iter().map(|object| (T::KIND, object.key()))
    }
    let about: Vec<(Kind, Key)> = keys(&g.claims)
        .chain(keys(&g.pods))
        .chain(keys(&g.contents))
        .chain(keys(&g.volumes).filter(|(_, key)| is_in_play(g, key)))
        .chain(keys(&g.snapshots).filter(|(_, key)| g.snapshots.look(key).there().is_some_and(|s| !s.is_ready())))
        .collect();
    for (kind, key) in about {
        let namespace = if key.namespace.is_empty() { CLUSTER_EVENTS } else { &key.namespace };
        let query = field("involvedObject.name", &key.name);
        let found: Seen<Told> = reader.list(namespace, &query, |_| true).await?;
        g.events.is_known &= found.is_known;
        // Objects of several kinds may have the name.
        let of_kind = found.into_all().into_iter().filter(|told| told.is_of(kind));
        g.events.extend(of_kind);
    }
    Ok(())
}

/// Whether a claim has the volume, or it is what was asked about: of free ones there may be thousands.
fn is_in_play(g: &Gathered, volume: &Key) -> bool {
    g.wanted == Wanted::Volume(volume.clone())
        || g.claims.all().iter().any(|claim| claim.spec.volume_name == volume.name)
}

fn field(name: &str, value: &str) -> String {
    format!("fieldSelector={}", escape(&format!("{name}={value}")))
}
