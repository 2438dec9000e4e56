//! From a claim and its class to the intent to make a volume, or to the reason why not.

use std::collections::BTreeMap;

use stowage_model::access_mode::{self, AccessMode, AccessModes};
use stowage_model::claim::Claim;
use stowage_model::class::StorageClass;
use stowage_model::migration::ClassError;
use stowage_model::phase::VolumeMode;
use stowage_model::quantity::{self, Quantity};
use stowage_model::topology;

use crate::facts::Facts;
use crate::intent::{ClaimId, ClassPart, Intent, Mount, Request};
use crate::migrated;
use crate::requirement::{self, Cluster};
use crate::secrets;
use crate::source::{self, Origin, SNAPSHOT_GROUP, SNAPSHOT_KIND};

const FS_TYPE: &str = "csi.storage.k8s.io/fstype";
const DEPRECATED_FS_TYPE: &str = "fstype";

/// Why no volume can be made for a claim as things stand; each names the field, the value and the way out.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("StorageClass {class:?} does not exist; create it, or claim with a class that does")]
    FindClass { class: String },
    #[error(
        "StorageClass {class:?} has the provisioner {provisioner:?}, the claim asks {driver:?}; \
         claim with a class of that driver, or of the in-tree plugin that it took over from"
    )]
    MatchProvisioner { class: String, provisioner: String, driver: String },
    #[error("StorageClass {class:?} of an in-tree plugin: {source}")]
    TranslateClass { class: String, source: ClassError },
    #[error(
        "driver {driver:?} lacks the capability CREATE_DELETE_VOLUME; make the volume by hand or use another driver"
    )]
    FindCapability { driver: String },
    #[error("spec.selector cannot be met by a new volume; remove it, or name an existing volume in spec.volumeName")]
    MeetSelector,
    #[error(
        "the data source is a VolumeSnapshot of the API group {found:?}; the group of VolumeSnapshots is \
         {SNAPSHOT_GROUP:?}, create the claim with it"
    )]
    MatchGroup { found: String },
    #[error("{source}")]
    Fill { source: source::Problem },
    #[error("the selected node {node:?} has no Node or no CSINode object; another node has to be chosen")]
    FindNode { node: String },
    #[error(
        "driver {driver:?} is not registered on the selected node {node:?}, or reports no topology keys there; \
         start the driver's node plugin on it, or delete the pod so that another node is chosen"
    )]
    FindDriver { node: String, driver: String },
    #[error(
        "no node has driver {driver:?} registered with topology keys that the node's labels have; start the driver's \
         node plugin, or start the provisioner with --immediate-topology=false to leave the place to the driver"
    )]
    FindPlace { driver: String },
    #[error("the selected node has no place: {source}")]
    PlaceNode { source: topology::Error },
    #[error(
        "the selected node {node:?} is in none of the allowedTopologies of StorageClass {class:?}; \
         extend them by creating the class anew, or let another node be chosen"
    )]
    AllowNode { node: String, class: String },
    #[error(
        "spec.volumeAttributesClassName is {name:?}, and driver {driver:?} lacks the capability MODIFY_VOLUME; \
         claim without it, or use another driver"
    )]
    ModifyVolume { name: String, driver: String },
    #[error("VolumeAttributesClass {name:?} does not exist; create it, or claim without it")]
    FindAttributesClass { name: String },
    #[error(
        "cannot read VolumeAttributesClass {name:?} now: {reason}; it is tried again, check the API server and that it \
         serves the kind in storage.k8s.io/v1"
    )]
    ReachAttributesClass { name: String, reason: String },
    #[error(
        "may not read VolumeAttributesClass {name:?}: {reason}; grant the provisioner get of volumeattributesclasses, \
         or claim without it"
    )]
    ReadAttributesClass { name: String, reason: String },
    #[error(
        "VolumeAttributesClass {name:?} is of driver {of:?}, the volume of {driver:?}; claim with one of that driver"
    )]
    MatchAttributesDriver { name: String, of: String, driver: String },
    #[error("spec.resources.requests.storage is {value}; ask for at least one byte")]
    AskForNothing { value: Quantity },
    #[error("spec.resources.requests.storage: {source}; ask for less")]
    FitSize { source: quantity::Error },
    #[error("{source}")]
    MapAccessModes { source: access_mode::Error },
    #[error("spec.accessModes has {mode}, which {driver:?} does not support; claim with {modes}")]
    SupportAccessMode { mode: AccessMode, driver: String, modes: AccessModes },
    #[error("spec.volumeMode is Block, and {driver:?} makes no devices; claim with Filesystem")]
    SupportBlock { driver: String },
    #[error("StorageClass {class:?} has the parameters {FS_TYPE:?} and {other:?}; keep the first")]
    ChooseFsType { class: String, other: String },
    #[error(
        "StorageClass {class:?} has the unknown parameter {key:?}; keys starting with csi.storage.k8s.io/ are reserved"
    )]
    KnowParameter { class: String, key: String },
    #[error("StorageClass {class:?}: {source}")]
    ResolveSecrets { class: String, source: secrets::Error },
    #[error("--volume-name-prefix is empty; volumes need a name, the default is pvc")]
    NameVolume,
    #[error(
        "PersistentVolume {volume:?} exists already and is not this claim's; \
         delete it, or name it in spec.volumeName if it is meant"
    )]
    UseName { volume: String },
}

/// Everything that is needed to make the claim's volume and to make it again, exactly so, after a crash.
pub fn build(claim: &Claim, class: &StorageClass, facts: &Facts, cluster: &Cluster) -> Result<Intent, Problem> {
    let class_name = &class.meta.name;
    let (class, plugin) = migrated::class(class, &facts.driver)
        .map_err(|source| Problem::TranslateClass { class: class_name.clone(), source })?;
    let class = class.as_ref();
    if class.provisioner != facts.driver {
        let provisioner = class.provisioner.clone();
        return Err(Problem::MatchProvisioner { class: class_name.clone(), provisioner, driver: facts.driver.clone() });
    }
    if !facts.creates {
        return Err(Problem::FindCapability { driver: facts.driver.clone() });
    }
    if facts.options.volume_name_prefix.is_empty() {
        return Err(Problem::NameVolume);
    }
    if claim.spec.selector.is_some() {
        return Err(Problem::MeetSelector);
    }
    if let Some(source) = claim.data_source().filter(|_| is_misnamed(claim)) {
        return Err(Problem::MatchGroup { found: source.api_group.clone().unwrap_or_default() });
    }
    let volume = facts.volume_name(&claim.meta.uid);
    let modes = access_mode::each_to_csi(claim.spec.access_modes, facts.finer_modes)
        .map_err(|source| Problem::MapAccessModes { source })?;
    if let Some(mode) = claim.spec.access_modes.iter().find(|mode| !facts.modes.contains(*mode)) {
        return Err(Problem::SupportAccessMode { mode, driver: facts.driver.clone(), modes: facts.modes });
    }
    if claim.spec.volume_mode == VolumeMode::Block && !facts.block {
        return Err(Problem::SupportBlock { driver: facts.driver.clone() });
    }
    let mount = match claim.spec.volume_mode {
        VolumeMode::Block => None,
        _ => Some(Mount { fs_type: fs_type(class, facts)?, flags: class.mount_options.clone() }),
    };
    let subject = secrets::Subject::of(claim, &volume);
    let secrets = secrets::resolve(&class.parameters, subject)
        .map_err(|source| Problem::ResolveSecrets { class: class_name.clone(), source })?;
    let request = Request {
        bytes: size(claim)?,
        modes: modes.into_iter().map(access_mode::CsiAccessMode::number).collect(),
        mount,
        parameters: parameters(claim, class, facts, &volume)?,
        places: requirement::of(claim, class, facts, cluster)?,
        node: claim.node_of_volume().filter(|_| facts.library).map(str::to_owned),
        // Only whoever decides knows what may be used: see `Intent::filled_from`, and `Intent::with`.
        source: None,
        attributes: None,
    };
    let id =
        ClaimId { namespace: claim.meta.namespace.clone(), name: claim.meta.name.clone(), uid: claim.meta.uid.clone() };
    let class = ClassPart {
        name: claim.class_name().to_owned(),
        reclaim_policy: class.reclaim_policy().as_str().to_owned(),
        mount_options: class.mount_options.clone(),
        plugin: plugin.map(str::to_owned),
    };
    Ok(Intent::new(id, volume, request, secrets, class))
}

/// Whether somebody other than a CSI driver fills the volume: a populator makes its own.
pub fn is_populated(claim: &Claim) -> bool {
    claim.data_source().is_some() && Origin::of(claim).is_none() && !is_misnamed(claim)
}

/// Whether the source is called a snapshot and is of another group than they are.
fn is_misnamed(claim: &Claim) -> bool {
    let source = claim.data_source().filter(|source| source.kind == SNAPSHOT_KIND);
    source.is_some_and(|source| source.api_group.as_deref() != Some(SNAPSHOT_GROUP))
}

fn size(claim: &Claim) -> Result<i64, Problem> {
    match claim.requested().size() {
        Ok(0) => Err(Problem::AskForNothing { value: claim.requested() }),
        Ok(bytes) => Ok(bytes),
        Err(source) => Err(Problem::FitSize { source }),
    }
}

fn fs_type(class: &StorageClass, facts: &Facts) -> Result<String, Problem> {
    let is_fs_type = |key: &str| key.eq_ignore_ascii_case(FS_TYPE) || key.eq_ignore_ascii_case(DEPRECATED_FS_TYPE);
    let mut found = class.parameters.iter().filter(|(key, _)| is_fs_type(key));
    let chosen = found.next().map(|(_, value)| value.as_str()).unwrap_or_default();
    if let Some((other, _)) = found.next() {
        return Err(Problem::ChooseFsType { class: class.meta.name.clone(), other: other.clone() });
    }
    Ok(if chosen.is_empty() { facts.options.default_fstype.clone() } else { chosen.to_owned() })
}

fn parameters(
    claim: &Claim,
    class: &StorageClass,
    facts: &Facts,
    volume: &str,
) -> Result<BTreeMap<String, String>, Problem> {
    let mut parameters = BTreeMap::new();
    for (key, value) in &class.parameters {
        if !key.starts_with(secrets::PREFIX) {
            parameters.insert(key.clone(), value.clone());
        } else if !secrets::is_key(key) && !key.eq_ignore_ascii_case(FS_TYPE) {
            return Err(Problem::KnowParameter { class: class.meta.name.clone(), key: key.clone() });
        }
    }
    if facts.options.extra_create_metadata {
        let meta = &claim.meta;
        let metadata = [("pvc/name", meta.name.as_str()), ("pvc/namespace", &meta.namespace), ("pv/name", volume)];
        parameters.extend(metadata.map(|(key, value)| (format!("{}{key}", secrets::PREFIX), value.to_owned())));
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests;
