//! In-tree sources as the CSI drivers that took over know them: handles and attributes are those of upstream's
//! csi-translation-lib, because drivers and the volumes that exist rely on them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use thiserror::Error;

use super::source::{AwsElasticBlockStore, AzureDisk, AzureFile, GcePersistentDisk, InTree};
use super::{driver_of_member, topology};
use crate::access_mode::{AccessMode, AccessModes};
use crate::pod::{PodVolume, PodVolumeSource};
use crate::volume::{CsiSource, SecretRef, Volume, VolumeSpec};

/// On a volume: the resource group of its file share.
const AZURE_FILE_RESOURCE_GROUP: &str = "kubernetes.io/azure-file-resource-group";
/// On a volume of Portworx: name of the secret for all of its calls.
const PORTWORX_SECRET_NAME: &str = "openstorage.io/auth-secret-name";
/// On a volume of Portworx: namespace of that secret.
const PORTWORX_SECRET_NAMESPACE: &str = "openstorage.io/auth-secret-namespace";
/// What the driver of Google's disks reads as "wherever it is".
const UNSPECIFIED: &str = "UNSPECIFIED";

/// Why a source cannot be translated.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Error {
    /// The id of an EBS disk has another form.
    #[error("awsElasticBlockStore.volumeID {id:?} is none of aws://ZONE/vol-ID, aws:///vol-ID and vol-ID")]
    ReadVolumeId {
        /// The id.
        id: String,
    },
    /// The CSI driver has no such disks.
    #[error("azureDisk.kind {kind:?} is not known to disk.csi.azure.com; only Managed disks can be used")]
    UseKind {
        /// The kind.
        kind: String,
    },
    /// Nobody says where the secret is.
    #[error(
        "azureFile: no namespace for secret {secret:?}; set azureFile.secretNamespace or bind the volume to a claim"
    )]
    FindSecret {
        /// The secret's name.
        secret: String,
    },
    /// The zones are not of one region.
    #[error("zones {zones:?} name no single region; each must be LOCALE-REGION-ZONE, and all of one region")]
    FindRegion {
        /// The zones.
        zones: Vec<String>,
    },
    /// The handle or the node's id is none of the driver's.
    #[error("{what} {value:?} is not projects/PROJECT/zones or regions/PLACE/KIND/NAME")]
    ReadPath {
        /// What was read.
        what: &'static str,
        /// Its value.
        value: String,
    },
}

/// The volume as a CSI driver knows it: itself if it is a CSI volume, translated if a driver has taken over its plugin,
/// none if no driver has.
pub fn to_csi(volume: &Volume) -> Result<Option<Cow<'_, Volume>>, Error> {
    if volume.spec.csi.is_some() {
        return Ok(Some(Cow::Borrowed(volume)));
    }
    let Some(source) = volume.spec.in_tree.as_deref() else { return Ok(None) };
    let csi = persistent(volume, source)?;
    let mut spec = VolumeSpec { csi: Some(csi), in_tree: None, other_source: None, ..volume.spec.clone() };
    match source {
        InTree::AwsElasticBlockStore(_) => {
            topology::translate(&mut spec, &volume.meta.labels, "topology.ebs.csi.aws.com/zone");
        }
        InTree::GcePersistentDisk(_) => {
            topology::translate(&mut spec, &volume.meta.labels, "topology.gke.io/zone");
            spec.access_modes = as_attached(spec.access_modes);
        }
        InTree::Cinder(_) => {
            topology::translate(&mut spec, &volume.meta.labels, "topology.cinder.csi.openstack.org/zone");
        }
        InTree::VsphereVolume(_) => topology::translate_vsphere(&mut spec, &volume.meta.labels),
        InTree::AzureDisk(_) | InTree::AzureFile(_) | InTree::PortworxVolume(_) => {}
    }
    Ok(Some(Cow::Owned(Volume { meta: volume.meta.clone(), spec, status: volume.status.clone() })))
}

/// A pod's own volume as a persistent one of the CSI driver that took over its plugin; none if no driver has. Its name is
/// unique for each disk, as nodes name the place where they stage it after it.
pub fn inline_to_csi(volume: &PodVolume, namespace: &str) -> Result<Option<Volume>, Error> {
    let PodVolumeSource::InTree(source) = &volume.source else { return Ok(None) };
    let csi = inline(&volume.name, namespace, source)?;
    let mode = match &**source {
        InTree::AzureFile(_) => AccessMode::ReadWriteMany,
        InTree::GcePersistentDisk(disk) if disk.read_only => AccessMode::ReadOnlyMany,
        InTree::PortworxVolume(volume) if volume.read_only => AccessMode::ReadOnlyMany,
        _ => AccessMode::ReadWriteOnce,
    };
    let name = match &**source {
        InTree::AzureDisk(_) | InTree::AzureFile(_) => csi.volume_handle.clone(),
        InTree::GcePersistentDisk(disk) => format!("{}-{}", csi.driver, disk.pd_name),
        _ => format!("{}-{}", csi.driver, csi.volume_handle),
    };
    let mut translated = Volume::default();
    translated.meta.name = name;
    translated.spec = VolumeSpec { csi: Some(csi), access_modes: AccessModes::from([mode]), ..VolumeSpec::default() };
    Ok(Some(translated))
}

fn persistent(volume: &Volume, source: &InTree) -> Result<CsiSource, Error> {
    let annotation = |key| volume.meta.annotation(key);
    Ok(match source {
        InTree::GcePersistentDisk(disk) => {
            CsiSource { volume_handle: google_handle(volume, disk)?, ..google_disk(disk) }
        }
        InTree::AzureFile(share) => {
            let claims = || volume.spec.claim_ref.as_ref().map(|claim| claim.namespace.as_str());
            let namespace = share.secret_namespace.as_deref().or_else(claims).filter(|namespace| !namespace.is_empty());
            let namespace = namespace.ok_or_else(|| Error::FindSecret { secret: share.secret_name.clone() })?;
            let group = annotation(AZURE_FILE_RESOURCE_GROUP).unwrap_or_default();
            azure_file(share, group, &volume.meta.name, namespace)
        }
        InTree::PortworxVolume(_) => {
            let secret = annotation(PORTWORX_SECRET_NAME).zip(annotation(PORTWORX_SECRET_NAMESPACE));
            let secret = secret.map(|(name, namespace)| {
                Box::new(SecretRef { namespace: namespace.to_owned(), name: name.to_owned() })
            });
            CsiSource {
                controller_publish_secret_ref: secret.clone(),
                node_stage_secret_ref: secret.clone(),
                node_publish_secret_ref: secret.clone(),
                controller_expand_secret_ref: secret.clone(),
                node_expand_secret_ref: secret,
                ..anywhere(source)?
            }
        }
        _ => anywhere(source)?,
    })
}

fn inline(name: &str, namespace: &str, source: &InTree) -> Result<CsiSource, Error> {
    match source {
        InTree::AzureFile(share) => {
            let namespace = if namespace.is_empty() { "default" } else { namespace };
            Ok(azure_file(share, "", name, namespace))
        }
        // An empty mode is one that was not given.
        InTree::AzureDisk(disk) if disk.caching_mode.as_deref() == Some("") => {
            azure_disk(&AzureDisk { caching_mode: None, ..disk.clone() })
        }
        _ => anywhere(source),
    }
}

/// What is the same wherever the source is written.
fn anywhere(source: &InTree) -> Result<CsiSource, Error> {
    let plain = |handle: &str, fs_type: &str, read_only| CsiSource {
        driver: driver_of_member(source.member()).unwrap_or_default().to_owned(),
        volume_handle: handle.to_owned(),
        fs_type: fs_type.to_owned(),
        read_only,
        ..CsiSource::default()
    };
    Ok(match source {
        InTree::AwsElasticBlockStore(disk) => CsiSource {
            volume_attributes: attributes([("partition", disk.partition.to_string())]),
            ..plain(&ebs_id(disk)?, &disk.fs_type, disk.read_only)
        },
        InTree::GcePersistentDisk(disk) => google_disk(disk),
        InTree::AzureDisk(disk) => azure_disk(disk)?,
        InTree::AzureFile(share) => azure_file(share, "", "", "default"),
        InTree::Cinder(volume) => plain(&volume.volume_id, &volume.fs_type, volume.read_only),
        InTree::VsphereVolume(disk) => {
            let policy = Some(&disk.storage_policy_name).filter(|policy| !policy.is_empty());
            CsiSource {
                volume_attributes: attributes(policy.map(|policy| ("storagepolicyname", policy.clone()))),
                ..plain(&disk.volume_path, &disk.fs_type, false)
            }
        }
        // The in-tree plugin's readOnly is not passed on; upstream's does the same.
        InTree::PortworxVolume(volume) => plain(&volume.volume_id, &volume.fs_type, false),
    })
}

fn attributes(pairs: impl IntoIterator<Item = (&'static str, String)>) -> BTreeMap<String, String> {
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn ebs_id(disk: &AwsElasticBlockStore) -> Result<String, Error> {
    let id = disk.volume_id.as_str();
    let Some(rest) = id.strip_prefix("aws://") else { return Ok(id.to_owned()) };
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    let bare = path.split_once('/').map(|(_zone, path)| path.trim_matches('/'));
    let bare = bare.filter(|bare| bare.starts_with("vol-") && !bare.contains('/'));
    bare.map(str::to_owned).ok_or_else(|| Error::ReadVolumeId { id: id.to_owned() })
}

fn google_disk(disk: &GcePersistentDisk) -> CsiSource {
    // No partition is an empty value and not 0, unlike Amazon's.
    let partition = if disk.partition == 0 { String::new() } else { disk.partition.to_string() };
    CsiSource {
        driver: "pd.csi.storage.gke.io".to_owned(),
        volume_handle: format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{}", disk.pd_name),
        fs_type: disk.fs_type.clone(),
        read_only: disk.read_only,
        volume_attributes: attributes([("partition", partition)]),
        ..CsiSource::default()
    }
}

/// The volume's labels say where the disk is: in a zone, or in a region if there are several zones.
fn google_handle(volume: &Volume, disk: &GcePersistentDisk) -> Result<String, Error> {
    let label = |key| volume.meta.labels.get(key).map(String::as_str).filter(|zones| !zones.is_empty());
    let zones = label(topology::BETA.zone).or_else(|| label(topology::STABLE.zone)).unwrap_or_default();
    let name = &disk.pd_name;
    Ok(match zones.split(topology::ZONE_DELIMITER).collect::<Vec<_>>().as_slice() {
        [""] | [] => format!("projects/{UNSPECIFIED}/zones/{UNSPECIFIED}/disks/{name}"),
        [zone] => format!("projects/{UNSPECIFIED}/zones/{zone}/disks/{name}"),
        several => format!("projects/{UNSPECIFIED}/regions/{}/disks/{name}", google_region(several)?),
    })
}

fn google_region(zones: &[&str]) -> Result<String, Error> {
    let error = || Error::FindRegion { zones: zones.iter().map(|zone| (*zone).to_owned()).collect() };
    let region = |zone: &str| match zone.split('-').collect::<Vec<_>>().as_slice() {
        [locale, region, _zone] => Some(format!("{locale}-{region}")),
        _ => None,
    };
    let mut regions = zones.iter().map(|zone| region(zone)).collect::<Option<Vec<_>>>().ok_or_else(error)?;
    regions.dedup();
    match <[String; 1]>::try_from(regions) {
        Ok([region]) => Ok(region),
        Err(_) => Err(error()),
    }
}

/// The in-tree plugin attached whatever the modes said as one writer; the CSI driver would refuse these.
fn as_attached(modes: AccessModes) -> AccessModes {
    let only_reads = modes.contains(AccessMode::ReadOnlyMany)
        && !modes.contains(AccessMode::ReadWriteOnce)
        && !modes.contains(AccessMode::ReadWriteMany);
    match modes.is_empty() {
        true => modes,
        false if only_reads => AccessModes::from([AccessMode::ReadOnlyMany]),
        false => AccessModes::from([AccessMode::ReadWriteOnce]),
    }
}

fn azure_disk(disk: &AzureDisk) -> Result<CsiSource, Error> {
    if let Some(kind) = disk.kind.as_ref().filter(|kind| !kind.eq_ignore_ascii_case("Managed")) {
        return Err(Error::UseKind { kind: kind.clone() });
    }
    let mut attributes = attributes([("kind", "Managed".to_owned())]);
    attributes.extend(disk.caching_mode.clone().map(|mode| ("cachingmode".to_owned(), mode)));
    attributes.extend(disk.fs_type.clone().map(|fs_type| ("fstype".to_owned(), fs_type)));
    Ok(CsiSource {
        driver: "disk.csi.azure.com".to_owned(),
        volume_handle: disk.disk_uri.clone(),
        fs_type: disk.fs_type.clone().unwrap_or_default(),
        read_only: disk.read_only.unwrap_or_default(),
        volume_attributes: attributes,
        ..CsiSource::default()
    })
}

fn azure_file(share: &AzureFile, group: &str, name: &str, namespace: &str) -> CsiSource {
    let secret = share.secret_name.as_str();
    let account = secret
        .split_once("azure-storage-account-")
        .and_then(|(_, rest)| rest.rsplit_once("-secret"))
        .map(|(account, _)| account)
        .filter(|account| !account.is_empty())
        .unwrap_or(secret);
    CsiSource {
        driver: "file.csi.azure.com".to_owned(),
        // Resource group, account, share, and what makes it unique for each volume.
        volume_handle: format!("{group}#{account}#{}#{name}#{namespace}", share.share_name),
        read_only: share.read_only,
        volume_attributes: attributes([("sharename", share.share_name.clone())]),
        node_stage_secret_ref: Some(Box::new(SecretRef { namespace: namespace.to_owned(), name: secret.to_owned() })),
        ..CsiSource::default()
    }
}

/// The handle as the driver itself lists it: parts that were not known when the volume was translated are those of the
/// node it is attached to.
pub fn repair_handle(driver: &str, handle: &str, node_id: &str) -> Result<String, Error> {
    if driver != "pd.csi.storage.gke.io" {
        return Ok(handle.to_owned());
    }
    let unread = |what, value: &str| Error::ReadPath { what, value: value.to_owned() };
    let parts: Vec<&str> = handle.split('/').collect();
    let [_, project, places, place, _, name, ..] = parts.as_slice() else {
        return Err(unread("volume handle", handle));
    };
    if *project != UNSPECIFIED {
        return Ok(handle.to_owned());
    }
    let node: Vec<&str> = node_id.split('/').collect();
    let [_, project, _, zone, _, _, ..] = node.as_slice() else { return Err(unread("node id", node_id)) };
    let place = match *places {
        "zones" | "regions" if *place != UNSPECIFIED => (*place).to_owned(),
        "zones" => (*zone).to_owned(),
        "regions" => google_region(&[zone])?,
        _ => return Err(unread("volume handle", handle)),
    };
    Ok(format!("projects/{project}/{places}/{place}/disks/{name}"))
}
