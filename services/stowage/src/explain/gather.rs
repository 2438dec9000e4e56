//! Reads what an explanation is made of: get and list only, a page at a time, and no more of a kind than fits.
//!
//! What may not be read is noted, and nothing is concluded from its absence.

mod events;
mod reader;
mod sources;

use std::collections::BTreeSet;

use stowage_model::object::{Key, kinds};
use stowage_model::phase::PodPhase;
use stowage_model::{Claim, Lease, Pod, StorageCapacity, Volume, VolumeAttachment, VolumeSnapshot, names};
use stowage_runtime::api::Api;
use stowage_runtime::watch::escape;

use self::reader::{FEW, Reader};
use super::diagnose::lease_names;
use super::gathered::{Gathered, Seen, Wanted};

/// Where kubelets keep their Leases: one per node, and of no use here.
const NODE_LEASES: &str = "kube-node-lease";

/// Reads what the answer needs.
pub async fn gather(api: &Api, wanted: Wanted) -> anyhow::Result<Gathered> {
    let mut reader = Reader::new(api);
    let gathered = read(&mut reader, wanted).await?;
    tracing::debug!(requests = reader.asked, "read what the answer needs");
    Ok(Gathered { unread: reader.unread, ..gathered })
}

async fn read(reader: &mut Reader<'_>, wanted: Wanted) -> anyhow::Result<Gathered> {
    let mut gathered = Gathered::new(wanted.clone());
    match &wanted {
        Wanted::All { namespace } => all(reader, &mut gathered, namespace.as_deref().unwrap_or_default()).await?,
        Wanted::Claim(key) => {
            gathered.claims.push(reader.asked_for(key).await?);
            around(reader, &mut gathered, &key.namespace, BTreeSet::from([key.clone()])).await?;
        }
        Wanted::Pod(key) => {
            let pod: Pod = reader.asked_for(key).await?;
            let claims = pod.claims().collect();
            gathered.pods.push(pod);
            around(reader, &mut gathered, &key.namespace, claims).await?;
        }
        Wanted::Volume(key) => {
            let volume: Volume = reader.asked_for(key).await?;
            let claim = volume.spec.claim_ref.as_ref().map(|reference| reference.key());
            gathered.volumes.push(volume);
            let namespace = claim.as_ref().map(|claim| claim.namespace.clone()).unwrap_or_default();
            around(reader, &mut gathered, &namespace, claim.into_iter().collect()).await?;
        }
        Wanted::Snapshot(key) => {
            let snapshot: VolumeSnapshot = reader.asked_for(key).await?;
            let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref();
            let claim = claim.map(|name| Key::namespaced(key.namespace.as_str(), name));
            gathered.snapshots.push(snapshot);
            around(reader, &mut gathered, &key.namespace, claim.into_iter().collect()).await?;
        }
    }
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
    events::all(reader, g, namespace).await
}

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
    reader.find_all(&mut g.claims, &claims).await?;
    if !namespace.is_empty() {
        let snapshots: Seen<VolumeSnapshot> = reader.list(namespace, "", |_| true).await?;
        let known = g.snapshots.all().first().map(|snapshot| snapshot.meta.key());
        g.snapshots.is_known = snapshots.is_known;
        let others = snapshots.into_all().into_iter().filter(|snapshot| Some(snapshot.meta.key()) != known);
        g.snapshots.extend(others);
        // A claim that holds what was deleted waits for its own pods.
        let mut used = sources::copies(reader, g, namespace).await?;
        used.extend(claims);
        let known: BTreeSet<Key> = g.pods.all().iter().map(|pod| pod.meta.key()).collect();
        let uses = |pod: &Pod| pod.claims().any(|claim| used.contains(&claim)) && !known.contains(&pod.meta.key());
        let users: Seen<Pod> = reader.list(namespace, "", uses).await?;
        g.pods.is_known = users.is_known;
        g.pods.extend(users.into_all());
        // What else a pod waits for: a claim that was not read would be taken for one that is not there.
        let live = g.pods.all().iter().filter(|pod| !pod.is_terminal());
        let others: BTreeSet<Key> = live.flat_map(|pod| pod.claims()).filter(|claim| !used.contains(claim)).collect();
        reader.find_all(&mut g.claims, &others).await?;
        sources::find(reader, g).await?;
    }
    volumes(reader, g).await?;
    owners(reader, g).await?;
    contents(reader, g).await?;
    of_the_cluster(reader, g).await?;

    let volumes: BTreeSet<String> = g.volumes.all().iter().map(|volume| volume.meta.name.clone()).collect();
    let live = g.pods.all().iter().filter(|pod| is_in_the_way(g, pod));
    let mut nodes: BTreeSet<String> = live.map(|pod| pod.spec.node_name.clone()).collect();
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
        reader.find_all(&mut g.nodes, &of_cluster(&nodes)).await?;
    }
    leases(reader, g).await?;
    events::around(reader, g).await
}

/// Whether a pod has something to tell: one that has ended keeps its claims until it is deleted, and that is all.
fn is_in_the_way(g: &Gathered, pod: &Pod) -> bool {
    !pod.is_terminal() || pod.meta.is_deleting() || g.wanted == Wanted::Pod(pod.meta.key())
}

/// Keys of the names, without that which is none.
fn of_cluster(names: &BTreeSet<String>) -> BTreeSet<Key> {
    names.iter().filter(|name| !name.is_empty()).map(|name| Key::cluster(name.as_str())).collect()
}

async fn leases(reader: &mut Reader<'_>, g: &mut Gathered) -> anyhow::Result<()> {
    let names = lease_names(&g.drivers_in_play());
    if names.len() > FEW {
        g.leases = reader.list("", "", |lease: &Lease| names.contains(&lease.meta.name)).await?;
        return Ok(());
    }
    for name in &names {
        let found: Seen<Lease> = reader.list("", &field("metadata.name", name), |_| true).await?;
        g.leases.is_known &= found.is_known;
        g.leases.extend(found.into_all());
    }
    Ok(())
}

async fn volumes(reader: &mut Reader<'_>, g: &mut Gathered) -> anyhow::Result<()> {
    let names: BTreeSet<String> = g.claims.all().iter().map(|claim| claim.spec.volume_name.clone()).collect();
    reader.find_all(&mut g.volumes, &of_cluster(&names)).await?;
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
    let touched = touched(g);
    let names: BTreeSet<String> = g
        .snapshots
        .all()
        .iter()
        .filter(|snapshot| {
            touched.contains(&snapshot.meta.key()) && (!snapshot.is_ready() || snapshot.meta.is_deleting())
        })
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
    reader.find_all(&mut g.contents, &of_cluster(&names)).await?;
    g.snapshot_classes = reader.list("", "", |_| true).await?;
    Ok(())
}

/// The snapshots that were asked about, that claims are filled from, and that deleted claims wait for.
fn touched(g: &Gathered) -> BTreeSet<Key> {
    let asked =
        g.snapshots.all().iter().map(|one| one.meta.key()).filter(|key| g.wanted == Wanted::Snapshot(key.clone()));
    let sources = g.claims.all().iter().filter(|claim| !claim.is_bind_completed()).filter_map(|claim| {
        let source = claim.data_source().filter(|source| source.kind == kinds::VOLUME_SNAPSHOT.kind)?;
        let namespace = source.namespace.as_ref().unwrap_or(&claim.meta.namespace);
        Some(Key::namespaced(namespace.as_str(), source.name.as_str()))
    });
    let deleted: BTreeSet<Key> =
        g.claims.all().iter().filter(|claim| claim.meta.is_deleting()).map(|claim| claim.meta.key()).collect();
    let holds = |snapshot: &&VolumeSnapshot| {
        let claim = snapshot.spec.source.persistent_volume_claim_name.as_deref();
        claim.is_some_and(|name| deleted.contains(&Key::namespaced(snapshot.meta.namespace.as_str(), name)))
    };
    let held = g.snapshots.all().iter().filter(holds).map(|snapshot| snapshot.meta.key());
    asked.chain(sources).chain(held).collect()
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

fn field(name: &str, value: &str) -> String {
    format!("fieldSelector={}", escape(&format!("{name}={value}")))
}

#[cfg(test)]
mod tests;
