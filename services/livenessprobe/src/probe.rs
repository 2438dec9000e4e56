//! Learns the driver's name, then asks how it is whenever somebody wants to know.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use http::StatusCode;
use tonic::Code;

use stowage_csi::{Channel, Connector, Deadline, identity};
use stowage_process::admin::Check;
use stowage_process::metrics::UNKNOWN_DRIVER;
use stowage_process::{Process, Stop};

/// Between two attempts to reach a driver that is not there: doubled up to the originals' limit of a second.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const MAX_RETRY: Duration = Duration::from_secs(1);

/// A driver that is there and says nothing for so long is asked for its name anew.
const PATIENCE: Duration = Duration::from_secs(60);

/// What the probe is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the driver listens.
    pub csi_address: String,
    /// How long a driver may take to be reached and to answer.
    pub probe_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self { csi_address: "/run/csi/socket".into(), probe_timeout: Duration::from_secs(3) }
    }
}

/// A way to a driver, and how to ask it.
#[derive(Clone)]
pub struct Probe {
    csi: Arc<dyn Connector>,
    address: String,
    timeout: Duration,
    process: Process,
    driver: Arc<Mutex<String>>,
}

impl Probe {
    /// Refuses an address that is none.
    pub fn new(process: Process, csi: Arc<dyn Connector>, options: &Options) -> Result<Self, Stop> {
        let driver = Arc::new(Mutex::new(UNKNOWN_DRIVER.to_owned()));
        let probe = Self { csi, address: options.csi_address.clone(), timeout: options.probe_timeout, process, driver };
        probe.connect()?;
        Ok(probe)
    }

    /// A way of its own for each question: an old connection leads to a driver that nobody else may reach any more, its
    /// socket removed or another driver's by now.
    fn connect(&self) -> Result<Channel, Stop> {
        let address = &self.address;
        let unable = |error| Stop::Unable { reason: format!("--csi-address {address:?}: {error}") };
        self.csi.connect(address).map_err(unable)
    }

    /// The answer of `/healthz`.
    pub fn check(&self) -> Check {
        let probe = self.clone();
        Arc::new(move || {
            let probe = probe.clone();
            Box::pin(async move {
                let healthy = probe.ask().await;
                if let Err(reason) = &healthy {
                    tracing::error!(driver = probe.driver(), reason, "the driver is not well");
                }
                healthy.map_err(|reason| (StatusCode::INTERNAL_SERVER_ERROR, reason))
            })
        })
    }

    /// Whether the driver is well. One that cannot be reached may be about to start: it has the whole time to come.
    async fn ask(&self) -> Result<(), String> {
        let channel = self.connect().map_err(|error| error.to_string())?;
        let asked = async {
            let mut retry = FIRST_RETRY;
            loop {
                let answer = identity::probe(&channel, Deadline(self.timeout));
                match self.process.ask(&self.driver(), "/csi.v1.Identity/Probe", answer).await {
                    Ok(true) => return Ok(()),
                    Ok(false) => return Err("driver responded but is not ready".to_owned()),
                    Err(error) if error.is_unreachable() => {
                        tracing::debug!(%error, "nobody is there yet");
                        tokio::time::sleep(retry).await;
                        retry = (retry * 2).min(MAX_RETRY);
                    }
                    Err(error) => return Err(error.to_string()),
                }
            }
        };
        match tokio::time::timeout(self.timeout, asked).await {
            Ok(healthy) => healthy,
            Err(_) => Err(format!("the driver at {} did not answer within {:?}", self.address, self.timeout)),
        }
    }

    /// The driver's name, which is waited for without an end.
    async fn learn_name(&self) -> Result<String, Stop> {
        let unable = |error| Stop::Unable { reason: format!("cannot ask the driver for its name: {error}") };
        let channel = self.connect()?;
        let mut retry = FIRST_RETRY;
        loop {
            let asked = identity::plugin_name(&channel, Deadline(PATIENCE));
            match self.process.ask(UNKNOWN_DRIVER, "/csi.v1.Identity/GetPluginInfo", asked).await {
                Err(error) if error.is_unreachable() || error.code() == Some(Code::DeadlineExceeded) => {
                    // Said once, so that nobody wonders what is waited for.
                    if retry == FIRST_RETRY {
                        tracing::warn!(%error, "waiting for the driver; see --csi-address");
                    }
                    tokio::time::sleep(retry).await;
                    retry = (retry * 2).min(MAX_RETRY);
                }
                ended => return ended.map_err(unable),
            }
        }
    }

    fn driver(&self) -> String {
        self.driver.lock().expect("no code panics while holding the name").clone()
    }
}

/// Learns whom it asks, and stays until shutdown; the admin server does the rest.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(probe: Probe) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(async move {
        let found = probe.process.readiness.handle("driver");
        tokio::select! {
            biased;
            () = probe.process.shutdown.requested() => return Ok(()),
            name = probe.learn_name() => {
                let name = name?;
                tracing::info!(driver = name, "found the driver");
                *probe.driver.lock().expect("no code panics while holding the name") = name;
            }
        }
        found.ready();
        probe.process.shutdown.requested().await;
        Ok(())
    })
}

#[cfg(test)]
mod tests;
