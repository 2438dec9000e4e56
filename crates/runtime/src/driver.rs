//! A driver as it introduces itself to a sidecar: found, ready, named, and what it can do.

use std::time::Duration;

use futures::future::BoxFuture;
use tokio::time::{Instant, sleep};

use stowage_csi::identity::{self, CONNECT_BUDGET, ControllerCapabilities, PluginCapabilities};
use stowage_csi::v1::plugin_capability::service::Type as Service;
use stowage_csi::{Channel, Deadline};

use crate::backoff::Backoff;
use crate::caller::Caller;
use crate::context::{Context, Process, Stop};
use crate::metrics::UNKNOWN_DRIVER;

/// Between two questions whether a driver is as it was: doubled up to the originals' limit of a second.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);

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
        let asked = Self::ask(&context.process, channel, Deadline(timeout), UNKNOWN_DRIVER).await;
        let driver = asked.map_err(|error| unable(&error))?;
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
            Some(driver) => {
                let changed = driver.changed(&context, options.timeout);
                Self::unless_changed(changed, service(context, driver)).await
            }
            None => Ok(()),
        }
    }

    /// Runs a service until it ends, or until the driver comes back as another than it was: what the service was told at
    /// its start does not hold any more, and whoever restarts it lets it ask again.
    pub async fn unless_changed(
        changed: BoxFuture<'static, Stop>,
        service: impl Future<Output = Result<(), Stop>>,
    ) -> Result<(), Stop> {
        tokio::select! {
            biased;
            ended = service => ended,
            stop = changed => Err(stop),
        }
    }

    /// Resolves when the driver comes back with another name or other capabilities, from this call on.
    pub fn changed(&self, process: &Process, timeout: Duration) -> BoxFuture<'static, Stop> {
        let (process, known, timeout) = (process.clone(), self.clone(), Deadline(timeout));
        self.changes("name or capabilities", move || {
            let (process, known) = (process.clone(), known.clone());
            Box::pin(async move {
                let now = Self::ask(&process, known.channel, timeout, &known.name).await?;
                Ok((now.name, now.plugin, now.controller) == (known.name, known.plugin, known.controller))
            })
        })
    }

    /// Asks whenever a connection was lost or made anew, from this call on, whether all is as it was; resolves when it is
    /// not. A driver that is away or does not say is asked until it does: who makes no calls would never learn of it.
    pub fn changes(
        &self,
        what: &'static str,
        is_same: impl Fn() -> BoxFuture<'static, Result<bool, identity::Error>> + Send + 'static,
    ) -> BoxFuture<'static, Stop> {
        let driver = self.name.clone();
        let Some(mut connections) = self.channel.connections() else { return Box::pin(std::future::pending()) };
        let mut known = connections.borrow().in_use();
        Box::pin(async move {
            let (mut pause, mut answered) = (FIRST_PAUSE, Instant::now());
            loop {
                if connections.wait_for(|now| *now != known).await.is_err() {
                    return std::future::pending().await;
                }
                // One that answers and hangs up, again and again, is asked once a second and no more.
                if answered.elapsed() > MAX_PAUSE {
                    pause = FIRST_PAUSE;
                }
                let mut is_told = false;
                loop {
                    sleep(pause).await;
                    pause = (pause * 2).min(MAX_PAUSE);
                    // The connection that the question makes is no reason to ask once more.
                    known = connections.borrow().in_use();
                    match is_same().await {
                        Ok(true) => break,
                        Ok(false) => {
                            let reason = format!(
                                "driver {driver:?} was restarted and has another {what}; start again to use it as it is"
                            );
                            return Stop::Unable { reason };
                        }
                        // Said once, so that nobody wonders what is waited for.
                        Err(error) if !is_told => {
                            tracing::warn!(driver, %error, "the driver does not say whether it is as it was");
                            is_told = true;
                        }
                        Err(error) => tracing::debug!(driver, %error, "the driver still does not say"),
                    }
                }
                tracing::info!(driver, "the driver is back, and as it was");
                answered = Instant::now();
            }
        })
    }

    async fn ask(
        process: &Process,
        channel: Channel,
        deadline: Deadline,
        known_as: &str,
    ) -> Result<Self, identity::Error> {
        let probe = || process.ask(known_as, "/csi.v1.Identity/Probe", identity::probe(&channel, deadline));
        identity::until_ready(probe, CONNECT_BUDGET).await?;
        let name = identity::plugin_name(&channel, deadline);
        let name = process.ask(known_as, "/csi.v1.Identity/GetPluginInfo", name).await?;
        let plugin = identity::plugin_capabilities(&channel, deadline);
        let plugin = process.ask(&name, "/csi.v1.Identity/GetPluginCapabilities", plugin).await?;
        let controller = match plugin.contains(&Service::ControllerService) {
            true => {
                let controller = identity::controller_capabilities(&channel, deadline);
                process.ask(&name, "/csi.v1.Controller/ControllerGetCapabilities", controller).await?
            }
            false => ControllerCapabilities::new(),
        };
        Ok(Self { channel, name, plugin, controller })
    }

    /// What every call to it needs.
    pub fn caller(&self, context: Context, timeout: Duration) -> Caller {
        Caller::new(context, self.channel.clone(), &self.name, timeout)
    }
}

#[cfg(test)]
mod tests;
