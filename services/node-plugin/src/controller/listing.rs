//! The calls that only look: ListVolumes, GetCapacity, ValidateVolumeCapabilities.

use stowage_csi::v1::list_volumes_response::{Entry, VolumeStatus};
use stowage_csi::v1::validate_volume_capabilities_response::Confirmed;
use stowage_csi::v1::{
    GetCapacityRequest, GetCapacityResponse, ListVolumesRequest, ListVolumesResponse,
    ValidateVolumeCapabilitiesRequest, ValidateVolumeCapabilitiesResponse,
};

use super::{Error, volumes};
use crate::capability::Capability;
use crate::driver::Shared;
use crate::parameters::Parameters;
use crate::size::{MAX_BYTES, MIN_BYTES};
use crate::volume::VolumeId;

/// A page token is the last id of the page before: it stays good when volumes come and go between two pages.
pub async fn list(shared: &Shared, request: &ListVolumesRequest) -> Result<ListVolumesResponse, Error> {
    let value = request.max_entries;
    let most = match usize::try_from(value).map_err(|_| Error::ReadPageSize { value })? {
        0 => usize::MAX,
        most => most,
    };
    let refuse = || Error::ReadPageToken { token: request.starting_token.clone() };
    let after = match request.starting_token.as_str() {
        "" => None,
        token => Some(VolumeId::parse(token).ok_or_else(refuse)?),
    };
    let mut ids = Vec::new();
    for pool in &shared.pools {
        pool.open().await?;
        ids.extend(pool.ids().await?);
    }
    ids.sort();
    let mut rest = ids.into_iter().filter(|id| after.as_ref().is_none_or(|after| id > after)).peekable();
    let mut page = ListVolumesResponse::default();
    let mut last = None;
    while page.entries.len() < most
        && let Some(id) = rest.next()
    {
        match shared.pool(id.pool())?.load(&id).await {
            Ok(Some(record)) => {
                let nodes = record.attachment.iter().map(|attachment| attachment.node.clone()).collect();
                let status = VolumeStatus { published_node_ids: nodes, volume_condition: None };
                page.entries.push(Entry { volume: Some(volumes::describe(&id, &record)), status: Some(status) });
            }
            // Removed since the names were read.
            Ok(None) => {}
            Err(error) => tracing::warn!(volume = %id, %error, "a volume is not listed"),
        }
        last = Some(id);
    }
    if let (Some(_), Some(last)) = (rest.peek(), last) {
        page.next_token = last.to_string();
    }
    Ok(page)
}

pub async fn capacity(shared: &Shared, request: &GetCapacityRequest) -> Result<GetCapacityResponse, Error> {
    for capability in &request.volume_capabilities {
        Capability::read(Some(capability)).map_err(Error::ReadCapability)?;
    }
    let parameters = Parameters::read(&request.parameters).map_err(Error::ReadParameters)?;
    if let Some(name) = &parameters.pool {
        shared.pool(name)?;
    }
    let wanted = |name: &str| parameters.pool.as_deref().is_none_or(|pool| pool == name);
    let (mut sum, mut largest) = (0u64, 0u64);
    for pool in shared.pools.iter().filter(|pool| wanted(pool.name())) {
        let free = pool.free().await?;
        sum = sum.saturating_add(free);
        largest = largest.max(free);
    }
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    Ok(GetCapacityResponse {
        available_capacity: signed(sum),
        maximum_volume_size: Some(signed(largest.min(MAX_BYTES))),
        minimum_volume_size: Some(signed(MIN_BYTES)),
    })
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
    let pool = shared.pool(id.pool())?;
    pool.open().await?;
    let record = pool.load(&id).await?.ok_or_else(unknown)?;

    let refuse = |message: String| Ok(ValidateVolumeCapabilitiesResponse { confirmed: None, message });
    let capabilities = match Capability::read_all(&request.volume_capabilities) {
        Ok(capabilities) => capabilities,
        Err(error) => return refuse(error.to_string()),
    };
    let parameters = match Parameters::read(&request.parameters) {
        Ok(parameters) => parameters,
        Err(error) => return refuse(error.to_string()),
    };
    let wanted = capabilities.iter().map(|capability| capability.mount.fs_type.as_str());
    match parameters.choose_file_system(wanted) {
        Err(error) => return refuse(error.to_string()),
        Ok(kind) if kind.name() != record.fs_type => {
            return refuse(format!("the volume has fsType {}, asked for is {kind}", record.fs_type));
        }
        Ok(_) => {}
    }
    if parameters.pool.as_deref().is_some_and(|wanted| wanted != pool.name()) {
        return refuse(format!("the volume is in pool {:?}", pool.name()));
    }
    if !request.mutable_parameters.is_empty() {
        return refuse("mutable_parameters are not supported".into());
    }
    let confirmed = Confirmed {
        volume_context: request.volume_context,
        volume_capabilities: request.volume_capabilities,
        parameters: request.parameters,
        mutable_parameters: request.mutable_parameters,
    };
    Ok(ValidateVolumeCapabilitiesResponse { confirmed: Some(confirmed), message: String::new() })
}
