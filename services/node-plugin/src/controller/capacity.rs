//! GetCapacity and ValidateVolumeCapabilities: what could be made, and whether what was made will do.

use std::collections::BTreeSet;

use stowage_csi::v1::validate_volume_capabilities_response::Confirmed;
use stowage_csi::v1::{
    GetCapacityRequest, GetCapacityResponse, ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};
use stowage_mount::FileSystem;

use super::{Error, topology, volumes};
use crate::capability::Capability;
use crate::driver::Shared;
use crate::parameters::Parameters;
use crate::pool::{self, Pool};
use crate::size::{self, MAX_BYTES};
use crate::tuning::Tuning;
use crate::volume::{Backend, Record, VolumeId};

pub async fn get(shared: &Shared, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Error> {
    let parameters = Parameters::read(&request.parameters).map_err(Error::ReadParameters)?;
    let mut capabilities = Vec::new();
    for capability in &request.volume_capabilities {
        let capability = Capability::read(Some(capability)).map_err(Error::ReadCapability)?;
        capability.check(shared.attach, parameters.backend).map_err(Error::ReadCapability)?;
        capabilities.push(capability);
    }
    let least = size::least(file_system(&parameters, &capabilities)?);
    // What nothing is said about is all there is; a class of which no volume could be made has no room either.
    let anything = request.parameters.is_empty() && request.volume_capabilities.is_empty();
    let chosen = if anything { None } else { Some(volumes::choose_pool(shared, &parameters)?) };
    let wanted = |pool: &&Pool| chosen.is_none_or(|chosen| chosen.name() == pool.name());
    let (mut sum, mut largest) = (0u64, 0u64);
    let mut counted = BTreeSet::new();
    // Another node's space is told by the driver there.
    let here = topology::covers(shared, request.accessible_topology.as_ref());
    for pool in shared.pools.iter().filter(|pool| here && wanted(pool)) {
        let free = match pool::free(shared, pool).await {
            // An error would be taken for "unknown, so try": a node without its pool would draw claims that others could
            // have.
            Err(error) if error.is_away() => {
                tracing::warn!(pool = pool.name(), %error, "it has no room");
                continue;
            }
            free => free?,
        };
        let free = if parameters.thin { free.thin } else { free.thick };
        largest = largest.max(free);
        // Pools on one file system have one space between them.
        let near = pool::neighbours(shared, pool).await?;
        if !near.iter().any(|other| counted.contains(other.name())) {
            sum = sum.saturating_add(free);
        }
        counted.insert(pool.name());
    }
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    Ok(GetCapacityResponse {
        available_capacity: signed(sum),
        maximum_volume_size: Some(signed(largest.min(MAX_BYTES))),
        minimum_volume_size: Some(signed(least)),
    })
}

/// None for block and directory volumes.
fn file_system(parameters: &Parameters, capabilities: &[Capability]) -> Result<Option<FileSystem>, Error> {
    let block = capabilities.first().is_some_and(Capability::is_block);
    if block || parameters.backend == Backend::Directory {
        return Ok(None);
    }
    let names = capabilities.iter().map(|capability| capability.mount().fs_type.as_str());
    parameters.choose_file_system(names).map(Some).map_err(Error::ReadParameters)
}

pub async fn validate(
    shared: &Shared,
    request: ValidateVolumeCapabilitiesRequest,
) -> Result<ValidateVolumeCapabilitiesResponse, Error> {
    if request.volume_id.is_empty() {
        return Err(Error::ReadField { field: "volume_id" });
    }
    if request.volume_capabilities.is_empty() {
        return Err(Error::ReadField { field: "volume_capabilities" });
    }
    let unknown = || Error::FindVolume { volume: request.volume_id.clone() };
    let id = VolumeId::parse(&request.volume_id).ok_or_else(unknown)?;
    let pool = shared.pool_of(&id)?;
    pool.open().await?;
    let record = pool.load(&id).await?.ok_or_else(unknown)?;
    if let Err(message) = compare(shared, &request, &id, &record) {
        return Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
    }
    let confirmed = Confirmed {
        volume_context: request.volume_context,
        volume_capabilities: request.volume_capabilities,
        parameters: request.parameters,
        mutable_parameters: request.mutable_parameters,
    };
    Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
}

/// What is asked for and cannot be had of this volume, as a sentence.
fn compare(
    shared: &Shared,
    request: &ValidateVolumeCapabilitiesRequest,
    id: &VolumeId,
    record: &Record,
) -> Result<(), String> {
    let capabilities = Capability::read_all(&request.volume_capabilities).map_err(|error| error.to_string())?;
    for capability in &capabilities {
        capability.check(shared.attach, record.backend).map_err(|error| error.to_string())?;
        if capability.is_block() != record.block {
            let (is, wanted) = if record.block { ("is", "a file system") } else { ("is not", "one") };
            return Err(format!("the volume {is} a block device, asked for is {wanted}"));
        }
    }
    let parameters = Parameters::read(&request.parameters).map_err(|error| error.to_string())?;
    if !request.parameters.is_empty() && parameters.backend != record.backend {
        return Err(format!("the volume has backend {:?}", record.backend));
    }
    if request.parameters.contains_key("thin") && parameters.thin != record.thin {
        return Err(format!("the volume has thin={}", record.thin));
    }
    if !record.block && record.is_image() {
        let names = capabilities.iter().map(|capability| capability.mount().fs_type.as_str());
        let kind = parameters.choose_file_system(names).map_err(|error| error.to_string())?;
        let asked = request.parameters.contains_key("fsType")
            || capabilities.iter().any(|capability| !capability.mount().fs_type.is_empty());
        if asked && kind.name() != record.fs_type {
            return Err(format!("the volume has fsType {}, asked for is {kind}", record.fs_type));
        }
        let options = parameters.mkfs_options(kind).map_err(|error| error.to_string())?;
        if request.parameters.contains_key("mkfsOptions") && options != record.mkfs_options {
            return Err(format!("the volume has mkfsOptions {:?}", record.mkfs_options.join(" ")));
        }
    }
    if parameters.pool.as_deref().is_some_and(|wanted| wanted != id.pool()) {
        return Err(format!("the volume is in pool {:?}", id.pool()));
    }
    let tuning = Tuning::read(&request.mutable_parameters).map_err(|error| error.to_string())?;
    tuning.check(record).map_err(|error| error.to_string())?;
    match tuning.over(record.tuning) == record.tuning {
        true => Ok(()),
        false => Err(format!("the volume has mutable parameters {:?}", record.tuning)),
    }
}
