//! Learn the driver's name, then offer its registration until shutdown or refusal.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::sync::watch;
use tonic::service::Routes;

use stowage_csi::registration::registration_server::RegistrationServer;
use stowage_csi::{Channel, Connector, Deadline, identity};
use stowage_process::metrics::UNKNOWN_DRIVER;
use stowage_process::{Process, Stop};

use crate::health::Health;
use crate::registration::{Registrar, Verdict};
use crate::serve::Serve;

/// Between two attempts to reach a driver that is not there yet.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const MAX_RETRY: Duration = Duration::from_secs(1);

/// What the registrar is told.
#[derive(Debug, Clone)]
pub struct Options {
    /// The driver's socket as this process sees it.
    pub csi_address: String,
    /// The driver's socket as the kubelet sees it.
    pub kubelet_registration_path: String,
    /// The directory the kubelet watches.
    pub plugin_registration_path: PathBuf,
    /// How long the driver may take to say its name.
    pub timeout: Duration,
    /// How long a driver that is not there yet is waited for.
    pub connect_budget: Duration,
    /// Told what is served.
    pub health: Health,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            csi_address: "/run/csi/socket".into(),
            kubelet_registration_path: String::new(),
            plugin_registration_path: "/registration".into(),
            timeout: Duration::from_secs(1),
            connect_budget: identity::CONNECT_BUDGET,
            health: Health::default(),
        }
    }
}

impl Options {
    /// The registration socket of a driver.
    pub fn socket(&self, driver: &str) -> PathBuf {
        self.plugin_registration_path.join(format!("{driver}-reg.sock"))
    }
}

/// Keeps the driver registered until shutdown.
///
/// Boxed, so that it is compiled with this crate and not once more with each that awaits it.
pub fn run(
    process: Process,
    csi: Arc<dyn Connector>,
    serve: Arc<dyn Serve>,
    options: Options,
) -> BoxFuture<'static, Result<(), Stop>> {
    Box::pin(keep_registered(process, csi, serve, options))
}

async fn keep_registered(
    process: Process,
    csi: Arc<dyn Connector>,
    serve: Arc<dyn Serve>,
    options: Options,
) -> Result<(), Stop> {
    let registered = process.readiness.handle("registration");
    let driver = tokio::select! {
        biased;
        () = process.shutdown.requested() => return Ok(()),
        driver = driver_name(&process, &*csi, &options) => driver?,
    };
    let socket = options.socket(&driver);
    let Some(socket) = socket.to_str() else {
        return Err(unable(format!("--plugin-registration-path {:?} is not UTF-8", options.plugin_registration_path)));
    };
    tracing::info!(driver, socket, "offering registration");
    let (verdict, mut verdicts) = watch::channel(Verdict::NotYet);
    let endpoint = options.kubelet_registration_path.clone();
    let service = RegistrationServer::new(Registrar { driver: driver.clone(), endpoint, verdict });
    options.health.serving(socket, &driver);
    let stop = process.shutdown.child();
    let stopped = stop.clone();
    let mut served = serve.serve(socket, Routes::new(service), async move { stopped.requested().await }.boxed());
    let refused = async {
        loop {
            let verdict = verdicts.borrow_and_update().clone();
            match verdict {
                Verdict::NotYet => {}
                Verdict::Registered => {
                    tracing::info!(driver, "registered");
                    registered.ready();
                }
                Verdict::Refused(error) => return error,
            }
            if verdicts.changed().await.is_err() {
                // The service is gone, and with it everyone who could refuse.
                return std::future::pending().await;
            }
        }
    };
    let refusal = tokio::select! {
        biased;
        ended = &mut served => {
            return match ended {
                Err(error) => Err(unable(error.to_string())),
                Ok(()) if process.shutdown.is_triggered() => Ok(()),
                Ok(()) => Err(unable(format!("the registration socket {socket} is no longer served"))),
            };
        }
        refusal = refused => refusal,
    };
    // The kubelet gets its answer before the socket goes.
    stop.trigger();
    if let Err(error) = served.await {
        tracing::warn!(%error, "the registration socket did not close well");
    }
    Err(unable(format!("the kubelet refused driver {driver}: {refusal}")))
}

/// The driver's name; a driver that is not there yet is waited for.
async fn driver_name(process: &Process, csi: &dyn Connector, options: &Options) -> Result<String, Stop> {
    let address = &options.csi_address;
    let channel: Channel =
        csi.connect(address).map_err(|error| unable(format!("--csi-address {address:?}: {error}")))?;
    let mut waited = Duration::ZERO;
    let mut retry = FIRST_RETRY;
    loop {
        let name = identity::plugin_name(&channel, Deadline(options.timeout));
        match process.ask(UNKNOWN_DRIVER, "/csi.v1.Identity/GetPluginInfo", name).await {
            Ok(name) => return Ok(name),
            Err(error) if error.is_unreachable() && waited < options.connect_budget => {
                // Said once, so that nobody wonders what is waited for.
                if waited.is_zero() {
                    tracing::warn!(%error, "waiting for the driver's socket; see --csi-address");
                }
                tokio::time::sleep(retry).await;
                waited += retry;
                retry = (retry * 2).min(MAX_RETRY);
            }
            Err(error) => {
                let way_out = "check that the driver runs and that --csi-address names its socket";
                return Err(unable(format!("cannot ask the driver at {address} for its name: {error}; {way_out}")));
            }
        }
    }
}

fn unable(reason: String) -> Stop {
    Stop::Unable { reason }
}

#[cfg(test)]
mod tests;
