//! Whether a volume can be made from the volume of another claim now.

use stowage_model::claim::Claim;
use stowage_model::finalizers::CLONING_PROTECTION;
use stowage_model::phase::{ClaimPhase, VolumeMode, VolumePhase};
use stowage_model::topology;
use stowage_model::volume::Volume;
use stowage_runtime::cache::View;

use super::{Asked, Missing, Problem};
use crate::intent::Source;
use crate::ownership;

pub fn check(asked: &Asked<'_>, source: &View<Claim>, volume: &View<Volume>) -> Result<Source, Missing> {
    let origin = || asked.origin();
    asked.need(asked.facts.clones, "CLONE_VOLUME")?;
    let source = match source {
        View::Known(source) => source,
        View::Unknown => return Err(Missing::Looking),
        View::Absent => return Err(Problem::FindClaim { origin: origin() }.into()),
    };
    asked.need_lasting(&source.meta, CLONING_PROTECTION)?;
    let phase = source.status.phase;
    if phase != ClaimPhase::Bound || !source.names_volume() {
        return Err(Problem::BindClaim { origin: origin(), phase }.into());
    }
    if !source.has_class() {
        return Err(Problem::HaveClass { origin: origin() }.into());
    }
    let (requested, least) = (asked.claim.requested(), source.requested());
    if requested < least {
        let field = "spec.resources.requests.storage";
        return Err(Problem::FitData { origin: origin(), requested, field, least }.into());
    }
    let (wanted, found) = (mode(asked.claim.spec.volume_mode), mode(source.spec.volume_mode));
    if wanted != found {
        return Err(Problem::MatchMode { origin: origin(), wanted, found }.into());
    }
    let name = source.spec.volume_name.clone();
    let volume = match volume {
        View::Known(volume) => volume,
        View::Unknown => return Err(Missing::Looking),
        View::Absent => return Err(Problem::FindVolume { origin: origin(), volume: name }.into()),
    };
    let what = format!("spec.csi.driver of PersistentVolume {name:?}");
    let csi = volume.spec.csi.as_ref();
    asked.need_driver(what, csi.map_or("none of CSI", |csi| &csi.driver))?;
    let belongs = volume.spec.claim_ref.as_ref().is_some_and(|claim| {
        let meta = &source.meta;
        claim.uid == meta.uid && claim.namespace == meta.namespace && claim.name == meta.name
    });
    if !belongs {
        return Err(Problem::MatchVolume { origin: origin(), volume: name }.into());
    }
    if volume.status.phase != VolumePhase::Bound {
        let phase = volume.status.phase;
        return Err(Problem::BindVolume { origin: origin(), volume: name, phase }.into());
    }
    if let Some(node) = asked.facts.node.as_ref().filter(|_| !ownership::is_here(volume, asked.facts)) {
        let (place, node) = (place(volume), node.name.clone());
        return Err(Missing::Elsewhere(Problem::Reach { origin: origin(), place, node }));
    }
    let handle = csi.map(|csi| csi.volume_handle.as_str()).unwrap_or_default();
    Ok(asked.source(&source.meta.uid, handle))
}

/// A mode that is newer than this code is no reason to refuse.
fn mode(mode: VolumeMode) -> VolumeMode {
    if mode == VolumeMode::Unknown { VolumeMode::Filesystem } else { mode }
}

/// Where the volume can be reached from, in words.
fn place(volume: &Volume) -> String {
    let required = volume.spec.node_affinity.as_ref().and_then(|affinity| affinity.required.as_ref());
    let places = required.map(topology::from_node_selector).unwrap_or_default();
    let words = |place: &topology::Segments| {
        let pairs: Vec<String> = place.iter().map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(",")
    };
    match places.iter().map(words).collect::<Vec<_>>().join(" or ") {
        nowhere if nowhere.is_empty() => "no node that can be named".into(),
        places => format!("nodes with {places}"),
    }
}
