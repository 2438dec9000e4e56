//! A driver as it introduces itself to a sidecar: found, ready, named, and what it can do.

use std::time::Duration;

use stowage_csi::identity::{self, CONNECT_BUDGET, ControllerCapabilities, PluginCapabilities};
use stowage_csi::v1::plugin_capability::service::Type as Service;
use stowage_csi::{Channel, Deadline};

use crate::backoff::Backoff;
use crate::caller::Caller;
use crate::context::{Context, Stop};

/// How a sidecar calls its driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the driver listens.
    pub csi_address: String,
    /// How long one call may take.
    pub timeout: Duration,
    /// Between failed calls for one object.
    pub retry: Backoff,
    /// Objects worked on at the same time.
    pub workers: usize,
}

impl Default for Options {
    fn default() -> Self {
        let (csi_address, timeout) = ("/run/csi/socket".to_owned(), Duration::from_secs(10));
        Self { csi_address, timeout, retry: Backoff::DRIVER, workers: 10 }
    }
}

/// A driver that has answered.
#[derive(Clone)]
pub struct Driver {
    /// The way to it.
    pub channel: Channel,
    /// Its name.
    pub name: String,
    /// What it offers as a whole.
    pub plugin: PluginCapabilities,
    /// Which Controller calls it answers.
    pub controller: ControllerCapabilities,
}

impl Driver {
    /// Waits for the driver and asks who it is; the first questions have `timeout` each.
    pub async fn meet(context: &Context, address: &str, timeout: Duration) -> Result<Self, Stop> {
        let unable = |error: &dyn std::fmt::Display| Stop::Unable {
            reason: format!(
                "--csi-address {address:?}: {error}; start the driver there, or name the socket it listens on"
            ),
        };
        let channel = context.csi.connect(address).map_err(|error| unable(&error))?;
        let driver = Self::ask(channel, Deadline(timeout)).await.map_err(|error| unable(&error))?;
        tracing::info!(driver = driver.name, "found the driver");
        Ok(driver)
    }

    /// Meets the driver, then runs a service with it; a shutdown ends the wait for a driver that never answers.
    pub async fn serve<F>(
        context: Context,
        options: &Options,
        service: impl FnOnce(Context, Self) -> F,
    ) -> Result<(), Stop>
    where
        F: Future<Output = Result<(), Stop>>,
    {
        let met = context.unless_shutdown(Self::meet(&context, &options.csi_address, options.timeout)).await;
        match met.transpose()? {
            Some(driver) => service(context, driver).await,
            None => Ok(()),
        }
    }

    async fn ask(channel: Channel, deadline: Deadline) -> Result<Self, identity::Error> {
        identity::wait_until_ready(&channel, deadline, CONNECT_BUDGET).await?;
        let name = identity::plugin_name(&channel, deadline).await?;
        let plugin = identity::plugin_capabilities(&channel, deadline).await?;
        let controller = match plugin.contains(&Service::ControllerService) {
            true => identity::controller_capabilities(&channel, deadline).await?,
            false => ControllerCapabilities::new(),
        };
        Ok(Self { channel, name, plugin, controller })
    }

    /// What every call to it needs.
    pub fn caller(&self, context: Context, timeout: Duration) -> Caller {
        Caller::new(context, self.channel.clone(), &self.name, timeout)
    }
}
