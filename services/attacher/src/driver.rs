//! The driver: where it is, what it is called and what it can do.

use std::time::Duration;

use stowage_csi::identity::{self, CONNECT_BUDGET};
use stowage_csi::v1::controller_service_capability::rpc::Type as Call;
use stowage_csi::v1::plugin_capability::service::Type as Service;
use stowage_csi::{Channel, Deadline};
use stowage_model::finalizers;
use stowage_runtime::{Context, Stop};

use crate::controller::Options;

/// The originals give the first questions one second each.
const SHORT: Deadline = Deadline(Duration::from_secs(1));

pub struct Driver {
    pub channel: Channel,
    pub facts: Facts,
}

/// What decisions need to know about the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Facts {
    pub name: String,
    /// On attachments and volumes.
    pub finalizer: String,
    /// Whether it attaches at all; else every attachment is done as soon as it is asked for.
    pub attaches: bool,
    /// Whether it can be asked to attach for reading only.
    pub knows_read_only: bool,
    /// Whether it tells single pods from single nodes.
    pub knows_single_writers: bool,
    pub default_fs_type: String,
}

/// Waits for the driver and asks it who it is.
pub async fn connect(context: &Context, options: &Options) -> Result<Driver, Stop> {
    let unable = |error: &dyn std::fmt::Display| Stop::Unable {
        reason: format!(
            "--csi-address {:?}: {error}; start the driver there, or name the socket it listens on",
            options.csi_address
        ),
    };
    let channel = context.csi.connect(&options.csi_address).map_err(|error| unable(&error))?;
    let deadline = Deadline(options.timeout);
    identity::wait_until_ready(&channel, deadline, CONNECT_BUDGET).await.map_err(|error| unable(&error))?;
    let facts = ask(&channel, options).await.map_err(|error| unable(&error))?;
    Ok(Driver { channel, facts })
}

async fn ask(channel: &Channel, options: &Options) -> Result<Facts, identity::Error> {
    let name = identity::plugin_name(channel, SHORT).await?;
    let services = identity::plugin_capabilities(channel, SHORT).await?;
    let calls = match services.contains(&Service::ControllerService) {
        true => identity::controller_capabilities(channel, SHORT).await?,
        false => identity::ControllerCapabilities::new(),
    };
    Ok(Facts {
        finalizer: finalizers::attacher(&name),
        name,
        attaches: calls.contains(&Call::PublishUnpublishVolume),
        knows_read_only: calls.contains(&Call::PublishReadonly),
        knows_single_writers: calls.contains(&Call::SingleNodeMultiWriter),
        default_fs_type: options.default_fs_type.clone(),
    })
}
