//! Whether the kubelet could register the driver right now: asked over the socket it would use.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::StatusCode;

use stowage_csi::Deadline;
use stowage_csi::channel::Unreachable;
use stowage_csi::connect::Connector;
use stowage_csi::registration::InfoRequest;
use stowage_csi::registration::registration_client::RegistrationClient;
use stowage_process::admin::Check;

/// Knows which socket is served for which driver, once it is.
#[derive(Debug, Clone, Default)]
pub struct Health(Arc<Mutex<Option<Served>>>);

#[derive(Debug, Clone)]
struct Served {
    socket: String,
    driver: String,
}

impl Health {
    pub(crate) fn serving(&self, socket: &str, driver: &str) {
        let served = Served { socket: socket.to_owned(), driver: driver.to_owned() };
        *self.0.lock().expect("no code panics while holding it") = Some(served);
    }

    /// The answer of `/healthz`: 404 while nobody serves the socket, 500 if somebody else does or nobody answers.
    pub fn check(&self, csi: Arc<dyn Connector>, timeout: Duration) -> Check {
        let health = self.clone();
        Arc::new(move || {
            let served = health.0.lock().expect("no code panics while holding it").clone();
            let csi = Arc::clone(&csi);
            Box::pin(async move {
                match served {
                    Some(served) => ask(&*csi, &served, timeout).await,
                    None => Err((StatusCode::NOT_FOUND, "the registration socket is not served yet".into())),
                }
            })
        })
    }
}

async fn ask(csi: &dyn Connector, served: &Served, timeout: Duration) -> Result<(), (StatusCode, String)> {
    let Served { socket, driver } = served;
    let channel = csi.connect(socket).map_err(|error| (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    let mut client = RegistrationClient::new(channel);
    match Deadline(timeout).call(InfoRequest {}, |request| client.get_info(request)).await {
        Ok(info) if info.name == *driver => Ok(()),
        Ok(info) => {
            let message = format!("{socket} answers for driver {:?}, not {driver:?}", info.name);
            Err((StatusCode::INTERNAL_SERVER_ERROR, message))
        }
        Err(status) if Unreachable::in_status(&status).is_some() => {
            Err((StatusCode::NOT_FOUND, format!("nobody listens on {socket}: {}", status.message())))
        }
        Err(status) => Err((StatusCode::INTERNAL_SERVER_ERROR, format!("{socket}: {}", status.message()))),
    }
}
